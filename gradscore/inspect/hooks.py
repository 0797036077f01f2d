"""Hooks that take outputs and gradients from a model to quantities while it runs, and leave no trace in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..system import pass_depth
from .quantity import CALL, MODEL


class Hook:
    """A function as a hook, which does nothing in a copy of the module it hangs on, nor within `torch.func.vmap`.

    Nor does it in passes within `unwatched`, as those of another inspector and of `gradscore.features` are.

    Args:
        function: is called with what the hook is called with.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = _watched(function)

    def __call__(self, *arguments: object) -> None:
        """Calls the function, but not within `torch.func.vmap`."""
        if not in_vmap():
            self.function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """What copies and files get: a method of the standard library that takes anything and does nothing."""
        return getattr, (nullcontext(), "__exit__")


class Calls(Counter[str]):
    """Numbers the calls of each layer within a pass through the model, so that each has a name of its own."""

    def site(self, layer: str) -> str:
        """The name of the next call of a layer: that of the layer for the first one, `relu#2` for the second."""
        self[layer] += 1
        return layer if self[layer] == 1 else f"{layer}{CALL}{self[layer]}"


def in_vmap() -> bool:
    """Whether `torch.func.vmap` is running: tensors stand for a whole batch then, and have no values to look at."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(each.key() == torch._C._functorch.TransformType.Vmap for each in stack)


def in_backward() -> bool:
    """Whether autograd is running: a layer that is called then is computed again, by activation checkpointing."""
    return torch._C._current_graph_task_id() != -1  # what torch.utils.checkpoint itself asks


def leaf_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules without submodules by name, in the order of the model; a model that has none is its own layer."""
    return {name or MODEL: module for name, module in model.named_modules() if next(module.children(), None) is None}


def learning_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules without submodules, and others with parameters of their own, by name, in the order of the model."""
    return {
        name or MODEL: module
        for name, module in model.named_modules()
        if next(module.children(), None) is None or next(module.parameters(recurse=False), None) is not None
    }


def refuse_compiled(model: nn.Module) -> None:
    """Makes sure that no part of a model is compiled.

    Raises:
        ConfigError: one is: a module that was compiled and called never runs hooks that come later, and TorchScript
            takes none.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigError(
                f"{name or 'the model'} is TorchScript, whose layers take no hooks; nothing would be seen. Watch the "
                "model that it was made of"
            )
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise ConfigError(
                f"{name or 'the model'} is compiled, and compiled modules do not run hooks that come later; nothing "
                "would be seen. Watch and train the model as it was before torch.compile"
            )


def watch_gradient(tensor: Any, observe: Callable[[Tensor], None]) -> None:
    """Calls a function with the gradient of a tensor in every backward pass, whatever is done to the tensor later.

    A view that is changed in place (`Flatten`, then `ReLU(inplace=True)`) leaves the graph, and its hooks with it. The
    tensor that it is a view of stays, and its gradient has the same elements.

    Args:
        tensor: needs a gradient.
        observe: takes the gradient, of the shape of the tensor.
    """
    observe = _watched(observe)
    base = tensor._base
    whole = base is not None and base.requires_grad and base.numel() == tensor.numel()
    if not whole or not base.is_contiguous() or not tensor.is_contiguous():
        tensor.register_hook(observe)
        return
    shape, seen = tensor.shape, [False]
    alias = tensor.detach()  # shares the counter of changes in place
    before = alias._version

    def of_view(gradient: Tensor) -> None:
        seen[0] = True
        observe(gradient)

    def of_base(gradient: Tensor) -> None:
        if not seen[0] and alias._version > before:
            observe(gradient.reshape(shape))
        seen[0] = False

    tensor.register_hook(of_view)
    base.register_hook(of_base)


def _watched(function: Callable[..., object]) -> Callable[..., None]:
    """A function as it is in passes of the depth it is made at; in those within `unwatched` it does nothing."""
    depth = pass_depth()

    def of_such_passes(*arguments: object) -> None:
        if pass_depth() == depth:
            function(*arguments)

    return of_such_passes


@contextmanager
def hooked(parameter: Any, hook: Callable[[Tensor], None]) -> Iterator[None]:
    """A hook on the gradient of a parameter; afterwards the parameter has the attributes it had before."""
    before = parameter._backward_hooks
    handle = parameter.register_hook(_watched(hook))
    try:
        yield
    finally:
        handle.remove()
        if before is None and not parameter._backward_hooks:
            parameter._backward_hooks = None
