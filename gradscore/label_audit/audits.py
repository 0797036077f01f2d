"""Audits of labels, of a model and samples of a program or of a split of a configuration; and their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from ..config import AUTO, Config, ExtractConfig, FeaturesConfig, section
from ..data import Pixels, Samples, Selected, are_images, is_image, planned_splits
from ..errors import DataError, GradscoreError
from ..extractor import count_classes
from ..models import Interface
from ..pipeline import Progress, feature_table, given_samples, open_split, resolved_features, warn_of_overflow
from ..reporting import Part, Plot, ToolFiles, colour, heat_map, histograms, thumbnail, write_beside
from ..system import checked, clear_page, make_folder, only_writer, replacing, write_csv
from .last_layers import check_class_sizes
from .ranking import Audit, check_names, ranked

AUGMENTATIONS = ("mirror", "shift:1,0", "shift:-1,0", "shift:0,1", "shift:0,-1")
"""How images are looked at as well; an augmentation that costs the classifier accuracy is not counted."""

SMALLEST = 8
"""Pixels that an image has in height and width at least."""


PLAIN = ExtractConfig()
"""Settings of how samples are computed where nothing else is said."""


@np.errstate(under="ignore")
@checked
def audit(
    model: nn.Module,
    data: Any,
    *,
    class_names: Iterable[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    penultimate: str | None = None,
    batch_size: int = PLAIN.batch_size,
    output: str | int | None = None,
    one_logit: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Ranks labelled samples by how likely their given label is wrong.

    Args:
        model: the classifier, in eval mode; it may have been trained on these very samples and labels.
        data: labelled samples as `gradscore.features` takes them.
        class_names: in the order of the outputs of the model.
        preprocessing: as for `gradscore.features`.
        penultimate: the name of the linear layer whose inputs are compared; by default the one that makes the logits.
        batch_size: samples that go through the model at a time.
        output: as for `gradscore.features`.
        one_logit: as for `gradscore.features`.
        seed: of the folds.
        progress: called as `progress(split, done, total)` after every batch.

    Returns:
        The samples, the most suspicious first.

    Raises:
        ConfigError: another `penultimate`, batch size or seed, or a DataLoader that shuffles.
        DataError: a sample without a label, a class with too few samples, or names of other classes.
        ModelError: the model is in training mode, cannot take the samples, or ends in no linear layer.
        EngineError: gradients that cannot be computed.

    Example:
        >>> import torch
        >>> samples = torch.arange(400.0)[:, None]
        >>> labels = (torch.arange(400) >= 200).long()
        >>> labels[390] = 0
        >>> model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2)).eval()
        >>> audit(model, (samples, labels)).table["sample_id"].iloc[0]
        '390'
    """
    options = section(ExtractConfig, {"batch_size": batch_size, "seed": seed}, where="extract")
    interface = Interface(output=output, one_logit=one_logit)
    samples = given_samples(model, data, preprocessing=preprocessing)
    if class_names is not None:
        class_names = class_names if isinstance(class_names, str) else list(class_names)
        with interface.attached(model):
            check_names(class_names, count_classes(model, samples.first))
    table = audited_features(
        model, samples, penultimate=penultimate or AUTO, options=options, interface=interface, progress=progress
    )
    return ranked(table, class_names=class_names, seed=options.seed)


