"""The statistics that can be asked for by name, and those of the gradients of a batch, pooled over parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from ..gradients import Dense, Engine, Factored, PerSample, Tied, sample_slices
from ..system import Registry
from .measure import (
    SMALL_ELEMENTS,
    Array,
    Moments,
    PivotedSums,
    UnwrittenSums,
    Wanted,
    has_closed_form,
    measure,
    measure_together,
    of_all_unwritten,
    of_outer_products,
    of_pivoted_sums,
    sums_or_moments,
    sums_to_wait,
)


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A number that says something of the elements of a sample's gradient: what `features.statistics` may name.

    It follows from the moments that one fused pass computes.

    Attributes:
        summary: what it is, on one line.
        value: from the moments of the elements of N samples to (N,) float64.
        extrema: it needs the largest and smallest element.
        mean: it needs the mean.
        l2: it needs the root of the sum of squares.
        std: it needs the standard deviation.
        order: it needs the p-norm of this order.
        degree: 1 if it grows with the gradient, 0 if it does not depend on its size.
        logarithmic: meta models look at the logarithm of its magnitude, which may lie many decades apart; else at the
            value as it stands.
        ratio: meta models look at it over the L1 norm as well, times this sign; None if they do not.
        signed: it may have either sign. Where meta models look at the ratio, they do so as it stands and not at the
            logarithm of the magnitude, which near zero tells of nothing but rounding.
        of_elements: it is of the size of one element, so that beside a large one it may be rounding.
        source: where it comes from.
    """

    summary: str
    value: Callable[[Moments], Array]
    extrema: bool = False
    mean: bool = False
    l2: bool = False
    std: bool = False
    order: float | None = None
    degree: int = 1
    logarithmic: bool = True
    ratio: float | None = None
    signed: bool = False
    of_elements: bool = False
    source: str = ""


def _linf(moments: Moments) -> Array:
    return moments.xp.maximum(moments.maximum, -moments.minimum)


STATISTICS: Registry[Statistic] = Registry(
    "statistic",
    {
        "l1": Statistic(summary="sum of magnitudes", value=lambda moments: moments.norms[1.0], order=1.0),
        "l2": Statistic(summary="root of the sum of squares", value=lambda moments: moments.l2, l2=True, ratio=1.0),
        "max": Statistic(
            summary="largest element, with its sign",
            value=lambda moments: moments.maximum,
            extrema=True,
            ratio=1.0,
            of_elements=True,
        ),
        "min": Statistic(
            summary="smallest element, with its sign",
            value=lambda moments: moments.minimum,
            extrema=True,
            ratio=-1.0,
            of_elements=True,
        ),
        "mean": Statistic(
            summary="mean of the elements",
            value=lambda moments: moments.mean,
            mean=True,
            ratio=1.0,
            signed=True,
            of_elements=True,
        ),
        "std": Statistic(
            summary="standard deviation, over the number of elements less one; 0 for one element",
            value=lambda moments: moments.std,
            std=True,
            of_elements=True,
        ),
        "linf": Statistic(summary="largest magnitude", value=_linf, extrema=True, of_elements=True),
    },
    wanted=Statistic,
)
"""Statistics by name; `find_statistic` knows the p-norms of other orders too."""


def find_statistic(name: str, *, where: str = "statistic") -> Statistic:
    """The statistic called `name`: one of `STATISTICS`, or a p-norm such as `l0.5`.

    Raises:
        ConfigError: there is none; the message begins with `where`.

    Example:
        >>> find_statistic("l0.5").order
        0.5
    """
    if name in STATISTICS:
        return STATISTICS[name]
    match = re.fullmatch(r"l(\d+(?:\.\d+)?)", name)
    order = float(match.group(1)) if match else 0.0
    if order <= 0:
        raise ConfigError(
            f"{where}: no statistic {name!r}: use {', '.join(STATISTICS)}, or another p-norm such as l0.5 (p above 0)"
        )
    return Statistic(summary=f"{order:g}-norm", value=lambda moments: moments.norms[order], order=order)


