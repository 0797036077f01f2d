"""What a score is: a number that says how unusual a sample is, found without its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import EvaluationError
from ..models import Head
from ..system import FloatArray, IntArray

Needs = Literal["logits", "penultimate", "neighbours", "augmentations", "features of augmentations"]
"""What a score looks at. Every sample has logits; features before the last layer, and with them neighbours in a bank,
are there where a run stores them, augmentations where it makes them."""

Arrays = Mapping[str, NDArray[Any]]
"""What a score has learned from ordinary samples, by name."""


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The neighbours of N samples.

    Attributes:
        distances: (N, k) float64 Euclidean distances between features of unit length, nearest first; k is `NEAREST`, or
            the size of a smaller bank.
        places: (N, k) int64 places in the bank.
        of_class: (N, `NEAREST_OF_CLASS`) distances to those of the predicted class.
    """

    distances: FloatArray
    places: IntArray
    of_class: FloatArray


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What is known of N samples.

    Attributes:
        logits: (N, K) float64.
        penultimate: (N, D) float64, or None.
        augmentations: the same of every augmentation of them, by name.
        content: (N,) hashes of their content, by which they are told from themselves in a bank; None if unknown.
        neighbours: their neighbours in the bank, where they have been looked for.
    """

    logits: FloatArray
    penultimate: FloatArray | None = None
    augmentations: Mapping[str, Samples] = field(default_factory=dict)
    content: NDArray[np.str_] | None = None
    neighbours: Neighbours | None = None

    def __len__(self) -> int:
        """N."""
        return len(self.logits)

    @property
    def predictions(self) -> IntArray:
        """(N,) the class of the largest logit."""
        return np.asarray(self.logits.argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Ordinary:
    """In-distribution samples that a score is fitted on.

    Attributes:
        samples: what is known of them.
        classes: (N,) of each, whichever occur.
        head: the last layer; None without penultimate features.
    """

    samples: Samples
    classes: IntArray
    head: Head | None = None


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A score by name: an input of meta models, or reported beside them, which have to beat it.

    Attributes:
        fit: from ordinary samples to what it has learned; raises `MissingExtraError` where a package is missing.
        of: from samples and what was learned to scores (N,) float64, higher = more likely wrong or out of distribution.
        needs: what it looks at.
        summary: what it is, on one line.
        source: where it comes from.
        is_input: meta models look at it, so that adding or changing it changes every fit.
        is_compared: meta models are compared with it.
    """

    fit: Callable[[Ordinary], Arrays]
    of: Callable[[Samples, Arrays], FloatArray]
    needs: Needs
    summary: str
    source: str = ""
    is_input: bool = False
    is_compared: bool = True


def learns_nothing(_ordinary: Ordinary) -> Arrays:
    """What a score that is the same for every model learns."""
    return {}


def of_logits(
    function: Callable[[ArrayLike], FloatArray], *, summary: str, source: str = "", is_input: bool = False
) -> Baseline:
    """A score that is a function of the logits (N, K) alone."""
    return Baseline(
        fit=learns_nothing,
        of=lambda samples, _learned: function(samples.logits),
        needs="logits",
        summary=summary,
        source=source,
        is_input=is_input,
    )


def penultimate_of(samples: Samples, *, width: int | None = None) -> FloatArray:
    """The penultimate features (N, D) of samples.

    Raises:
        EvaluationError: there are none, not as many as the last layer takes, or values that are not finite.
    """
    values = samples.penultimate
    if values is None or values.ndim != 2 or (width is not None and values.shape[1] != width):
        got = "none" if values is None else str(values.shape)
        raise EvaluationError(f"scores: wanted penultimate features (N, {width or 'D'}), got {got}")
    if not np.isfinite(values).all():
        raise EvaluationError("scores: some penultimate features are not finite; leave their samples out")
    return values
