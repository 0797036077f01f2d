"""Images of another source under a covariate shift."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .image_changes import CORRUPTIONS, MOST_SEVERE, SHIFTS
from .raw_samples import Pixels, Request, SampleSource, UnreadableSampleError, class_names_of, wanted_image


@dataclass(frozen=True)
class ShiftedImages:
    """Images of another source under a covariate shift, with its labels.

    Attributes:
        kind: a name of `CORRUPTIONS` or `SHIFTS`.
        severity: 1 to `MOST_SEVERE`.
        base: the images.
        places: (n,) which of them; None for all.
        seed: of the random choices, together with the place; None for `severity` in its stead.
    """

    kind: str
    severity: int
    base: SampleSource
    places: NDArray[np.int64] | None = None
    seed: int | None = None

    @property
    def ids(self) -> Sequence[str]:
        """See `SampleSource`."""
        ids = self.base.ids
        return [f"{self.kind}{self.severity}-{ids[place]}" for place in self._places]

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """See `SampleSource`: those of the base."""
        return None if self.base.labels is None else self.base.labels[self._places]

    @property
    def class_names(self) -> Sequence[str] | None:
        """See `SampleSource`: those of the base."""
        return class_names_of(self.base)

    def sample(self, index: int) -> Pixels:
        """See `SampleSource`; place, kind, severity and seed decide on all values."""
        place = int(self._places[index])
        own = [place, self.severity] if self.seed is None else [self.seed, place]
        random = np.random.default_rng([*own, crc32(self.kind.encode())])
        change = CORRUPTIONS.get(self.kind) or SHIFTS[self.kind]
        return np.ascontiguousarray(
            change(wanted_image(self.base.sample(place), where=self.kind), self.severity, random)
        )

    def content(self) -> str:
        """See `SampleSource`."""
        seed = "" if self.seed is None else f" {self.seed}"
        return f"{self.kind} {self.severity}{seed} {self.base.content()}"

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        return np.arange(len(self.base.ids)) if self.places is None else self.places


def corrupted_source(request: Request) -> ShiftedImages:
    """In-distribution test images under covariate shift, as many as there are.

    Raises:
        DataError: no such kind or severity, or nothing to corrupt.
    """
    kind, severity = request.name, request.arguments.get("severity", 3)
    if kind not in CORRUPTIONS:
        raise DataError(f"no corruption {kind!r}: wanted one of {', '.join(CORRUPTIONS)}")
    if not isinstance(severity, int) or not 1 <= severity <= MOST_SEVERE:
        raise DataError(f"corrupted:{kind}: wanted a severity of 1 to {MOST_SEVERE} in arguments, got {severity!r}")
    if request.base is None:
        raise DataError(f"corrupted:{kind} is made of the in-distribution test samples: name it in data.shifted")
    with suppress(UnreadableSampleError):  # what is no image is refused before anything is computed
        wanted_image(request.base.sample(0), where=f"corrupted:{kind}")
    return ShiftedImages(kind, severity, request.base, seed=request.seed)
