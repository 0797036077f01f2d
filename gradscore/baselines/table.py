"""The baselines by name, and all of a run: fitted once on ordinary samples, then tables of scores for any samples.

In formulas p is the softmax of the logits z.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import EvaluationError, MissingExtraError, StoreError
from ..system import FloatArray, Registry
from . import logits, penultimate
from .baseline import Arrays, Baseline, Needs, Neighbours, Ordinary, Samples, learns_nothing, of_logits, penultimate_of
from .penultimate import Bank, of_penultimate

OF_AUGMENTATIONS = ("augmentations", "features of augmentations")
"""What scores need that compare a sample with its augmentations."""

OF_PENULTIMATE = ("penultimate", "neighbours")
"""What scores need that compare a sample with ordinary ones by what enters the last layer, or change that."""

OVER_AUGMENTATIONS = "@augmentations"
"""End of the name of a score that is averaged over a sample and its augmentations."""

TAKEN = (
    *("task", "protocol", "dataset", "split", "sample_id", "content_hash", "label", "prediction", "positive"),
    *("probability", "meta", "logit_lr", "score_lr", "meta_wrong", "classifier"),
)
"""What scores stand beside in the tables of an evaluation."""


def _of_augmentations(
    of: Callable[[Samples, Arrays], FloatArray],
    summary: str,
    *,
    needs: Needs = "augmentations",
    is_compared: bool = False,
) -> Baseline:
    return Baseline(fit=learns_nothing, of=of, needs=needs, summary=summary, is_input=True, is_compared=is_compared)


def _of_neighbours(
    distance: Callable[[Neighbours], FloatArray], summary: str, *, source: str = "", is_compared: bool = False
) -> Baseline:
    def of(samples: Samples, _learned: Arrays) -> FloatArray:
        if samples.neighbours is None:
            raise ValueError("neighbours have not been looked for")
        return np.asarray(distance(samples.neighbours))

    return Baseline(
        fit=learns_nothing,
        of=of,
        needs="neighbours",
        summary=summary,
        source=source,
        is_input=True,
        is_compared=is_compared,
    )


BASELINES: Registry[Baseline] = Registry(
    "score",
    "gradscore.baselines",
    {
        "msp": of_logits(
            logits.msp,
            summary="log(1 - max p)",
            source="Hendrycks and Gimpel 2017",
            is_input=True,
        ),
        "entropy": of_logits(logits.entropy, summary="log of the entropy of p", is_input=True),
        "margin": of_logits(logits.margin, summary="log(1 - (largest p - second largest p))", is_input=True),
        "max_logit": of_logits(logits.max_logit, summary="- max z", source="Hendrycks et al. 2022", is_input=True),
        "energy": of_logits(logits.energy, summary="- log sum exp z", source="Liu et al. 2020", is_input=True),
        "gen": of_logits(
            logits.gen,
            summary="log of the sum over the 100 most probable classes of (p (1 - p))^0.1",
            source="Liu, Lochman and Zach 2023",
            is_input=True,
        ),
        "knn": _of_neighbours(
            lambda found: found.distances[:, -1],
            "distance to the 50th neighbour among features of unit length",
            source="Sun, Ming, Zhu, Li 2022",
            is_compared=True,
        ),
        "knn_10": _of_neighbours(lambda found: found.distances[:, :10][:, -1], "the same, 10th neighbour"),
        "knn_1": _of_neighbours(lambda found: found.distances[:, 0], "the same, nearest neighbour"),
        "class_knn": _of_neighbours(
            lambda found: found.of_class[:, -1],
            "distance to the 10th neighbour of the predicted class among features of unit length",
            is_compared=True,
        ),
        "class_knn_1": _of_neighbours(lambda found: found.of_class[:, 0], "the same, nearest neighbour"),
        "mahalanobis": of_penultimate(
            penultimate.class_means,
            penultimate.mahalanobis,
            summary="squared distance to the nearest class mean, shared covariance",
            source="Lee, Lee, Lee, Shin 2018",
        ),
        "relative_mahalanobis": of_penultimate(
            penultimate.relative_means,
            penultimate.relative_mahalanobis,
            summary="squared distance to the nearest class mean, less that to the mean of all",
            source="Ren, Fort, Liu et al. 2021",
        ),
        "vim": of_penultimate(
            penultimate.residual_space,
            penultimate.vim,
            summary="scaled norm outside the principal subspace of 1000, 512 or half the dimensions, plus energy",
            source="Wang, Li, Feng, Zhang 2022",
        ),
        "react": of_penultimate(
            penultimate.clip,
            penultimate.react,
            summary="energy after features are clipped at their 90th percentile",
            source="Sun, Guo, Li 2021",
            is_input=True,
        ),
        "ash": of_penultimate(
            penultimate.last_layer,
            penultimate.ash,
            summary="energy after ASH-S with 65 % pruned",
            source="Djurisic et al. 2023",
            is_input=True,
        ),
        "scale": of_penultimate(
            penultimate.last_layer,
            penultimate.scale,
            summary="energy after SCALE with 65 %",
            source="Xu, Chen, Franchi, Yao 2024",
            is_input=True,
        ),
        "gradnorm": of_penultimate(
            penultimate.last_layer,
            penultimate.gradnorm,
            summary="minus the L1 norm of the last weight's gradient with a uniform label",
            source="Huang, Geng, Li 2021",
            is_input=True,
        ),
        "feature_norm": of_penultimate(
            penultimate.last_layer,
            penultimate.norm,
            summary="minus the logarithm of the L2 norm of the features",
            source="Yu et al. 2023",
            is_input=True,
        ),
        "augmentations_probability": _of_augmentations(
            logits.mean_probability,
            "log(1 - mean over augmentations of p of the predicted class)",
            is_compared=True,
        ),
        "augmentations_log_probability": _of_augmentations(
            logits.mean_log_probability, "minus the mean over augmentations of log p of the predicted class"
        ),
        "augmentations_entropy": _of_augmentations(logits.mean_entropy, "entropy of the mean over augmentations of p"),
        "augmentations_logits": _of_augmentations(
            logits.logit_variance, "log of the variance of z over augmentations, summed over classes"
        ),
        "augmentations_features": _of_augmentations(
            penultimate.feature_disagreement,
            "1 - mean cosine of the features of a sample and of its augmentations",
            needs="features of augmentations",
        ),
    },
    wanted=Baseline,
    reserved=TAKEN,
)
"""Scores by name, in the order of reports; higher = more likely wrong or out of distribution."""

_BANK = "bank/"


@dataclass(frozen=True, kw_only=True)
class FittedBaselines:
    """Scores and what they have learned.

    Attributes:
        learned: by score, in the order of `BASELINES`.
        bank: ordinary samples to compare with; None where penultimate features are not stored.
        augmentations: the augmentations that count.
        notices: sentences for the reader.
    """

    learned: Mapping[str, Arrays]
    bank: Bank | None = None
    augmentations: Sequence[str] = ()
    notices: list[str] = field(default_factory=list)

    @classmethod
    def fit(cls, ordinary: Ordinary, *, augmentations: Sequence[str] = ()) -> Self:
        """Fits every score that the samples allow.

        Args:
            ordinary: what to fit on; its samples become the bank, where they have penultimate features.
            augmentations: the augmentations that count.

        Raises:
            EvaluationError: too few samples, or values that are not finite.
        """
        penultimate = ordinary.samples.penultimate
        there: set[Needs] = {"logits"}
        if penultimate is not None:
            there |= {"penultimate", "neighbours"}
        if augmentations:
            there |= {"augmentations"} if penultimate is None else {"augmentations", "features of augmentations"}
        learned, notices = {}, []
        for name in BASELINES:
            if BASELINES[name].needs not in there:
                continue
            try:
                learned[name] = BASELINES[name].fit(ordinary)
            except MissingExtraError as error:
                notices.append(str(error))
        bank = None
        if penultimate is not None:
            bank = Bank.of(penultimate_of(ordinary.samples), ordinary.classes, ordinary.samples.content)
        return cls(learned=learned, bank=bank, augmentations=tuple(augmentations), notices=list(dict.fromkeys(notices)))

    @property
    def names(self) -> list[str]:
        """The columns of `table`."""
        averaged = [name for name in self.learned if BASELINES[name].needs not in OF_AUGMENTATIONS]
        return [*self.learned, *(name + OVER_AUGMENTATIONS for name in averaged if self.augmentations)]

    @property
    def compared(self) -> list[str]:
        """Those of `names` that meta models are compared with."""
        return [name for name in self.names if BASELINES[plain_name(name)].is_compared]

    @property
    def missing(self) -> list[str]:
        """Those that meta models would be compared with, if penultimate features were stored; none where they are."""
        if self.bank is not None:
            return []
        return [name for name in BASELINES if BASELINES[name].is_compared and BASELINES[name].needs in OF_PENULTIMATE]

    @property
    def inputs(self) -> list[str]:
        """Those of `names` that meta models look at."""
        return [name for name in self.names if BASELINES[plain_name(name)].is_input]

    def table(self, samples: Samples) -> pd.DataFrame:
        """The scores of samples: (N, len(names)) float64, higher = more likely wrong or out of distribution.

        Raises:
            EvaluationError: features or augmentations that were there when the scores were fitted are missing, or a
                value is not finite.
        """
        if not len(samples):
            return pd.DataFrame(np.empty((0, len(self.names))), columns=self.names)
        missing = [name for name in self.augmentations if name not in samples.augmentations]
        if missing:
            raise EvaluationError(
                f"scores: augmentation {missing[0]!r} of these samples is missing; extract it as well"
            )
        whole = replace(
            self._with_neighbours(samples, samples),
            augmentations={name: samples.augmentations[name] for name in self.augmentations},
        )
        columns = {name: self._of(name, whole) for name in self.learned}
        augmented = [self._with_neighbours(each, samples) for each in whole.augmentations.values()]
        for name in self.names[len(columns) :]:
            plain = plain_name(name)
            columns[name] = np.mean([columns[plain], *(self._of(plain, each) for each in augmented)], axis=0)
        return pd.DataFrame(columns)

    def arrays(self, *, content: bool = True) -> dict[str, NDArray[Any]]:
        """Everything that was learned, by name, to be stored; with or without hashes of the bank's content."""
        found: dict[str, NDArray[Any]] = {
            f"{name}/{array}": values for name, learned in self.learned.items() for array, values in learned.items()
        }
        if self.bank is not None:
            found |= {f"{_BANK}features": self.bank.features, f"{_BANK}classes": self.bank.classes}
            if content and self.bank.content is not None:
                found[f"{_BANK}content"] = _as_bytes(self.bank.content)
        return found

    @classmethod
    def restored(
        cls, arrays: Mapping[str, NDArray[Any]], *, names: Sequence[str], augmentations: Sequence[str]
    ) -> Self:
        """The baselines of which `arrays` were stored.

        Args:
            arrays: with others among them.
            names: of the baselines.
            augmentations: those that count.

        Raises:
            StoreError: a baseline is not known here.
        """
        unknown = [name for name in names if name not in BASELINES]
        if unknown:
            raise StoreError(
                f"scores: {', '.join(map(repr, unknown))} unknown here; install the package that brings it"
            )
        stored = dict(_below(_BANK, arrays))
        content = stored.get("content")
        bank = Bank(
            features=stored["features"],
            classes=stored["classes"],
            content=None if content is None else _as_text(content),
        ) if stored else None  # fmt: skip
        learned = {name: dict(_below(f"{name}/", arrays)) for name in names}
        return cls(learned=learned, bank=bank, augmentations=tuple(augmentations))

    def _of(self, name: str, samples: Samples) -> FloatArray:
        return np.asarray(BASELINES[name].of(samples, self.learned[name]), dtype=np.float64)

    def _with_neighbours(self, augmented: Samples, samples: Samples) -> Samples:
        """Samples or an augmentation of them with its neighbours, among those of the class predicted of the samples."""
        if self.bank is None:
            return augmented
        found = self.bank.neighbours(penultimate_of(augmented), samples.predictions, samples.content)
        return replace(augmented, neighbours=found)


def plain_name(name: str) -> str:
    """The name of a score without what says that it is averaged over augmentations."""
    return name.removesuffix(OVER_AUGMENTATIONS)


def _below(start: str, arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    return ((name.removeprefix(start), values) for name, values in arrays.items() if name.startswith(start))


def _as_bytes(texts: NDArray[np.str_]) -> NDArray[np.uint8]:
    """Texts of ASCII as (N, width) bytes, ended by zeros."""
    fixed = np.char.encode(np.asarray(texts, dtype=np.str_), "ascii")
    return np.frombuffer(fixed.tobytes(), dtype=np.uint8).reshape(len(fixed), fixed.itemsize)


def _as_text(values: NDArray[Any]) -> NDArray[np.str_]:
    rows = np.ascontiguousarray(values, dtype=np.uint8)
    return np.char.decode(rows.view(f"S{rows.shape[1]}")[:, 0], "ascii") if rows.size else np.empty(0, dtype=np.str_)
