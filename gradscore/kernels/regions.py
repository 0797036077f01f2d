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
        bounds: see `threads.Bounds`.
        arguments: a tuple.

    Returns:
        Whether a part raised anything; these loops do where they get no memory.
    """
    wanted = loop.get_call_type(typing, (*arguments.types, types.int64, types.int64), {})

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        del signature
        compiled = loop.dispatcher.get_compile_result(wanted)
        context.add_linking_libs([compiled.library])
        start_team, *numbers = cgutils.unpack_tuple(builder, given[1])
        parts, first, last, items = cgutils.unpack_tuple(builder, given[2])
        values = [
            context.cast(builder, value, kind, meant)
            for value, kind, meant in zip(
                cgutils.unpack_tuple(builder, given[3]), arguments.types, wanted.args, strict=False
            )
        ]

        def do(builder: Any, number: Any, parts: Any, items: Any, values: list[Any], failed: Any) -> None:
            after = builder.add(number, WHOLE(1))
            ends = [builder.sdiv(builder.mul(each, items), parts) for each in (number, after)]
            status, _ = context.call_internal_no_propagate(builder, compiled.fndesc, wanted, [*values, *ends])
            with builder.if_then(status.is_error, likely=False):
                builder.store(WHOLE(1), failed)

        failed = cgutils.alloca_once_value(builder, WHOLE(0))
        record = [failed, *numbers, parts, first, last, items, *values]
        shared = cgutils.alloca_once_value(builder, cgutils.pack_struct(builder, record))
        region = ir.Function(builder.module, REGION, builder.module.get_unique_name("region"))
        region.linkage = "internal"
        inside = ir.IRBuilder(region.append_basic_block("entry"))
        failed_there, own, size, parts_there, first_there, last_there, items_there, *values_there = (
            cgutils.unpack_tuple(inside, inside.load(inside.bitcast(region.args[0], shared.type)))
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
                builder.call(begin, [region, builder.bitcast(shared, BYTES), builder.trunc(count, INTEGER), INTEGER(0)])
        return builder.icmp_signed("!=", builder.load(failed), WHOLE(0))

    return types.boolean(loop, team, bounds, arguments), generate


fork: Callable[..., bool] = intrinsic(_fork)
