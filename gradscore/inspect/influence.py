"""Whether anything depends on what a layer returns: tried out, since gradients of zero do not say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .finding import Finding
from .findings import diagnose
from .hooks import layer_of, learning_modules
from .vitals import Vitals

FILL = 1e-2
"""What frozen parameters that are all zero are filled with, so that they let a change through."""


def confirmed(
    vitals: Vitals, parameters: Mapping[str, nn.Parameter], does_matter: Callable[[str], bool]
) -> list[Finding]:
    """Findings without layers that get no gradient because nothing depends on them, whatever the weights are.

    Attention over a single key, say, gives it the weight 1 always, and query and key get no gradient by construction.

    Args:
        vitals: what was gathered; such layers are noted in it as immaterial.
        parameters: of the model, by name.
        does_matter: whether the outputs of the model depend on those of a layer, by call.
    """
    found = diagnose(vitals, parameters)
    idle = {each.layer for each in found if each.kind == "dead layer" and not does_matter(each.layer)}
    if not idle:
        return found
    vitals.immaterial |= idle
    return diagnose(vitals, parameters)


def matters(model: nn.Module, site: str, run: Callable[[], object]) -> bool:
    """Whether outputs change when random numbers take the place of what a layer returns.

    Args:
        model: has the layer; frozen parameters that are all zero are other numbers meanwhile.
        site: a call of the layer.
        run: runs the model, the same every time, and returns its outputs.
    """
    layer, number = layer_of(site)
    calls, parameters = [0], dict(model.named_parameters())
    closed = {
        name: torch.full_like(each, FILL)
        for name, each in parameters.items()
        if not each.requires_grad and not bool(each.any())
    }

    def scramble(module: nn.Module, inputs: object, output: object) -> object:
        del module, inputs
        calls[0] += 1
        return _scrambled(output) if calls[0] == number else output

    devices = {each.device for each in parameters.values() if each.device.type == "cuda"}
    with torch.no_grad(), replaced(parameters, closed), torch.random.fork_rng(devices):
        torch.manual_seed(0)
        before = list(_tensors(run()))
        handle = learning_modules(model)[layer].register_forward_hook(scramble)
        try:
            torch.manual_seed(0)
            after = list(_tensors(run()))
        finally:
            handle.remove()
    return any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


@contextmanager
def replaced(parameters: Mapping[str, nn.Parameter], others: Mapping[str, Tensor]) -> Iterator[None]:
    """Parameters with other values, and with their own afterwards."""
    before = {name: parameters[name].detach().clone() for name in others}
    try:
        with torch.no_grad():
            for name, values in others.items():
                parameters[name].copy_(values)
        yield
    finally:
        with torch.no_grad():
            for name, values in before.items():
                parameters[name].copy_(values)


def _scrambled(output: object) -> object:
    """Random numbers of the size of the first tensor, of either sign, in its place."""
    if isinstance(output, Tensor):
        if not output.is_floating_point() or not output.numel():
            return output
        size = max(1.0, float(output.double().square().mean().sqrt()))
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return (size * noise).to(output)
    if isinstance(output, tuple | list):
        places = [place for place, each in enumerate(output) if next(_tensors(each), None) is not None]
        items = [_scrambled(each) if place in places[:1] else each for place, each in enumerate(output)]
        make: Callable[..., object] = type(output)
        return make(*items) if hasattr(output, "_fields") else make(items)
    if isinstance(output, dict):
        name = next((name for name, each in output.items() if next(_tensors(each), None) is not None), None)
        if name is not None:
            output = type(output)({**output, name: _scrambled(output[name])})
    return output


def _tensors(output: object) -> Iterator[Tensor]:
    """All tensors of an output."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict | tuple | list):
        for each in output.values() if isinstance(output, dict) else output:
            yield from _tensors(each)
