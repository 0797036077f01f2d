"""Hooks that take outputs and gradients from a model to quantities while it runs, and leave no trace in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..models import first_tensor
from .quantity import (
    CALL,
    MODEL,
    InputGradientQuantity,
    InputQuantity,
    OutputGradientQuantity,
    OutputQuantity,
    Quantity,
    TensorQuantity,
)

if TYPE_CHECKING:
    from .health import TrainingHealth


class Hook:
    """A function as a hook, which does nothing in a copy of the module it hangs on, nor within `torch.func.vmap`.

    Args:
        function: is called with what the hook is called with.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __call__(self, *arguments: object) -> None:
        """Calls the function."""
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


def modules_to_depth(model: nn.Module, depth: int) -> dict[str, nn.Module]:
    """The modules so many levels below a model, and those without submodules above that, by name.

    Lists and dictionaries of modules, which are not called, make no level.

    Example:
        >>> list(modules_to_depth(nn.Sequential(nn.Sequential(nn.ReLU(), nn.ReLU()), nn.Flatten()), 1))
        ['0', '1']
    """
    found: dict[str, nn.Module] = {}
    for name, child in model.named_children():
        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict)
        if is_list or (depth > 1 and next(child.children(), None) is not None):
            below = modules_to_depth(child, depth if is_list else depth - 1)
            found |= {f"{name}.{each}": module for each, module in below.items()}
        else:
            found[name] = child
    return found


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


@contextmanager
def hooked(parameter: Any, hook: Callable[[Tensor], None]) -> Iterator[None]:
    """A hook on the gradient of a parameter; afterwards the parameter has the attributes it had before."""
    before = parameter._backward_hooks
    handle = parameter.register_hook(hook)
    try:
        yield
    finally:
        handle.remove()
        if before is None and not parameter._backward_hooks:
            parameter._backward_hooks = None


