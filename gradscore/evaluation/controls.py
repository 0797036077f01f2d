"""A control of the whole procedure: without anything to learn, it must find nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import EvaluationError
from ..store import RunFolder
from .delong import Interval, auroc_interval
from .run import fit_two_classes, specs_of
from .scoring import fits_two_classes, frame_reader, positive_rows, selected_rows

LEVEL = 0.999
"""Coverage of the intervals: 0.5 lies outside one by chance once in a thousand times."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """What a model fitted on permuted labels finds of permuted labels.

    Attributes:
        model: `<task>/<protocol>/<name>`.
        dataset: the data set.
        area: its AUROC with an interval of coverage `LEVEL`.
    """

    model: str
    dataset: str
    area: Interval

    @property
    def passed(self) -> bool:
        """Whether 0.5 lies in the interval."""
        return self.area.low <= 0.5 <= self.area.high


def permuted_labels(run: RunFolder, *, progress: Callable[[str], None] | None = None) -> list[Control]:
    """Fits every meta model of two classes anew on permuted labels and looks for permuted labels in what is reported.

    Labels are permuted among the samples that fit, and apart from them among those reported of each data set. An AUROC
    other than 0.5 then means that samples or labels have got from one side to the other. Nothing is stored.

    Args:
        run: a finished run folder; meta models need not be there.
        progress: told the name of each model before it is fitted.

    Returns:
        One control for each model and data set with an interval.

    Raises:
        EvaluationError: a value that is not finite.
        StoreError: the run is not finished or damaged.
    """
    read = frame_reader(run)
    generator = np.random.default_rng(run.config.evaluate.seed)
    controls = []
    for spec in filter(fits_two_classes, specs_of(run).specs):
        if progress is not None:
            progress(spec.label)
        frame = selected_rows(spec.fit, read)
        target = generator.permutation(positive_rows(spec, spec.fit))
        model = fit_two_classes(spec, frame, target, config=run.config.meta)
        for dataset, rows in spec.reported.items():
            sought = generator.permutation(positive_rows(spec, rows))
            area = auroc_interval(model.decision(selected_rows(rows, read)), sought, level=LEVEL)
            if area is not None:
                controls.append(Control(model=spec.label, dataset=dataset, area=area))
    if not controls:
        raise EvaluationError(f"{run.path}: no control is possible: too few samples of either class everywhere")
    return controls


def in_words(controls: Sequence[Control]) -> list[str]:
    """One sentence that all is well, or one for each control that found what it should not."""
    failed = [
        f"permuted labels: {each.model} finds permuted labels of {each.dataset} with an AUROC of {each.area.value:.3f} "
        f"({each.area.low:.3f} to {each.area.high:.3f}, {100 * LEVEL:.1f} % interval) instead of 0.5: the figures of "
        "this model are not to be trusted; look for samples or labels on both sides"
        for each in controls
        if not each.passed
    ]
    worst = max(controls, key=lambda each: abs(each.area.value - 0.5))
    return failed or [
        f"permuted labels: as it should be, nothing is found in {len(controls)} controls; the AUROC farthest from 0.5 "
        f"is {worst.area.value:.3f} ({worst.model}, {worst.dataset})"
    ]
