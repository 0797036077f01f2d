"""The kinds of projections by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import ConfigError
from ..system import closest
from .factored import TwoSided
from .projection import Projection
from .rademacher import Rademacher
from .sparse import Sparse

SMALLEST, LARGEST = 64, 8192
"""Numbers that a gradient may be projected to."""

KINDS: dict[str, Callable[[int, int], Projection]] = {
    "rademacher": Rademacher,
    "sparse": Sparse,
    "factored": TwoSided,
}
"""Makes a projection from the numbers for each sample and a seed, by the name of its kind."""


def make_projection(kind: str, dim: int, seed: int) -> Projection:
    """The projection of a kind.

    Args:
        kind: a name in `KINDS`.
        dim: numbers for each sample, from `SMALLEST` to `LARGEST`.
        seed: of what is random.

    Raises:
        ConfigError: no such kind, or another number.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind: unknown kind of projection '{kind}'; {closest(kind, list(KINDS))}")
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or not SMALLEST <= dim <= LARGEST:
        raise ConfigError(f"dim: wanted a whole number from {SMALLEST} to {LARGEST}, got {dim!r}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise ConfigError(f"seed: wanted a whole number, got {seed!r}")
    return KINDS[kind](int(dim), int(seed))
