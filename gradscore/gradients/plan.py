"""How each parameter of a graph is going to be covered: by rules, by a parameter-side product, or by the reference.

A plan is made on the first batch and holds for every graph of equal signature, unless a node may send rows of samples
to where its numbers say. A product with a matrix of zeros and ones deals rows out as an index does, without one that
could be looked at: experts that get their tokens by such a product, pooling of graphs of several sizes. What a probe
finds there holds for its batch alone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..errors import CoupledSamplesError
from .graph import Edge, Gradients, Graph, backward_to, is_parameter_side, is_renaming, output_shape
from .layout import Layout, probe
from .rules import RULES

BATCH_NORMS = ("CudnnBatchNormBackward0", "MiopenBatchNormBackward0", "NativeBatchNormBackward0")

PRODUCTS = {"AddmmBackward0": (1, 2), "MmBackward0": (0, 1), "MvBackward0": (0, 1), "SparseAddmmBackward0": (1, 2)}
"""Products of matrices, and the inputs that are multiplied."""

BATCHED = {"BaddbmmBackward0": (1, 2), "BmmBackward0": (0, 1)}
"""Products of batches of matrices, which keep these apart, and the inputs that are multiplied."""

ATTENTION = "ScaledDotProduct"
"""What the names of nodes of attention begin with, which keep what lies along the first axis apart."""

TABLES = ("EmbeddingBackward0", "EmbeddingBagBackward0")
"""Rows of a table; where that is none of the network's, rows of samples."""

HIDDEN = ("CopySlices", "SegmentReduceBackward0")
"""Nodes that may move rows to where nobody can see."""


@dataclass
class Plan:
    """What the probe found for one graph, whose nodes are named by their places in `Graph.order`.

    Attributes:
        uses: where each parameter's tensor meets the batch, place and slot, by parameter name. A parameter that went
            through other nodes before has an edge whose source is such a node.
        layouts: sample layout of the nodes where parameters meet the batch.
        shapes: shape of the output with that layout, with the samples divided out.
        references: parameters left to the reference, and why.
        parameter_side: parameters with an edge for which `is_parameter_side` holds.
        batched: nodes that keep apart what lies along their first axis alone: the samples have to lie there.
        holds_once: whether the plan may hold for its batch alone.
    """

    uses: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)
    parameter_side: frozenset[str] = frozenset()
    batched: tuple[int, ...] = ()
    holds_once: bool = False

    def resized(self, graph: Graph, samples: int) -> Plan | None:
        """The plan for another graph of equal signature, or None if the shapes of its nodes tell that it differs."""
        order = graph.order
        if any(output_shape(order[place], 0)[0] % samples for place in self.batched):
            return None
        others = {layout: layout.resized(samples) for layout in set(self.layouts.values())}  # few, of many nodes
        layouts = {place: others[layout] for place, layout in self.layouts.items()}
        for place, layout in layouts.items():
            shape = output_shape(order[place], layout.output)
            if not layout.fits(shape) or layout.per_sample(shape) != self.shapes[place]:
                return None
        return replace(self, layouts=layouts)

    def is_outdated(self, outputs: Tensor, grad_outputs: Tensor, graph: Graph) -> bool:
        """True if a node has to be probed again: a gradient arrives at an uncertain layout, or alternatives differ.

        Where only zeros arrive, any layout gives the right result, and where layouts agree on all else, each of them.
        """
        order = graph.order
        covered = {place for name, uses in self.uses.items() if name not in self.references for place, _ in uses}
        doubted = {
            order[place]: layout
            for place, layout in self.layouts.items()
            if place in covered and (not layout.certain or layout.alternatives)
        }
        found: list[Tensor] = []

        def visit(node: Node, gradients: Gradients) -> None:
            layout = doubted[node]
            if not layout.certain:
                found.extend(gradient.any().to(outputs.device) for gradient in gradients if gradient is not None)
                return
            gradient = gradients[layout.output]
            if gradient is not None:
                found.append(layout.is_disputed(gradient).to(outputs.device))

        backward_to(outputs, grad_outputs, graph, list(doubted), visit, retain_graph=True)
        return bool(found) and bool(torch.stack(found).any())  # an accelerator is waited for once


