"""Thumbnails of samples worth looking at, and of what the bank has that is most like them.

Images are read again from the data the run was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from ..columns import penultimate_columns
from ..config import Config
from ..data import BANK, FIT, Pixels, Raw, SampleSource, content_hash, is_image, open_splits
from ..errors import GradscoreError
from ..evaluation import Records, ScoreFile, positive_of
from ..meta import MetaInputs
from ..store import RunFolder
from ..system import FloatArray
from .pages import thumbnail

PER_GALLERY = 12
PER_OOD_SET = 6

PER_SAMPLE = 3
"""Samples of the bank shown below each sample."""

BELOW = (
    "Below each, the nearest samples of the bank by the classifier's features, with their class and distance (0 to 2)."
)


@dataclass(frozen=True, kw_only=True)
class Thumbnail:
    """A sample.

    Attributes:
        sample_id: its name, which may hold anything.
        image: a PNG as a data URI, or None when the image cannot be had.
        notes: what to say of it.
        nearest: samples of the bank that are most like it.
    """

    sample_id: str
    image: str | None
    notes: Sequence[str]
    nearest: Sequence[Thumbnail] = ()


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Thumbnails with a title, and what to see in them."""

    title: str
    caption: str
    thumbnails: Sequence[Thumbnail]


@dataclass(frozen=True, kw_only=True)
class Galleries:
    """All galleries, what is below each sample, and why images are missing, if some are."""

    galleries: list[Gallery]
    below: str
    missing: list[str]


ImageOf = Callable[[str, str], Pixels | None]
"""From split and sample to its image (H, W, C) uint8, None where there is none."""


def make_galleries(
    scores: ScoreFile,
    records: Records,
    config: Config,
    *,
    nearest: NearestOfBank | None = None,
    given: ImageOf | None = None,
    class_names: Sequence[str] | None = None,
) -> Galleries:
    """The most suspicious test samples, the confident mistakes, and the OOD samples that slip through.

    Args:
        scores: of the samples.
        records: of the evaluation.
        config: of the run, which says where the images are.
        nearest: finds the samples of the bank to show below each.
        given: gives the images instead.
        class_names: of the model, in the order of its outputs; None where they are not known.
    """
    images = _Images(config, nearest, given, class_names)
    galleries = []
    for dataset in records.datasets("misclassification", "in_dist_only"):
        key = ("misclassification", "in_dist_only", dataset)
        block = scores.columns(*key, ["positive", "chosen"]).sort_values("chosen", kind="stable")
        places = block.index.to_numpy()
        wrong = places[positive_of(block)]
        galleries += [
            Gallery(
                title="Most suspicious test samples",
                caption="The highest scores for being wrong. Where the label is the mistake, correct it.",
                thumbnails=images.thumbnails(scores.rows(*key, places[::-1][:PER_GALLERY])),
            ),
            Gallery(
                title="Confident mistakes",
                caption="Wrong predictions with the lowest scores, which pass unnoticed. What they have in common is "
                "what to collect more of.",
                thumbnails=images.thumbnails(scores.rows(*key, wrong[:PER_GALLERY])),
            ),
        ]
    for protocol in records.protocols("ood")[:1]:
        for dataset in records.datasets("ood", protocol):
            block = scores.columns("ood", protocol, dataset, ["positive", "chosen"])
            ood = block[positive_of(block)].sort_values("chosen", kind="stable").index.to_numpy()
            in_dist = block.loc[~positive_of(block), "chosen"].to_numpy(dtype=np.float64)
            galleries.append(
                Gallery(
                    title=f"OOD samples that slip through: {dataset}",
                    caption="The OOD samples with the lowest scores, and the share of in-distribution samples that "
                    "look more suspicious. If there are in-distribution samples among them, the set is not clean.",
                    thumbnails=images.thumbnails(scores.rows("ood", protocol, dataset, ood[:PER_OOD_SET]), in_dist),
                )
            )
    shown = [each for each in galleries if each.thumbnails]
    below = "" if nearest is None or not nearest.has_bank else BELOW
    return Galleries(galleries=shown, below=below, missing=list(images.missing.values()))


