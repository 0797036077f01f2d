"""The autograd graph of some outputs: where each parameter enters it, what tells graphs apart, and passes through it.

Nothing is attached to a model or a tensor; hooks on nodes live for one pass. Two things may differ between graphs with
the same nodes and shapes, and let samples lie otherwise: settings of nodes, such as the axis that a mean runs over, and
numbers that say which rows go where, such as the order in which a network sorts its samples. The first are part of the
code, the second of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from ..errors import EngineError

Gradients = tuple[Tensor | None, ...]

Visit = Callable[[Node, Gradients], None]
"""Takes a node and one gradient per forward output of it, None where nothing arrived."""

ACCUMULATE = "torch::autograd::AccumulateGrad"

RESHAPES = frozenset(
    {
        "AliasBackward0",
        "ReshapeAliasBackward0",
        "SqueezeBackward0",
        "SqueezeBackward1",
        "SqueezeBackward2",
        "UnsafeViewBackward0",
        "UnsqueezeBackward0",
        "ViewBackward0",
    }
)
"""Nodes that only rename the axes of their input: elements and their order stay."""

TRANSPOSE = "TBackward0"

CAST = "ToCopyBackward0"

HALF_PRECISION = (torch.float16, torch.bfloat16)

OPAQUE = {
    "CheckpointFunctionBackward": "activation checkpointing with use_reentrant=True hides the parameters inside it; "
    "switch checkpointing off, for example by model.gradient_checkpointing_disable()",
    "CompiledFunctionBackward": "torch.compile makes one node of the whole network and hides where its parameters are "
    "used; call the module it was made from, compiled._orig_mod",
}
"""Nodes that hide parameters, which would look as if the outputs did not depend on them, and what to do about them."""

SETTINGS = (
    "batch_first", "dim", "dim0", "dim1", "dimension", "dims", "index", "k", "offset", "pad", "shifts", "split_size",
    "split_sizes", "start", "step", "storage_offset", "stride",
)  # fmt: skip
"""Whole numbers that nodes save, none of which depends on the number of samples where these are not cut apart."""

INDICES = {
    "GatherBackward0": "index",
    "IndexAddBackward0": "index",
    "IndexBackward0": "indices",
    "IndexCopyBackward0": "index",
    "IndexPutBackward0": "indices",
    "IndexReduceBackward0": "index",
    "IndexSelectBackward0": "index",
    "MaskedScatterBackward0": "mask",
    "MaskedSelectBackward0": "mask",
    "ScatterAddBackward0": "index",
    "ScatterBackward0": "index",
    "ScatterReduceBackward0": "index",
    "SortBackward0": "indices",
    "TakeBackward0": "index",
    "TopkBackward0": "indices",
}
"""Nodes that move rows to where numbers say, and where these are saved."""

ALONG_AN_AXIS = (
    "GatherBackward0", "ScatterAddBackward0", "ScatterBackward0", "ScatterReduceBackward0", "SortBackward0",
    "TopkBackward0",
)  # fmt: skip
"""Nodes that move elements along one axis: samples only if they lie there."""


@dataclass(frozen=True)
class Edge:
    """Input number `slot` of `node`: the place where a tensor is used."""

    node: Node
    slot: int

    @property
    def source(self) -> tuple[Node, int]:
        """The node that made the tensor (or accumulates its gradient), and which of its outputs it is."""
        source, index = self.node.next_functions[self.slot]
        if source is None:
            raise ValueError("the input of this edge needs no gradient")
        return source, index

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor that is used."""
        source, index = self.source
        return leaf_tensor(source).shape if source.name() == ACCUMULATE else output_shape(source, index)


@dataclass
class Graph:
    """The part of an autograd graph that leads from some outputs to the wanted parameters.

    Attributes:
        places: the nodes in the order in which they are found from the outputs, and their numbers.
        users: for a node, the edges by which other nodes use its outputs.
        leaves: for a wanted parameter (by name), its `AccumulateGrad` node.
        signature: names, connections and settings of all nodes, the types that are cast to, which parameter each leaf
            is, and where rows go: equal for graphs that the same code built of the same parameters, with samples that
            lie alike.
        structure: the signature without what depends on the numbers in a batch.
    """

    places: dict[Node, int] = field(default_factory=dict)
    users: dict[Node, list[Edge]] = field(default_factory=dict)
    leaves: dict[str, Node] = field(default_factory=dict)
    signature: tuple[object, ...] = ()
    structure: tuple[object, ...] = ()

    @property
    def order(self) -> list[Node]:
        """The nodes by their places."""
        return list(self.places)

    def dtypes(self) -> set[torch.dtype]:
        """The types that the graph computes in."""
        return {info.dtype for node in self.places for info in node._input_metadata}

    def half_precision(self) -> torch.dtype | None:
        """The half-precision type that a part of the graph computes in, float16 before bfloat16; None without."""
        found = self.dtypes()
        return next((dtype for dtype in HALF_PRECISION if dtype in found), None)

    def above(self, nodes: Iterable[Node]) -> set[Node]:
        """All nodes whose outputs lead from the outputs of the graph to one of `nodes`; these are left out."""
        stack = list(nodes)
        found: set[Node] = set()
        while stack:
            for edge in self.users.get(stack.pop(), ()):
                if edge.node not in found:
                    found.add(edge.node)
                    stack.append(edge.node)
        return found


