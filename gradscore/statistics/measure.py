"""From per-sample gradients of one parameter to their moments, without ever holding those of more than a few samples.

Chooses the way: a closed form, parts of tied tables, float64 at once of what is small, scalar products of factors, sums
in the gradients' own precision on the CPU, and on an accelerator, where looking for samples whose sums lose digits
would mean to wait for it, float64 throughout: inside a kernel that does not write the gradients out, where there is
one, or else in blocks.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TypeGuard

import numpy as np
import torch

from ..gradients import Convolved, Factored, PerSample, Tied
from . import gram
from .moments import Moments, Wanted, measure_exactly, measure_together
from .sums import UnwrittenSums, of_all_unwritten, of_written_blocks, sum_unwritten

TIED_ELEMENTS = 1 << 24
"""Elements of the factors of tied embeddings that are copied at a time, 64 MiB of float32."""

ACCELERATOR_ELEMENTS = 1 << 25
"""Elements of a block on an accelerator, where few large reductions are better than many small ones."""

SMALL_ELEMENTS = 1 << 16
"""Blocks up to this size are reduced in float64 at once.

That took 0.06 ms here where sums in blocks took 0.09 ms; at four times the size 0.15 and 0.11 ms.
"""

NORM_ALONE = Wanted(spread=True)
"""What the Euclidean norm wants, and nothing else."""


def measure(gradient: PerSample, wanted: Wanted) -> Moments:
    """Reduces per-sample gradients of one parameter.

    Args:
        gradient: the gradients.
        wanted: what to compute.

    Returns:
        Moments of all elements of every sample.
    """
    elements = prod(gradient.shape)
    if not elements:
        return Moments.empty(len(gradient), wanted, gradient.device)
    if has_closed_form(gradient, wanted):
        both = measure_together([each.flatten(1) for each in (gradient.left, gradient.right)], wanted)
        return of_outer_products(both.of(0), both.of(1))
    if isinstance(gradient, Tied):
        return _of_parts(gradient, wanted)
    if _is_small(gradient):
        return measure_exactly(gradient.dense(slice(None)).flatten(1), wanted)
    if gradient.device.type != "cpu":
        return _moments_on_device(gradient, wanted) or _in_exact_blocks(gradient, wanted)
    return _on_cpu(gradient, wanted)


def _is_small(gradient: PerSample) -> bool:
    """Whether it is faster to write a gradient out; not where windows of images are many times its size.

    A MobileNet with six such layers took 0.56 s for a batch, and takes 0.43 s.
    """
    if len(gradient) * prod(gradient.shape) > SMALL_ELEMENTS:
        return False
    return not (isinstance(gradient, Convolved) and gradient.has_loops())


def _is_for_gram(gradient: PerSample, wanted: Wanted) -> TypeGuard[Factored]:
    """Whether the Euclidean norm is all that is wanted, and scalar products of factors give it in less time."""
    return wanted == NORM_ALONE and isinstance(gradient, Factored) and gram.is_cheaper(gradient)


def has_closed_form(gradient: PerSample, wanted: Wanted) -> TypeGuard[Factored]:
    """Whether moments of the gradients follow from those of two vectors of each sample."""
    return isinstance(gradient, Factored) and gradient.is_outer_product and not wanted.sums


@np.errstate(all="ignore")
def of_outer_products(left: Moments, right: Moments) -> Moments:
    """Moments of outer products in closed form, from the moments of the two vectors.

    Args:
        left: of the one vector of every sample, of N samples or of G groups of N.
        right: of the other, likewise.

    Returns:
        Moments of the products, in the same form.
    """
    xp, wanted = left.xp, left.wanted
    found = replace(left, count=left.count * right.count, norms={})
    if wanted.extrema:
        corners = [a * b for a in (left.maximum, left.minimum) for b in (right.maximum, right.minimum)]
        found.maximum = xp.maximum(xp.maximum(*corners[:2]), xp.maximum(*corners[2:]))
        found.minimum = xp.minimum(xp.minimum(*corners[:2]), xp.minimum(*corners[2:]))
    if wanted.mean:
        found.mean = left.mean * right.mean
    if wanted.spread:
        found.spread = left.spread * right.spread
        if wanted.mean:
            # Sum of squares of a b about its mean: every term is positive, so nothing cancels.
            found.spread = xp.hypot(found.spread, left.spread * right.mean * xp.sqrt(right.count))
            found.spread = xp.hypot(found.spread, right.spread * left.mean * xp.sqrt(left.count))
    for order in wanted.orders:
        found.norms[order] = left.norms[order] * right.norms[order]
    return found


def sums_to_wait(gradient: PerSample, wanted: Wanted) -> UnwrittenSums | None:
    """Sums over the elements of gradients, whose moments can wait for those of others: see `of_all_unwritten`.

    Args:
        gradient: of N samples, of one element at least.
        wanted: what is going to be computed.

    Returns:
        The sums; None where `measure` has a better way.
    """
    if gradient.device.type != "cpu" or _is_small(gradient) or _is_for_gram(gradient, wanted):
        return None
    return sum_unwritten(gradient, wanted)


def _of_parts(gradient: Tied, wanted: Wanted) -> Moments:
    found = Moments.empty(len(gradient), wanted, gradient.device)
    for rows, part in gradient.parts(TIED_ELEMENTS):
        found.merge(rows, measure(part, wanted))
    return found


def _of_scalar_products(gradient: Factored, wanted: Wanted) -> Moments:
    """The Euclidean norm alone; from the products where their factors' scalar products do not give all its digits."""
    found = Moments.blank(len(gradient), prod(gradient.shape), wanted, gradient.device)
    found.spread, doubtful = gram.norms(gradient)
    if doubtful.any():
        rows = torch.from_numpy(doubtful)
        again = Factored(gradient.left[rows], gradient.right[rows], gradient.shape)
        found.spread[doubtful] = _from_sums(again, wanted).spread
    return found


