"""Which samples of a source a split has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..system import sha256
from .content import content_hash
from .settings import SelectConfig
from .sources import ImageSource, UnreadableImageError


class HashShares:
    """Numbers in [0, 1) for the samples of sources, by content alone (by id where there is no content to be had).

    Each sample is read once, however many splits ask for it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[ImageSource, dict[int, float]]] = {}

    def of(self, source: ImageSource, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Those of the samples at some places."""
        # The source is kept, so that no other has its id.
        _, known = self._known.setdefault(id(source), (source, {}))
        for place in places.tolist():
            if place not in known:
                known[place] = _share(source, place)
        return np.array([known[place] for place in places.tolist()])


def select(
    source: ImageSource,
    spec: SelectConfig,
    *,
    labels: NDArray[np.int64] | None = None,
    classes: Sequence[int] | None = None,
    shares: HashShares | None = None,
) -> NDArray[np.int64]:
    """Positions of the selected samples: by class, then content hash, then start and stop, then count.

    A sample that cannot be decoded goes by the hash of its id, so that it is in one part of several, which names it.

    Args:
        source: the samples.
        spec: the selection.
        labels: (N,) of the source; None without.
        classes: the labels that `spec.classes` asks for; None for all.
        shares: what is known of the contents of sources, which may be those of other splits too.

    Returns:
        Positions in the order of the source.

    Raises:
        DataError: a selection by class without labels.
    """
    places = np.arange(len(source.ids), dtype=np.int64)
    if classes is not None:
        if labels is None:
            raise DataError("select.classes needs labels, and the source has none")
        places = places[np.isin(labels, classes)]
    if spec.hash is not None:
        low, high = spec.hash
        found = (shares or HashShares()).of(source, places)
        places = places[(found >= low) & (found < high)]
    places = places[spec.start : spec.stop]
    if spec.count is not None and spec.count < len(places):
        places = np.sort(np.random.default_rng(spec.seed).choice(places, spec.count, replace=False))
    return places


def _share(source: ImageSource, place: int) -> float:
    try:
        digest = content_hash(source.image(place))
    except UnreadableImageError:
        digest = sha256(source.ids[place].encode())[:16]
    return int(digest, 16) / 2**64
