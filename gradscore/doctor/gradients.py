"""Whether gradients are finite and large enough for their type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ..gradients import PerSample
from .findings import Finding, problem, some, warning

BUDGET = 1 << 20
"""Elements of gradients looked at together: 4 MiB of float32, which the cache holds."""

UNDERFLOW_SHARE = 0.05
"""Share of samples with gradients too small for their type from which on it is a finding.

A choice: fewer hardly move the figures of a data set. On the digits model it is none, even in float16.
"""

UNDERFLOW_FACTOR = 8
"""A gradient whose largest element is below this many times the smallest normal number has lost most of its digits.

What is an eighth of the largest element, or less, is subnormal and loses a bit with every further power of two.
"""


class Magnitudes:
    """A sink of `Engine.stream` that keeps the largest magnitude of every parameter's gradient.

    Args:
        names: the parameters.
        samples: N.

    Attributes:
        largest: (N,) float64 by parameter name; NaN or infinite where an element is.
    """

    def __init__(self, names: Sequence[str], samples: int) -> None:
        self.largest = {name: torch.zeros(samples, dtype=torch.float64) for name in names}

    def __call__(self, name: str, rows: slice, gradient: PerSample) -> None:
        """Takes the gradients of some samples."""
        target = self.largest[name][rows]
        for part, block in gradient.blocks(BUDGET):
            found = _largest(block)
            target[part] = torch.maximum(target[part], found)


def _largest(block: Tensor) -> Tensor:
    """The largest magnitude of each sample, (n,); blocks are (n, elements) or (parts, n, elements)."""
    if not block.shape[-1]:
        return torch.zeros(block.shape[-2], dtype=torch.float64)
    found = block.detach().abs().amax(-1).double().cpu()
    return found if found.dim() == 1 else found.amax(0)


def check_magnitudes(magnitudes: Magnitudes, used: Mapping[str, torch.dtype]) -> Iterator[Finding]:
    """Looks for gradients that are not finite, vanish, or are too small for the type they are computed in.

    Args:
        magnitudes: of one batch; the gradient at the logits has a largest magnitude between 0.5 and 1.
        used: type by name, for parameters whose gradient is not zero by construction.

    Yields:
        The findings.
    """
    largest = {name: magnitudes.largest[name] for name in used}
    if not largest:
        return
    together = torch.stack(list(largest.values()))
    finite = torch.isfinite(together)
    broken = [name for name, row in zip(largest, finite, strict=True) if not bool(row.all())]
    if broken:
        yield problem(
            "gradients that are not finite",
            f"{some(broken)}, for {int((~finite.all(0)).sum())} of {together.shape[1]} inputs; look for divisions by "
            "zero, square roots and logarithms of zero, or compute in float32",
        )
        return
    lost = together.amax(0) == 0
    if bool(lost.any()):
        make = problem if float(lost.double().mean()) > 0.5 else warning
        yield make(
            "gradients that vanish",
            f"all are zero for {int(lost.sum())} of {len(lost)} inputs, so their features carry nothing; the network "
            f"saturates, or {_types(used)} underflows: compute in a wider type",
        )
    vanished = [name for name, row in largest.items() if not bool(row.any())]
    if vanished and not bool(lost.all()):
        yield warning(
            "parameters without effect",
            f"{some(vanished)}: their gradient is zero for every input, because units are dead or {_types(used)} "
            "underflows; leave them out by features.parameters, or compute in a wider type",
        )
    small = {
        name: float(((row > 0) & (row < UNDERFLOW_FACTOR * torch.finfo(used[name]).tiny)).double().mean())
        for name, row in largest.items()
    }
    underflowing = [name for name, share in small.items() if share > UNDERFLOW_SHARE]
    if underflowing:
        worst = max(small.values())
        yield warning(
            "underflow",
            f"{some(underflowing)}: for up to {worst:.0%} of the inputs the gradient is so small that {_types(used)} "
            "rounds it to a few bits or to zero; compute in a wider type",
        )


def _types(used: Mapping[str, torch.dtype]) -> str:
    return ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in used.values()}))
