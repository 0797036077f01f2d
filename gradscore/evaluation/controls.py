"""A control of the whole procedure: what is learnt of labels that mean nothing must be of no use elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import EvaluationError
from ..meta import Penalty, fit_logistic
from ..store import RunFolder
from ..system import BoolArray, FloatArray
from .delong import Interval, auroc_interval
from .fits import Prepared, Tables, near_duplicates_to_leave_out, prepare, specs_of
from .protocols import RowMasks

COVERAGE = 0.999
"""Coverage of the intervals: 0.5 lies outside one by chance once in a thousand times."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """What a model fitted on permuted labels finds of permuted labels.

    Attributes:
        model: `<task>/<protocol>/<name>`.
        dataset: the data set.
        area: its AUROC with an interval of coverage `COVERAGE`.
        n: distinct images reported.
        copies: those of them whose content fits the model.
    """

    model: str
    dataset: str
    area: Interval
    n: int
    copies: int

    @property
    def passed(self) -> bool:
        """Whether no reported image fits the model, and 0.5 lies in the interval."""
        return not self.copies and self.area.low <= 0.5 <= self.area.high


def permuted_labels(run: RunFolder, *, progress: Callable[[str], None] | None = None) -> list[Control]:
    """Fits every meta model of two classes anew on permuted labels and looks for permuted labels in what is reported.

    The permuted label of a sample is a function of its content and the seed alone, so a copy of it has the same one,
    wherever it is: what a model remembers of a sample that fits helps on its copies among those reported, and on
    nothing else. Models remember as much as they can: they are logistic regressions at the weakest of the penalties.
    Nothing is stored.

    Args:
        run: a finished run folder; meta models need not be there.
        progress: told the name of each model before it is fitted.

    Returns:
        One control for each model and data set with an interval.

    Raises:
        EvaluationError: a value that is not finite, or too few samples everywhere.
        StoreError: the run is not finished or damaged.
    """
    tables = Tables(run)
    seed = run.config.evaluate.seed
    penalty = Penalty(C=max(run.config.meta.Cs), boost=max(run.config.meta.boosts))
    near = near_duplicates_to_leave_out(run)
    left_out = set().union(*near.excluded().values())
    prepared = Prepared(prepare(run, tables, left_out=left_out)[0], tables)
    controls = []
    for spec in (each for each in specs_of(run, near=near).specs if each.has_two_classes):
        if progress is not None:
            progress(spec.label)
        fitted = _contents(spec.fit, tables)
        numbers = content_numbers(fitted, seed=seed)
        rows = prepared.rows(spec, spec.fit)
        highest = np.sort(numbers)[int(rows.target.sum()) - 1]
        target: BoolArray = numbers <= highest
        model = fit_logistic(prepared.inputs, replace(rows, target=target), penalty)
        for dataset, masks in spec.reported.items():
            contents, first = np.unique(_contents(masks, tables), return_index=True)
            scores = model.of_scaled(prepared.rows(spec, masks).scaled)[first]
            area = auroc_interval(scores, content_numbers(contents.tolist(), seed=seed) <= highest, level=COVERAGE)
            if area is not None:
                copies = len(np.intersect1d(contents, fitted))
                controls.append(Control(model=spec.label, dataset=dataset, area=area, n=len(contents), copies=copies))
    if not controls:
        raise EvaluationError(f"{run.path}: no control is possible: too few samples of either class everywhere")
    return controls


def content_numbers(content_hashes: Sequence[str], *, seed: int) -> FloatArray:
    """(N,) numbers in [0, 1) that content and seed alone decide, unrelated to the halves of `known`."""
    digests = (hashlib.sha256(f"permuted labels {seed}:{each}".encode()).digest() for each in content_hashes)
    return np.array([int.from_bytes(digest[:6]) / 2**48 for digest in digests])


def control_notices(controls: Sequence[Control]) -> list[str]:
    """One sentence that the control passed, or one for each model and data set that failed: numbers, and what to do."""
    failed = [
        f"permuted labels: FAILED, {each.model} finds labels that mean nothing in {each.dataset}: AUROC "
        f"{each.area.value:.3f} ({each.area.low:.3f} to {each.area.high:.3f}, {100 * COVERAGE:.1f} % interval) instead "
        f"of 0.5, and {each.copies} of {each.n} reported images are copies of images that fit. Its figures are not to "
        "be trusted: take the copies out of one of the two data sets (data.*.select, other folders) and start again"
        for each in controls
        if not each.passed
    ]
    worst = max(controls, key=lambda each: abs(each.area.value - 0.5))
    return failed or [
        f"permuted labels: passed, nothing is found in {len(controls)} controls and no reported image fits; the AUROC "
        f"farthest from 0.5 is {worst.area.value:.3f} ({worst.area.low:.3f} to {worst.area.high:.3f}, "
        f"{100 * COVERAGE:.1f} % interval; {worst.model}, {worst.dataset})"
    ]


def _contents(rows: RowMasks, tables: Tables) -> Sequence[str]:
    """Content hashes of the chosen rows, in the order of `selected_rows`."""
    return [str(value) for split, mask in rows.items() for value in tables.read(split).loc[mask, "content_hash"]]
