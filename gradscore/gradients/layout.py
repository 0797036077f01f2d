"""Which rows of a node's output gradient belong to which sample.

Attention and recurrent code flatten batch and time, sometimes time first, and shapes mislead: with 64 tokens and 64
samples either axis could be the batch. So a second backward pass multiplies the gradient of each sample at the outputs
by a power of two of its own. Scaling by a power of two is exact in floating point, so where the samples are kept apart,
each slice of a node's output gradient must be the first one times its sample's power, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..system import repeatable_kernels
from .graph import Gradients, Graph, backward_to

SPAN = {torch.float16: 6}
"""Number of different exponents for types of a small range; other types take `DEFAULT_SPAN`.

Gradients near one, times 2^5, have eleven bits more to grow on their way back before float16 ends at 65,504.
"""

DEFAULT_SPAN = 32
"""Powers up to 2^31 leave gradients near one the same again, and more, before float32 and bfloat16 end at 2^128."""

ENOUGH_SAMPLES = 3
"""Samples that must have a gradient before the usual layout is believed although others fit as well: two may agree with
another layout by chance, where all the rest is zero."""

CUDA_TOLERANCE = 1e-4
"""Relative tolerance on accelerators, where some kernels add in an order that changes from run to run.

float32 rounds by 6e-8, so the sum of a million terms in another order moves by about the root of a million times that.
"""

FLOAT16_TOLERANCE = 5e-2
"""Relative tolerance with float16, whose small numbers are rounded to few bits: scaling them is not exact.

