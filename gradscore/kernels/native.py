"""Machine code: how loops are compiled (Numba), what they call, and how they run on PyTorch's threads.

A loop that is called by others is compiled once, as a C function that is called by its name (`Native`). Inlined, or
linked into each caller, it would be optimised anew there, and sums in any order would come out otherwise in the last
bits; which copy a process ran would then depend on what others had left in the cache on disk.

The functions of PyTorch's library that loops use are named here and nowhere else: products of MKL and of oneDNN,
FBGEMM's transposition, and what starts OpenMP threads. Each is tried out before it is used, and where one is missing
there is a slower way (`slower_ways` says which).
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types as _types
from numba.extending import intrinsic, typeof_impl

Loop = Callable[..., Any]

if vars(numba.config)["DISABLE_JIT"]:
    raise ImportError("Numba is told not to compile")

carray: Loop = vars(numba)["carray"]
types: Any = _types
INTEGER, WORD = types.int32, types.int64
FLOATS, DOUBLES, INTEGERS, WORDS = (
    types.CPointer(kind) for kind in (types.float32, types.float64, types.int32, types.int64)
)

PRODUCT, PRODUCT_THREADS = "sgemm_", "MKL_Set_Num_Threads_Local"
"""MKL's product of float32 matrices, Fortran's interface, and what sets the number of threads of the calling one."""

BLOCKED = "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb"
"""oneDNN's: brgemm(rows, columns, inner, three leading dimensions, add, left, right, into, packed), float32 by rows.

On 18 shapes of layers it made 100 to 116 thousand million operations a second on a processor of AMD where MKL made 40
to 101.
"""

TRANSPOSED = "_ZN6fbgemm14transpose_simdIfEEvllPKT_lPS1_l"
"""transpose(rows, columns, source, elements from row to row, target, likewise) for float32, of FBGEMM."""

OPENMP = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"
"""What starts threads and what they ask who they are: GCC's libgomp, which LLVM's OpenMP has under the same names.

PyTorch's own threads spin for some milliseconds after each of its operations, and take the processor from any others
that start meanwhile: gradients of convolutions right after a backward pass took 6.6 ms on two threads of Python, as
long as on one, and take 3.5 ms on PyTorch's.
"""

_LOCK = threading.RLock()
_KEPT: list[Any] = []


def _compiled(compile_it: Loop, loop: Loop) -> Any:
    """Kept on disk for later processes where there is a place for it."""
    try:
        return compile_it(cache=True)(loop)
    except RuntimeError:  # no folder that can be written
        return compile_it()(loop)


def compiled(loop: Loop) -> Loop:
    """A function that loops of the same file call, and that becomes a part of them."""
    found: Loop = _compiled(functools.partial(numba.njit, nogil=True), loop)
    return found


class Native:
    """A C function made of a loop; others that are compiled call it by its name.

    Args:
        name: its name, for which there is one function in a process.
        arguments: their types; nothing is returned.
        loop: a function of numbers and pointers, in the part of Python that Numba knows; it raises nothing.
        fastmath: liberties of LLVM with floating-point numbers.
        calls: those that it calls.
        returns: the type of what it returns.
        by_address: callers have whole numbers for its pointers, not pointers.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[Any],
        loop: Loop,
        *,
        fastmath: Collection[str] = (),
        calls: Sequence[Native] = (),
        returns: Any = types.void,
        by_address: bool = True,
    ) -> None:
        self._name, self._loop, self._fastmath, self._calls = f"gradscore_{name}", loop, set(fastmath), calls
        self._signature = returns(*arguments)
        given = [types.intp if by_address and isinstance(each, types.CPointer) else each for each in arguments]
        self.external = types.ExternalFunction(self._name, returns(*given))

    @functools.cached_property
    def function(self) -> Any:
        """It as a `ctypes` function, which does not hold the interpreter's lock; compiled when first asked for."""
        with _LOCK:
            for each in self._calls:
                each.ready()
            compile_it: Any = functools.partial(numba.cfunc, self._signature, fastmath=self._fastmath)
            made = _compiled(compile_it, self._loop)
            llvmlite.binding.add_symbol(self._name, made.address)
            _KEPT.append(made)
            return made.ctypes

    @functools.cached_property
    def address(self) -> int:
        """Where it lies in memory."""
        return ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def ready(self) -> None:
        """Compiles it, unless that was done before."""
        self.function  # noqa: B018 - a cached property

    def __call__(self, *arguments: Any) -> Any:
        """Called by Python; from compiled code the C function is called."""
        return self.function(*arguments)


@typeof_impl.register(Native)
def _type_of(value: Native, _context: Any) -> Any:
    return value.external


def _as_pointer(context: Any, address: Any) -> Any:
    """An integer as a place in memory."""
    del context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


def _stay_apart(context: Any) -> Any:
    """Keeps the function that calls it from being taken into others."""
    del context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature, arguments
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


