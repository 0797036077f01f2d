"""What takes outputs and gradients from a model to quantities while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .examination import Health
from .hooks import Calls, Hook, first_tensor, hooked, in_backward, refuse_compiled, watch_gradient
from .quantities.quantity import (
    InputGradientQuantity,
    InputQuantity,
    OutputGradientQuantity,
    OutputQuantity,
    Quantity,
    TensorQuantity,
)


class Watcher:
    """Hooks on a model, which go without a trace.

    Args:
        model: what is watched.
        layers: the watched layers by name.
        parameters: the watched parameters by name.
        quantities: what is fed.
        begin: called before every forward pass of the model, told whether it begins a step.
        health: has hooks of its own.

    Attributes:
        step: the number that schedules are asked about.
        paused: whether nothing is looked at.
        saw: whether a layer or a gradient was seen since this was last set to False.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Mapping[str, nn.Module],
        parameters: Mapping[str, nn.Parameter],
        quantities: Sequence[Quantity],
        *,
        begin: Callable[[bool], None],
        health: Health | None = None,
    ) -> None:
        self.model, self.layers, self.parameters, self.quantities = model, layers, parameters, quantities
        self.begin, self.health = begin, health
        self.step, self.paused, self.saw = -1, False, False
        self._stack: ExitStack | None = None
        self._hooked: set[str] = set()
        self._inputs, self._calls, self._recalls = Calls(), Calls(), Calls()
        self._with_gradients: set[str] = set()

    @property
    def is_attached(self) -> bool:
        """Whether the hooks are there."""
        return self._stack is not None

    def attach(self, *, count_steps: bool) -> None:
        """Registers the hooks.

        Raises:
            ConfigError: they are there already, or a part of the model is compiled.
        """
        if self._stack is not None:
            raise ConfigError("the inspector is attached already; call detach() first")
        refuse_compiled(self.model)
        with ExitStack() as stack:
            stack.callback(self.model.register_forward_pre_hook(Hook(partial(self._before, count_steps))).remove)
            if self.health is not None:
                self.health.attach(stack)
            for name, module in self.layers.items():
                if self.of(InputQuantity, module) or self.of(InputGradientQuantity, module):
                    stack.callback(module.register_forward_pre_hook(Hook(partial(self._before_layer, name))).remove)
                    stack.callback(module.register_forward_hook(Hook(partial(self._count_call, name))).remove)
                if self.of(OutputQuantity, module) or self.of(OutputGradientQuantity, module):
                    stack.callback(module.register_forward_hook(Hook(partial(self._after_layer, name))).remove)
            self._stack = stack.pop_all()
        self.watch_parameters()

    def detach(self) -> None:
        """Removes all hooks."""
        stack, self._stack = self._stack, None
        self._hooked.clear()
        if stack is not None:
            stack.close()

    def watch_parameters(self) -> None:
        """Hooks on the gradients of parameters that need one and have none yet: some are unfrozen while they train."""
        if self._stack is not None and any(quantity.source == "gradient" for quantity in self.of(TensorQuantity)):
            for name, parameter in self.parameters.items():
                if parameter.requires_grad and name not in self._hooked:
                    self._stack.enter_context(hooked(parameter, partial(self._after_gradient, name)))
                    self._hooked.add(name)

    def begin_pass(self) -> None:
        """The next call of every layer is its first one."""
        for calls in (self._inputs, self._calls, self._recalls):
            calls.restart()
        self._with_gradients.clear()

    def of(self, kind: type[Any], module: nn.Module | None = None) -> list[Any]:
        """The quantities of a kind, and of those the ones that look at a module."""
        return [
            quantity
            for quantity in self.quantities
            if isinstance(quantity, kind) and (module is None or quantity.wants(module))
        ]

    def is_due(self, quantity: Quantity) -> bool:
        """Whether a quantity looks at this step."""
        return quantity.schedule(max(0, self.step))

    def _before(self, count_steps: bool, module: nn.Module, inputs: object) -> None:
        del module, inputs
        if not self.paused and not in_backward():
            self.begin(count_steps and torch.is_grad_enabled())

    def _before_layer(self, name: str, module: nn.Module, inputs: object) -> None:
        given = first_tensor(inputs)
        if self.paused or given is None or in_backward() or not torch.is_grad_enabled():
            return
        self.saw = True
        site = self._inputs.next_site(name)
        for quantity in self.of(InputQuantity, module):
            if self.is_due(quantity):
                quantity.observe(site, module, given)
        gradients = [quantity for quantity in self.of(InputGradientQuantity, module) if self.is_due(quantity)]
        if gradients and given.requires_grad:
            watch_gradient(given, partial(self._after_tensor_gradient, site, module, gradients))

    def _count_call(self, name: str, module: nn.Module, inputs: object, output: object) -> None:
        del module, inputs, output
        if not self.paused and not in_backward() and torch.is_grad_enabled():
            self._inputs.site(name)

    def _after_layer(self, name: str, module: nn.Module, inputs: object, output: object) -> None:
        del inputs
        tensor = first_tensor(output)
        if self.paused or tensor is None:
            return
        self.saw = True
        again = in_backward() and name in self._calls
        if again and name in self._with_gradients:
            return  # activation checkpointing: what is computed again was seen the first time
        site = (self._recalls if again else self._calls).site(name)
        if torch.is_grad_enabled():
            self._with_gradients.add(name)
        for quantity in self.of(OutputQuantity, module):
            seen = again and quantity.record_eval
            if not seen and (not torch.is_grad_enabled() or self.is_due(quantity)):
                quantity.observe(site, module, tensor)
        gradients = [quantity for quantity in self.of(OutputGradientQuantity, module) if self.is_due(quantity)]
        if gradients and tensor.requires_grad:
            watch_gradient(tensor, partial(self._after_tensor_gradient, site, module, gradients))

    def _after_tensor_gradient(
        self,
        site: str,
        module: nn.Module,
        quantities: list[OutputGradientQuantity | InputGradientQuantity],
        gradient: Tensor,
    ) -> None:
        if self.is_attached and not self.paused:
            for quantity in quantities:
                quantity.observe(site, module, gradient)

    def _after_gradient(self, name: str, gradient: Tensor) -> None:
        if self.paused:
            return
        self.saw = True
        plain = gradient if gradient.layout == torch.strided else gradient.to_dense()
        for quantity in self.of(TensorQuantity):
            if quantity.source == "gradient" and self.is_due(quantity):
                quantity.observe(name, plain)
