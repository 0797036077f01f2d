"""Pools the gradients of several parameters into one set of moments for each group of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..gradients import Dense, PerSample
from .measure import SMALL_ELEMENTS, measure
from .moments import Moments, Wanted, measure_exactly

Group = TypeVar("Group", bound=Hashable)


class Pool(Generic[Group]):
    """Takes the per-sample gradients of a batch, parameter by parameter.

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
        groups: Mapping[Group, Sequence[str]],
        wanted: Wanted,
        *,
        samples: int,
        device: torch.device,
    ) -> None:
        self._parameters, self._groups, self._wanted = parameters, groups, wanted
        self._samples, self._device = samples, device
        self._owners: dict[str, list[Group]] = {}
        for group, names in groups.items():
            for name in names:
                self._owners.setdefault(name, []).append(group)
        self._moments: dict[Group, Moments] = {}
        self._seen: set[str] = set()
        self._small: dict[tuple[int, torch.device], dict[str, Tensor]] = {}

    def take(self, name: str, rows: slice, gradient: PerSample) -> None:
        """Takes in the gradients of some samples of one parameter; a sink of `Engine.stream`."""
        if name not in self._owners:
            return
        whole = len(gradient) == self._samples  # a part at a time, a large gradient would end up whole
        if isinstance(gradient, Dense) and whole and 0 < gradient.values.numel() <= SMALL_ELEMENTS:
            # Waits for others of its size: biases, and weights of norms.
            values = gradient.values.reshape(len(gradient), -1)
            self._small.setdefault((values.shape[1], values.device), {})[name] = values
        else:
            self._add(name, rows, measure(gradient, self._wanted))

    def finished(self) -> dict[Group, Moments]:
        """The moments of all groups; a parameter of which nothing came has gradient zero."""
        everyone = slice(0, self._samples)
        for several in self._small.values():
            measured = measure_exactly(torch.cat(list(several.values())), self._wanted)
            for place, name in enumerate(several):
                rows = slice(place * self._samples, (place + 1) * self._samples)
                self._add(name, everyone, measured.of(rows))
        for name in self._owners:
            elements = self._parameters[name].numel()
            if name not in self._seen and elements:
                self._add(name, everyone, Moments.blank(self._samples, elements, self._wanted, self._device))
        return {group: self._moments[group] if group in self._moments else self._nothing() for group in self._groups}

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
        return Moments.empty(self._samples, self._wanted, self._device)
