"""All scores of a run: fitted once on ordinary samples, then tables of them for any samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import EvaluationError, MissingExtraError, StoreError
from ..system import FloatArray, are_texts
from .baseline import Arrays, Needs, Ordinary, Samples, penultimate_of
from .neighbours import Bank
from .table import BASELINES, OF_AUGMENTATIONS, OF_PENULTIMATE, OVER_AUGMENTATIONS

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
        averaged = (
            [name for name in self.learned if BASELINES[name].needs not in OF_AUGMENTATIONS]
            if self.augmentations
            else []
        )
        return [*self.learned, *(name + OVER_AUGMENTATIONS for name in averaged)]

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
        looks = [
            whole,
            *(self._with_neighbours(augmentation, samples) for augmentation in whole.augmentations.values()),
        ]
        for name in self.names[len(columns) :]:
            plain = plain_name(name)
            columns[name] = np.mean(
                [columns[plain], *(self._of(plain, augmentation) for augmentation in looks[1:])], axis=0
            )
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

    def description(self) -> dict[str, Any]:
        """The rest of it, as plain values."""
        return {"scores": list(self.learned), "augmentations": list(self.augmentations)}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]], description: Mapping[str, Any]) -> Self:
        """The scores of which `arrays` and `description` were stored.

        Raises:
            StoreError: they do not fit together, or name scores that are not known here.
        """
        names, augmentations = description.get("scores"), description.get("augmentations")
        if not are_texts(names) or not are_texts(augmentations):
            raise StoreError("scores: the description is incomplete")
        unknown = [name for name in names if name not in BASELINES]
        if unknown:
            raise StoreError(
                f"scores: {', '.join(map(repr, unknown))} unknown here; install the package that brings it"
            )
        learned = {name: dict(_below(f"{name}/", arrays)) for name in names}
        stored = dict(_below(_BANK, arrays))
        bank = None
        if stored:
            if not {"features", "classes"} <= stored.keys():
                raise StoreError("scores: the bank is incomplete")
            content = stored.get("content")
            features = np.asarray(stored["features"], dtype=np.float32)
            lengths = np.linalg.norm(features, axis=-1)
            if not (np.isclose(lengths, 1, atol=1e-4) | (lengths == 0)).all() or len(stored["classes"]) != len(
                features
            ):
                raise StoreError("scores: the bank is damaged; run fit-meta again")
            bank = Bank(
                features=features,
                classes=np.asarray(stored["classes"], dtype=np.int64),
                content=None if content is None else _as_text(content),
            )
        return cls(learned=learned, bank=bank, augmentations=tuple(augmentations))

    def _of(self, name: str, samples: Samples) -> FloatArray:
        return np.asarray(BASELINES[name].of(samples, self.learned[name]), dtype=np.float64)

    def _with_neighbours(self, look: Samples, samples: Samples) -> Samples:
        """A look at samples with its neighbours, among those of the class that is predicted of the samples."""
        if self.bank is None:
            return look
        found = self.bank.neighbours(penultimate_of(look), samples.predictions, samples.content)
        return replace(look, neighbours=found)


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
