"""Backward passes that visit some nodes of the graph on their way.

Hooks on the nodes live for one pass. Only `backward_through` touches `.grad`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from .graph import Gradients, Graph, Visit, below


def backward_to(
    outputs: Tensor,
    grad_outputs: Tensor,
    graph: Graph,
    nodes: Sequence[Node],
    visit: Visit,
    *,
    retain_graph: bool,
) -> None:
    """One backward pass from `outputs` that hands the output gradients of each of `nodes` to `visit`, then drops them.

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
    executed = below(graph, wanted)
    last = [node for node in wanted if node not in executed]
    widths = [len(node._input_metadata) for node in last]
    edges = [GradientEdge(node, index) for node, width in zip(last, widths, strict=True) for index in range(width)]

    with _visited([node for node in wanted if node in executed], visit):
        found = torch.autograd.grad(outputs, edges, grad_outputs, retain_graph=retain_graph, allow_unused=True)
    with torch.no_grad():
        for node, width in zip(last, widths, strict=True):
            visit(node, found[:width])
            found = found[width:]


def backward_to_leaves(
    outputs: Tensor, grad_outputs: Tensor, nodes: Iterable[Node], visit: Visit, parameters: Sequence[Tensor]
) -> list[Tensor | None]:
    """One backward pass to parameters, with visits on its way; the graph is kept, `.grad` is not touched.

    Args:
        outputs: tensor with the graph.
        grad_outputs: gradient at the outputs, of their shape.
        nodes: the nodes to visit, all on the way to a parameter.
        visit: called with the gradients of a node.
        parameters: what to differentiate with respect to.

    Returns:
        The gradients of the parameters, summed over the samples; None where nothing arrived.
    """
    if not parameters:
        return []
    with _visited(dict.fromkeys(nodes), visit):
        return list(torch.autograd.grad(outputs, parameters, grad_outputs, retain_graph=True, allow_unused=True))


def backward_through(
    outputs: Tensor,
    grad_outputs: Tensor,
    nodes: Sequence[Node],
    visit: Visit,
    *,
    keep_behind: bool,
    weight: float,
    around: AbstractContextManager[object],
) -> None:
    """The backward pass of training, which ends at the leaves and adds to their `.grad`, with visits on its way.

    Args:
        outputs: tensor with the graph.
        grad_outputs: gradient at the outputs as the visits shall see it.
        nodes: the nodes to visit, all on the way to a leaf.
        visit: called with the gradients of a node.
        keep_behind: keep the saved tensors behind the nodes, and with them all others.
        weight: what the gradients are multiplied by for `.grad`.
        around: entered for the pass.
    """

    def unweighted(node: Node, gradients: Gradients) -> None:
        visit(node, tuple(None if each is None else each / weight for each in gradients))

    with _visited(list(dict.fromkeys(nodes)), visit if weight == 1 else unweighted), around:
        torch.autograd.backward(outputs, grad_outputs * weight, retain_graph=keep_behind)


@contextmanager
def _visited(nodes: Iterable[Node], visit: Visit) -> Iterator[None]:
    """Hooks that visit nodes just before a pass executes them."""
    with ExitStack() as hooks:
        for node in nodes:
            hooks.callback(node.register_prehook(partial(visit, node)).remove)
        yield