@dataclass
class _Images:
    """Reads images by split and sample; what cannot be read is noted once for each split."""

    config: Config
    nearest: NearestOfBank | None = None
    given: ImageOf | None = None
    class_names: Sequence[str] | None = None
    opened: dict[str, tuple[SampleSource, dict[str, int]] | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def thumbnails(self, rows: pd.DataFrame, in_dist: FloatArray | None = None) -> list[Thumbnail]:
        """The thumbnails of rows of the score table, OOD samples where the scores of in-distribution ones are given."""
        neighbours = [pd.DataFrame()] * len(rows) if self.nearest is None else self.nearest.of(rows)
        return [
            replace(self._thumbnail(row, in_dist), nearest=[self._of_bank(each) for _, each in near.iterrows()])
            for (_, row), near in zip(rows.iterrows(), neighbours, strict=True)
        ]

    def _of_bank(self, near: pd.Series) -> Thumbnail:
        label = "no label" if near["label"] < 0 else f"is {self._name(near['label'])}"
        notes = [label, f"{near['distance']:.2f}"]
        return Thumbnail(sample_id=str(near["sample_id"]), image=self._image(near), notes=notes)

    def _thumbnail(self, row: pd.Series, in_dist: FloatArray | None) -> Thumbnail:
        if in_dist is not None:
            share = float((in_dist > row["chosen"]).mean())
            notes = [f"predicted {self._name(row['prediction'])}", f"{100 * share:.0f} % of in-dist. above"]
        else:
            truth = f", is {self._name(row['label'])}" if row["label"] >= 0 else ""
            notes = [f"predicted {self._name(row['prediction'])}{truth}", f"p(wrong) = {row['probability']:.3f}"]
        return Thumbnail(sample_id=str(row["sample_id"]), image=self._image(row), notes=notes)

    def _image(self, row: pd.Series) -> str | None:
        split = str(row["split"])
        if self.given is not None:
            return self._of_given(self.given(split, str(row["sample_id"])), split)
        try:
            raw = self._raw(split, str(row["sample_id"]))
        except (GradscoreError, OSError) as error:
            self.missing.setdefault(split, f"{split}: {error}")
            return None
        if raw is None or content_hash(raw) != row["content_hash"]:
            self.missing.setdefault(split, f"{split}: the data are no longer those the features were extracted from")
            return None
        return thumbnail(raw) if is_image(raw) else None

    def _of_given(self, pixels: Pixels | None, split: str) -> str | None:
        if pixels is None:
            self.missing.setdefault(split, f"{split}: not every sample is an image that was kept")
            return None
        return thumbnail(pixels)

    def _raw(self, split: str, sample_id: str) -> Raw | None:
        opened = self._open(split)
        if opened is None or sample_id not in opened[1]:
            return None
        images, places = opened
        return images.sample(places[sample_id])

    def _open(self, split: str) -> tuple[SampleSource, dict[str, int]] | None:
        if split not in self.opened:
            self.opened[split] = None  # stays so if opening fails
            config = self.config
            images = open_splits(
                config.data,
                preprocessing=config.preprocessing,
                num_classes=config.model.classes,
                seed=config.extract.seed,
                only=[split],
                model_names=self.class_names,
            )[split].source
            self.opened[split] = (images, {name: place for place, name in enumerate(images.ids)})
        return self.opened[split]

    def _name(self, label: int) -> str:
        return str(label) if self.class_names is None else self.class_names[label]


class NearestOfBank:
    """Finds the samples of the bank that are nearest to others by penultimate features.

    Args:
        run: a run folder with meta models.
        inputs: what makes their inputs, which holds the bank.
    """

    def __init__(self, run: RunFolder, inputs: MetaInputs) -> None:
        self._run = run
        self._bank = inputs.baselines.bank
        self._split = BANK if BANK in run.sizes else FIT

    @property
    def has_bank(self) -> bool:
        """Whether there is anything to be near to."""
        return self._bank is not None and self._bank.content is not None

    def of(self, rows: pd.DataFrame) -> list[pd.DataFrame]:
        """The nearest of each row of a table of scores, the nearest first; none where there is no bank.

        Returns:
            For each row a table with the columns `split` (`in_dist.bank`, or without a bank `in_dist.fit`),
            `content_hash`, `sample_id`, `label` (-1 without one) and `distance`: Euclidean, between penultimate
            features of unit length, 0 to 2.
        """
        bank = self._bank
        if bank is None or bank.content is None:
            return [pd.DataFrame() for _ in range(len(rows))]
        found: dict[tuple[str, str], pd.DataFrame] = {}
        for split, chosen in rows.groupby("split", sort=False):
            mask = self._run.read(str(split), ["sample_id"])["sample_id"].isin(chosen["sample_id"])
            features = penultimate_columns(self._run.columns(str(split)))
            columns = ["sample_id", "prediction", "content_hash", *features]
            frame = self._run.read(str(split), columns, rows=mask.to_numpy(dtype=bool))
            near = bank.neighbours(
                frame[features].to_numpy(dtype=np.float64),
                frame["prediction"].to_numpy(dtype=np.int64),
                frame["content_hash"].to_numpy(dtype=np.str_),
            )
            for name, places, distances in zip(frame["sample_id"], near.places, near.distances, strict=True):
                closest = self._samples.loc[bank.content[places[:PER_SAMPLE]]].reset_index()
                found[str(split), name] = closest.assign(split=self._split, distance=distances[:PER_SAMPLE])
        return [found[str(split), str(name)] for split, name in zip(rows["split"], rows["sample_id"], strict=True)]

    @cached_property
    def _samples(self) -> pd.DataFrame:
        """Name and label of the samples of the bank by content."""
        known = [] if self._bank is None or self._bank.content is None else self._bank.content.tolist()
        held = self._run.read(self._split, ["content_hash"])["content_hash"].isin(known).to_numpy(dtype=bool)
        frame = self._run.read(self._split, ["content_hash", "sample_id", "label"], rows=held)
        return frame.drop_duplicates("content_hash", keep="last").set_index("content_hash")
