"""How each parameter of a graph is covered: by rules, by a parameter-side product, or by the reference.

A plan is made on the first batch, tried there (`try_plan`), and holds for every graph of equal signature, unless a node
may send rows of samples to where its numbers say. A product with a matrix of zeros and ones deals rows out as an index
does, without one that could be looked at: experts that get their tokens by such a product, pooling of graphs of several
sizes. So does a mask over samples that were broadcast to one another. What a probe finds there holds for its batch
alone. No list of such ways is complete: so the second batch of a graph is looked at as well (`Plan.agrees`), later ones
now and then (`Plan.keeps_apart`), and each where a function of the user's own may do anything, or a node moves rows in
a way that is not looked at closer (`Plan.is_found_again`).

`Collection` carries a plan out, in one backward pass in which rules turn output gradients into per-sample gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import isfinite, prod

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.utils.checkpoint import CheckpointError

from ..errors import CoupledSamplesError
from ..system import SQUARABLE, as_rows
from .graph import (
    ACCUMULATE,
    TRANSPOSE,
    Edge,
    Gradients,
    Graph,
    backward_to,
    is_parameter_side,
    is_renaming,
    may_hide_samples,
    output_shape,
    visited,
)
from .layout import Layout, moderate, probe
from .per_sample import Dense, Factored, PerSample, add, sample_slices
from .rules import RULES, EntryPerSampleError, NotCoveredError, Use

BATCH_NORMS = ("CudnnBatchNormBackward0", "MiopenBatchNormBackward0", "NativeBatchNormBackward0")

PRODUCTS = {"AddmmBackward0": (1, 2), "MmBackward0": (0, 1), "MvBackward0": (0, 1), "SparseAddmmBackward0": (1, 2)}
"""Products of matrices, and the inputs that are multiplied."""

BATCHED = {"BaddbmmBackward0": (1, 2), "BmmBackward0": (0, 1)}
"""Products of batches of matrices, which keep these apart, and the inputs that are multiplied."""

ATTENTION = "ScaledDotProduct"
"""Beginning of the names of nodes of attention, which keep what lies along the first axis apart."""

TABLES = ("EmbeddingBackward0", "EmbeddingBagBackward0")
"""Rows of a table; where that is none of the network's, rows of samples."""

HIDDEN = ("CopySlices", "SegmentReduceBackward0")
"""Nodes that may move rows to where nobody can see."""

MAY_MOVE = (
    "AddbmmBackward0", "AddmvBackward0", "CholeskySolveBackward0", "GroupedMmBackward0", "LinalgLstsqBackward0",
    "LinalgLuSolveBackward0", "LinalgSolveExBackward0", "LinalgSolveTriangularBackward0", "OrmqrBackward0",
    "PutBackward0", "SparseCompressedTensorBackward0", "SparseCooTensorWithDimsAndTensorsBackward0",
    "SparseMmReduceImplBackward0", "SparseSparseMatmulBackward0", "ToDenseBackward0", "TriangularSolveBackward0",
    "TrilinearBackward0",
)  # fmt: skip
"""Nodes that send rows to where matrices or places say that are no index, none of which networks often have."""

ROW_BY_ROW = (
    "ConvolutionBackward0", "GridSampler2DBackward0", "GridSampler3DBackward0", "MaxUnpool2DBackward0",
    "MaxUnpool3DBackward0",
)  # fmt: skip
"""Nodes that keep apart what lies along their first axis, and may move what lies along others."""

JOINING = ("CatBackward0", "ConstantPadNdBackward0", "StackBackward0")
"""Nodes whose inputs are smaller than their output, and yet used once."""


THOUSAND = 1024.0
"""How much larger losses are made, a power of two, which changes no digit, to see whether their gradients follow."""


