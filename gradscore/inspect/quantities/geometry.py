"""Norms of successive tensors and the angles between them: what three quantities share."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import torch
from torch import Tensor

from ...system import SQUARABLE, squared_norms
from .quantity import Quantity

NORM, CORRELATION = "norm", "correlation"


def precise_norm(tensor: Tensor, *, dim: int | None = None) -> Tensor:
    """The Euclidean norm in float64, or of every row; squares neither under- nor overflow.

    Args:
        tensor: of any shape, complex numbers among them; (n, p) with `dim` 1.
        dim: the axis that is summed over; all by default.
    """
    tensor = tensor.abs() if tensor.is_complex() else tensor
    if tensor.device.type == "cpu" and tensor.dtype == torch.float32:
        fast = squared_norms(tensor.reshape(1, -1) if dim is None else tensor).sqrt()
        fast = fast.squeeze(0) if dim is None else fast
        if fast.numel() and _is_squarable(float(fast.min()), float(fast.max())):
            return fast
    exact: Tensor = torch.linalg.vector_norm(tensor, dim=dim, dtype=torch.float64)
    return exact


class Geometry:
    """Remembers the last tensor of every name.

    Args:
        correlation: record the cosine of the angle between successive tensors.
        normalize: divide norms by the root of the number of elements, which gives the root mean square.
        copies: remember copies. Otherwise the tensors themselves are kept: where one was changed in place before the
            next came, there is no correlation, and copies are remembered from then on.

    Attributes:
        last_norm: of the tensor that came last, not normalised.
    """

    def __init__(self, *, correlation: bool, normalize: bool, copies: bool = True) -> None:
        self.correlation, self.normalize, self.copies = correlation, normalize, copies
        self.last_norm = torch.zeros((), dtype=torch.float64)
        self._last: dict[str, tuple[Tensor, float, int]] = {}
        self._change: set[str] = set()

    def observe(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Takes the next tensor of a name.

        Args:
            name: of a layer or parameter.
            tensor: of any shape.

        Yields:
            Measures and values: the norm; and the correlation with the tensor before, if there was one of the same
            shape and neither is zero or not finite (the angle is undefined otherwise, and nothing takes its place).
        """
        tensor = tensor.detach()
        norm = self.last_norm = precise_norm(tensor)
        yield NORM, norm / sqrt(max(1, tensor.numel())) if self.normalize else norm
        if self.correlation:
            size = float(norm)
            last, last_size, version = self._last.get(name, (tensor, 0.0, tensor._version))
            if last._version != version:
                self._change.add(name)
            elif last.shape == tensor.shape and 0 < size < torch.inf and 0 < last_size < torch.inf:
                yield CORRELATION, cosine(last, tensor, last_size, size)
            kept = tensor.clone() if self.copies or name in self._change else tensor
            self._last[name] = (kept, size, kept._version)

    def restart(self) -> None:
        """Forgets the last tensors."""
        self._last = {}


class WholeModel:
    """Adds up the norms of all parameters to that of the model, in float64.

    Args:
        normalize: see `Geometry`.

    Attributes:
        size: elements since the last `take`.
    """

    def __init__(self, *, normalize: bool) -> None:
        self.normalize, self.size = normalize, 0
        self._squares: Tensor | None = None

    def add(self, norm: Tensor, size: int) -> None:
        """Takes the norm of a parameter, and its number of elements."""
        squares = norm.square()
        self._squares = squares if self._squares is None else self._squares + squares.to(self._squares.device)
        self.size += size

    def take(self) -> Tensor:
        """The norm of everything since the last call, which begins anew; zero for nothing."""
        squares = torch.zeros((), dtype=torch.float64) if self._squares is None else self._squares
        norm = (squares / max(1, self.size)).sqrt() if self.normalize else squares.sqrt()
        self._squares, self.size = None, 0
        return norm


def _is_squarable(smallest: float, largest: float) -> bool:
    low, high = SQUARABLE[torch.float32]
    return low < smallest and largest < high


def cosine(one: Tensor, other: Tensor, one_norm: float, other_norm: float) -> Tensor:
    """The cosine of the angle between two tensors of known norms, between -1 and 1, in float64.

    A complex number counts as a vector of two.
    """
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if one.dtype == torch.float32 and _is_squarable(min(one_norm, other_norm), max(one_norm, other_norm)):
        product = torch.dot(one.flatten(), other.flatten()).double()
        return (product / (one_norm * other_norm)).clamp(-1, 1)
    product = torch.dot(one.flatten().double() / one_norm, other.flatten().double() / other_norm)
    return product.clamp(-1, 1)


def record_geometry(quantity: Quantity, geometry: Geometry, name: str, tensor: Tensor) -> None:
    """Feeds a tensor to a geometry and records what comes out."""
    for measure, value in geometry.observe(name, tensor):
        quantity.record(measure, name, value)
