"""What a score is: a number that says how unusual a sample is, found without its gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ..errors import EvaluationError
from ..models import Head
from ..system import FloatArray, IntArray

Needs = Literal["logits", "penultimate"]
"""What a score looks at: every sample has logits, features before the last layer are there where a run stores them."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What is known of N samples.

    Attributes:
        logits: (N, K) float64.
        penultimate: (N, D) float64, or None.
    """

    logits: FloatArray
    penultimate: FloatArray | None = None

    def __len__(self) -> int:
        """N."""
        return len(self.logits)


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


Fitted = Callable[[Samples], FloatArray]
"""From samples to scores (N,) float64, higher = more likely wrong or out of distribution."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score by name: reported beside the meta model, which has to beat it.

    Attributes:
        fit: from ordinary samples to the score; raises `MissingExtraError` where a package is missing.
        needs: what it looks at.
        summary: what it is, on one line.
        source: where it comes from.
        is_input: meta models look at it, so that adding or changing it changes every fit.
    """

    fit: Callable[[Ordinary], Fitted]
    needs: Needs
    summary: str
    source: str = ""
    is_input: bool = False


def of_logits(
    function: Callable[[ArrayLike], FloatArray], *, summary: str, source: str = "", is_input: bool = False
) -> Score:
    """A score that is a function of the logits (N, K) alone."""

    def fit(_ordinary: Ordinary) -> Fitted:
        return lambda samples: function(samples.logits)

    return Score(fit=fit, needs="logits", summary=summary, source=source, is_input=is_input)


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