@dataclass
class Plan:
    """Plan for one graph, found by the probe; its nodes are named by their places in `Graph.order`.

    Attributes:
        uses: where each parameter's tensor meets the batch, place and slot, by parameter name. A parameter that went
            through other nodes before has an edge whose source is such a node.
        layouts: sample layout of the nodes where parameters meet the batch.
        shapes: shape of the output with that layout, with the samples divided out.
        references: parameters left to the reference, and why.
        parameter_side: parameters with an edge for which `is_parameter_side` holds.
        batched: nodes that keep apart what lies along their first axis alone: the samples have to lie there.
        holds_once: whether the plan may hold for its batch alone.
        is_doubtful: whether a node may move rows of samples in another batch, which has to be looked at in each.
    """

    uses: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)
    parameter_side: frozenset[str] = frozenset()
    batched: tuple[int, ...] = ()
    holds_once: bool = False
    is_doubtful: bool = False

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

    def agrees(self, other: Plan) -> bool:
        """Whether samples of another batch of such a graph lie as those of this plan's do, as far as both tell."""
        alike = all(_lie_alike(layout, other.layouts.get(place)) for place, layout in self.layouts.items())
        return alike and not other.holds_once and other.references.keys() <= self.references.keys()

    def is_found_again(self, outputs: Tensor, grad_outputs: Tensor, graph: Graph) -> bool:
        """Whether a probe finds the samples of a batch where this plan, resized to it, has them."""
        order = graph.order
        found = probe(outputs, grad_outputs, graph, [order[place] for place in self.layouts])
        return all(_lie_alike(layout, found.get(order[place])) for place, layout in self.layouts.items())

    def keeps_apart(self, outputs: Tensor, grad_outputs: Tensor, graph: Graph, *, seed: int) -> bool:
        """Whether half of the samples leave the rows of the others at zero: one pass, for a probe's two and its marks.

        Args:
            outputs: as for `make_plan`; the plan is resized to it.
            grad_outputs: as for `make_plan`.
            graph: as for `make_plan`.
            seed: chooses the half.
        """
        samples, order = len(outputs), graph.order
        host = torch.device("cpu")
        silent = torch.zeros(samples, dtype=torch.bool, device=host)
        by_lot = torch.randperm(samples, generator=torch.Generator().manual_seed(seed), device=host)
        silent[by_lot[: samples // 2]] = True
        certain = {order[place]: layout for place, layout in self.layouts.items() if layout.certain}
        rows = {each: silent[each.owners(host)].nonzero().flatten().to(outputs.device) for each in {*certain.values()}}
        found: list[Tensor] = []

        def visit(node: Node, gradients: Gradients) -> None:
            layout = certain[node]
            gradient = gradients[layout.output]
            if gradient is not None:
                others = as_rows(gradient.index_select(layout.axis, rows[layout]).movedim(layout.axis, 0))
                # What is no number says nothing: zero times infinity is none, either.
                found.append((others.abs().amax(1) > 0).any().to(outputs.device))

        seeds = moderate(grad_outputs)
        seeds[silent.nonzero().flatten().to(outputs.device)] = 0
        backward_to(outputs, seeds, graph, list(certain), visit, retain_graph=True)
        return not found or not bool(torch.stack(found).any())  # an accelerator is waited for once

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


def _lie_alike(one: Layout, that: Layout | None) -> bool:
    """Whether samples lie alike in two batches, as far as both tell."""
    if that is None:
        return False
    alike = (one.axis, one.repeats, one.neighbours) == (that.axis, that.repeats, that.neighbours)
    return alike or not (one.certain and that.certain)


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
        is_doubtful=any(_may_mix(node, samples) for node in graph.places),
    )
    with_samples = {edge.node for edge in met if known[edge.node] is not None}
    passed = graph.above(with_samples)
    if not plan.holds_once:
        deals_out = _deals_out(outputs, grad_outputs, graph, with_samples | passed)
        plan.holds_once, plan.is_doubtful = bool(deals_out), plan.is_doubtful or deals_out is None
    for name, edges in uses.items():
        for edge in edges:
            layout, place = known[edge.node], graph.places[edge.node]
            if is_parameter_side(edge) and edge.source[0] in passed:
                # This is no parameter's side: other parameters met samples there, and the pass frees what is passed.
                plan.references[name] = f"the samples change places at {edge.node.name()}"
            elif layout is None:
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


def _may_mix(node: Node, samples: int) -> bool:
    """Whether a node that moves no rows of samples in a batch may do so in another: nobody can look into it."""
    if hasattr(node, "_forward_cls") or node.name() in MAY_MOVE or may_hide_samples(node, samples):
        return True  # the first is a function in Python
    return node.name() in ROW_BY_ROW and output_shape(node, 0)[0] % samples != 0


def _deals_out(outputs: Tensor, grad_outputs: Tensor, graph: Graph, nodes: Container[Node]) -> bool | None:
    """Whether what samples make may be sent to other samples, as numbers say that are no index; None if in doubt.

    A mask can do so once samples were broadcast to one another, and so can a product that adds samples up: along the
    axis on which samples lie in the result.

    Args:
        outputs: as for `make_plan`.
        grad_outputs: as for `make_plan`.
        graph: as for `make_plan`.
        nodes: those whose results hold samples.
    """
    candidates: dict[Node, set[int]] = {}
    for node in graph.places:
        if node not in nodes:
            continue
        shared = {axis for edge in _inputs(node, nodes) for axis in _shared_axes(edge)}
        if any(output_shape(node, 0)[axis] % len(outputs) == 0 for axis in shared):
            candidates[node] = shared
    found = probe(outputs, grad_outputs, graph, list(candidates)) if candidates else {}
    for node, axes in candidates.items():
        layout = found.get(node)
        if layout is None or (layout.certain and any(each.axis in axes for each in (layout, *layout.alternatives))):
            return True
    # Of what little but zeros reaches nothing is said.
    return None if any(layout is not None and not layout.certain for layout in found.values()) else False


def _inputs(node: Node, wanted: Container[Node]) -> Iterator[Edge]:
    """Edges to the inputs of a node that are made by wanted nodes."""
    for slot, (source, _) in enumerate(node.next_functions):
        if source is not None and source in wanted:
            yield Edge(node, slot)


def _shared_axes(edge: Edge) -> list[int]:
    """The axes of a node's first output along which the gradient of an input adds up: it is used more than once."""
    node, wide = edge.node, output_shape(edge.node, 0)
    name = node.name()
    if name == "RepeatBackward0":
        return [axis for axis, times in enumerate(getattr(node, "_saved_repeats", ())) if times > 1]
    if name.startswith(ATTENTION):
        return [len(wide) - 2, len(wide) - 1]
    factors = {**PRODUCTS, **BATCHED}.get(name)
    if factors and edge.slot in factors:  # of the left one along the columns, of the right one along the rows
        return [len(wide) - 1 if edge.slot == factors[0] else len(wide) - 2]
    shape = (1,) * (len(wide) - len(edge.shape)) + tuple(edge.shape)
    pairs = list(zip(shape, wide, strict=False))
    if name in JOINING or len(shape) > len(wide) or any(one not in (1, other) for one, other in pairs):
        return []
    return [axis for axis, (one, other) in enumerate(pairs) if one < other]


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


Sink = Callable[[str, slice, PerSample], None]
"""Takes a parameter's name, the samples that arrive and their gradients, and is done with them when it returns."""

PRODUCT_BUDGET = 1 << 22
"""Elements of gradients held at a time on the parameter's side: 16 MiB of float32, to bound memory rather than time."""

NO_FAULT_OF_A_RULE = (MemoryError, torch.OutOfMemoryError, CheckpointError, CoupledSamplesError)
"""Errors of the machine or the model: no other way of computing the gradients would help."""

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


class Collection:
    """The state of one pass: contributions that wait until the last use of their parameter was visited.

    Args:
        parameters: the wanted parameters by name.
        graph: the graph of the outputs.
        plan: where the parameters meet the batch.
        sink: takes what is complete.
        samples: N.
        is_trial: an exception of the sink means that the parameter is not covered.

    Attributes:
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
        *,
        is_trial: bool = False,
    ) -> None:
        self.not_covered: dict[str, str] = {}
        self.cause: Exception | None = None
        self._parameters, self._sink, self._samples, self._is_trial = parameters, sink, samples, is_trial
        order = graph.order
        self._layouts = {order[place]: layout for place, layout in plan.layouts.items()}
        self._waiting: dict[str, set[Edge]] = {}
        self._owners: dict[Edge, list[str]] = {}
        for name, uses in plan.uses.items():
            if name in plan.references:
                continue
            edges = [Edge(order[place], slot) for place, slot in uses]
            self._waiting[name] = set(edges)
            for edge in edges:
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
        return [*self._edges]

    def visit(self, node: Node, gradients: Gradients) -> None:
        """Takes the output gradients of a node."""
        memo: dict[str, Tensor] = {}
        for edge in self._edges.get(node, ()):
            owners = [name for name in self._owners[edge] if name not in self.not_covered]
            if owners and any(gradient is not None for gradient in gradients):
                with self._giving_up(owners, f"{node.name()}: "):
                    self._apply_rule(edge, owners[0], memo, gradients)
            for name in owners:
                self._waiting[name].discard(edge)
                if not self._waiting[name] and name not in self.late:
                    self._deliver(name)

    def _apply_rule(self, edge: Edge, owner: str, memo: dict[str, Tensor], gradients: Gradients) -> None:
        kind = edge.node.name()
        try:
            found = RULES[kind](Use(edge, self._layouts[edge.node], memo), gradients)
        except EntryPerSampleError as reason:
            if not is_parameter_side(edge):
                raise
            raise CoupledSamplesError(
                f"the losses of the samples depend on one another: {owner} reaches {kind} through a tensor that mixes "
                "the samples; compute the outputs of each sample from that sample alone"
            ) from reason
        if owner in self.late and is_parameter_side(edge):
            self._products[edge] = found
        else:
            self._direct[owner].append(_through_views(found, edge))

    @contextmanager
    def _giving_up(self, names: Iterable[str], where: str = "") -> Iterator[None]:
        """Notes that parameters are not covered where anything is raised that a rule is to blame for."""
        try:
            yield
        except NO_FAULT_OF_A_RULE:
            raise
        except NotCoveredError as reason:
            self.not_covered.update(dict.fromkeys(names, f"{where}{reason}"))
        except Exception as error:  # noqa: BLE001  # a rule may be anyone's and raise anything
            self.cause = self.cause or error
            why = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
            self.not_covered.update(dict.fromkeys(names, where + why))

    def _deliver(self, name: str) -> None:
        """Hands a parameter's gradients to the sink: all its uses were visited."""
        parts = self._direct.pop(name)
        if parts and name not in self.not_covered:
            with self._giving_up([name]) if self._is_trial else nullcontext():
                self._sink(name, slice(0, self._samples), add(parts))

    def finish_products(self) -> None:
        """Carries gradients that wait at parameter-side nodes back to the parameters, a few samples at a time."""
        with self._giving_up(self.late) if self._is_trial else nullcontext():
            self._carry_back()

    def _carry_back(self) -> None:
        names = [name for name in self._parameters if name in self.late and name not in self.not_covered]
        edges = [edge for edge in self._products if any(name in names for name in self._owners[edge])]
        if not names or not edges:
            return
        parameters = [self._parameters[name] for name in names]
        elements = sum(prod(edge.shape) for edge in edges) + sum(parameter.numel() for parameter in parameters)
        sources = [GradientEdge(*edge.source) for edge in edges]
        for rows in sample_slices(self._samples, elements, PRODUCT_BUDGET):
            cotangents = [self._products[edge].dense(rows).reshape(-1, *edge.shape) for edge in edges]
            found: tuple[Tensor | None, ...] = torch.autograd.grad(
                sources, parameters, cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
            for name, parameter, gradient in zip(names, parameters, found, strict=True):
                if gradient is None:
                    gradient = parameter.new_zeros(rows.stop - rows.start, *parameter.shape)
                parts: list[PerSample] = [Dense(gradient), *(Dense(part.dense(rows)) for part in self._direct[name])]
                self._sink(name, rows, add(parts))


def _through_views(gradient: PerSample, edge: Edge) -> PerSample:
    """Undoes the views between a parameter and the edge at which it is used."""
    node, _ = edge.source
    while node.name() != ACCUMULATE:
        before = Edge(node, 0)
        shape = tuple(before.shape)
        if node.name() != TRANSPOSE or len(shape) < 2:
            gradient = gradient.reshaped(shape)
        elif isinstance(gradient, Factored) and gradient.is_matrix:
            gradient = Factored(gradient.right, gradient.left, shape)
        else:
            gradient = Dense(gradient.dense(slice(None)).transpose(1, 2))
        node, _ = before.source
    return gradient


def try_plan(
    parameters: Mapping[str, Tensor],
    graph: Graph,
    plan: Plan,
    outputs: Tensor,
    grad_outputs: Tensor,
    *,
    compare: bool,
) -> dict[str, str]:
    """Runs a plan before it is trusted: do the rules cover it, and do they agree with the reference?

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
    samples = len(outputs)
    # Of two samples one has at least twice the size of the other, so that they do not cancel where they are opposite.
    passes = [{0: 1.0, samples - 2: 4.0}] if samples > 2 else [{index: 1.0} for index in range(samples)]
    failed: dict[str, str] = {}
    for chosen in passes if compare else [{}]:
        failed = _failed_checks(parameters, graph, plan, outputs, grad_outputs, chosen) | failed
    return failed


def _failed_checks(
    parameters: Mapping[str, Tensor],
    graph: Graph,
    plan: Plan,
    outputs: Tensor,
    grad_outputs: Tensor,
    chosen: Mapping[int, float],
) -> dict[str, str]:
    """One pass of `try_plan`: the sums over the chosen samples, times these factors, are compared; others are zero."""
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
        places = [index - rows.start for index in chosen if rows.start <= index < rows.stop]
        # Neighbours are written out together: a product of two costs less than two products.
        starts = [place for place in places if place - 1 not in places]
        stops = [place + 1 for place in places if place + 1 not in places]
        for start, stop in zip(starts, stops, strict=True):
            for one in gradient.dense(slice(start, stop)).reshape(stop - start, *gradient.shape):
                found[name] = found[name] + one if name in found else one.clone()
                sizes[name] = max(sizes.get(name, 0.0), norm_of(one))

    collection = Collection(parameters, graph, plan, sink, len(outputs), is_trial=True)
    covered = {name: parameters[name] for name in plan.uses if name not in plan.references} if chosen else {}
    if covered:
        with visited(collection.nodes, collection.visit):
            sums = torch.autograd.grad(
                outputs, list(covered.values()), seeds, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        truth = {name: total.to_dense() for name, total in zip(covered, sums, strict=True)}
    else:
        backward_to(outputs, seeds, graph, collection.nodes, collection.visit, retain_graph=True)
        truth = {}
    collection.finish_products()
    failed = dict(collection.not_covered)
    half = graph.half_precision() is not None
    tolerance = HALF_TOLERANCE if half else max(TOLERANCES.get(each, 0.0) for each in {outputs.dtype, *graph.dtypes()})
    norms = {name: norm_of(gradient) for name, gradient in truth.items()}
    floor = (HALF_NEGLIGIBLE if half else NEGLIGIBLE) * sum(norm**2 for norm in norms.values()) ** 0.5
    for name, gradient in truth.items():
        if name not in failed and isfinite(norms[name]):
            difference = norm_of(found.get(name, torch.zeros_like(gradient)) - gradient)
            # Parts that cancel in the sum of the samples still round by their own size.
            if not difference <= tolerance * max(norms[name], sizes.get(name, 0.0), floor):
                failed[name] = f"the self-check found a gradient of norm {norms[name]:.2g} off by {difference:.2g}"
    return failed


def is_linear(parameters: Mapping[str, Tensor], outputs: Tensor, grad_outputs: Tensor, graph: Graph) -> bool:
    """Whether losses a thousand times as large have gradients a thousand times as large: two backward passes.

    They do but for hooks and functions of the user's own that change gradients by their size, such as a clamp.

    Args:
        parameters: the wanted parameters by name.
        outputs: (N, ...) tensor with the graph.
        grad_outputs: gradient at the outputs.
        graph: that of the outputs; not looked at in float16, whose range is too small.
    """
    half, several = graph.half_precision(), [parameters[name] for name in graph.leaves]
    if half == torch.float16 or not several:
        return True
    seeds = moderate(grad_outputs)
    small, large = (
        torch.autograd.grad(outputs, several, seeds * scale, retain_graph=True, materialize_grads=True)
        for scale in (1 / THOUSAND, THOUSAND)
    )
    pairs = [(one.to_dense() * THOUSAND, other.to_dense() / THOUSAND) for one, other in zip(small, large, strict=True)]
    sizes = [max(norm_of(one), norm_of(other)) for one, other in pairs]
    low, high = SQUARABLE[torch.float32]
    if not all(low < size * THOUSAND < high for size in sizes if size):  # out of range, numbers say nothing
        return True
    tolerance = HALF_TOLERANCE if half else TOLERANCES[torch.float32]
    floor = (HALF_NEGLIGIBLE if half else NEGLIGIBLE) * sum(size**2 for size in sizes) ** 0.5
    differences = [norm_of(one - other) for one, other in pairs]
    return all(difference <= tolerance * max(size, floor) for difference, size in zip(differences, sizes, strict=True))


def norm_of(gradient: Tensor) -> float:
    """Euclidean norm; in float64, which takes many times as long, only where squares leave the range of the dtype."""
    gradient = torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient
    norm = float(torch.linalg.vector_norm(gradient))
    low, high = SQUARABLE[torch.float32]
    if low < norm < high or not gradient.any():
        return norm
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
