"""How near two images must be to be nearly the same: nearer than the neighbours at that place explain.

An image becomes a signature of 8 by 8 cells, which forgets noise of encoders and shifts by a pixel. Where samples lie
evenly, the volumes up to the first and to the K-th neighbour have a ratio whose law is known: that of the smallest of
K - 1 uniform numbers, whatever the density (Facco, d'Errico, Rodriguez and Laio 2017, for K = 2). The radius of a
volume is its m-th root, and the dimension m is what makes the median right among the fit samples themselves, each
without itself: copies among these move a median little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..data import Pixels
from ..system import BoolArray, FloatArray, IntArray

SIDE = 8
"""Cells of a signature along either side."""

NEIGHBOURS = 10
"""K: the distance to this neighbour says what is usual at a place. Of one image, K - 1 near-duplicates are seen."""

FEWEST = 2 * NEIGHBOURS
"""Fewer fit images than this do not tell what is usual."""

FALSE_ALARMS = 0.1
"""Images expected to be called near-duplicates in a reported set that has none."""

ENOUGH_FOR_A_MEDIAN = 2000
"""Fit images whose neighbours tell the dimension; of more, these are taken at even steps."""

_BLOCK = 512

Signatures = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """The nearest fit images of N images, nearest first.

    Attributes:
        places: (N, K) which they are.
        distances: (N, K) Euclidean.
    """

    places: IntArray
    distances: FloatArray


def signature(pixels: Pixels) -> Signatures:
    """The mean colours of 8 by 8 cells.

    Args:
        pixels: (H, W, C) uint8; other numbers of channels than 3 count as their mean.

    Returns:
        (192,) float32 in 0 to 255.
    """
    coloured = pixels.shape[2] == 3
    image = Image.fromarray(np.ascontiguousarray(pixels) if coloured else pixels.mean(axis=2).round().astype(np.uint8))
    return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float32).ravel()


def near_pairs(reported: Signatures, fit: Signatures) -> Iterator[tuple[int, int, float]]:
    """The pairs of a reported and a fit image that are nearer than chance explains.

    Two images must be near both as they are, and with colour and contrast taken out: two skies of one blue are not.

    Args:
        reported: (M, D) signatures.
        fit: (N, D), of distinct images, at least `FEWEST`.

    Yields:
        Place of the reported image, place of the fit image, and the number of reported images expected to come as near
        without a near-duplicate; below `FALSE_ALARMS`. In the order of the reported images, the nearest pair first.
    """
    suspects, first = _nearer_than_usual(reported, fit, number=len(reported))
    if not len(suspects):
        return
    rows, second = _nearer_than_usual(_standardised(reported[suspects]), _standardised(fit), number=len(reported))
    suspects, first = suspects[rows], first.of(rows)
    expected = np.maximum(first.expected[:, :, None], second.expected[:, None, :])
    same = first.places[:, :, None] == second.places[:, None, :]
    for row, column, other in np.argwhere(same & (expected < FALSE_ALARMS)).tolist():
        yield int(suspects[row]), int(first.places[row, column]), float(expected[row, column, other])


@dataclass(frozen=True, kw_only=True)
class _Near:
    """Neighbours (n, K), and how many of all images are expected to come as near as each."""

    places: IntArray
    expected: FloatArray

    def of(self, rows: IntArray) -> _Near:
        return _Near(places=self.places[rows], expected=self.expected[rows])


def _nearer_than_usual(shown: Signatures, known: Signatures, *, number: int) -> tuple[IntArray, _Near]:
    """Which of N images come near a known one, as places (n,), and to which."""
    own = np.unique(np.linspace(0, len(known) - 1, ENOUGH_FOR_A_MEDIAN).astype(np.int64))
    m = dimension(nearest(known[own], known, own=own).distances)
    found = nearest(shown, known)
    expected = chance(found.distances, m) * number
    rows = np.flatnonzero(expected[:, 0] < FALSE_ALARMS)
    return rows, _Near(places=found.places, expected=expected).of(rows)


def nearest(shown: Signatures, known: Signatures, *, own: IntArray | None = None) -> Nearest:
    """The `NEIGHBOURS` nearest known images of each, a block of images at a time.

    Args:
        shown: (M, D).
        known: (N, D).
        own: (M,) place of each among the known, which is no neighbour of itself.
    """
    centre = known.mean(axis=0, dtype=np.float64).astype(np.float32)
    shown, known = shown - centre, known - centre
    squares = (known * known).sum(axis=1)
    places, distances = [np.empty((0, NEIGHBOURS), dtype=np.int64)], [np.empty((0, NEIGHBOURS))]
    for start in range(0, len(shown), _BLOCK):
        block = shown[start : start + _BLOCK]
        squared = squares - 2 * (block @ known.T)  # less the square of the block's own, which orders nothing
        if own is not None:
            squared[np.arange(len(block)), own[start : start + _BLOCK]] = np.inf
        chosen = torch.from_numpy(squared).topk(NEIGHBOURS, largest=False).indices.numpy()
        # Differences of squares lose digits where images are near.
        exact = np.sqrt(np.square(block[:, None].astype(np.float64) - known[chosen]).sum(axis=2))
        order = np.argsort(exact, axis=1, kind="stable")
        places.append(np.take_along_axis(chosen, order, axis=1))
        distances.append(np.take_along_axis(exact, order, axis=1))
    return Nearest(places=np.concatenate(places), distances=np.concatenate(distances))


def dimension(distances: FloatArray) -> float:
    """The dimension m at which half of the images come as near as they do, at most that of signatures.

    Args:
        distances: (N, K) of fit images to their neighbours.
    """
    median = float(np.median(_ratios(distances)[:, 0]))
    half = 1 - 0.5 ** (1 / (NEIGHBOURS - 1))  # of the volume up to the K-th neighbour
    return float(np.clip(np.log(half) / np.log(np.clip(median, 1e-9, 1 - 1e-9)), 1.0, 3 * SIDE**2))


def chance(distances: FloatArray, m: float) -> FloatArray:
    """Chance that the nearest of K neighbours comes as near as each does, of samples that lie evenly.

    Args:
        distances: (N, K), ascending.
        m: dimension.

    Returns:
        (N, K) of 1 - (1 - (d / d_K)^m)^(K - 1).
    """
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1((NEIGHBOURS - 1) * np.log1p(-(_ratios(distances) ** m))))


def _ratios(distances: FloatArray) -> FloatArray:
    """Of distances to that of the last; 1 where even that is zero, since nothing there is nearer than usual."""
    usual = distances[:, -1:]
    zero: BoolArray = usual == 0
    return np.asarray(np.where(zero, 1.0, distances / np.where(zero, 1.0, usual)))


def _standardised(signatures: Signatures) -> Signatures:
    channels = signatures.reshape(len(signatures), SIDE * SIDE, 3)
    centred = (channels - channels.mean(axis=1, keepdims=True)).reshape(signatures.shape)
    # One grey level more, so that the rounding of plain images does not become their content.
    return np.asarray(centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + 1), dtype=np.float32)
