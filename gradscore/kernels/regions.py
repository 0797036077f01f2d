"""Starts PyTorch's threads from inside compiled code; importing this module needs Numba.

Nothing of Python runs in a thread then. Callbacks into Python wait for one another: two threads that do nothing took 45
microseconds to begin and end, and take 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

from .mkl import unpack_tuple

cgutils: Any = _cgutils

BYTES = ir.IntType(8).as_pointer()
INTEGER = ir.IntType(32)
WHOLE = ir.IntType(64)
NUMBER = ir.FunctionType(INTEGER, [])
REGION = ir.FunctionType(ir.VoidType(), [BYTES])
START = ir.FunctionType(ir.VoidType(), [REGION.as_pointer(), BYTES, INTEGER, INTEGER])


def _fork(typing: Any, loop: Any, team: Any, bounds: Any, arguments: Any) -> Any:
    """Calls loop(*arguments, start, stop) for parts of some items, each on a thread if there are several.

    Args:
        typing: Numba's.
        loop: a compiled function.
        team: where functions lie in memory: see `threads.Team`; nothing is asked of them for a single part.
        bounds: the number of parts, the first one to do, the first one that is left out, and the number of items.
        arguments: a tuple.

    Returns:
        Whether a part ran out of memory.
    """
    wanted = loop.get_call_type(typing, (*arguments.types, types.int64, types.int64), {})

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        del signature
        compiled = loop.dispatcher.get_compile_result(wanted)
        context.add_linking_libs([compiled.library])
        start_team, *numbers = unpack_tuple(builder, given[1])
        parts, first, last, items = unpack_tuple(builder, given[2])
        values = [
            context.cast(builder, value, kind, meant)
            for value, kind, meant in zip(unpack_tuple(builder, given[3]), arguments.types, wanted.args, strict=False)
        ]

        def do(builder: Any, number: Any, parts: Any, items: Any, values: list[Any], failed: Any) -> None:
            after = builder.add(number, WHOLE(1))
            ends = [builder.sdiv(builder.mul(each, items), parts) for each in (number, after)]
            status, _ = context.call_internal_no_propagate(builder, compiled.fndesc, wanted, [*values, *ends])
            with builder.if_then(status.is_error, likely=False):
                builder.store(WHOLE(1), failed)

        failed = cgutils.alloca_once_value(builder, WHOLE(0))
        shared = _Record(builder, [failed, *numbers, parts, first, last, items, *values])
        region = ir.Function(builder.module, REGION, builder.module.get_unique_name("region"))
        region.linkage = "internal"
        inside = ir.IRBuilder(region.append_basic_block("entry"))
        failed_there, own, size, parts_there, first_there, last_there, items_there, *values_there = shared.read(
            inside, region.args[0]
        )
        own, size = (
            inside.sext(inside.call(inside.inttoptr(each, NUMBER.as_pointer()), []), WHOLE) for each in (own, size)
        )
        # There may be fewer threads than parts, inside a region of PyTorch's for one.
        with cgutils.for_range_slice(inside, inside.add(first_there, own), last_there, size, inc=True) as (number, _):
            do(inside, number, parts_there, items_there, values_there, failed_there)
        inside.ret_void()

        count = builder.sub(last, first)
        with builder.if_else(builder.icmp_signed("==", count, WHOLE(1))) as (alone, together):
            with alone:
                do(builder, first, parts, items, values, failed)
            with together:
                begin = builder.inttoptr(start_team, START.as_pointer())
                builder.call(begin, [region, shared.place(builder), builder.trunc(count, INTEGER), INTEGER(0)])
        return builder.icmp_signed("!=", builder.load(failed), WHOLE(0))

    return types.boolean(loop, team, bounds, arguments), generate


class _Record:
    """Values on the stack of the thread that starts a region, for those that run it."""

    def __init__(self, builder: Any, values: list[Any]) -> None:
        self._count = len(values)
        self._shape = ir.LiteralStructType([value.type for value in values])
        self._place = cgutils.alloca_once(builder, self._shape)
        for number, value in enumerate(values):
            builder.store(value, self._at(builder, self._place, number))

    def place(self, builder: Any) -> Any:
        """Where they lie."""
        return builder.bitcast(self._place, BYTES)

    def read(self, builder: Any, place: Any) -> list[Any]:
        """The values, in a function that was given their place."""
        typed = builder.bitcast(place, self._shape.as_pointer())
        return [builder.load(self._at(builder, typed, number)) for number in range(self._count)]

    @staticmethod
    def _at(builder: Any, place: Any, number: int) -> Any:
        return builder.gep(place, [INTEGER(0), INTEGER(number)])


fork: Callable[..., bool] = intrinsic(_fork)
