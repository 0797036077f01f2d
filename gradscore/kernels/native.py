"""Machine code: how loops are compiled (Numba), what they call, and how they run on PyTorch's threads.

A loop that is called by others is compiled once, as a C function that is called by its name (`Native`). Inlined, or
linked into each caller, it would be optimised anew there, and sums in any order would come out otherwise in the last
bits; which copy a process ran would then depend on what others had left in the cache on disk.

The functions of PyTorch's library that loops use are named here and nowhere else: oneDNN's product, and what starts
OpenMP threads. The product is tried out before it is used, and where one is missing there is a slower way.
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

PRODUCT = "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb"
"""oneDNN's brgemm(rows, columns, inner, three leading dimensions, add, left, right, into, packed), float32 by rows.

Called from a loop, a product costs no more than its arithmetic, and its result can be reduced by the same thread before
it leaves the cache. On 18 shapes of layers it made 100 to 116 thousand million operations a second on a processor of
AMD where MKL made 40 to 101; SciPy's `cython_blas` took 1.1 to 2.1 times as long.
"""

PRODUCT_THREADS = "MKL_Set_Num_Threads_Local"
"""What sets the number of threads of the calling one, for processors on which oneDNN leaves a product to MKL."""

OPENMP = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"
"""What starts threads and what they ask who they are: GCC's libgomp, which LLVM's OpenMP has under the same names.

Where PyTorch has no such OpenMP, loops run on one thread. PyTorch's own threads spin for some milliseconds after each
of its operations, and take the processor from any others that start meanwhile: the gradients of a ResNet-20 took 1.39
training steps on two of PyTorch's threads, 1.74 on two of Python and 1.70 on one. With `numba.prange` it was 1.36, but
its first call gives PyTorch another number of threads, which moves the last bits of all that follows.
"""

_LOCK = threading.RLock()
_KEPT: list[Any] = []


def _compiled(compile_it: Loop, loop: Loop) -> Any:
    """Kept on disk for later processes where there is a place for it."""
    try:
        return compile_it(cache=True)(loop)
    except RuntimeError:  # no folder that can be written
        return compile_it()(loop)


def compiled(loop: Loop) -> Any:
    """A function that loops of the same file call, and that becomes a part of them."""
    return _compiled(functools.partial(numba.njit, nogil=True), loop)


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


def _take_widest_vectors(context: Any) -> Any:
    """Has the function that calls it use the widest vectors there are; LLVM takes half of AVX-512's otherwise.

    That function is not taken into others, which know nothing of it.
    """
    del context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature, arguments
        attributes = builder.function.attributes
        attributes.add("noinline")
        if isinstance(attributes, set):  # whose own method knows attributes without a value alone
            set.add(attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


as_intrinsic: Any = intrinsic
as_pointer: Loop = as_intrinsic(_as_pointer)
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


brgemm = _call(PRODUCT, types.void, *[WORD] * 7, *[types.intp] * 3, WORD)
set_threads = _call(PRODUCT_THREADS, INTEGER, INTEGER)
omp_get_thread_num, omp_get_num_threads = (_call(name, INTEGER) for name in OPENMP[1:])


# Parts of a loop.

WORDS_AHEAD = 4
"""Words before those of a region's own: the number of items, whether they are one thread's, where there is memory for
intermediate results, and its bytes for each thread."""


def _first_item(memory: Any, after: int) -> Any:
    """The first item of this thread's part, or of the part after it."""
    words = carray(memory, (WORDS_AHEAD,))
    if words[1] != 0:
        return after * words[0]
    return (np.int64(omp_get_thread_num()) + after) * words[0] // np.int64(omp_get_num_threads())


def _scratch(memory: Any) -> Any:
    """Where this thread has memory for intermediate results."""
    words = carray(memory, (WORDS_AHEAD,))
    return words[2] if words[1] != 0 else words[2] + np.int64(omp_get_thread_num()) * words[3]


first_item = Native("first_item", (WORDS, WORD), _first_item, returns=WORD, by_address=False)
own_scratch = Native("own_scratch", (WORDS,), _scratch, returns=WORD, by_address=False)


def region(*calls: Native, fastmath: Collection[str] = ()) -> Callable[[Loop], Native]:
    """Makes a loop over some items one that threads share: a C function of words in memory.

    The words are those that `dispatch.run_on` puts ahead, and what it is given besides: numbers, and addresses of
    arrays. `first_item(memory, 0)` and `first_item(memory, 1)` are the bounds of the items to do.

    Args:
        calls: what it calls.
        fastmath: as for `Native`.
    """

    def made(loop: Loop) -> Native:
        name = f"{loop.__module__.rpartition('.')[2]}_{loop.__name__}"
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


@functools.cache
def has_products() -> bool:
    """Whether `brgemm` and `set_threads` are there and do what is meant in a product in which all arguments count."""
    if not all(map(address_in_pytorch, (PRODUCT, PRODUCT_THREADS))):
        return False
    arguments = [ctypes.c_int64] * 6 + [ctypes.c_bool] + [ctypes.c_void_p] * 3 + [ctypes.c_bool]
    product = ctypes.CFUNCTYPE(None, *arguments)(address_in_pytorch(PRODUCT))
    limit = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(address_in_pytorch(PRODUCT_THREADS))
    left, right = np.arange(8, dtype=np.float32), np.arange(12, dtype=np.float32)
    found = np.full(12, np.nan, np.float32)
    before = limit(1)
    product(2, 2, 3, 4, 4, 2, False, left.ctypes.data, right.ctypes.data, found.ctypes.data, False)
    limit(before)
    return bool((left.reshape(2, 4)[:, :3] @ right.reshape(3, 4)[:, :2] == found[:4].reshape(2, 2)).all())
