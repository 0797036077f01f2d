"""Ranges of histograms that follow what was seen."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ConfigError
from .histogram import Range

WIDEST = 8e307
"""Half the width of the widest range: float64 ends at 1.8e308, and the width has to be a number."""


@dataclass(frozen=True)
class BinAdaptation:
    """A range symmetric about zero that holds everything the last period saw.

    A period is what lies between two resets of a histogram: an epoch or, with a reset after every step, a step. The new
    range holds from the next period on, since counts over different bins cannot be added.

    Attributes:
        padding: the range is wider than what was seen by this share.
        min_size: the range is never narrower than this from end to end.

    Raises:
        ConfigError: a negative padding, or a smallest size that is not positive.
    """

    padding: float = 0.0
    min_size: float = 1e-6

    def __post_init__(self) -> None:
        """Checks the settings."""
        if not self.padding >= 0 or not self.min_size > 0:
            raise ConfigError(
                f"bin adaptation needs padding of at least 0 and min_size above 0, got {self.padding} and "
                f"{self.min_size}"
            )

    def new_range(self, largest: float) -> Range:
        """The range for values up to a magnitude.

        Args:
            largest: the largest magnitude of a finite value.

        Returns:
            (-r, r) with r = (1 + padding) * max(min_size / 2, largest), or `WIDEST` if that is smaller.

        Example:
            >>> BinAdaptation(padding=0.5).new_range(2.0)
            (-3.0, 3.0)
        """
        radius = min(WIDEST, (1 + self.padding) * max(self.min_size / 2, largest))
        return -radius, radius


class GradAbsMax(BinAdaptation):
    """Adapts to the largest magnitude of a gradient: for the gradient axis."""


class ParamAbsMax(BinAdaptation):
    """Adapts to the largest magnitude of a parameter: for the parameter axis."""
