"""Nodes whose numbers may decide which row of their result belongs to which sample.

A product with a matrix of zeros and ones deals rows out as an index does, without one that could be looked at: experts
that get their tokens by such a product, pooling of graphs of several sizes. What a probe finds there holds for its
batch alone.
"""

from __future__ import annotations

from collections.abc import Collection

from torch.autograd.graph import Node

from ..errors import CoupledSamplesError
from .graph import Edge, Graph, below, is_parameter_side, output_shape

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


def refuse_scaled_rows(graph: Graph, samples: int) -> None:
    """Raises an error for tables whose gradients are divided by how often the whole batch picks a row.

    Args:
        graph: the graph of the outputs.
        samples: N; one alone is divided by its own counts, as it should be.

    Raises:
        CoupledSamplesError: a wanted parameter is such a table.
    """
    if samples == 1 or graph.kinds.isdisjoint(TABLES):
        return
    scaled = {node for node in graph.order if getattr(node, "_saved_scale_grad_by_freq", False)}
    for name, leaf in graph.leaves.items() if scaled else ():
        if not scaled.isdisjoint(below(graph, [leaf])):
            raise CoupledSamplesError(
                f"{name}: scale_grad_by_freq divides the gradient of a row by how often the batch picks it, so that of "
                "a sample depends on the other samples of its batch; set scale_grad_by_freq of the layer to False, "
                "which leaves its outputs as they are"
            )


def kept_apart(graph: Graph, uses: Collection[Edge]) -> list[int]:
    """The positions in `Graph.order` of products of samples that keep apart what lies along their first axis alone.

    Args:
        graph: the graph of the outputs.
        uses: see `mixes`.
    """
    return [place for place, node in enumerate(graph.order) if _is_batched(node, node.name(), uses)]


def are_apart(graph: Graph, places: Collection[int], samples: int) -> bool:
    """Whether the samples can lie along the first axis of all these nodes."""
    return all(output_shape(graph.order[place], 0)[0] % samples == 0 for place in places)


def mixes(graph: Graph, uses: Collection[Edge], samples: int) -> bool:
    """Whether a node may send rows of samples to where its numbers say.

    Args:
        graph: the graph of the outputs.
        uses: where parameters meet the batch: what is multiplied there is no row of a sample.
        samples: N.
    """
    return any(_mixes(node, node.name(), uses, samples) for node in graph.order)


def _mixes(node: Node, name: str, uses: Collection[Edge], samples: int) -> bool:
    if name in HIDDEN:
        return True
    if name in TABLES:
        return not _is_of_parameters(node, 0, uses)
    if _is_batched(node, name, uses):
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


def _is_batched(node: Node, name: str, uses: Collection[Edge]) -> bool:
    if name.startswith(ATTENTION):
        return True
    return name in BATCHED and not any(_is_of_parameters(node, slot, uses) for slot in BATCHED[name])


def _is_of_parameters(node: Node, slot: int, uses: Collection[Edge]) -> bool:
    """Whether an input is made of parameters alone, as far as the plan or a look at views can tell."""
    edge = Edge(node, slot)
    return edge in uses or (node.next_functions[slot][0] is not None and not is_parameter_side(edge))
