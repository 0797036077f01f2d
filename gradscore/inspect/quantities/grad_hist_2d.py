"""Histograms of the elements of per-sample gradients against the values of the parameter entries they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from torch import Tensor
from typing_extensions import override

from ...gradients import Factored, PerSample
from .aligned import aligned_blocks
from .bin_adaptation import BinAdaptation
from .grad_hist_1d import BUDGET, check_axes, histogram_rows, merge_histograms
from .histogram import Histogram, Range
from .quantity import MODEL, Row, SampleGradientQuantity


class GradHist2d(SampleGradientQuantity):
    """How often which gradient value occurs at which parameter value.

    The first axis is an element of a sample's gradient, the second the value of the same entry of the parameter.

    Args:
        bins: number of bins of both axes.
        spans: lowest and highest value of both axes; what lies beyond is counted in the outermost bins.
        adapt: how the range of each axis follows what was seen; it stays by default.
        keep_individual: keep a histogram for every parameter, not only their sum.
        options: see `Quantity`.

    Attributes:
        model: the histogram over all parameters.
        histograms: by parameter, with `keep_individual`.

    Raises:
        ConfigError: unusable bins or ranges.

    Source: Schneider, Dangel, Hennig 2021, "Cockpit: A practical debugging tool for the training of deep neural
        networks", section 3.1.
    """

    name = "gradient and parameter histogram"

    def __init__(
        self,
        *,
        bins: tuple[int, int] = (40, 50),
        spans: tuple[Range, Range] = ((-1.0, 1.0), (-2.0, 2.0)),
        adapt: tuple[BinAdaptation | None, BinAdaptation | None] = (None, None),
        keep_individual: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        for values, what in ((bins, "bins"), (spans, "spans"), (adapt, "adapt")):
            check_axes(values, what)
        self.bins, self.spans, self.adapt, self.keep_individual = bins, spans, adapt, keep_individual
        self.model = Histogram(self.bins, self.spans)
        self.histograms: dict[str, Histogram] = {}

    @override
    def observe(self, name: str, parameter: Tensor, gradient: PerSample) -> None:
        found = Histogram(self.bins, self.spans)
        values = parameter.detach().flatten()
        if isinstance(gradient, Factored) and gradient.is_outer_product:
            fast = found.add_products(gradient.left[:, 0, :, 0], gradient.right[:, 0, :, 0], values)
        else:
            fast = False
        for block in () if fast else aligned_blocks(gradient, BUDGET):
            found.add(block.values, values if block.entries is None else values[block.entries])
        self.model.merge(found)
        if self.keep_individual:
            merge_histograms(self.histograms, {name: found})

    def summary(self) -> Iterator[Row]:
        """Counts, and the shares in the outermost bins of the gradient axis."""
        for name, histogram in self.histograms.items():
            yield from histogram_rows("gradients", name, histogram)
        yield from histogram_rows("gradients", MODEL, self.model)

    def reset(self) -> None:
        """Forgets the counts and adapts the ranges to them."""
        super().reset()
        if self.model.total:
            gradient, parameter = (
                span if adapt is None else adapt.new_range(largest)
                for adapt, span, largest in zip(self.adapt, self.spans, self.model.largest, strict=True)
            )
            self.spans = (gradient, parameter)
        self.model = Histogram(self.bins, self.spans)
        self.histograms = {}

    @override
    def merge(self, other: Self) -> None:
        super().merge(other)
        self.model.merge(other.model)
        merge_histograms(self.histograms, other.histograms)