A number sixteen times the smallest one above zero (6e-8) is rounded by 3 %.
"""


@dataclass(frozen=True)
class Layout:
    """Samples lie on one axis, which holds `samples * repeats` rows.

    Attributes:
        axis: the axis of the output gradient that holds the samples.
        samples: the number of samples N.
        repeats: the number of rows a sample has on the axis.
        neighbours: the number of these next to each other: all of them (sample-major), one (the samples alternate), or
            others where the samples lie on an axis between others that were flattened together.
        output: the output of the node that was probed, the first one that has a gradient.
        certain: False if the probe saw too little to believe in this layout, because most of it was zero.
        alternatives: other layouts that explain what the probe saw as well.
    """

    axis: int
    samples: int
    repeats: int
    neighbours: int
    output: int = 0
    certain: bool = True
    alternatives: tuple[Layout, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True if each row of the first axis is a sample."""
        return self.axis == 0 and self.repeats == 1

    def split(self, tensor: Tensor) -> Tensor:
        """Splits the sample axis in two, samples at `axis` and their repeats at `axis + 1`."""
        if self.repeats == 1 and tensor.shape[self.axis] == self.samples:  # as nearly always, for every use
            return tensor.unsqueeze(self.axis + 1)
        before, after = tensor.shape[: self.axis], tensor.shape[self.axis + 1 :]
        sizes = (self.repeats // self.neighbours, self.samples, self.neighbours)
        apart = tensor.reshape(*before, *sizes, *after).transpose(self.axis, self.axis + 1)
        return apart.flatten(self.axis + 1, self.axis + 2)

    def samples_first(self, tensor: Tensor) -> Tensor:
        """Returns the tensor as (N, repeats, other axes in order)."""
        split = self.split(tensor)
        return split.movedim((self.axis, self.axis + 1), (0, 1)) if self.axis else split

    def fits(self, shape: Sequence[int]) -> bool:
        """True if a tensor of this shape can have this layout."""
        return self.axis < len(shape) and shape[self.axis] == self.samples * self.repeats

    def per_sample(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape with the samples divided out: equal for batches of different size."""
        return (*shape[: self.axis], self.repeats, *shape[self.axis + 1 :])

    def resized(self, samples: int) -> Layout:
        """The same layout for another number of samples."""
        return replace(self, samples=samples, alternatives=tuple(each.resized(samples) for each in self.alternatives))

    def owners(self, device: torch.device) -> Tensor:
        """The sample of each row of the axis, (samples * repeats,) int64."""
        rows = torch.arange(self.samples * self.repeats, device=device)
        return rows // self.neighbours % self.samples

    def is_disputed(self, gradient: Tensor) -> Tensor:
        """Whether an alternative gives what is not zero in a gradient to another sample: () bool, on its device."""
        found = torch.zeros((), dtype=torch.bool, device=gradient.device)
        mine = self.owners(gradient.device)
        for alternative in self.alternatives:
            if not alternative.fits(gradient.shape):
                continue
            theirs = alternative.owners(gradient.device)
            if alternative.axis == self.axis:
                alive, differ = _alive(gradient, (self.axis,)), mine != theirs
            else:
                alive, differ = _alive(gradient, (self.axis, alternative.axis)), mine.unsqueeze(1) != theirs
            found |= (alive & differ).any()
        return found


def _alive(gradient: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Mask, along some axes, which come first in it, of where a gradient has anything that is not zero."""
    moved = (gradient != 0).movedim(axes, tuple(range(len(axes))))
    return moved.flatten(len(axes)).any(-1) if moved.dim() > len(axes) else moved


def exponents(samples: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Exponents, a small number per sample, all different up to the span of the type, neighbours always different.

    None is negative: gradients are more often too small for their type than too large.

    Args:
        samples: N.
        dtype: type of the gradients, whose range bounds the exponents.
        device: where the result lies.

    Returns:
        (N,) int64.
    """
    # 5 shares no divisor with either span; the second term keeps sample i apart from sample i + span.
    span = SPAN.get(dtype, DEFAULT_SPAN)
    index = torch.arange(samples, device=device)
    return (5 * index + 3 * (index // span)) % span


Marks = dict[int, tuple[Tensor, Tensor]]
"""Largest magnitude and sum of every slice along each axis that could hold the samples."""


def fingerprints(gradient: Tensor, samples: int) -> Marks:
    """Marks that tell the slices of a gradient apart.

    Largest magnitude and sum both scale exactly with a slice that is scaled by a power of two; of complex numbers their
    parts do. That of a sparse weight has none, for it holds no samples.
    """
    found: Marks = {}
    if gradient.layout is not torch.strided:
        return found
    parts = torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
    for axis, size in enumerate(gradient.shape):
        if size and size % samples == 0:
            slices = (parts.movedim(axis, 0) if axis else parts).reshape(size, -1).contiguous()
            if slices.shape[1]:
                found[axis] = (slices.abs().amax(1), slices.sum(1))
    return found


def probe(outputs: Tensor, grad_outputs: Tensor, graph: Graph, nodes: Sequence[Node]) -> dict[Node, Layout | None]:
    """Finds the sample layout of the first gradient at the outputs of every node by two backward passes.

    Args:
        outputs: (N, ...) tensor with the graph, samples on the first axis.
        grad_outputs: the gradient at the outputs, of their shape.
        graph: what `read_graph` found.
        nodes: the nodes in question.

    Returns:
        For every node its layout, or None where the samples are mixed, laid out in another way, or no gradient arrives.
        A node that only zeros reach has the first layout its shape allows, uncertain if there are others.
    """
    samples = len(outputs)
    narrowest = graph.half_precision() or grad_outputs.dtype
    powers = exponents(samples, narrowest, outputs.device)
    tolerance = CUDA_TOLERANCE if outputs.device.type != "cpu" else 0.0
    tolerance = FLOAT16_TOLERANCE if narrowest == torch.float16 else tolerance
    seen: list[dict[Node, tuple[int, Marks]]] = [{}, {}]

    def note(place: int, node: Node, gradients: Gradients) -> None:
        given = ((output, gradient) for output, gradient in enumerate(gradients) if gradient is not None)
        output, gradient = next(given, (0, None))
        seen[place][node] = (output, {} if gradient is None else fingerprints(gradient, samples))

    plainly = moderate(grad_outputs)
    scaled = torch.ldexp(plainly, powers.reshape(-1, *[1] * (plainly.dim() - 1))).to(plainly.dtype)
    with repeatable_kernels():
        for place, gradient in enumerate((plainly, scaled)):
            backward_to(outputs, gradient, graph, nodes, partial(note, place), retain_graph=True)
    before, after = seen
    found: dict[Node, Layout | None] = {}
    for node, (output, changed) in after.items():
        first, plain = before[node]
        # A function of the user's own may give another output a gradient, or none, where it is scaled.
        comparable = first == output and plain.keys() == changed.keys()
        found[node] = _match(plain, changed, powers, tolerance, output) if comparable else None
    return found


def moderate(grad_outputs: Tensor) -> Tensor:
    """The gradients times a power of two per sample, so that the largest of each sample is near one."""
    largest = torch.nan_to_num(grad_outputs.detach().double()).abs().reshape(len(grad_outputs), -1).amax(1)
    shift = -torch.frexp(largest).exponent.reshape(-1, *[1] * (grad_outputs.dim() - 1))
    return torch.ldexp(grad_outputs.detach().double(), shift).to(grad_outputs.dtype)


def _match(plain: Marks, scaled: Marks, powers: Tensor, tolerance: float, output: int) -> Layout | None:
    """The first layout that explains the scaled gradient: on the first axis first, the usual ones first on each."""
    samples = len(powers)
    fitting: list[Layout] = []
    for axis, before in plain.items():
        repeats = len(before[0]) // samples
        for neighbours in _divisors(repeats):
            rows = powers.repeat_interleave(neighbours).repeat(repeats // neighbours)
            expected = [torch.ldexp(mark, rows).to(mark.dtype) for mark in before]
            if _agree(expected, scaled[axis], tolerance):
                fitting.append(Layout(axis, samples, repeats, neighbours, output))
    if not fitting:
        return None
    first, *others = fitting
    largest, _ = plain[first.axis]
    present = int((replace(first, axis=0).samples_first(largest) != 0).any(1).sum())
    # Where others fit as well: only zeros along a diagonal make samples look as if they followed one another by chance.
    usual = first.axis == 0 and first.neighbours == first.repeats and present >= ENOUGH_SAMPLES
    return replace(first, certain=present > 1 and (usual or not others), alternatives=tuple(others))


def _divisors(number: int) -> list[int]:
    """The divisors of a number: itself and 1, the usual cases, first."""
    between = [divisor for divisor in range(2, number // 2 + 1) if number % divisor == 0]
    return [number, *([1] if number > 1 else []), *between]


def _agree(expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float) -> bool:
    """Compares largest magnitudes and sums bit by bit, or within a tolerance the magnitudes, which nothing cancels."""
    if tolerance:
        return torch.allclose(expected[0].double(), found[0].double(), rtol=tolerance, atol=0.0, equal_nan=True)
    return all(
        torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)) for one, other in zip(expected, found, strict=True)
    )
