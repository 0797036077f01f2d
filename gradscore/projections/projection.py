"""What all kinds of projections share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..gradients import PerSample, Sink, Total


class Projection(ABC):
    """A fixed linear map from the gradient of a whole network to `dim` numbers, given parameter by parameter.

    The map is a matrix P = [P_1 P_2 ...] with a block of columns for each parameter, and P g = P_1 g_1 + P_2 g_2 + ...:
    what is added up never needs more than the gradients of one parameter.

    Attributes:
        dim: the number of rows of P.
    """

    dim: int

    def blank(self, samples: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What the projections of `samples` samples are added up in, one row each."""
        return torch.zeros(samples, self.dim, dtype=dtype, device=device)

    def finished(self, sums: Tensor) -> Tensor:
        """The projections (N, dim) of all that was added to what `blank` gave."""
        return sums

    def add(self, name: str, gradient: PerSample, sums: Tensor) -> None:
        """Adds the projections of the gradients of one parameter.

        Args:
            name: of the parameter.
            gradient: of n samples.
            sums: their n rows of what `blank` gave.
        """
        if isinstance(gradient, Total):
            for part in gradient.parts:
                self.add(name, part, sums)
        else:
            self.add_one(name, gradient, sums)

    def sink(self, sums: Tensor) -> Sink:
        """What adds the gradients of a batch to `sums`; see `Engine.stream`."""

        def take(name: str, rows: slice, gradient: PerSample) -> None:
            self.add(name, gradient, sums[rows])

        return take

    @abstractmethod
    def add_one(self, name: str, gradient: PerSample, sums: Tensor) -> None:
        """As `add`, of gradients that are no sum of several."""