def make_plan(outputs: Tensor, grad_outputs: Tensor, graph: Graph) -> Plan:
    """Finds where every parameter meets the batch.

    Starting from a parameter's first uses it asks (`layout.probe`) whether the samples are apart in the output gradient
    of the node. If not, the node belongs to the parameter's side (a relative position table, weight norm, a cast), and
    the search goes on with the users of its output.

    Args:
        outputs: (N, ...) tensor with the graph, of two samples at least.
        grad_outputs: gradient at the outputs.
        graph: what `read_graph` found.

    Returns:
        The plan.

    Raises:
        CoupledSamplesError: batch norm in training mode lies on the way, or a wanted parameter is a table whose
            gradients are divided by how often the whole batch picks a row.
    """
    _refuse_scaled_rows(graph)
    samples = len(outputs)
    uses = {name: _first_uses(graph, leaf) for name, leaf in graph.leaves.items()}
    norms = [node for node in graph.places if node.name() in BATCH_NORMS and getattr(node, "_saved_training", False)]
    known: dict[Node, Layout | None] = {}
    while True:
        unknown = [edge.node for edges in uses.values() for edge in edges if edge.node not in known]
        unknown += [node for node in norms if node not in known]
        if not unknown:
            break
        # What uses the results of nodes that look as if they had one sample is probed with them, in the same passes.
        single = [node for node in unknown if output_shape(node, 0)[:1] == (1,)]
        unknown += [edge.node for node in single for edge in graph.users.get(node, ())]
        unknown = list(dict.fromkeys(unknown))
        found = probe(outputs, grad_outputs, graph, unknown)
        for node in unknown:
            layout = found.get(node)
            # Uncertain, and no rule wants it: the node may as well be on the parameter's side.
            known[node] = None if layout and not layout.certain and node.name() not in RULES else layout
        uses = {name: _climb(graph, edges, known) for name, edges in uses.items()}
    _refuse_coupling(norms, known, samples)
    met = {edge for edges in uses.values() for edge in edges}
    plan = Plan(
        uses={name: [(graph.places[edge.node], edge.slot) for edge in edges] for name, edges in uses.items()},
        parameter_side=frozenset(name for name, edges in uses.items() if any(map(is_parameter_side, edges))),
        batched=tuple(place for node, place in graph.places.items() if _is_batched(node, met)),
        holds_once=any(_mixes(node, met, samples) for node in graph.places),
    )
    for name, edges in uses.items():
        for edge in edges:
            layout, place = known[edge.node], graph.places[edge.node]
            if layout is None:
                plan.references[name] = f"the samples are coupled or laid out in an unknown way at {edge.node.name()}"
            elif edge.node.name() not in RULES:
                plan.references[name] = f"no rule for {edge.node.name()}"
            else:
                plan.layouts[place] = layout
                plan.shapes[place] = layout.per_sample(output_shape(edge.node, layout.output))
    return plan


def _first_uses(graph: Graph, leaf: Node) -> list[Edge]:
    """The edges at which a parameter, or a view of it, is used by anything but a view."""
    found, stack = [], [leaf]
    while stack:
        for edge in graph.users.get(stack.pop(), ()):
            if is_renaming(edge.node):
                stack.append(edge.node)
            else:
                found.append(edge)
    return found


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


def _refuse_coupling(norms: Iterable[Node], known: Mapping[Node, Layout | None], samples: int) -> None:
    for node in norms:
        layout = known[node]
        # Weight standardisation normalises a kernel as a batch of one, which holds no samples.
        if output_shape(node, 0)[0] % samples == 0 if layout is None else layout.axis == 0:
            raise CoupledSamplesError(
                "batch norm runs in training mode, so the loss of a sample depends on the other samples of its batch "
                "and per-sample gradients are not defined; call model.eval() before the forward pass (layers with "
                "track_running_stats=False have no statistics to use then: give them some, or take them out)"
            )


def _refuse_scaled_rows(graph: Graph) -> None:
    scaled = {node for node in graph.places if getattr(node, "_saved_scale_grad_by_freq", False)}
    for name, leaf in graph.leaves.items() if scaled else ():
        if not scaled.isdisjoint(graph.above([leaf])):
            raise CoupledSamplesError(
                f"{name}: scale_grad_by_freq divides the gradient of a row by how often the batch picks it, so that of "
                "a sample depends on the other samples of its batch; set scale_grad_by_freq of the layer to False, "
                "which leaves its outputs as they are"
            )


def _mixes(node: Node, uses: Container[Edge], samples: int) -> bool:
    """Whether a node may send rows of samples to where its numbers say.

    Args:
        node: a node.
        uses: where parameters meet the batch: what is multiplied there is no row of a sample.
        samples: N.
    """
    name = node.name()
    if name in HIDDEN:
        return True
    if name in TABLES:
        return not _is_of_parameters(node, 0, uses)
    if _is_batched(node, uses):
        return output_shape(node, 0)[0] % samples != 0
    if name not in PRODUCTS:
        return False
    one, other = PRODUCTS[name]
    if any(_is_of_parameters(node, slot, uses) for slot in (one, other)):
        return False
    if node.next_functions[other][0] is not None:
        return True
    # What needs no gradient is a weight that is frozen, or made of the batch. A weight leaves the rows where they are.
    return output_shape(node, 0)[0] % samples != 0


def _is_batched(node: Node, uses: Container[Edge]) -> bool:
    """Whether a node multiplies samples with samples, and keeps apart what lies along its first axis."""
    name = node.name()
    if name.startswith(ATTENTION):
        return True
    return name in BATCHED and not any(_is_of_parameters(node, slot, uses) for slot in BATCHED[name])


def _is_of_parameters(node: Node, slot: int, uses: Container[Edge]) -> bool:
    """Whether an input is made of parameters alone, as far as the plan or a look at views can tell."""
    edge = Edge(node, slot)
    return edge in uses or (node.next_functions[slot][0] is not None and not is_parameter_side(edge))