def read_graph(outputs: Tensor, parameters: Mapping[str, Tensor]) -> Graph:
    """Walks from `outputs` to every node that can be reached.

    Args:
        outputs: tensor with a graph.
        parameters: the wanted parameters by name.

    Returns:
        The graph; parameters that the outputs do not depend on have no leaf.

    Raises:
        EngineError: the graph has a node that hides parameters.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    graph = Graph()
    root = outputs.grad_fn
    if root is None:
        return graph
    stack = [(root, root.name())]
    places = graph.places
    places[root] = 0
    signature: list[object] = []
    moving: list[tuple[Node, str]] = []
    while stack:
        node, kind = stack.pop()
        if kind in OPAQUE:
            raise EngineError(OPAQUE[kind])
        signature += [kind, *(getattr(node, name) for name in _settings(type(node), kind))]
        if kind == CAST:
            signature.append(node._input_metadata[0].dtype)
        if kind in INDICES and not _takes_rows_of_a_parameter(node, kind):
            moving.append((node, kind))
        for slot, (child, number) in enumerate(node.next_functions):
            if child is None:
                signature.append(None)
                continue
            if child not in places:
                places[child] = len(places)
                child_kind = child.name()
                stack.append((child, child_kind))
                if child_kind == ACCUMULATE:
                    name = names.get(id(leaf_tensor(child)))
                    if name is not None:
                        graph.leaves[name] = child
                    signature.append(name)
            signature.append((places[child], number))
            graph.users.setdefault(child, []).append(Edge(node, slot))
    graph.structure = tuple(signature)
    graph.signature = (*signature, *_rows_moved(moving, len(outputs)))
    return graph


@cache
def _settings(node_type: type[Node], kind: str) -> list[str]:
    """The attributes of nodes of a kind that plans depend on."""
    names = [f"_saved_{name}" for name in SETTINGS if INDICES.get(kind) != name]
    return [name for name in names if hasattr(node_type, name)]


def _takes_rows_of_a_parameter(node: Node, kind: str) -> bool:
    """Whether a node picks rows of a leaf, in which there are no samples."""
    source = node.next_functions[0][0]
    return kind == "IndexBackward0" and source is not None and source.name() == ACCUMULATE


def _rows_moved(nodes: Sequence[tuple[Node, str]], samples: int) -> tuple[object, ...]:
    """Key of where numbers say that rows go, equal for batches in which they go alike.

    Args:
        nodes: those of `INDICES`, and their names, in a fixed order.
        samples: N.

    Returns:
        One entry for each node: hashes, but where one of its indices is that of all samples in their order, however
        many these are, its place alone.
    """
    indices = [_indices(node, kind, samples) for node, kind in nodes]
    on_host = iter(_on_the_host([each for some in indices for each in some]))
    in_order = torch.arange(samples, device="cpu")
    found: list[object] = []
    for some in indices:
        numbers = [next(on_host) for _ in some]
        # x[lengths - 1, arange(N)] takes another row of each sample, and each sample keeps its place. A mask does not.
        stay = tuple(
            each.numel() == samples and each.dtype != torch.bool and torch.equal(each.flatten().long(), in_order)
            for each in numbers
        )
        found.append(stay if any(stay) else tuple(hash((each.shape, each.numpy().tobytes())) for each in numbers))
    return tuple(found)


def _indices(node: Node, kind: str, samples: int) -> list[Tensor]:
    """The numbers that say where rows go, none where they cannot move samples."""
    if kind in ALONG_AN_AXIS and not _may_move_samples(node, samples):
        return []
    try:
        saved = getattr(node, f"_saved_{INDICES[kind]}")
    except RuntimeError:  # changed in place since, or recomputed: the rule that looks it up raises a clear error
        return []
    entries = saved if isinstance(saved, tuple | list) else (saved,)
    return [each.detach() for each in entries if isinstance(each, Tensor)]


def _may_move_samples(node: Node, samples: int) -> bool:
    """Whether the axis along which a node moves elements may be that of the samples.

    It is not where it is the last of several that others precede, as classes and features lie, unless only a last axis
    is left for the samples.
    """
    shape = output_shape(node, 0)
    dim = int(getattr(node, "_saved_dim", 0))
    dim -= dim >> 63 << 64  # saved without a sign: the last axis is that of the largest number
    dim %= max(1, len(shape))
    return dim == 0 or dim < len(shape) - 1 or not any(size % samples == 0 for size in shape[:-1])


def may_hide_samples(node: Node, samples: int) -> bool:
    """Whether samples may after all lie along the last axis, where `signature` takes elements to be moved in each."""
    shape = output_shape(node, 0)
    return (
        node.name() in ALONG_AN_AXIS
        and len(shape) > 0
        and shape[-1] % samples == 0
        and not _may_move_samples(node, samples)
    )


def _on_the_host(several: Sequence[Tensor]) -> list[Tensor]:
    """Whole numbers in memory; those of an accelerator by one copy."""
    away = [each.flatten().long() for each in several if each.device.type != "cpu"]
    copied = iter(torch.split(torch.cat(away).cpu(), [len(each) for each in away]) if away else ())
    return [each.contiguous() if each.device.type == "cpu" else next(copied).view(each.shape) for each in several]


def is_renaming(node: Node) -> bool:
    """True for nodes that hand on the elements of their only input under other axes, or rounded for autocast."""
    name = node.name()
    return name in RESHAPES or name == TRANSPOSE or (name == CAST and node._input_metadata[0].dtype in HALF_PRECISION)


def is_parameter_side(edge: Edge) -> bool:
    """True if the tensor of this edge went through more than views on its way from the parameter."""
    node, _ = edge.source
    while node.name() != ACCUMULATE:
        if not is_renaming(node) or node.next_functions[0][0] is None:
            return True
        node = node.next_functions[0][0]
    return False


def leaf_tensor(node: Any) -> Tensor:
    """The tensor whose gradient an `AccumulateGrad` node accumulates."""
    tensor: Tensor = node.variable
    return tensor


def output_shape(node: Node, index: int) -> torch.Size:
    """The shape of forward output `index` of `node`.

    Raises:
        EngineError: it is a nested tensor.
    """
    found = node._input_metadata[index]
    if found.is_nested_tensor:
        raise EngineError(
            f"the network computes with nested tensors ({node.name()}), whose samples cannot be told apart; pad them "
            "(torch.nested.to_padded_tensor) in front of its layers"
        )
    return torch.Size(found.shape)


def backward_to(
    outputs: Tensor,
    grad_outputs: Tensor,
    graph: Graph,
    nodes: Sequence[Node],
    visit: Visit,
    *,
    retain_graph: bool,
) -> None:
    """Backward pass from `outputs` that hands the output gradients of each of `nodes` to `visit`, then drops them.

    A node that the pass has to execute on its way to another one is visited by a pre-hook, while its saved tensors are
    alive. The last ones on each way are only asked for, so that nothing behind them is computed.

    Args:
        outputs: tensor with the graph.
        grad_outputs: gradient at the outputs, of their shape.
        graph: what `read_graph` found for these outputs.
        nodes: the nodes to visit; each is visited once.
        visit: called with the gradients of a node.
        retain_graph: keep the saved tensors for another pass.
    """
    wanted = list(dict.fromkeys(nodes))
    if not wanted:
        return
    executed = graph.above(wanted)
    last = [node for node in wanted if node not in executed]
    widths = [len(node._input_metadata) for node in last]
    edges = [GradientEdge(node, index) for node, width in zip(last, widths, strict=True) for index in range(width)]

    with visited([node for node in wanted if node in executed], visit):
        found = torch.autograd.grad(outputs, edges, grad_outputs, retain_graph=retain_graph, allow_unused=True)
    with torch.no_grad():
        for node, width in zip(last, widths, strict=True):
            visit(node, found[:width])
            found = found[width:]


@contextmanager
def visited(nodes: Iterable[Node], visit: Visit) -> Iterator[None]:
    """Hooks that visit nodes just before a backward pass executes them, for one pass."""
    with ExitStack() as hooks:
        for node in dict.fromkeys(nodes):
            hooks.callback(node.register_prehook(partial(visit, node)).remove)
        yield
