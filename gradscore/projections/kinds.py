"""The kinds of projections by name."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ConfigError
from ..system import closest, is_whole
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
"""From a dimension and a seed to a projection, by the name of its kind."""


def make_projection(kind: str, dim: int, seed: int) -> Projection:
    """The projection of a kind.

    Args:
        kind: a name in `KINDS`.
        dim: of the projection, from `SMALLEST` to `LARGEST`.
        seed: of what is random.

    Raises:
        ConfigError: no such kind, or another dimension or seed.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind: unknown kind of projection '{kind}'; {closest(kind, list(KINDS))}")
    if not is_whole(dim) or not SMALLEST <= dim <= LARGEST:
        raise ConfigError(f"dim: wanted a whole number from {SMALLEST} to {LARGEST}, got {dim!r}")
    if not is_whole(seed):
        raise ConfigError(f"seed: wanted a whole number, got {seed!r}")
    return KINDS[kind](int(dim), int(seed))
