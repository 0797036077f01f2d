"""Which samples of large data sets fit: some drawn at random, so that memory and time do not grow with the data.

A logistic regression on a few hundred axes learns nothing more from a million samples than from a hundred thousand.
What is reported is never subsampled.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..data import BANK, FIT
from ..system import BoolArray

MOST_SAMPLES = 100_000
"""Samples that a meta model is fitted on at most: half of them of `in_dist.fit`, half of all OOD sets together.

Also the samples of a bank that count, at most. With 100 features a fit takes 1.3 GB.
"""


def rows_that_fit(sizes: Mapping[str, int]) -> dict[str, BoolArray]:
    """The rows that may fit, of splits that have more of them than fit.

    Args:
        sizes: the number of samples of each split.

    Returns:
        (N,) masks of rows drawn at random by split; all rows of splits that are not named may fit.
    """
    ood = [name for name in sizes if name.startswith("ood.")]
    most = {BANK: MOST_SAMPLES}
    if sizes.get(FIT, 0) + sum(sizes[name] for name in ood) > MOST_SAMPLES:
        most |= {FIT: MOST_SAMPLES // 2}
        most |= dict.fromkeys(ood, largest_share([sizes[name] for name in ood], total=MOST_SAMPLES // 2))
    return {name: drawn(sizes[name], most[name]) for name in sizes if sizes[name] > most.get(name, sizes[name])}


def largest_share(sizes: list[int], *, total: int) -> int:
    """The largest number of samples to take of each set at most, so that all sets together give at most `total`.

    Example:
        >>> largest_share([10, 100, 300], total=210)
        100
    """
    left, share = total, total
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            break
        left -= size
    return share


def drawn(count: int, most: int) -> BoolArray:
    """A mask (count,) of `most` rows drawn at random, the same every time: files may be stored in turns of classes."""
    mask = np.zeros(count, dtype=bool)
    mask[np.random.default_rng(0).choice(count, most, replace=False)] = True
    return mask


def in_words(sizes: Mapping[str, int]) -> list[str]:
    """A sentence that says which splits were subsampled, if any."""
    kept = [f"{int(mask.sum())} of {len(mask)} of {name}" for name, mask in rows_that_fit(sizes).items()]
    if not kept:
        return []
    return [f"fitted on samples drawn at random, at most {MOST_SAMPLES} in all: {', '.join(kept)}; all are reported"]
