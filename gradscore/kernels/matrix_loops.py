"""The loops of `kernels` over many matrices at once, wherever they lie in memory; importing this module needs Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .compile import compiled
from .regions import fork
from .row_loops import own_moments_first, take_all_moments
from .threads import share

Values = NDArray[Any]
Whole = NDArray[np.int64]
Doubles = NDArray[np.float64]


def _as_pointer(context: Any, address: Any) -> Any:
    """An integer as a place in memory."""
    del context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


carray: Callable[..., Any] = vars(numba)["carray"]
as_pointer: Callable[..., Any] = intrinsic(_as_pointer)


def _take_some_of_all(
    like: Values, bits: Values, rest: Any, table: Whole, about_mean: bool, found: Doubles, start: int, stop: int
) -> None:
    """Some rows of every matrix.

    Args:
        like: nothing, of the type of the elements.
        bits: nothing, of the integers of their size.
        rest: the largest of these.
        table: address and columns of each matrix.
        about_mean: see `kernels.row_moments`.
        found: (matrices, all rows, 5).
        start: the first row.
        stop: the first that is left out.
    """
    for place in range(table.shape[0]):
        width = table[place, 1]
        size = (stop - start) * width
        first = table[place, 0] + start * width * like.itemsize
        values = carray(as_pointer(first), (size,), like.dtype).reshape(stop - start, width)
        seen = carray(as_pointer(first), (size,), bits.dtype).reshape(stop - start, width)
        take_all_moments(values, seen, rest, about_mean, found[place, start:stop])


take_some_of_all = compiled(_take_some_of_all)


share_all = compiled(lambda team, bounds, *arguments: fork(take_some_of_all, team, bounds, arguments))


def take_all(like: Values, table: Whole, about_mean: bool, found: Doubles) -> None:
    """The moments of all rows of all matrices; arguments as in `_take_some_of_all`."""
    kind = np.dtype(f"i{like.itemsize}").type
    bits, rest = like.view(kind), kind(np.iinfo(kind).max)
    rows = found.shape[1]
    own_moments_first(like.reshape(0, 1), bits.reshape(0, 1), rest, about_mean, found[0, :0])
    share(rows * int(table[:, 1].sum()), rows, share_all, like, bits, rest, table, about_mean, found)
