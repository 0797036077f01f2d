"""A device for tests: `elsewhere` computes what the processor does, in memory that only its own operators may look at.

What accelerators refuse, it refuses: operators whose tensors lie on two devices, and a tensor's numbers in NumPy. What
differs between accelerators and the processor in values, order or time does not show on it.

Its tensors (`There`) are ordinary ones for autograd: graphs, nodes, saved tensors and hooks are those of any device.
As on other accelerators, backward passes run in a thread of their own. PyTorch has no generators and no pinned memory
for devices that are written in Python, and an error in a backward pass ends the process.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

NAME = "elsewhere"

aten: Any = torch.ops.aten

TAKE_PLACES = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
"""Operators that every device has copy their indices from the processor."""

MADE_WHOLE = (
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.eye.default,
    aten.eye.m,
    aten.linspace.default,
    aten.randperm.default,
    aten.randperm.generator,
)
"""Operators that make a tensor of none."""

IN_HALF_PRECISION = ("linear", "matmul", "mm", "addmm", "bmm", "conv1d", "conv2d", "conv3d")
"""Operators that autocast gives rounded operands."""


def lstm_cell(at_entry: Tensor, at_hidden: Tensor, cell: Tensor, *biases: Tensor | None) -> tuple[Tensor, ...]:
    """One step of an LSTM as one operator, as accelerators have it: states, and what the backward pass looks at."""
    gates = sum((each for each in biases if each is not None), at_entry + at_hidden)
    entry, forget, candidate, exit_ = gates.chunk(4, 1)
    kept = torch.cat([entry.sigmoid(), forget.sigmoid(), candidate.tanh(), exit_.sigmoid()], 1)
    entry, forget, candidate, exit_ = kept.chunk(4, 1)
    after = forget * cell + entry * candidate
    return exit_ * after.tanh(), after, kept


def lstm_cell_backward(
    at_state: Tensor | None, at_cell: Tensor | None, before: Tensor, after: Tensor, kept: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    """Gradients at the gates, at the cell before the step, and at the biases."""
    entry, forget, candidate, exit_ = kept.chunk(4, 1)
    at_state, at_cell = (torch.zeros_like(after) if each is None else each for each in (at_state, at_cell))
    bent = after.tanh()
    along = at_cell + at_state * exit_ * (1 - bent**2)
    gates = torch.cat(
        [
            along * candidate * entry * (1 - entry),
            along * before * forget * (1 - forget),
            along * entry * (1 - candidate**2),
            at_state * bent * exit_ * (1 - exit_),
        ],
        1,
    )
    return gates, along * forget, gates.sum(0) if has_bias else None


def gru_cell(at_entry: Tensor, at_hidden: Tensor, state: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor]:
    """One step of a GRU as one operator: the state, and what the backward pass looks at."""
    one, other = (*biases, None, None)[:2]
    ones = (at_entry if one is None else at_entry + one).chunk(3, 1)
    others = (at_hidden if other is None else at_hidden + other).chunk(3, 1)
    reset, update = (ones[0] + others[0]).sigmoid(), (ones[1] + others[1]).sigmoid()
    new = (ones[2] + reset * others[2]).tanh()
    return new + update * (state - new), torch.cat([reset, update, new, state, others[2]], 1)


def gru_cell_backward(at_state: Tensor, kept: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    """Gradients at both kinds of gates, at the state before the step, and at both biases."""
    reset, update, new, state, hidden = kept.chunk(5, 1)
    at_new = at_state * (1 - update) * (1 - new**2)
    at_update = at_state * (state - new) * update * (1 - update)
    at_reset = at_new * hidden * reset * (1 - reset)
    entry = torch.cat([at_reset, at_update, at_new], 1)
    other = torch.cat([at_reset, at_update, at_new * reset], 1)
    return entry, other, at_state * update, *((entry.sum(0), other.sum(0)) if has_bias else (None, None))


ONLY_THERE = {
    aten._thnn_fused_lstm_cell.default: lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: gru_cell,
    aten._thnn_fused_gru_cell_backward.default: gru_cell_backward,
}
"""Operators that PyTorch calls on accelerators and does not have on the processor."""


class There(Tensor):
    """A tensor whose elements lie in `here`, a tensor of the processor.

    Attributes:
        here: (*shape) of the same dtype and strides.
    """

    here: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor) -> There:
        found: There = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            layout=here.layout,
            device=torch.device(NAME, 0),
        )
        found.here = here
        return found

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"There({self.here!r})"

    @property
    def data(self) -> Tensor:  # type: ignore[override]  # as modules set it to bring their parameters to a type
        return self.detach()

    @data.setter
    def data(self, other: There) -> None:
        super(There, type(self)).data.__set__(self, other)
        self.here = other.here

    def tolist(self) -> Any:
        """The numbers, which PyTorch copies from devices, but not from classes of others."""
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return computed(function, arguments, options or {})


def computed(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What an operator gives, on the device that it is to be on."""
    flat, structure = tree_flatten((arguments, options))
    there = [each for each in flat if isinstance(each, There)]
    if function is aten.copy_.default:
        inside(arguments[0]).copy_(inside(arguments[1]))
        return arguments[0]
    # Everywhere, single numbers of the processor may meet tensors of a device; the other way round they may not.
    others = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, There) and each.dim()]
    if there and others and function not in TAKE_PLACES:
        shapes = ", ".join(f"{tuple(each.shape)} on {each.device}" for each in (*there, *others))
        raise RuntimeError(f"{function}: expected all tensors to be on the same device, got {shapes}")
    asked = [each for each in flat if isinstance(each, torch.device)]
    stays = asked[0].type == NAME if asked else bool(there)
    inner, chosen = tree_unflatten([inside(each) for each in flat], structure)
    found = ONLY_THERE.get(function, function)(*inner, **chosen)
    turned = torch.Tag.inplace_view in function.tags  # such operators give a tensor its new shape below
    if not turned and any(each.shape != each.here.shape for each in there):
        raise NotImplementedError(f"{function} makes a tensor of another size of one that is there")
    if not stays:
        return found
    wrapped = tree_map(lambda each: There(each) if isinstance(each, Tensor) else each, found)
    return return_and_correct_aliasing(function, arguments, options, wrapped)


