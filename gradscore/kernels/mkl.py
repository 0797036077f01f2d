"""The matrix product of the library inside PyTorch, for loops that Numba compiles; importing this module needs Numba.

PyTorch for x86 carries MKL and exports its Fortran interface. Called from a compiled loop, a product costs no more than
its arithmetic, and its result can be reduced by the same thread before it leaves the cache.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple as _unpack_tuple
from numba.extending import intrinsic
from numpy.typing import NDArray

from .compile import compiled

unpack_tuple: Callable[..., Any] = _unpack_tuple

PRODUCT, THREADS = "sgemm_", "MKL_Set_Num_Threads_Local"

AS_IT_IS, TRANSPOSED = np.uint8(ord("N")), np.uint8(ord("T"))

SCRATCH = 16
"""Integers in which a product's arguments are handed over."""


@functools.cache
def addresses() -> tuple[int, int] | None:
    """Where the product of float32 matrices lies in memory, and what sets a thread's number of threads.

    None where PyTorch does not export them, or where they do not what they are expected to.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        loaded = ctypes.CDLL(str(library))
        found = tuple(_address(loaded, name) for name in (PRODUCT, THREADS))
    except (OSError, AttributeError):
        return None
    product, threads = found
    return (product, threads) if _multiplies(product, threads) else None


def _address(library: ctypes.CDLL, name: str) -> int:
    return int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)


def _multiplies(product: int, threads: int) -> bool:
    """Whether the function at `product` is the one that is meant: a small product in which every argument counts."""
    left, right = np.arange(6, dtype=np.float32), np.arange(12, dtype=np.float32)
    found = np.full(12, np.nan, np.float32)
    try_product(product, threads, left, right, found)
    return bool((left.reshape(3, 2) @ right.reshape(4, 3)[:, :2].T == found.reshape(4, 3).T).all())


def _call_by_reference(context: Any, address: Any, pointers: Any) -> Any:
    """Calls a Fortran subroutine; `pointers` is a tuple of integers."""
    del context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        byte = ir.IntType(8).as_pointer()
        places = [builder.inttoptr(place, byte) for place in unpack_tuple(builder, arguments[1])]
        kind = ir.FunctionType(ir.VoidType(), [byte] * len(places))
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), places)
        return context.get_dummy_value()

    return types.void(address, pointers), generate


def _call_with_int(context: Any, address: Any, value: Any) -> Any:
    """Calls a C function from int to int."""
    del context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        whole = ir.IntType(32)
        kind = ir.FunctionType(whole, [whole])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])

    return types.int32(address, types.int32), generate if isinstance(value, types.Integer) else None


call_by_reference: Callable[..., None] = intrinsic(_call_by_reference)
call_with_int: Callable[..., int] = intrinsic(_call_with_int)


def _multiply(
    product: int,
    flags: tuple[Any, Any],
    sizes: tuple[int, int, int],
    left: tuple[int, int],
    right: tuple[int, int],
    into: int,
    scratch: NDArray[np.int64],
) -> None:
    """into = left @ right in float32, all by columns.

    Args:
        product: address of the function.
        flags: of left and right, `AS_IT_IS` or `TRANSPOSED`.
        sizes: rows, columns, and the size that is summed over.
        left: address, and elements from column to column as it lies in memory.
        right: likewise.
        into: address of rows x columns elements.
        scratch: (`SCRATCH`,) of this thread. Its integers have 64 bits, of which a library with 32 reads the lower.
    """
    scratch[0], scratch[1], scratch[2] = sizes
    scratch[3], scratch[4], scratch[5] = left[1], right[1], sizes[0]
    numbers = scratch[6:8].view(np.float32)
    numbers[0], numbers[1] = 1.0, 0.0
    letters = scratch[8:9].view(np.uint8)
    letters[0], letters[1] = flags
    place = np.intp(scratch.ctypes.data)
    one = place + 6 * 8
    letter = place + 8 * 8
    call_by_reference(
        product,
        (letter, letter + 1, place, place + 8, place + 16, one, np.intp(left[0]), place + 24, np.intp(right[0]),
         place + 32, one + 4, np.intp(into), place + 40),
    )  # fmt: skip


multiply = compiled(_multiply)


def _try_product(product: int, threads: int, left: Any, right: Any, found: Any) -> None:
    before = call_with_int(threads, np.int32(1))
    scratch = np.empty(SCRATCH, np.int64)
    multiply(
        product, (TRANSPOSED, AS_IT_IS), (3, 4, 2), (left.ctypes.data, 2), (right.ctypes.data, 3), found.ctypes.data,
        scratch,
    )  # fmt: skip
    call_with_int(threads, np.int32(before))


try_product = compiled(_try_product)
