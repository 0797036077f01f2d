"""How each parameter of a graph is going to be covered: by rules, by a parameter-side product, or by the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..errors import CoupledSamplesError
from .graph import Edge, Gradients, Graph, is_parameter_side, is_renaming, output_shape
from .layout import Layout, probe
from .mixing import are_apart, kept_apart
from .passes import backward_to
from .rules import RULES

BATCH_NORMS = ("CudnnBatchNormBackward0", "MiopenBatchNormBackward0", "NativeBatchNormBackward0")


@dataclass
class Plan:
    """What the probe found for one graph.

    Attributes:
        layouts: sample layout of the nodes where parameters meet the batch.
        uses: the edges at which each parameter's tensor meets the batch, by parameter name. A parameter that went
            through other nodes before has an edge whose source is such a node.
        references: parameters left to the reference, and why.
        parameter_side: parameters with an edge for which `is_parameter_side` holds.
    """

    layouts: dict[Node, Layout] = field(default_factory=dict)
    uses: dict[str, list[Edge]] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)
    parameter_side: frozenset[str] = frozenset()

    def edges(self) -> set[Edge]:
        """Where parameters meet the batch."""
        return {edge for edges in self.uses.values() for edge in edges}

    def nodes(self) -> list[Node]:
        """The nodes to visit, in a fixed order."""
        edges = [edge for name, edges in self.uses.items() if name not in self.references for edge in edges]
        return list(dict.fromkeys(edge.node for edge in edges))


@dataclass(frozen=True)
class Blueprint:
    """A plan with positions in `Graph.order` for nodes: good for every graph that the same code builds.

    Attributes:
        layouts: sample layout by position.
        shapes: shape of the output with that layout by position, with the samples divided out.
        uses: position and slot of each use, by parameter name.
        references: parameters left to the reference, and why.
        parameter_side: as in `Plan`.
        batched: positions of nodes along whose first axis the samples lie: see `mixing`.
    """

    layouts: dict[int, Layout]
    shapes: dict[int, tuple[int, ...]]
    uses: dict[str, list[tuple[int, int]]]
    references: dict[str, str]
    parameter_side: frozenset[str]
    batched: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan, graph: Graph) -> Blueprint:
        """Takes a plan apart from the graph it was made for."""
        position = {node: index for index, node in enumerate(graph.order)}
        return cls(
            {position[node]: layout for node, layout in plan.layouts.items()},
            {
                position[node]: layout.per_sample(output_shape(node, layout.output))
                for node, layout in plan.layouts.items()
            },
            {name: [(position[edge.node], edge.slot) for edge in edges] for name, edges in plan.uses.items()},
            dict(plan.references),
            plan.parameter_side,
            tuple(kept_apart(graph, plan.edges())),
        )

    def build(self, graph: Graph, samples: int) -> Plan | None:
        """The plan for another graph of equal signature, or None if the shapes of its nodes tell that it differs."""
        if not are_apart(graph, self.batched, samples):
            return None
        layouts = {}
        others = {layout: layout.resized(samples) for layout in set(self.layouts.values())}  # few, of many nodes
        for index, layout in self.layouts.items():
            node, resized = graph.order[index], others[layout]
            shape = output_shape(node, layout.output)
            if not resized.fits(shape) or resized.per_sample(shape) != self.shapes[index]:
                return None
            layouts[node] = resized
        uses = {name: [Edge(graph.order[index], slot) for index, slot in edges] for name, edges in self.uses.items()}
        return Plan(layouts, uses, dict(self.references), self.parameter_side)


def is_outdated(plan: Plan, outputs: Tensor, grad_outputs: Tensor, graph: Graph) -> bool:
    """True if a node has to be probed again: a gradient arrives and its layout is uncertain, or alternatives differ.

    Where only zeros arrive, any layout gives the right result, and where layouts agree on all else, each of them.
    """
    doubted = {node: layout for node, layout in plan.layouts.items() if not layout.certain or layout.alternatives}
    nodes = [node for node in plan.nodes() if node in doubted]
    found: list[Tensor] = []

    def visit(node: Node, gradients: Gradients) -> None:
        layout = doubted[node]
        if not layout.certain:
            found.extend(gradient.any().to(outputs.device) for gradient in gradients if gradient is not None)
            return
        gradient = gradients[layout.output]
        if gradient is not None:
            found.append(layout.is_disputed(gradient).to(outputs.device))

    backward_to(outputs, grad_outputs, graph, nodes, visit, retain_graph=True)
    return bool(found) and bool(torch.stack(found).any())  # an accelerator is waited for once


def first_uses(graph: Graph, leaf: Node) -> list[Edge]:
    """The edges at which a parameter, or a view of it, is used by anything but a view."""
    found, stack = [], [leaf]
    while stack:
        for edge in graph.users.get(stack.pop(), ()):
            if is_renaming(edge.node):
                stack.append(edge.node)
            else:
                found.append(edge)
    return found


def make_plan(outputs: Tensor, grad_outputs: Tensor, graph: Graph) -> Plan:
    """Finds where every parameter meets the batch.

    Starting from a parameter's first uses it asks (`layout.probe`) whether the samples are apart in the output gradient
    of the node. If not, the node belongs to the parameter's side (a relative position table, weight norm, a cast), and
    the search goes on with the users of its output.

    Args:
        outputs: (N, ...) tensor with the graph.
        grad_outputs: gradient at the outputs.
        graph: what `read_graph` found.

    Returns:
        The plan.

    Raises:
        CoupledSamplesError: batch norm in training mode lies on the way.
    """
    plan = Plan()
    uses = {name: first_uses(graph, leaf) for name, leaf in graph.leaves.items()}
    norms = [node for node in graph.order if node.name() in BATCH_NORMS and getattr(node, "_saved_training", False)]
    known: dict[Node, Layout | None] = {}
    while True:
        unknown = [edge.node for edges in uses.values() for edge in edges if edge.node not in known]
        unknown += [node for node in norms if node not in known]
        if not unknown:
            break
        unknown = list(dict.fromkeys([*unknown, *_probably_next(graph, unknown, len(outputs))]))
        found = probe(outputs, grad_outputs, graph, unknown)
        known.update({node: _believed(node, found.get(node)) for node in unknown})
        uses = {name: _climb(graph, edges, known) for name, edges in uses.items()}
    _refuse_coupling(norms, known, len(outputs))
    plan.parameter_side = frozenset(name for name, edges in uses.items() if any(map(is_parameter_side, edges)))
    for name, edges in uses.items():
        plan.uses[name] = edges
        for edge in edges:
            layout = known[edge.node]
            if layout is None:
                plan.references[name] = f"the samples are coupled or laid out in an unknown way at {edge.node.name()}"
            elif edge.node.name() not in RULES:
                plan.references[name] = f"no rule for {edge.node.name()}"
            else:
                plan.layouts[edge.node] = layout
    return plan


def _probably_next(graph: Graph, nodes: list[Node], samples: int) -> list[Node]:
    """What uses the results of nodes that look as if they had one sample: probed with them, in the same passes."""
    single = [node for node in nodes if samples > 1 and output_shape(node, 0)[:1] == (1,)]
    return [edge.node for node in single for edge in graph.users.get(node, ())]


def _believed(node: Node, layout: Layout | None) -> Layout | None:
    """The layout; None for one that is uncertain and no rule wants: the node may as well be on the parameter's side."""
    return None if layout is not None and not layout.certain and node.name() not in RULES else layout


def _climb(graph: Graph, edges: list[Edge], known: Mapping[Node, Layout | None]) -> list[Edge]:
    """Replaces every edge into a node that mixes the samples by the edges out of that node, as far up as is known."""
    result: dict[Edge, None] = {}
    stack = list(reversed(edges))
    seen: set[Edge] = set()
    while stack:
        edge = stack.pop()
        if edge in seen:
            continue
        seen.add(edge)
        users = graph.users.get(edge.node, [])
        if users and edge.node in known and known[edge.node] is None:
            stack.extend(reversed(users))
        else:
            result[edge] = None
    return list(result)


def _refuse_coupling(norms: list[Node], known: Mapping[Node, Layout | None], samples: int) -> None:
    for node in norms:
        layout = known[node]
        # Weight standardisation normalises a kernel as a batch of one, which holds no samples.
        if output_shape(node, 0)[0] % samples == 0 if layout is None else layout.axis == 0:
            raise CoupledSamplesError(
                "batch norm runs in training mode, so the loss of a sample depends on the other samples of its batch "
                "and per-sample gradients are not defined; call model.eval() before the forward pass (layers with "
                "track_running_stats=False have no statistics to use then: give them some, or take them out)"
            )