def inside(value: Any) -> Any:
    """The tensor that holds the elements, and the device that computes; anything else as it is."""
    if isinstance(value, There):
        return value.here
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


class Device:
    """What PyTorch asks the module of a device."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Numbers at random are the processor's."""

    def get_rng_state(self, _device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, _device: object = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def made_whole(operator: Any, *arguments: Any, **options: Any) -> Any:
    """A tensor that PyTorch would begin with no elements, and grow."""
    return computed(operator, arguments, options)


def in_half_precision(name: str) -> Any:
    """An operator that rounds what it is given, as autocast says."""
    operator = getattr(aten, name)
    without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def rounded(*arguments: Any, **options: Any) -> Any:
        kind = torch.get_autocast_dtype(NAME)

        def cast(each: Any) -> Any:
            return each.to(kind) if isinstance(each, Tensor) and each.dtype == torch.float32 else each

        with torch._C._ExcludeDispatchKeyGuard(without):
            return operator(*tree_map(cast, arguments), **tree_map(cast, options))

    return rounded


_registered: list[torch.library.Library] = []


def register() -> None:
    """Makes the device known to this process for good."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Device())
    every, some = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(lambda function, *arguments, **options: computed(function, arguments, options), "PrivateUse1")
    # `torch.tensor` copies with Python switched off, where PyTorch does not find the fallback.
    some.impl("copy_", lambda *all_, **options: computed(aten.copy_.default, all_, options), "PrivateUse1")
    for operator in MADE_WHOLE:
        some.impl(operator, partial(made_whole, operator), "PrivateUse1")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in IN_HALF_PRECISION:
        some.impl(name, in_half_precision(name), "AutocastPrivateUse1")
    _registered.extend([every, some])  # they hold as long as they live
