"""The slow, obvious twin: one backward pass per sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


def per_sample_gradients(
    outputs: Tensor,
    grad_outputs: Tensor,
    parameters: Mapping[str, Tensor],
    *,
    samples: range | None = None,
    retain_graph: bool = True,
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Differentiates one sample after the other through the whole batch's graph.

    Args:
        outputs: (N, ...) tensor with a graph.
        grad_outputs: gradient at the outputs, of their shape.
        parameters: what to differentiate with respect to, by name.
        samples: which samples; all of them by default.
        retain_graph: keep the graph after the last sample too.

    Yields:
        The index of a sample and its gradient by parameter name, each of the parameter's shape; zero for a parameter
        that the outputs do not depend on.
    """
    chosen = range(len(outputs)) if samples is None else samples
    names = [name for name, parameter in parameters.items() if parameter.requires_grad]
    for position, index in enumerate(chosen):
        alone = torch.zeros_like(grad_outputs)
        alone[index] = grad_outputs[index]
        found: tuple[Tensor, ...] = ()
        if names:
            keep = retain_graph or position + 1 < len(chosen)
            wanted = [parameters[name] for name in names]
            found = torch.autograd.grad(outputs, wanted, alone, retain_graph=keep, allow_unused=True)
        by_name = dict(zip(names, found, strict=True))
        gradients = {name: by_name.get(name) for name in parameters}
        yield (
            index,
            {
                name: torch.zeros_like(parameters[name]) if gradient is None else gradient.to_dense()
                for name, gradient in gradients.items()
            },
        )