def audited_features(
    model: nn.Module,
    samples: Samples,
    *,
    penultimate: bool | str = AUTO,
    options: ExtractConfig,
    interface: Interface,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """The features that an audit looks at.

    Args:
        model: as for `audit`.
        samples: what is audited.
        penultimate: the name of the linear layer, True for the last one, `auto` for the one that makes the logits.
        options: batch size and part size.
        interface: how the model returns logits.
        progress: called as `progress(split, done, total)` after every batch.

    Raises:
        DataError: as `audit`; so do ConfigError, ModelError and EngineError.
    """
    images = samples.first.inputs
    look_again = isinstance(images, Tensor) and are_images(images) and min(images.shape[2:]) >= SMALLEST
    settings = {
        "losses": ["label"],
        "statistics": ["l2"],
        "granularity": "model",
        "penultimate": penultimate,
        "augmentations": list(AUGMENTATIONS) if look_again else [],
    }
    features = section(FeaturesConfig, settings, where="features")
    with interface.attached(model):
        features = resolved_features(features, model, images)
    if features.penultimate is False:  # which the extractor refuses, with what to do
        features = features.model_copy(update={"penultimate": True})
    table = feature_table(model, samples, features, options, interface=interface, progress=progress)
    warn_of_overflow(table)
    return table


def audit_config(
    config: Config,
    *,
    split: str,
    progress: Progress | None,
) -> tuple[Audit, Callable[[int], Pixels | None]]:
    """Audits the labels of a split.

    Of the section `features`, only `penultimate` counts.

    Args:
        config: the settings.
        split: which samples; all of them need labels.
        progress: told after every batch.

    Returns:
        What was found, and what finds the image (H, W, C) uint8 of a sample by its place in the audit: None where it is
        no image, or cannot be read any more.

    Raises:
        ConfigError: no such split, or a device that is not there.
        ModelError: a model that cannot be built, or ends in no linear layer.
        DataError: samples that cannot be used or have no label, or a class with too few.
        EngineError: gradients that cannot be computed.
    """
    opened = open_split(config, split, loss="label", command="audit")
    dataset = opened.dataset
    if dataset.labels is not None:  # as open_split made sure
        check_class_sizes(dataset.labels)
    table = audited_features(
        opened.model,
        opened.samples,
        penultimate=config.features.penultimate or AUTO,
        options=config.extract,
        interface=Interface(),
        progress=None if progress is None else lambda _, done, total: progress(split, done, total),
    )
    found = ranked(table, class_names=dataset.class_names)
    places = {name: place for place, name in enumerate(dataset.ids)}

    def image(place: int) -> Pixels | None:
        try:
            raw = dataset.source.sample(places[table["sample_id"].iloc[place]])
        except (GradscoreError, OSError):
            return None
        return raw if is_image(raw) else None

    notices = [*opened.notices, *found.notices]
    spec, select = planned_splits(config.data)[split][1], f"data.{split}.select"
    whole = len(dataset.source.base.ids) if isinstance(dataset.source, Selected) else len(dataset)
    if len(dataset) < whole:
        notices.append(
            f"only the {len(dataset):,} samples that {select} takes of {spec.source} were looked at; all "
            f"{whole:,} of them by a configuration with --set {select}={{}}"
        )
    return replace(found, notices=notices), image


LABELS_SHOWN = 100
"""Samples on the page."""

TEMPLATE = Path(__file__).parent / "templates" / "audit.html.jinja"

FOOTER = (
    "Scores: higher means that the label is more likely wrong. All samples are in audit.csv and audit.parquet beside "
    "this page; decisions stay in this browser until they are exported."
)

PixelsOf = Callable[[int], Pixels | None]
"""From the place of a sample in the data to its image (H, W, C) uint8; None where there is none."""


PAGE = "audit.html"
FILES = ("audit.csv", "audit.parquet", PAGE)
"""Names of the files of `write_audit`."""


def write_audit(
    audit: Audit, folder: str | Path, *, name: str = "labels", images: PixelsOf | None = None, shown: int = LABELS_SHOWN
) -> ToolFiles:
    """Writes `audit.csv`, `audit.parquet`, and, with the extra `report`, `audit.html`.

    The page is written first, so that tables are there only beside the page that belongs to them. Texts of the CSV file
    that a spreadsheet would run as formulas begin with `'`.

    Args:
        audit: what was found.
        folder: where the files go.
        name: the heading of the page.
        images: gives the image (H, W, C) uint8 of the sample at a place in the data, an array, or None.
        shown: how many samples the page has, the most suspicious ones.

    Returns:
        The files.

    Raises:
        DataError: `images` is no function, or gives something else.
        OutputError: they cannot be written.
        StoreError: another process is writing there.
    """
    if images is not None and not callable(images):
        raise DataError(f"images: wanted a function from a place to an image, got {type(images).__name__}")
    folder = Path(folder)
    make_folder(folder)
    tables = [folder / "audit.csv", folder / "audit.parquet"]
    with only_writer(folder):
        clear_page(folder / PAGE, *tables)
        files = write_beside(
            tables,
            folder / PAGE,
            lambda: (
                _content(audit, name=name, images=images, shown=shown),
                [Part(title="All samples", plots=_plots(audit))],
            ),
            template=TEMPLATE,
            again="audit again",
        )
        named = _named(audit)
        with replacing(tables[0]) as temporary:
            write_csv(named, temporary, float_format="%.9g")
        with replacing(tables[1]) as temporary:
            named.to_parquet(temporary, index=False)
    return files


def _content(audit: Audit, *, name: str, images: PixelsOf | None, shown: int) -> dict[str, object]:
    return {
        "name": name,
        "title": f"labels of {name}",
        "brand": "gradscore audit",
        "footer": FOOTER,
        "facts": [
            ("samples", len(audit.table)),
            ("suspected", audit.suspected),
            ("on this page", min(shown, len(audit.table))),
        ],
        "sentence": audit.sentence,
        "notices": audit.notices,
        "cards": _cards(audit, images, shown),
        "classes": [audit.name(label) for label in sorted(audit.table["label"].unique())],
    }


def _named(audit: Audit) -> pd.DataFrame:
    """The table with the names of classes where they are known."""
    if audit.class_names is None:
        return audit.table
    columns: dict[str, Any] = {}
    for name in audit.table:
        columns[str(name)] = audit.table[name]
        if name in ("prediction", "suggested", "label"):
            columns[f"{name}_name"] = [audit.name(int(label)) for label in audit.table[name]]
    return pd.DataFrame(columns)


def _cards(audit: Audit, images: PixelsOf | None, shown: int) -> list[dict[str, Any]]:
    """For each sample of the page its row, names of classes, its image and those of its nearest samples."""
    ids = dict(zip(audit.table["place"], audit.table["sample_id"], strict=True))

    def image(place: int) -> str | None:
        shown = None if images is None else images(place)
        return None if shown is None else thumbnail(_pixels(shown, place))

    return [
        {
            "row": row,
            "label": audit.name(row["label"]),
            "suggested": audit.name(row["suggested"]),
            "image": image(row["place"]),
            "nearest": [(str(ids[near]), image(near)) for near in audit.nearest.get(row["place"], [])],
        }
        for row in audit.table.head(shown).to_dict("records")
    ]


def _pixels(image: Any, place: int) -> Pixels:
    """An image as an array (H, W, C) uint8.

    Raises:
        DataError: it is something else.
    """
    found = np.asarray(image)
    found = found[..., None] if found.ndim == 2 else found
    if found.ndim != 3 or found.dtype != np.uint8 or found.shape[2] not in (1, 3):
        raise DataError(
            f"images: wanted an image (H, W, C) uint8 of 1 or 3 channels, got {found.dtype} of shape {found.shape} for "
            f"place {place}"
        )
    return found


def _plots(audit: Audit) -> list[Plot]:
    table = audit.table
    suspected = table["suspected"].to_numpy(dtype=np.bool_)
    scores = table["score"].to_numpy(dtype=np.float64)
    parts = [("others", scores[~suspected]), ("suspected", scores[suspected])]
    groups = [(title, values, colour(place)) for place, (title, values) in enumerate(parts) if len(values)]
    classes = sorted(set(table["label"]) | set(table["suggested"]))
    counts = pd.crosstab(table["label"][suspected], table["suggested"][suspected])
    counts = counts.reindex(index=classes, columns=classes, fill_value=0)
    names = [audit.name(int(label)) for label in classes]
    return [
        histograms(
            groups,
            name="scores",
            title="Scores",
            caption="Less the logarithm of the label's probability, plus half of that of the suggested class: higher "
            "fits worse. Go through the samples above until labels are right again and again.",
            x_label="score",
        ),
        heat_map(
            counts.to_numpy(dtype=np.float64),
            name="classes",
            title="Which labels are doubted",
            caption="Rows: the given label, columns: the class that fits better, colour: the number of samples. "
            "Where one cell holds many, look at how these two classes were told apart when labels were given.",
            rows=names,
            columns=names,
            unit="samples",
        ),
    ]
