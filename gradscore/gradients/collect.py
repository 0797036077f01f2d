"""One backward pass in which rules turn output gradients into per-sample gradients, parameter by parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.utils.checkpoint import CheckpointError

from ..errors import CoupledSamplesError
from .factored import Dense, Factored, PerSample, sample_slices
from .graph import ACCUMULATE, TRANSPOSE, Edge, Gradients, Graph, is_parameter_side
from .plan import Plan
from .rules import RULES, EntryPerSampleError, NotCoveredError, Use
from .tied import add

Sink = Callable[[str, slice, PerSample], None]
"""Takes a parameter's name, the samples that arrive and their gradients, and is done with them when it returns."""

Tap = Callable[[Gradients], None]
"""Takes the gradients at the outputs of a node, one per output, None where nothing arrived."""

PRODUCT_BUDGET = 1 << 22
"""Elements of gradients held at a time on the parameter's side: 16 MiB of float32, to bound memory rather than time."""

NO_FAULT_OF_A_RULE = (MemoryError, torch.OutOfMemoryError, CheckpointError, CoupledSamplesError)
"""What the machine or the model is to blame for: no other way of computing the gradients would help."""


class Collection:
    """The state of one pass: contributions that wait until the last use of their parameter was visited.

    Args:
        parameters: the wanted parameters by name.
        graph: the graph of the outputs.
        plan: where the parameters meet the batch.
        sink: takes what is complete.
        samples: N.
        taps: nodes whose output gradients are wanted as well, and what takes them.

    Attributes:
        graph: the graph.
        not_covered: parameters whose rule gave up or raised anything, and why; nothing of them has reached the sink.
        late: parameters whose gradients are complete only after the pass.
        cause: the first exception of a rule that did not give up by itself.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        graph: Graph,
        plan: Plan,
        sink: Sink,
        samples: int,
        taps: Mapping[Node, Tap] | None = None,
    ) -> None:
        self.not_covered: dict[str, str] = {}
        self.cause: Exception | None = None
        self.graph = graph
        self._parameters, self._plan, self._sink, self._samples = parameters, plan, sink, samples
        self._taps = taps or {}
        self._waiting = {name: set(edges) for name, edges in plan.uses.items() if name not in plan.references}
        self._owners: dict[Edge, list[str]] = {}
        for name in self._waiting:
            for edge in plan.uses[name]:
                self._owners.setdefault(edge, []).append(name)
        self._edges: dict[Node, list[Edge]] = {}
        for edge in self._owners:
            self._edges.setdefault(edge.node, []).append(edge)
        for edges in self._edges.values():  # a rule may leave something for later inputs: `Use.memo`
            edges.sort(key=lambda edge: edge.slot)
        self._direct: dict[str, list[PerSample]] = {name: [] for name in self._waiting}
        self._products: dict[Edge, PerSample] = {}
        self.late = plan.parameter_side & self._waiting.keys()

    @property
    def nodes(self) -> list[Node]:
        """The nodes that the pass has to visit."""
        return [*self._edges, *self._taps]

    @property
    def needs_graph_afterwards(self) -> bool:
        """Whether what lies behind the nodes has to outlive the pass."""
        return bool(self.late)

    def run(self, walk: Callable[[Collection], None]) -> None:
        """Runs the pass, in which `walk` calls `visit` for all `nodes`; see `Engine.stream`."""
        walk(self)
        self.finish_products()

    def visit(self, node: Node, gradients: Gradients) -> None:
        """Takes the output gradients of a node."""
        if node in self._taps:
            self._taps[node](gradients)
        memo: dict[str, Tensor] = {}
        for edge in self._edges.get(node, ()):
            owners = [name for name in self._owners[edge] if name not in self.not_covered]
            try:
                if owners and any(gradient is not None for gradient in gradients):
                    found = RULES[node.name()](Use(edge, self._plan.layouts[node], memo), gradients)
                    if owners[0] in self.late and is_parameter_side(edge):
                        self._products[edge] = found
                    else:
                        self._direct[owners[0]].append(through_views(found, edge))
            except NotCoveredError as reason:
                if isinstance(reason, EntryPerSampleError) and is_parameter_side(edge):
                    raise CoupledSamplesError(
                        f"the losses of the samples depend on one another: {owners[0]} reaches {node.name()} through a "
                        "tensor that mixes the samples; compute the outputs of each sample from that sample alone"
                    ) from reason
                self._give_up(owners, node, str(reason))
            except NO_FAULT_OF_A_RULE:
                raise
            except Exception as error:  # noqa: BLE001  # a rule may be anyone's and raise anything
                self.cause = self.cause or error
                self._give_up(owners, node, in_a_line(error))
            for name in owners:
                self._waiting[name].discard(edge)
                if not self._waiting[name] and name not in self.late:
                    self.deliver(name)

    def _give_up(self, names: list[str], node: Node, why: str) -> None:
        self.not_covered.update(dict.fromkeys(names, f"{node.name()}: {why}"))

    def deliver(self, name: str) -> None:
        """Hands a parameter's gradients to the sink: all its uses were visited."""
        parts = self._direct.pop(name)
        if parts and name not in self.not_covered:
            self._sink(name, slice(0, self._samples), add(parts))

    def finish_products(self) -> None:
        """Carries gradients that wait at parameter-side nodes back to the parameters, a few samples at a time."""
        names = {name: self._parameters[name] for name in self.late if name not in self.not_covered}
        names = {name: self._parameters[name] for name in self._parameters if name in names}
        edges = [edge for edge in self._products if any(name in names for name in self._owners[edge])]
        if not names or not edges:
            return
        heights = [prod(edge.shape) for edge in edges] + [parameter.numel() for parameter in names.values()]
        sources = [GradientEdge(*edge.source) for edge in edges]
        for rows in sample_slices(self._samples, sum(heights), PRODUCT_BUDGET):
            cotangents = [self._products[edge].dense(rows).reshape(-1, *edge.shape) for edge in edges]
            found = batched_products(sources, list(names.values()), cotangents)
            for name, gradient in zip(names, found, strict=True):
                parts: list[PerSample] = [Dense(gradient)]
                parts += [Dense(part.dense(rows)) for part in self._direct[name]]
                self._sink(name, rows, add(parts))


def in_a_line(error: Exception) -> str:
    """The kind of an exception and the first line of what it says."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def batched_products(sources: list[GradientEdge], parameters: list[Tensor], cotangents: list[Tensor]) -> list[Tensor]:
    """Vector-Jacobian products of the small graph between parameters and where they meet the batch.

    Args:
        sources: outputs of that graph.
        parameters: its inputs.
        cotangents: for each source n gradients, (n, *shape of the source).

    Returns:
        For each parameter (n, *shape), zero where no source depends on it.
    """
    found = torch.autograd.grad(
        sources, parameters, cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
    )
    count = len(cotangents[0])
    return [
        parameter.new_zeros(count, *parameter.shape) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    ]


def through_views(gradient: PerSample, edge: Edge) -> PerSample:
    """Undoes the views between a parameter and the edge at which it is used."""
    node, _ = edge.source
    while node.name() != ACCUMULATE:
        before = Edge(node, 0)
        shape = tuple(before.shape)
        if node.name() != TRANSPOSE or len(shape) < 2:
            gradient = gradient.reshaped(shape)
        elif isinstance(gradient, Factored) and gradient.is_matrix:
            gradient = gradient.transposed()
        else:
            gradient = Dense(gradient.dense(slice(None)).transpose(1, 2))
        node, _ = before.source
    return gradient
