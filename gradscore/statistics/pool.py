"""Pools the gradients of several parameters into one set of moments for each group of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..gradients import Dense, Factored, PerSample, sample_slices
from .measure import SMALL_ELEMENTS, has_closed_form, measure, of_outer_products, sums_to_wait
from .moments import Moments, Wanted, measure_together
from .sums import UnwrittenSums, of_all_unwritten

Group = TypeVar("Group", bound=Hashable)

WAITING_ELEMENTS = 1 << 22
"""Elements that wait to be measured together, vectors of linear layers and small gradients: 16 MiB of float32."""


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
        self._small: dict[str, Tensor] = {}
        self._outer: dict[str, Factored] = {}
        self._unwritten: dict[str, UnwrittenSums] = {}
        self._waiting = 0

    def take(self, name: str, rows: slice, gradient: PerSample) -> None:
        """Takes in the gradients of some samples of one parameter; a sink of `Engine.stream`."""
        if name not in self._owners:
            return
        if self._parameters[name].is_complex():
            self._take_complex(name, rows, gradient)
            return
        whole = len(gradient) == self._samples  # a part at a time, a large gradient would end up whole
        has_elements = prod(gradient.shape) > 0
        if whole and has_elements and has_closed_form(gradient, self._wanted):
            self._outer[name] = gradient
            self._wait(gradient.left.numel() + gradient.right.numel())
        elif whole and has_elements and isinstance(gradient, Dense) and gradient.values.numel() <= SMALL_ELEMENTS:
            self._small[name] = gradient.values.reshape(len(gradient), -1)
            self._wait(gradient.values.numel())
        elif whole and has_elements and (unwritten := sums_to_wait(gradient, self._wanted)) is not None:
            self._unwritten[name] = unwritten
        else:
            self._add(name, rows, measure(gradient, self._wanted))

    def _take_complex(self, name: str, rows: slice, gradient: PerSample) -> None:
        """A complex number counts as two real ones, as it does for those who minimise a loss by such gradients."""
        for some in sample_slices(len(gradient), prod(gradient.shape), WAITING_ELEMENTS):
            values = torch.view_as_real(gradient.dense(some).resolve_conj())
            there = slice(rows.start + some.start, rows.start + some.stop)
            self._add(name, there, measure(Dense(values), self._wanted))

    def _wait(self, elements: int) -> None:
        """Takes note of what is to be measured together, and measures it where it becomes much."""
        self._waiting += elements
        if self._waiting > WAITING_ELEMENTS:
            self._measure_waiting()

    def _measure_waiting(self) -> None:
        """Measures outer products and small gradients, those of a device by one call."""
        devices = [each.device for each in self._outer.values()] + [each.device for each in self._small.values()]
        for device in dict.fromkeys(devices):
            outer = {name: each for name, each in self._outer.items() if each.device == device}
            small = {name: each for name, each in self._small.items() if each.device == device}
            vectors = _Distinct()
            lefts = [vectors.place(each.left.flatten(1)) for each in outer.values()]
            rights = [vectors.place(each.right.flatten(1)) for each in outer.values()]
            others = [vectors.place(each) for each in small.values()]
            measured = measure_together(vectors.tensors, self._wanted)
            if outer:
                self._add_all(list(outer), of_outer_products(measured.of(lefts), measured.of(rights)))
            if small:
                self._add_all(list(small), measured.of(others))
        self._outer, self._small, self._waiting = {}, {}, 0

    def _measure_sums(self) -> None:
        """Makes moments of all sums at once."""
        if self._unwritten:
            elements = [self._parameters[name].numel() for name in self._unwritten]
            several = of_all_unwritten(list(self._unwritten.values()), elements, self._wanted)
            self._add_all(list(self._unwritten), several)
            self._unwritten = {}

    def finished(self) -> dict[Group, Moments]:
        """The moments of all groups; a parameter of which nothing came has gradient zero."""
        everyone = slice(0, self._samples)
        self._measure_waiting()
        self._measure_sums()
        for name in self._owners:
            elements = self._parameters[name].numel() * (1 + self._parameters[name].is_complex())
            if name not in self._seen and elements:
                self._add(name, everyone, Moments.blank(self._samples, elements, self._wanted, self._device))
        return {group: self._moments[group] if group in self._moments else self._nothing() for group in self._groups}

    def _add_all(self, names: Sequence[str], several: Moments) -> None:
        """Takes in the moments (G, N) of G parameters."""
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
        return Moments.empty(self._samples, self._wanted, self._device)


class _Distinct:
    """Tensors, each once: the gradient of a bias is also one of the vectors whose product is that of the weight."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._places: dict[tuple[object, ...], int] = {}

    def place(self, tensor: Tensor) -> int:
        """Where the tensor is among `tensors`."""
        tensor = tensor.resolve_neg()  # the same memory may be meant with either sign
        # By their storage: tensors without memory of the processor's or a GPU's have no address of their own.
        lies = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.stride())
        same = (*lies, tensor.shape, tensor.dtype)
        if same not in self._places:
            self._places[same] = len(self.tensors)
            self.tensors.append(tensor)
        return self._places[same]
