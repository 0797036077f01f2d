"""Compiles loops with the extra `fast` (Numba); `threads` shares them among threads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

Loop = Callable[..., Any]

STAMPS = tuple(
    (file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(Path(__file__).parent.glob("*.py"))
)

if vars(numba.config)["DISABLE_JIT"]:
    raise ImportError("Numba is told not to compile")


def compiled(loop: Loop, *, fastmath: Collection[str] = ()) -> Loop:
    """Compiles when first called; kept on disk for later processes where there is a place for it.

    Args:
        loop: a function of arrays and numbers, in the part of Python that Numba knows.
        fastmath: liberties of LLVM with floating-point numbers.

    Returns:
        The compiled function, which does not hold the interpreter's lock while it runs.
    """
    compile_it = partial(numba.njit, nogil=True, fastmath=set(fastmath))
    try:
        function: Loop = compile_it(cache=True)(loop)
    except RuntimeError:  # no folder that can be written
        return compile_it()(loop)
    _know_by_all_files(function)
    return function


def _know_by_all_files(function: Loop) -> None:
    """Makes what is kept on disk outdated where any file of this room has changed.

    Numba looks at the file of the function alone, but what the function calls in others is in its machine code too.
    """
    kept: Any = getattr(getattr(function, "_cache", None), "_cache_file", None)
    if hasattr(kept, "_source_stamp"):  # Numba's own; a test says when it is no longer there
        kept._source_stamp = STAMPS


def _stay_apart(context: Any) -> Any:
    """Keeps the function that calls it from being taken into others, where it would be optimised anew."""
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
stay_apart: Callable[[], None] = as_intrinsic(_stay_apart)
take_widest_vectors: Callable[[], None] = as_intrinsic(_take_widest_vectors)


def once_for_each_dtype(run: Loop) -> Loop:
    """Runs something once for each dtype of its first argument.

    A loop that is called by others is in their machine code too, optimised anew, where sums in any order come out
    otherwise in the last bits. If it stays apart, the code that a process loads first serves them all. What is compiled
    here loads the loop before its callers, but a caller that comes from the cache on disk does not: to get the same
    bits in every process, run the loop on nothing before one of its callers.
    """
    seen: set[np.dtype[Any]] = set()

    def first(values: NDArray[Any], *arguments: Any) -> None:
        if values.dtype not in seen:
            run(values, *arguments)
            seen.add(values.dtype)

    return first
