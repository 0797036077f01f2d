"""Trying a plan before it is trusted: do the rules cover it, and do they agree with the reference?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite

import torch
from torch import Tensor
from typing_extensions import override

from ..system import SQUARABLE
from .collect import NO_FAULT_OF_A_RULE, Collection, in_a_line
from .factored import PerSample
from .graph import Graph, half_precision
from .layout import moderate
from .passes import backward_to, backward_to_leaves
from .plan import Plan

TOLERANCES = {torch.float64: 1e-8, torch.float32: 2e-3}
"""Largest accepted difference of a gradient from the reference, relative to its norm, by precision.

Seen on seven torchvision networks: rounding of 8e-16 and 6e-7 at most. A wrong rule is off by a share of the norm
itself, and other networks, longer sums and other processors round more.
"""

HALF_TOLERANCE = 5e-2
"""The same where a part of the network computes in half precision; seen: 2e-2 at most with bfloat16, whose numbers
carry 8 bits, and 2e-3 with float16."""

NEGLIGIBLE = 1e-5
"""Gradients this much smaller than the sample's whole gradient may be rounding noise: differences are compared with
this share of the whole gradient's norm at least.

The bias of the keys of an attention, which its softmax cancels, has 2e-10 of the whole norm in float32.
"""

HALF_NEGLIGIBLE = 1e-2
"""The same where a part of the network computes in half precision: biases of Swin-T's norms with 5e-4 of the whole norm
are 6 % off in bfloat16."""


class Trial(Collection):
    """A pass whose gradients nobody wants: whatever a parameter's gradients raise means that they are not covered."""

    @override
    def deliver(self, name: str) -> None:
        self._attempt([name], lambda: super(Trial, self).deliver(name))

    @override
    def finish_products(self) -> None:
        self._attempt(self.late, super().finish_products)

    def _attempt(self, names: Iterable[str], what: Callable[[], None]) -> None:
        try:
            what()
        except NO_FAULT_OF_A_RULE:
            raise
        except Exception as error:  # noqa: BLE001  # a rule may be anyone's and raise anything
            self.not_covered.update(dict.fromkeys(names, in_a_line(error)))


def try_plan(
    parameters: Mapping[str, Tensor],
    graph: Graph,
    plan: Plan,
    outputs: Tensor,
    grad_outputs: Tensor,
    *,
    compare: bool,
) -> dict[str, str]:
    """Runs a plan without using its results.

    Args:
        parameters: the wanted parameters by name.
        graph: the graph of the outputs.
        plan: the plan to try.
        outputs: (N, ...).
        grad_outputs: gradient at the outputs.
        compare: compare two samples with the reference: both in one pass that goes on to the parameters, unless there
            are no others that show whether the two were exchanged.

    Returns:
        For each parameter that the rules do not cover, for which they raise anything, or for which they differ from the
        reference, the reason.
    """
    doubts: dict[str, str] = {}
    for chosen in _chosen(len(outputs)) if compare else [{}]:
        doubts = _tried(parameters, graph, plan, outputs, grad_outputs, chosen) | doubts
    return doubts


def _chosen(samples: int) -> list[dict[int, float]]:
    """The samples to compare in each pass, and what to multiply their gradients at the outputs by.

    Of two samples one has at least twice the size of the other, so that they do not cancel where they are opposite.
    """
    return [{0: 1.0, samples - 2: 4.0}] if samples > 2 else [{index: 1.0} for index in range(samples)]


def _tried(
    parameters: Mapping[str, Tensor],
    graph: Graph,
    plan: Plan,
    outputs: Tensor,
    grad_outputs: Tensor,
    chosen: Mapping[int, float],
) -> dict[str, str]:
    """One pass of `try_plan`, in which the sums over the chosen samples are compared and others have gradient zero."""
    seeds = grad_outputs
    if chosen:
        sized, seeds = moderate(grad_outputs), torch.zeros_like(grad_outputs)
        for index, factor in chosen.items():
            seeds[index] = factor * sized[index]
    found: dict[str, Tensor] = {}
    sizes: dict[str, float] = {}

    def sink(name: str, rows: slice, gradient: PerSample) -> None:
        wanted, got = (rows.stop - rows.start, *parameters[name].shape), (len(gradient), *gradient.shape)
        if got != wanted:
            raise ValueError(f"the gradients have shape {got}, not {wanted}")
        for part in _runs([index - rows.start for index in chosen if rows.start <= index < rows.stop]):
            several = gradient.dense(part)
            if len(several) != part.stop - part.start:
                raise ValueError(f"there are {len(several)} gradients of {part.stop - part.start} samples")
            for one in several:
                found[name] = found[name] + one if name in found else one.clone()
                sizes[name] = max(sizes.get(name, 0.0), _norm(one))

    collection = Trial(parameters, graph, plan, sink, len(outputs))
    truth: dict[str, Tensor] = {}

    def walk(batch: Collection) -> None:
        covered = {name: parameters[name] for name in plan.uses if name not in plan.references}
        if not chosen or not covered:
            backward_to(outputs, seeds, graph, batch.nodes, batch.visit, retain_graph=True)
            return
        sums = backward_to_leaves(outputs, seeds, batch.nodes, batch.visit, list(covered.values()))
        for (name, parameter), total in zip(covered.items(), sums, strict=True):
            truth[name] = torch.zeros_like(parameter) if total is None else total.to_dense()

    collection.run(walk)
    doubts = dict(collection.not_covered)
    half = half_precision(graph) is not None
    types = {outputs.dtype, *(info.dtype for node in graph.order for info in node._input_metadata)}
    tolerance = HALF_TOLERANCE if half else max(TOLERANCES.get(each, 0.0) for each in types)
    norms = {name: _norm(gradient) for name, gradient in truth.items()}
    floor = (HALF_NEGLIGIBLE if half else NEGLIGIBLE) * sum(norm**2 for norm in norms.values()) ** 0.5
    for name, gradient in truth.items():
        if name not in doubts and isfinite(norms[name]):
            difference = _norm(found.get(name, torch.zeros_like(gradient)) - gradient)
            # Parts that cancel in the sum of the samples still round by their own size.
            if not difference <= tolerance * max(norms[name], sizes.get(name, 0.0), floor):
                doubts[name] = f"the self-check found a gradient of norm {norms[name]:.2g} off by {difference:.2g}"
    return doubts


def _runs(places: Sequence[int]) -> list[slice]:
    """Slices that cover ascending places, neighbours together: a product of two costs less than two products."""
    starts = [place for place in places if place - 1 not in places]
    stops = [place + 1 for place in places if place + 1 not in places]
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]


def _norm(gradient: Tensor) -> float:
    """Euclidean norm; in float64, which takes many times as long, only where squares leave the range of the dtype."""
    norm = float(torch.linalg.vector_norm(gradient))
    low, high = SQUARABLE[torch.float32]
    if low < norm < high or not gradient.any():
        return norm
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
