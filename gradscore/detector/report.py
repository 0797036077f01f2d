"""How good a detector is: figures as tables, a verdict that notebooks show, and the page."""

from __future__ import annotations

import html
import shutil
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from ..evaluation import EvaluationReport, Verdict
from ..notices import Notice
from ..reporting import write_report
from ..store import RunFolder
from ..system import replacing

if TYPE_CHECKING:
    from .images import Thumbnails


COLUMNS = [
    *("what", "protocol", "auroc", "low", "high", "best", "gain", "gain_low", "gain_high"),
    *("false_alarms", "outcome"),
    "sentence",
]
"""Those of the table of verdicts."""

WORDS = "sentence"
"""That of them which is a sentence, and stands below the others."""


class Report:
    """What `Detector.evaluate` found.

    Attributes:
        run: the run folder it lies in, as `gradscore evaluate` leaves it.
        evaluation: all that was found.
    """

    def __init__(self, run: RunFolder, evaluation: EvaluationReport, thumbnails: Thumbnails, *, kept: object) -> None:
        """Takes an evaluated run; `kept` is held on to, such as what removes a folder that is temporary."""
        self.run = run
        self.evaluation = evaluation
        self._thumbnails = thumbnails
        self._kept = kept

    @cached_property
    def verdict(self) -> pd.DataFrame:
        """The figures to read first: one row for wrong predictions, and one for each OOD set or group of them.

        `auroc` with its 95 % interval; `best`, the best of the baselines that need no fit; the AUROC gained over
        it; `false_alarms`, the share of right predictions (in-distribution samples) flagged where 95 % of wrong (OOD)
        ones are; `outcome` against the best baseline (better, worse, open, mixed: better in the mean and worse on
        some set, or ahead: of those computed, while stronger ones are missing); and the same `sentence`, with how many
        sets of a group it is better on. No row where labels or the network cannot be right, as `notices` say then.
        """
        return pd.DataFrame([_row(each) for each in self.evaluation.verdicts], columns=COLUMNS)

    @cached_property
    def figures(self) -> pd.DataFrame:
        """Every figure of every score with its interval, as in `metrics.csv` of a run folder."""
        return pd.DataFrame([record.entry() for record in self.evaluation.records])

    @property
    def scores(self) -> pd.DataFrame:
        """The scores of every reported sample, as in `scores.parquet` of a run folder."""
        return self.evaluation.scores

    @property
    def notices(self) -> list[Notice]:
        """What a reader should know; what to know first is in front."""
        missing = self.evaluation.not_compared
        return [*self.evaluation.notices, *([] if missing is None else [Notice(missing)])]

    def save(self, path: str | Path) -> Path:
        """Writes the page: one HTML file that needs nothing but a browser.

        Raises:
            MissingExtraError: the extra `report` is not installed.
            OutputError: the file cannot be written.
        """
        target = Path(path)
        files = write_report(self.run, self.evaluation, thumbnail=self._thumbnails.get)
        with replacing(target) as temporary:
            shutil.copyfile(files.html, temporary)
        return target

    def _repr_html_(self) -> str:
        """The verdict and what to know, for notebooks."""
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in self.notices)
        table = f"<p><b>No verdict: {html.escape(self.evaluation.no_verdict or '')}</b></p>"
        if self.evaluation.no_verdict is None:
            figures = self.verdict.drop(columns=WORDS)
            table = figures.to_html(index=False, float_format="{:.3f}".format, na_rep="-", border=0)
            lines = "".join(f"<li>{html.escape(line)}</li>" for line in [*self._sentences, *self.notices])
        return f"<div><h4>gradscore</h4>{table}<ul>{lines}</ul></div>"

    def __repr__(self) -> str:
        """The verdict as text, or why there is none."""
        if self.evaluation.no_verdict is not None:
            return f"No verdict: {self.evaluation.no_verdict}"
        figures = self.verdict.drop(columns=WORDS).to_string(index=False, float_format="{:.3f}".format)
        return "\n".join([figures, *self._sentences])

    @property
    def _sentences(self) -> list[str]:
        return [f"{each.what}: {each.sentence}" for each in self.evaluation.verdicts]


def _row(verdict: Verdict) -> list[object]:
    area, gain = verdict.area, verdict.gain
    gained = [None] * 3 if gain is None else [gain.value, gain.low, gain.high]
    figures = [area.value, area.low, area.high, verdict.best, *gained, verdict.false_alarms]
    return [verdict.what, verdict.protocol, *figures, verdict.outcome, verdict.sentence]
