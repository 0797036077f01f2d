"""Where each parameter enters the autograd graph; nothing is attached to a model or a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..errors import EngineError
from .signature import INDICES, rows_moved, settings_of

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
"""Nodes that hide parameters, and what to do about them."""


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
        order: the nodes in a fixed, depth-first order from the outputs.
        users: for a node, the edges by which other nodes use its outputs.
        leaves: for a wanted parameter (by name), its `AccumulateGrad` node.
        kinds: the names of its nodes.
        signature: names, connections and settings of all nodes, the types that are cast to, which parameter each leaf
            is, and where rows go: equal for graphs that the same code built of the same parameters, with samples that
            lie alike.
        structure: the signature without what depends on the numbers in a batch.
    """

    order: list[Node] = field(default_factory=list)
    users: dict[Node, list[Edge]] = field(default_factory=dict)
    leaves: dict[str, Node] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    signature: tuple[object, ...] = ()
    structure: tuple[object, ...] = ()


def is_renaming(node: Node) -> bool:
    """True for nodes that hand on the elements of their only input under other axes, or rounded for autocast."""
    name = node.name()
    return name in RESHAPES or name == TRANSPOSE or (name == CAST and output_dtype(node, 0) in HALF_PRECISION)


def is_parameter_side(edge: Edge) -> bool:
    """True if the tensor of this edge went through more than views on its way from the parameter."""
    node, _ = edge.source
    while node.name() != ACCUMULATE:
        if not is_renaming(node) or node.next_functions[0][0] is None:
            return True
        node = node.next_functions[0][0]
    return False


def output_dtype(node: Node, index: int) -> torch.dtype:
    """The type of forward output `index` of `node`."""
    dtype: torch.dtype = node._input_metadata[index].dtype
    return dtype


def half_precision(graph: Graph) -> torch.dtype | None:
    """The half-precision type that a part of the graph computes in, float16 before bfloat16; None if there is none."""
    found = {info.dtype for node in graph.order for info in node._input_metadata}
    return next((dtype for dtype in HALF_PRECISION if dtype in found), None)


def refuse_opaque(graph: Graph) -> None:
    """Raises an error for nodes that hide parameters: those would look as if the outputs did not depend on them.

    Raises:
        EngineError: the graph has such a node.
    """
    for kind, why in OPAQUE.items():
        if kind in graph.kinds:
            raise EngineError(why)


def leaf_tensor(node: Any) -> Tensor:
    """The tensor whose gradient an `AccumulateGrad` node accumulates."""
    tensor: Tensor = node.variable
    return tensor


def output_shape(node: Node, index: int) -> torch.Size:
    """The shape of forward output `index` of `node`."""
    return torch.Size(node._input_metadata[index].shape)


def read_graph(outputs: Tensor, parameters: Mapping[str, Tensor]) -> Graph:
    """Walks from `outputs` to every node that can be reached.

    Args:
        outputs: tensor with a graph.
        parameters: the wanted parameters by name.

    Returns:
        The graph; parameters that the outputs do not depend on have no leaf.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    graph = Graph()
    root = outputs.grad_fn
    if root is None:
        return graph
    stack = [(root, root.name())]
    index: dict[Node, int] = {root: 0}
    signature: list[object] = []
    moving: list[tuple[Node, str]] = []
    while stack:
        node, kind = stack.pop()
        graph.order.append(node)
        graph.kinds.add(kind)
        signature += [kind, *settings_of(node, kind)]
        if kind == CAST:
            signature.append(output_dtype(node, 0))
        if kind in INDICES and not _takes_rows_of_a_parameter(node, kind):
            moving.append((node, kind))
        for slot, (child, number) in enumerate(node.next_functions):
            if child is None:
                signature.append(None)
                continue
            if child not in index:
                index[child] = len(index)
                child_kind = child.name()
                stack.append((child, child_kind))
                if child_kind == ACCUMULATE:
                    name = names.get(id(leaf_tensor(child)))
                    if name is not None:
                        graph.leaves[name] = child
                    signature.append(name)
            signature.append((index[child], number))
            graph.users.setdefault(child, []).append(Edge(node, slot))
    graph.structure = tuple(signature)
    graph.signature = (*signature, *rows_moved(moving, len(outputs)))
    return graph


def _takes_rows_of_a_parameter(node: Node, kind: str) -> bool:
    """Whether it picks rows of a leaf, in which there are no samples."""
    source = node.next_functions[0][0]
    return kind == "IndexBackward0" and source is not None and source.name() == ACCUMULATE


def below(graph: Graph, nodes: Iterable[Node]) -> set[Node]:
    """All nodes whose outputs lead from the graph's root to one of `nodes`: `nodes` themselves are left out."""
    stack = list(nodes)
    found: set[Node] = set()
    while stack:
        for edge in graph.users.get(stack.pop(), ()):
            if edge.node not in found:
                found.add(edge.node)
                stack.append(edge.node)
    return found