class ModelHooks:
    """Feeds quantities from a model by hooks on it, which go without a trace.

    Args:
        model: what is watched.
        layers: the watched layers by name.
        parameters: the watched parameters by name.
        quantities: what is fed.
        health: has hooks of its own.

    Attributes:
        step: number of the last step, counted from 0; -1 before the first. Schedules are asked about it.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Mapping[str, nn.Module],
        parameters: Mapping[str, nn.Parameter],
        quantities: Sequence[Quantity],
        *,
        health: TrainingHealth | None,
    ) -> None:
        self.model, self.layers, self.parameters, self.quantities = model, layers, parameters, list(quantities)
        self.step = -1
        self._health, self._is_paused = health, False
        self._saw = False  # whether a layer or a gradient was seen in this epoch
        self._counts_steps = True
        self._stack: ExitStack | None = None
        self._hooked: set[str] = set()
        self._inputs, self._calls, self._recalls = Calls(), Calls(), Calls()
        self._with_gradients: set[str] = set()

    def attach(self, *, count_steps: bool = True) -> Self:
        """Registers hooks; `detach` removes them.

        Args:
            count_steps: a forward pass of the model with gradients begins a step; otherwise `start_step` does.

        Raises:
            ConfigError: it is attached already, or a part of the model is compiled.
        """
        if self._stack is not None:
            raise ConfigError("the inspector is attached already; call detach() first")
        refuse_compiled(self.model)
        self._counts_steps = count_steps
        with ExitStack() as stack:
            stack.callback(self.model.register_forward_pre_hook(Hook(self._before)).remove)
            if self._health is not None:
                self._health.attach(stack)
            for name, module in self.layers.items():
                if self._of(InputQuantity, module) or self._of(InputGradientQuantity, module):
                    stack.callback(module.register_forward_pre_hook(Hook(partial(self._before_layer, name))).remove)
                if self._of(OutputQuantity, module) or self._of(OutputGradientQuantity, module):
                    stack.callback(module.register_forward_hook(Hook(partial(self._after_layer, name))).remove)
            self._stack = stack.pop_all()
        self._watch_parameters()
        return self

    def detach(self) -> None:
        """Removes all hooks. The model is as it was; what was found stays."""
        stack, self._stack = self._stack, None
        self._hooked.clear()
        if stack is not None:
            stack.close()

    def __enter__(self) -> Self:
        """Attaches."""
        return self.attach()

    def __exit__(self, *error: object) -> None:
        """Detaches, whatever happened."""
        self.detach()

    def start_step(self) -> None:
        """Begins a step, for loops in which a step is not a forward pass of the model."""
        self.step += 1
        for quantity in self.quantities:
            quantity.step = self.step
        if self._health is not None:
            self._health.start_step(self.step)
        self._watch_parameters()
        self.begin_pass()

    def begin_pass(self, inputs: object = None) -> None:
        """Begins a pass, for loops that do not call the model itself, but parts of it; `start_step` does so, too.

        Args:
            inputs: of the pass, if `findings` are looked for in it: a tensor of samples, or a tuple, list or dictionary
                whose first tensor is. The pass then ends with `end_pass`.
        """
        for calls in (self._inputs, self._calls, self._recalls):
            calls.clear()
        self._with_gradients.clear()
        if self._health is not None:
            self._health.begin_pass(inputs)

    def end_pass(self, outputs: object) -> None:
        """Ends a pass that `begin_pass` was given the inputs of.

        Args:
            outputs: where the backward pass begins: logits (N, K) or a loss, with a graph.
        """
        if self._health is not None:
            self._health.end_pass(outputs)

    def paused(self) -> AbstractContextManager[None]:
        """Looks at nothing while the block runs: for a forward pass that is no step.

        A model with batch norm trains on another pass than the one whose samples are looked at:

            with inspector.paused():
                losses = criterion(model.eval()(inputs), labels)
            inspector.observe_losses(losses)
            criterion(model.train()(inputs), labels).mean().backward()
        """
        return self._with_pause(True)

    @contextmanager
    def _with_pause(self, paused: bool) -> Iterator[None]:
        before = self._is_paused
        self._pause(paused)
        try:
            yield
        finally:
            self._pause(before)

    def _pause(self, paused: bool) -> None:
        self._is_paused = paused
        if self._health is not None:
            self._health.pause(paused)

    def _watch_parameters(self) -> None:
        """Hooks on the gradients of parameters that need one and have none yet: some are unfrozen while they train."""
        if self._stack is not None and any(quantity.source == "gradient" for quantity in self._of(TensorQuantity)):
            for name, parameter in self.parameters.items():
                if parameter.requires_grad and name not in self._hooked:
                    self._stack.enter_context(hooked(parameter, partial(self._after_gradient, name)))
                    self._hooked.add(name)

    def _of(self, kind: type[Any], module: nn.Module | None = None) -> list[Any]:
        """The quantities of a kind, and of those the ones that look at a module."""
        return [each for each in self.quantities if isinstance(each, kind) and (module is None or each.wants(module))]

    def _due(self, kind: type[Any], module: nn.Module | None = None) -> list[Any]:
        """Those that look at this step."""
        return [quantity for quantity in self._of(kind, module) if quantity.schedule(max(0, self.step))]

    def _before(self, module: nn.Module, inputs: object) -> None:
        del module, inputs
        if self._is_paused or in_backward():
            return
        if self._counts_steps and torch.is_grad_enabled():
            self.start_step()
        else:
            self.begin_pass()

    def _before_layer(self, name: str, module: nn.Module, inputs: object) -> None:
        if self._is_paused or in_backward() or not torch.is_grad_enabled():
            return
        site, given = self._inputs.site(name), first_tensor(inputs)
        if given is None:
            return
        self._saw = True
        for quantity in self._due(InputQuantity, module):
            quantity.observe(site, module, given)
        gradients = self._due(InputGradientQuantity, module)
        if gradients and given.requires_grad:
            watch_gradient(given, partial(self._after_tensor_gradient, site, module, gradients))

    def _after_layer(self, name: str, module: nn.Module, inputs: object, output: object) -> None:
        del inputs
        tensor = first_tensor(output)
        if self._is_paused or tensor is None:
            return
        self._saw = True
        again = in_backward() and name in self._calls
        if again and name in self._with_gradients:
            return  # activation checkpointing: what is computed again was seen the first time
        site = (self._recalls if again else self._calls).site(name)
        if torch.is_grad_enabled():
            self._with_gradients.add(name)
        for quantity in (self._due if torch.is_grad_enabled() else self._of)(OutputQuantity, module):
            if not (again and quantity.record_eval):
                quantity.observe(site, module, tensor)
        gradients = self._due(OutputGradientQuantity, module)
        if gradients and tensor.requires_grad:
            watch_gradient(tensor, partial(self._after_tensor_gradient, site, module, gradients))

    def _after_tensor_gradient(
        self,
        site: str,
        module: nn.Module,
        quantities: list[OutputGradientQuantity | InputGradientQuantity],
        gradient: Tensor,
    ) -> None:
        if self._stack is not None and not self._is_paused:
            for quantity in quantities:
                quantity.observe(site, module, gradient)

    def _after_gradient(self, name: str, gradient: Tensor) -> None:
        if self._is_paused:
            return
        self._saw = True
        plain = gradient if gradient.layout == torch.strided else gradient.to_dense()
        for quantity in self._due(TensorQuantity):
            if quantity.source == "gradient":
                quantity.observe(name, plain)