def needs(names: Sequence[str]) -> Wanted:
    """Moments that have to be computed for statistics, by name."""
    found = {name: find_statistic(name) for name in names}
    return Wanted(
        extrema=any(each.extrema for each in found.values()),
        mean=any(each.mean or each.std for each in found.values()),
        deviation=any(each.l2 or each.std for each in found.values()),
        orders=tuple(sorted({each.order for each in found.values() if each.order is not None})),
    )


@np.errstate(all="ignore")
def evaluate(name: str, moments: Moments) -> Array:
    """The statistic called `name` of pooled elements, (N,) float64."""
    return find_statistic(name).value(moments)


WAITING_ELEMENTS = 1 << 22
"""Elements that wait to be measured together, vectors of linear layers and small gradients: 16 MiB of float32."""


def reduce_gradients(
    engine: Engine,
    outputs: Tensor,
    grad_outputs: Tensor,
    *,
    statistics: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    retain_graph: bool = False,
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

    Returns:
        `<group>/<statistic>` to (N,) float64 where the gradients are, in the order of groups and statistics.

    Raises:
        ConfigError: no such statistic, or a group with an unknown parameter or none.
    """
    members = {group: _each_once(engine, group, names) for group, names in groups.items()}
    pool = Pool(engine.parameters, members, needs(statistics), samples=len(outputs), device=outputs.device)
    engine.stream(outputs, grad_outputs, pool.take, retain_graph=retain_graph)
    pooled = pool.finished()
    tables = {
        statistic: torch.as_tensor(evaluate(statistic, pooled), device=pooled.device).unbind()
        for statistic in statistics
    }
    return {
        f"{group}/{statistic}": tables[statistic][place]
        for place, group in enumerate(groups)
        for statistic in statistics
    }


def _each_once(engine: Engine, group: str, names: Sequence[str]) -> list[str]:
    """Names of the parameters of a group, each tensor once."""
    unknown = [name for name in names if name not in engine.parameters]
    if unknown or not names:
        raise ConfigError(
            f"group {group!r} has {f'unknown parameters {unknown}' if unknown else 'no parameters'}; "
            f"the model has {len(engine.parameters)}: {', '.join(list(engine.parameters)[:5])}, ..."
        )
    tensors: dict[int, str] = {}
    for name in names:
        tensors.setdefault(id(engine.parameters[name]), name)
    if not sum(engine.parameters[name].numel() for name in names):
        raise ConfigError(f"group {group!r} has no elements, so it has no statistics")
    return list(tensors.values())


class Pool:
    """Pools the per-sample gradients of a batch, which come parameter by parameter, into one set of moments a group.

    Args:
        parameters: all of them by name.
        groups: names of parameters by group, each once; a parameter may be in several groups.
        wanted: what to compute.
        samples: N.
        device: where the moments are to be.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        groups: Mapping[Any, Sequence[str]],
        wanted: Wanted,
        *,
        samples: int,
        device: torch.device,
    ) -> None:
        self._parameters, self._groups, self._wanted = parameters, groups, wanted
        self._samples, self._device = samples, device
        self._small_elements = SMALL_ELEMENTS if device.type == "cpu" else WAITING_ELEMENTS // 4
        self._owners: dict[str, list[Hashable]] = {}
        for group, names in groups.items():
            for name in names:
                self._owners.setdefault(name, []).append(group)
        self._moments: dict[Hashable, Moments] = {}
        self._seen: set[str] = set()
        # What waits, so that few calls measure it all.
        self._small: dict[str, Tensor] = {}
        self._outer: dict[str, Factored] = {}
        self._unwritten: dict[str, UnwrittenSums] = {}
        self._sums: dict[str, PivotedSums] = {}
        self._waiting = 0

    def take(self, name: str, rows: slice, gradient: PerSample) -> None:
        """Takes the gradients of some samples of one parameter; a sink of `Engine.stream`."""
        if name not in self._owners:
            return
        if self._parameters[name].is_complex():
            # A complex number counts as two real ones, as it does for those who minimise a loss by such gradients.
            for some in sample_slices(len(gradient), prod(gradient.shape), WAITING_ELEMENTS):
                values = Dense(torch.view_as_real(gradient.dense(some).resolve_conj()))
                there = slice(rows.start + some.start, rows.start + some.stop)
                self._add(name, there, measure(values, self._wanted))
            return
        # What comes a part at a time does not wait, or a large gradient would end up whole.
        waits = len(gradient) == self._samples and prod(gradient.shape) > 0
        if waits and has_closed_form(gradient):
            self._outer[name] = gradient
            self._waiting += gradient.left.numel() + gradient.right.numel()
        elif waits and isinstance(gradient, Dense) and gradient.values.numel() <= self._small_elements:
            self._small[name] = gradient.values.reshape(len(gradient), -1)
            self._waiting += gradient.values.numel()
        elif waits and (unwritten := sums_to_wait(gradient, self._wanted)) is not None:
            self._unwritten[name] = unwritten
        elif waits and gradient.device.type != "cpu" and not isinstance(gradient, Tied):
            found = sums_or_moments(gradient, self._wanted)
            if isinstance(found, Moments):
                self._add(name, rows, found)
            else:
                self._sums[name] = PivotedSums(*(each.to(self._device) for each in found))
        else:
            self._add(name, rows, measure(gradient, self._wanted))
        if self._waiting > WAITING_ELEMENTS:
            self._measure_waiting()

    def finished(self) -> Moments:
        """The moments (G, N) of all groups, in order; a parameter of which nothing came has gradient zero."""
        everyone = slice(0, self._samples)
        self._measure_waiting()
        if self._unwritten:
            elements = [self._parameters[name].numel() for name in self._unwritten]
            self._add_all(self._unwritten, of_all_unwritten(list(self._unwritten.values()), elements, self._wanted))
        if self._sums:
            elements = [self._parameters[name].numel() for name in self._sums]
            self._add_all(self._sums, of_pivoted_sums(list(self._sums.values()), elements, self._wanted))
        for name in self._owners:
            size = self._parameters[name].numel() * (1 + self._parameters[name].is_complex())
            if name not in self._seen and size:
                zeros = Moments.of_zeros(self._samples, size, self._wanted, self._device)
                self._add(name, everyone, zeros)
        return Moments.stacked([self._moments.get(group) or self._nothing() for group in self._groups])

    def _measure_waiting(self) -> None:
        """Measures outer products and small gradients, those of a device by one call."""
        devices = [each.device for each in self._outer.values()] + [each.device for each in self._small.values()]
        for device in dict.fromkeys(devices):
            outer = {name: each for name, each in self._outer.items() if each.device == device}
            small = {name: each for name, each in self._small.items() if each.device == device}
            # Each tensor once: the gradient of a bias is also one of the vectors whose product is that of the weight.
            vectors: dict[tuple[object, ...], tuple[int, Tensor]] = {}
            lefts = [_place(vectors, each.left.flatten(1)) for each in outer.values()]
            rights = [_place(vectors, each.right.flatten(1)) for each in outer.values()]
            others = [_place(vectors, each) for each in small.values()]
            measured = measure_together([tensor for _, tensor in vectors.values()], self._wanted)
            if outer:
                self._add_all(outer, of_outer_products(measured.of(lefts), measured.of(rights)))
            if small:
                self._add_all(small, measured.of(others))
        self._outer, self._small, self._waiting = {}, {}, 0

    def _add_all(self, names: Mapping[str, object], several: Moments) -> None:
        """Adds the moments (G, N) of G parameters."""
        for place, name in enumerate(names):
            self._add(name, slice(0, self._samples), several.of(place))

    def _add(self, name: str, rows: slice, measured: Moments) -> None:
        self._seen.add(name)
        measured = measured.to(self._device)
        for group in self._owners[name]:
            if len(self._groups[group]) == 1 and len(measured.count) == self._samples:
                self._moments[group] = measured
                continue
            if group not in self._moments:
                self._moments[group] = self._nothing()
            self._moments[group].merge(rows, measured)

    def _nothing(self) -> Moments:
        return Moments.of_zeros(self._samples, 0, self._wanted, self._device)


def _place(vectors: dict[tuple[object, ...], tuple[int, Tensor]], tensor: Tensor) -> int:
    """Where a tensor is among others, after it was put there unless it was."""
    tensor = tensor.resolve_neg()  # the same memory may be meant with either sign
    # By their storage: tensors without memory of the processor's or a GPU's have no address of their own.
    lies = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.stride())
    return vectors.setdefault((*lies, tensor.shape, tensor.dtype), (len(vectors), tensor))[0]
