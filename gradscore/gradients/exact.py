"""The slow, obvious reference: one backward pass per sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


def per_sample_gradients(
    outputs: Tensor,
    grad_outputs: Tensor,
    parameters: Mapping[str, Tensor],
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Differentiates one sample after the other through the whole batch's graph, which is kept.

    Args:
        outputs: (N, ...) tensor with a graph.
        grad_outputs: gradient at the outputs, of their shape.
        parameters: what to differentiate with respect to, by name.

    Yields:
        The index of a sample and its gradient by parameter name, each of the parameter's shape; zero for a parameter
        that the outputs do not depend on.
    """
    names = [name for name, parameter in parameters.items() if parameter.requires_grad]
    for index in range(len(outputs)):
        alone = torch.zeros_like(grad_outputs)
        alone[index] = grad_outputs[index]
        found: tuple[Tensor, ...] = ()
        if names:
            wanted = [parameters[name] for name in names]
            found = torch.autograd.grad(outputs, wanted, alone, retain_graph=True, allow_unused=True)
        by_name = dict(zip(names, found, strict=True))
        gradients = {name: by_name.get(name) for name in parameters}
        yield (
            index,
            {
                name: torch.zeros_like(parameters[name]) if gradient is None else gradient.to_dense()
                for name, gradient in gradients.items()
            },
        )
