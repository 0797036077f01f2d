"""What a forward pass leaves behind in its model, and how much it computes: whether two may run at once, in threads.

Python cannot tell whether code is safe to run twice at once, but what makes a network unsafe mostly shows: it changes
itself. It keeps a feature map in an attribute, counts its calls, lets a cache grow, or exchanges its weights for a
while, as `torch.func.functional_call` does. So every module is compared with what it was before, whenever it is entered
and left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as all_modules

from .interface import Interface

DEPTH = 4
"""How far containers and objects in an attribute of a module are looked into."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
PLAIN = (bool, int, float, complex, str, bytes, type(None))
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, nn.Module)


@dataclass(frozen=True, kw_only=True)
class ForwardLook:
    """One forward pass.

    Attributes:
        obstacle: what keeps two passes from running at once; None where nothing was seen.
        products: of a weight with a value, for each sample.
        weights: elements of all weight matrices and kernels that were used.
        layers: calls of modules with such weights.
    """

    obstacle: str | None
    products: float
    weights: int
    layers: int


def look_at_forward(model: nn.Module, forward: Callable[[], Tensor]) -> ForwardLook:
    """Runs a model once and watches it; no hook stays on it.

    Args:
        model: what runs.
        forward: runs it and returns its outputs (n, ...).
    """
    modules = {name or type(model).__name__: module for name, module in model.named_modules()}
    obstacles = _hooked(modules)
    before = {name: _marks(module) for name, module in modules.items()}
    used: list[tuple[Tensor, int]] = []

    def compare(name: str, module: nn.Module) -> None:
        if _marks(module) != before[name]:
            obstacles.append(f"{name} changes itself in forward")

    def enter(name: str, module: nn.Module, _inputs: object) -> None:
        compare(name, module)

    def leave(name: str, module: nn.Module, _inputs: object, output: Any) -> None:
        compare(name, module)
        values = sum(each.numel() for each in _tensors(output))
        used.extend((weight, values) for weight in module._parameters.values() if weight is not None)

    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.callback(module.register_forward_pre_hook(partial(enter, name)).remove)
            hooks.callback(module.register_forward_hook(partial(leave, name)).remove)
        samples = max(1, len(forward()))
    for name, module in modules.items():
        compare(name, module)
    matrices = [(weight, values / samples / len(weight)) for weight, values in used if weight.dim() > 1 and len(weight)]
    return ForwardLook(
        obstacle=next(iter(obstacles), None),
        products=sum(weight.numel() * places for weight, places in matrices),
        weights=sum({id(weight): weight.numel() for weight, _ in matrices}.values()),
        layers=len(matrices),
    )


def _hooked(modules: Mapping[str, nn.Module]) -> list[str]:
    """What is called in forward passes beside the modules themselves, and may keep what it sees."""
    everywhere = [each for name in HOOKS for each in getattr(all_modules, f"_global{name}").values()]
    found = ["a hook looks at all modules" for _ in everywhere]
    for name, module in modules.items():
        hooks = [hook for kind in HOOKS for hook in getattr(module, kind).values()]
        # Those of an interface keep nothing.
        found += [f"{name} has a hook" for hook in hooks if getattr(hook, "__module__", "") != Interface.__module__]
    return found


def _tensors(output: object) -> Iterator[Tensor]:
    """The tensor that a module puts out, or the first of several."""
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else [output]
    yield from [each for each in items if isinstance(each, Tensor)][:1]


class _Same:
    """Equal for the same object; it is kept, so that no other one takes its place in memory."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _marks(module: nn.Module) -> list[object]:
    """Equal for a module that is as it was; hooks are not looked at."""
    return [(name, _mark(value, DEPTH)) for name, value in vars(module).items() if not name.startswith("_forward_")]


def _mark(value: Any, depth: int) -> object:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        return _Same(value), None if value.is_inference() else value._version
    inner: list[object] = []
    if depth and not isinstance(value, CODE):
        if isinstance(value, Mapping):
            inner = [(_Same(key), _mark(each, depth - 1)) for key, each in list(value.items())]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            inner = [_mark(each, depth - 1) for each in list(value)]
        elif hasattr(value, "__dict__"):
            inner = [(name, _mark(each, depth - 1)) for name, each in list(vars(value).items())]
    return _Same(value), inner
