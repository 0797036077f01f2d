"""Statistics of the gradients of a batch, pooled over groups of parameters and merged in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..errors import ConfigError
from ..gradients import Engine, PerSample, Sink, Tap
from .moments import Moments
from .pool import Pool
from .table import evaluate, needs


def reduce_gradients(
    engine: Engine,
    outputs: Tensor,
    grad_outputs: Tensor,
    *,
    statistics: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    retain_graph: bool = False,
    sinks: Sequence[Sink] = (),
    taps: Mapping[Node, Tap] | None = None,
) -> dict[str, Tensor]:
    """Statistics of every sample's gradient, pooled over groups of parameters.

    Args:
        engine: knows the parameters.
        outputs: (N, ...) tensor with a graph.
        grad_outputs: gradient at the outputs, of their shape.
        statistics: names; see `find_statistic`.
        groups: names of parameters by group; each element of a group counts once, under whatever names. A parameter
            may be in several.
        retain_graph: keep the graph for another call.
        sinks: take the gradients as well, in the same pass; see `Engine.stream`.
        taps: as for `Engine.stream`.

    Returns:
        `<group>/<statistic>` to (N,) float64 where the gradients are, in the order of groups and statistics.

    Raises:
        ConfigError: no such statistic, or a group with an unknown parameter or none.
    """
    members = _members(engine, groups)
    pool = Pool(engine.parameters, members, needs(statistics), samples=len(outputs), device=outputs.device)

    def sink(name: str, rows: slice, gradient: PerSample) -> None:
        pool.take(name, rows, gradient)
        for other in sinks:
            other(name, rows, gradient)

    engine.stream(outputs, grad_outputs, sink, retain_graph=retain_graph, taps=taps)
    whole = Moments.stacked(list(pool.finished().values()))
    tables = {statistic: torch.as_tensor(evaluate(statistic, whole)).unbind() for statistic in statistics}
    return {
        f"{group}/{statistic}": tables[statistic][place]
        for place, group in enumerate(groups)
        for statistic in statistics
    }


def _members(engine: Engine, groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Names of parameters by group, each tensor once."""
    members = {}
    for group, names in groups.items():
        unknown = [name for name in names if name not in engine.parameters]
        if unknown or not names:
            raise ConfigError(
                f"group {group!r} has {f'unknown parameters {unknown}' if unknown else 'no parameters'}; "
                f"the model has {len(engine.parameters)}: {', '.join(list(engine.parameters)[:5])}, ..."
            )
        tensors: dict[int, str] = {}
        for name in names:
            tensors.setdefault(id(engine.parameters[name]), name)
        members[group] = list(tensors.values())
        if not sum(engine.parameters[name].numel() for name in members[group]):
            raise ConfigError(f"group {group!r} has no elements, so it has no statistics")
    return members