def _take_widest_vectors(context: Any) -> Any:
    """Has the function that calls it use the widest vectors there are; LLVM takes half of AVX-512's otherwise."""
    del context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature, arguments
        attributes = builder.function.attributes
        if isinstance(attributes, set):  # whose own method knows attributes without a value alone
            set.add(attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


as_intrinsic: Any = intrinsic
as_pointer: Loop = as_intrinsic(_as_pointer)
stay_apart: Callable[[], None] = as_intrinsic(_stay_apart)
take_widest_vectors: Callable[[], None] = as_intrinsic(_take_widest_vectors)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """PyTorch's library for the CPU, and those that it was linked with."""
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None


def address_in_pytorch(name: str) -> int:
    """Where a function of PyTorch's library lies in memory, by the name that the linker has for it; 0 for none."""
    found = getattr(_library(), name, None)
    return 0 if found is None else int(ctypes.cast(found, ctypes.c_void_p).value or 0)


def _call(name: str, returns: Any, *arguments: Any) -> Any:
    """A function of PyTorch's library as compiled code calls it; only where it is there."""
    own_name = f"pytorch_{name}"
    llvmlite.binding.add_symbol(own_name, address_in_pytorch(name) or 1)
    return types.ExternalFunction(own_name, returns(*arguments))


sgemm = _call(PRODUCT, types.void, *[types.intp] * 13)
set_threads = _call(PRODUCT_THREADS, INTEGER, INTEGER)
brgemm = _call(BLOCKED, types.void, *[WORD] * 7, *[types.intp] * 3, WORD)
fbgemm_transpose = _call(TRANSPOSED, types.void, *[WORD] * 6)
omp_get_thread_num, omp_get_num_threads = (_call(name, INTEGER) for name in OPENMP[1:])


# Parts of a loop.

WORDS_AHEAD = 5
"""Words before those of a region's own: the number of items, the part to do and the number of parts, which OpenMP is
asked for if the part is -1, where there is memory for intermediate results, and its bytes for each part."""


def _first_item(memory: Any, after: int) -> Any:
    """The first item of this thread's part, or of the part after it."""
    words = carray(memory, (WORDS_AHEAD,))
    part, parts = words[1], words[2]
    if part < 0:
        part, parts = np.int64(omp_get_thread_num()), np.int64(omp_get_num_threads())
    return (part + after) * words[0] // parts


def _scratch(memory: Any) -> Any:
    """Where this thread has memory for intermediate results."""
    words = carray(memory, (WORDS_AHEAD,))
    part = words[1] if words[1] >= 0 else np.int64(omp_get_thread_num())
    return words[3] + part * words[4]


first_item = Native("first_item", (WORDS, WORD), _first_item, returns=WORD, by_address=False)
own_scratch = Native("own_scratch", (WORDS,), _scratch, returns=WORD, by_address=False)


def region(*calls: Native, fastmath: Collection[str] = ()) -> Callable[[Loop], Native]:
    """Makes a loop over some items one that threads share: a C function of words in memory.

    The words are those that `threads.run_parts` puts ahead, and what it is given besides: numbers, and addresses of
    arrays. `first_item(memory, 0)` and `first_item(memory, 1)` are the bounds of the items to do.

    Args:
        calls: what it calls.
        fastmath: as for `Native`.
    """

    def made(loop: Loop) -> Native:
        name = f"{loop.__module__.rpartition('.')[2]}{loop.__name__}"
        return Native(name, (WORDS,), loop, fastmath=fastmath, calls=(first_item, own_scratch, *calls))

    return made


@functools.cache
def start_team() -> Any:
    """GOMP_parallel(function, its argument, number of threads, flags); None where PyTorch has no such OpenMP."""
    if not all(map(address_in_pytorch, OPENMP)):
        return None
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(
        address_in_pytorch(OPENMP[0])
    )


# Products of matrices.

SCRATCH = 16
"""Integers in which a product's arguments are handed over."""

LINES = 16
"""Columns of a matrix that are transposed at a time, a line of the cache of each row: four in ten nanoseconds less an
element than a row at a time."""

AS_IT_IS = np.uint8(ord("N"))
PRODUCT_ARGUMENTS = (*[WORD] * 3, *[types.intp, WORD] * 2, types.intp, types.intp)


def _multiply_blocked(
    rows: int, columns: int, inner: int, left: int, apart: int, right: int, beside: int, into: int, _scratch: int
) -> None:
    brgemm(rows, columns, inner, apart, beside, columns, 0, left, right, into, 0)


def _multiply_plain(
    rows: int, columns: int, inner: int, left: int, apart: int, right: int, beside: int, into: int, scratch: int
) -> None:
    words = carray(as_pointer(scratch), (SCRATCH,), np.int64)
    # By columns, as Fortran has them, these are the transposed matrices, whose product has the other order. The
    # integers have 64 bits, of which a library with 32 reads the lower.
    words[0], words[1], words[2] = columns, rows, inner
    words[3], words[4], words[5] = beside, apart, columns
    numbers = words[6:8].view(np.float32)
    numbers[0], numbers[1] = 1.0, 0.0
    words[8:9].view(np.uint8)[0] = AS_IT_IS
    one, letter = scratch + 6 * 8, scratch + 8 * 8
    sgemm(
        letter, letter, scratch, scratch + 8, scratch + 16, one, right, scratch + 24, left, scratch + 32, one + 4,
        into, scratch + 40,
    )  # fmt: skip


def _turn_by_fbgemm(source: int, rows: int, columns: int, apart: int, target: int) -> None:
    fbgemm_transpose(rows, columns, source, apart, target, rows)


def _turn_by_lines(source: int, rows: int, columns: int, apart: int, target: int) -> None:
    """Transposes a matrix whose rows are `apart` elements from each other."""
    given = carray(as_pointer(source), ((rows - 1) * apart + columns,), np.float32)
    turned = carray(as_pointer(target), (rows * columns,), np.float32)
    for start in range(0, columns, LINES):
        for row in range(np.uintp(rows)):
            # Numba looks at every place with a sign whether it counts from the end, and copies one element at a time.
            first = row * np.uintp(apart)
            for column in range(np.uintp(start), np.uintp(min(start + LINES, columns))):
                turned[column * np.uintp(rows) + row] = given[first + column]


class FirstThatWorks(Native):
    """A C function of which there are several, by functions of PyTorch that may be missing: the first one that works.

    Args:
        name: as for `Native`.
        arguments: as for `Native`.
        ways: from the functions' names in PyTorch's library to the loop that calls them, the fastest first.
        works: tries one of them on little.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[Any],
        ways: Sequence[tuple[Sequence[str], Loop]],
        works: Callable[[Native], bool],
    ) -> None:
        super().__init__(name, arguments, ways[-1][1])
        self._ways = [(needed, Native(loop.__name__[1:], arguments, loop)) for needed, loop in ways]
        self._works = works

    @functools.cached_property
    def chosen(self) -> int | None:
        """Which of the ways it is; None where none works."""
        for place, (needed, way) in enumerate(self._ways):
            if all(map(address_in_pytorch, needed)) and self._works(way):
                return place
        return None

    @functools.cached_property
    def function(self) -> Any:
        """That of the way that was chosen; only where there is one."""
        with _LOCK:
            assert self.chosen is not None
            way = self._ways[self.chosen][1]
            llvmlite.binding.add_symbol(self._name, way.address)
            return way.function


def _multiplies(way: Native) -> bool:
    """Whether it does what is meant: a small product in which every argument counts."""
    left, right = np.arange(8, dtype=np.float32), np.arange(12, dtype=np.float32)
    found, scratch = np.full(12, np.nan, np.float32), np.empty(SCRATCH, np.int64)
    limit = getattr(_library(), PRODUCT_THREADS)
    before = limit(1)
    way(2, 2, 3, left.ctypes.data, 4, right.ctypes.data, 4, found.ctypes.data, scratch.ctypes.data)
    limit(before)
    return bool((left.reshape(2, 4)[:, :3] @ right.reshape(3, 4)[:, :2] == found[:4].reshape(2, 2)).all())


def _transposes(way: Native) -> bool:
    """Whether it does what is meant: a small matrix in which every argument counts."""
    source, found = np.arange(8, dtype=np.float32).reshape(2, 4), np.full(7, -1, np.float32)
    way(source.ctypes.data, 2, 3, 4, found.ctypes.data)
    return bool((found[:6].reshape(3, 2) == source[:, :3].T).all() and found[6] == -1)


multiply = FirstThatWorks(
    "multiply",
    PRODUCT_ARGUMENTS,
    [((PRODUCT, PRODUCT_THREADS, BLOCKED), _multiply_blocked), ((PRODUCT, PRODUCT_THREADS), _multiply_plain)],
    _multiplies,
)
"""into = left @ right in float32, all by rows: rows, columns, and the size that is summed over; the left matrix and
elements from row to row, and the right one likewise; where rows x columns elements go; `SCRATCH` integers of a thread.

Called from a loop, a product costs no more than its arithmetic, and its result can be reduced by the same thread before
it leaves the cache.
"""

turn = FirstThatWorks(
    "turn",
    (types.intp, WORD, WORD, WORD, types.intp),
    [((TRANSPOSED,), _turn_by_fbgemm), ((), _turn_by_lines)],
    _transposes,
)
"""Transposes a float32 matrix: where it lies, its rows and columns, elements from row to row, and where it goes."""


def slower_ways() -> list[str]:
    """What is computed in a slower way because PyTorch's library lacks a function."""
    return [
        way
        for way, holds in {
            "products of PyTorch's own operations, not inside loops": multiply.chosen is None,
            "MKL's product for oneDNN's blocked one": multiply.chosen == 1,
            "matrices turned by a loop, not by FBGEMM": turn.chosen == 1,
            "threads of Python, not of PyTorch": start_team() is None,
        }.items()
        if holds
    ]