def _moments_on_device(gradient: PerSample, wanted: Wanted) -> Moments | None:
    """Moments of a gradient on an accelerator without writing it out; None where that is not possible."""
    if not wanted.is_plain or not isinstance(gradient, Factored | Convolved):
        return None
    rows = gradient.row_moments(about_mean=wanted.mean)
    if rows is None:
        return None
    found = Moments.blank(len(gradient), prod(gradient.shape), wanted, gradient.device)
    found.maximum, found.minimum, found.mean, found.spread, magnitudes = rows
    found.norms = dict.fromkeys(wanted.orders, magnitudes)
    return found


def _in_exact_blocks(gradient: PerSample, wanted: Wanted) -> Moments:
    """Every block in float64, merged; nothing is copied to the host."""
    found = Moments.empty(len(gradient), wanted, gradient.device)
    for rows, block in gradient.blocks(ACCELERATOR_ELEMENTS):
        for part in block if block.dim() == 3 else (block,):
            if part.shape[-1]:
                found.merge(rows, measure_exactly(part, wanted))
    if gradient.implicit_zeros:
        zeros = Moments.blank(len(gradient), gradient.implicit_zeros, wanted, gradient.device)
        found.merge(slice(0, len(gradient)), zeros)
    return found


def _on_cpu(gradient: PerSample, wanted: Wanted) -> Moments:
    """The way on the CPU, for what has no closed form and is not small."""
    if _is_for_gram(gradient, wanted):
        return _of_scalar_products(gradient, wanted)
    return _from_sums(gradient, wanted)


def _from_sums(gradient: PerSample, wanted: Wanted) -> Moments:
    """From sums over the elements; the gradients are written out where no loop can do without."""
    sums = sum_unwritten(gradient, wanted)
    if sums is None:
        return of_written_blocks(gradient, wanted)
    return of_all_unwritten([sums], [prod(gradient.shape)], wanted).of(0)
