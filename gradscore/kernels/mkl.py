"""The matrix products inside PyTorch, for loops that Numba compiles; importing this module needs Numba.

PyTorch for x86 carries MKL and exports its Fortran interface. Called from a compiled loop, a product costs no more than
its arithmetic, and its result can be reduced by the same thread before it leaves the cache. Its own blocked product
(`at::native::cpublas::brgemm`, from oneDNN) is faster still: on 18 shapes of layers it made 100 to 116 thousand million
operations a second on a processor of AMD where MKL made 40 to 101.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import unpack_tuple as _unpack_tuple
from numba.extending import intrinsic
from numpy.typing import NDArray

from .compile import compiled
from .exports import addresses_of

unpack_tuple: Callable[..., Any] = _unpack_tuple

SIX_INTEGERS: Any = vars(types)["UniTuple"](types.int64, 6)

PRODUCT, THREADS = "sgemm_", "MKL_Set_Num_Threads_Local"

BLOCKED = "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb"
"""brgemm(rows, columns, inner, three leading dimensions, add, left, right, into, packed) for float32, by rows."""

TRANSPOSED = "_ZN6fbgemm14transpose_simdIfEEvllPKT_lPS1_l"
"""transpose(rows, columns, source, elements from row to row, target, likewise) for float32, of FBGEMM."""

AS_IT_IS = np.uint8(ord("N"))

SCRATCH = 16
"""Integers in which a product's arguments are handed over."""

Functions = tuple[int, int, int, int]
"""Where they lie in memory: MKL's product, what sets a thread's number of threads, and the blocked product and what
transposes a matrix, 0 where there is none."""


@functools.cache
def addresses() -> Functions | None:
    """Where the products of float32 matrices lie in memory, and what sets a thread's number of threads.

    None where PyTorch does not export those of MKL, or where they do not do what is expected of them.
    """
    found, blocked = addresses_of(PRODUCT, THREADS), addresses_of(BLOCKED)
    if found is None:
        return None
    product, threads = found
    transposed = addresses_of(TRANSPOSED)
    turn = transposed[0] if transposed is not None and _transposes(transposed[0]) else 0
    plain = product, threads, 0, turn
    if not _multiplies(plain):
        return None
    if blocked is None:
        return plain
    with_blocked = product, threads, blocked[0], turn
    return with_blocked if _multiplies(with_blocked) else plain


def _multiplies(functions: Functions) -> bool:
    """Whether the functions are those that are meant: a small product in which every argument counts."""
    left, right = np.arange(8, dtype=np.float32), np.arange(12, dtype=np.float32)
    found = np.full(12, np.nan, np.float32)
    try_product(functions, left, right, found)
    return bool((left.reshape(2, 4)[:, :3] @ right.reshape(3, 4)[:, :2] == found[:4].reshape(2, 2)).all())


def _transposes(address: int) -> bool:
    """Whether the function is the one that is meant: a small matrix in which every argument counts."""
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(address)
    source, found = np.arange(8, dtype=np.float32).reshape(2, 4), np.full((3, 5), -1, np.float32)
    function(2, 3, source.ctypes.data, 4, found.ctypes.data, 5)
    return bool((found[:, :2] == source[:, :3].T).all() and (found[:, 2:] == -1).all())


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


def _call_by_value(context: Any, address: Any, sizes: Any, add: Any, pointers: Any) -> Any:
    """Calls the blocked product: `sizes` is a tuple of six integers, `pointers` one of three; nothing is packed."""
    del context, sizes, add

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        byte, whole = ir.IntType(8).as_pointer(), ir.IntType(64)
        numbers = [*unpack_tuple(builder, arguments[1]), arguments[2]]
        places = [builder.inttoptr(place, byte) for place in unpack_tuple(builder, arguments[3])]
        # A truth value is read from the lowest byte of where an integer would be.
        kind = ir.FunctionType(ir.VoidType(), [whole] * len(numbers) + [byte] * len(places) + [whole])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [*numbers, *places, ir.Constant(whole, 0)])
        return context.get_dummy_value()

    return types.void(address, SIX_INTEGERS, types.int64, pointers), generate


def _call_with_six(context: Any, address: Any, numbers: Any) -> Any:
    """Calls a C function of six integers of 64 bits, pointers among them."""
    del context, numbers

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        whole = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [whole] * 6)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), unpack_tuple(builder, arguments[1]))
        return context.get_dummy_value()

    return types.void(address, SIX_INTEGERS), generate


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
call_by_value: Callable[..., None] = intrinsic(_call_by_value)
call_with_int: Callable[..., int] = intrinsic(_call_with_int)
call_with_six: Callable[..., None] = intrinsic(_call_with_six)


def _multiply(
    functions: Functions,
    sizes: tuple[int, int, int],
    left: tuple[int, int],
    right: tuple[int, int],
    into: int,
    scratch: NDArray[np.int64],
) -> None:
    """into = left @ right in float32, all by rows.

    Args:
        functions: as `addresses` has them.
        sizes: rows, columns, and the size that is summed over.
        left: address, and elements from row to row.
        right: likewise.
        into: address of rows x columns elements.
        scratch: (`SCRATCH`,) of this thread. Its integers have 64 bits, of which a library with 32 reads the lower.
    """
    rows, columns, inner = sizes
    if functions[2] != 0:
        steps = (rows, columns, inner, left[1], right[1], columns)
        call_by_value(functions[2], steps, 0, (np.intp(left[0]), np.intp(right[0]), np.intp(into)))
        return
    # By columns, as Fortran has them, these are the transposed matrices, whose product has the other order.
    scratch[0], scratch[1], scratch[2] = columns, rows, inner
    scratch[3], scratch[4], scratch[5] = right[1], left[1], columns
    numbers = scratch[6:8].view(np.float32)
    numbers[0], numbers[1] = 1.0, 0.0
    letters = scratch[8:9].view(np.uint8)
    letters[0] = AS_IT_IS
    place = np.intp(scratch.ctypes.data)
    one = place + 6 * 8
    letter = place + 8 * 8
    call_by_reference(
        functions[0],
        (letter, letter, place, place + 8, place + 16, one, np.intp(right[0]), place + 24, np.intp(left[0]),
         place + 32, one + 4, np.intp(into), place + 40),
    )  # fmt: skip


multiply = compiled(_multiply)


def _try_product(functions: Functions, left: Any, right: Any, found: Any) -> None:
    scratch = np.empty(SCRATCH, np.int64)
    before = call_with_int(functions[1], np.int32(1))
    multiply(functions, (2, 2, 3), (left.ctypes.data, 4), (right.ctypes.data, 4), found.ctypes.data, scratch)
    call_with_int(functions[1], np.int32(before))


try_product = compiled(_try_product)
