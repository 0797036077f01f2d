"""The run folders of a detector: their settings, where they lie, and the report of what is in them."""

from __future__ import annotations

import html
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from ..config import Config, ModelConfig, section
from ..data import CALIBRATION, GIVEN
from ..errors import ConfigError, EvaluationError, ModelError, OutputError, StoreError
from ..evaluation import EvaluationReport, Verdict, deployed_protocol, fit_run
from ..models import build_model, trusting_code, weights_sha256
from ..notices import Notice, urgent
from ..reporting import write_report
from ..store import RunFolder
from ..system import checked, replacing
from .detector_sets import FitSets, Thumbnails

DECIDING_PROTOCOLS = ["auxiliary", "in_dist_only"]
"""Protocols that are fitted unless others are asked for: those of the models that a detector decides with."""

COLUMNS = [
    *("what", "protocol", "auroc", "low", "high", "best", "gain", "gain_low", "gain_high"),
    *("caught", "outcome"),
]
"""Columns of the table of verdicts."""


def config_of_fit(
    sections: Mapping[str, Mapping[str, Any] | None],
    model: ModelConfig,
    sets: FitSets,
    auxiliary: Sequence[str] | str,
    *,
    run: Path,
    device: str,
) -> Config:
    """The settings of a run that fits and reports nothing.

    Args:
        sections: `preprocessing`, `features`, `extract`, `meta` and `evaluate`, as far as they are given.
        model: the section of that name.
        sets: of samples.
        auxiliary: synthetic sets by kind, or `auto`.
        run: the run folder.
        device: what computes.

    Raises:
        ConfigError: an unknown or unusable setting, or name of a set.
    """
    given = {name: dict(each) for name, each in sections.items() if each is not None}
    in_dist = {"fit": _source("data"), "test": None, "calibration": _source("calibration")}
    in_dist |= {} if sets.bank is None else {"bank": _source("bank")}
    ood = [{"name": name, **_source(name), "auxiliary": True} for name in sets.ood]
    settings = {
        **given,
        "extract": {**given.get("extract", {}), "device": device},
        "evaluate": {"protocols": DECIDING_PROTOCOLS, **given.get("evaluate", {})},
        "model": model,
        "data": {"in_dist": in_dist, "ood": ood, "auxiliary": auxiliary},
        "run": run,
    }
    return section(Config, settings, where="Detector")


def with_test(
    config: Config, run: Path, *, ood: Collection[str], shifted: Collection[str], groups: Mapping[str, str]
) -> Config:
    """The settings of a run that reports as well, on sets of these names.

    Raises:
        ConfigError: an unusable name of a set, or one that is taken.
    """
    unknown = [name for name in groups if name not in ood]
    if unknown:
        raise ConfigError(f"groups: no OOD set '{unknown[0]}'; wanted names of {', '.join(ood) or 'none'}")
    taken = [entry.name for entry in config.data.ood if entry.name in ood]
    if taken:
        raise ConfigError(
            f"ood: '{taken[0]}' is an OOD set that `fit` had; give samples that it did not have, under another name"
        )
    settings = config.model_dump()
    settings["run"] = run
    settings["data"]["in_dist"]["test"] = _source("test")
    settings["data"]["ood"] += [{"name": name, **_source(name), "group": groups.get(name)} for name in ood]
    settings["data"]["shifted"] += [{"name": name, **_source(name)} for name in shifted]
    return section(Config, settings, where="evaluate")


def _source(name: str) -> dict[str, str]:
    """Settings of a run about samples that were given."""
    return {"source": f"{GIVEN}:{name}"}


def check_recipe(recipe: ModelConfig, model: nn.Module) -> None:
    """Builds a model by its recipe and compares the weights.

    Raises:
        ModelError: they do not fit, or it cannot be built.
    """
    with trusting_code():
        built = build_model(recipe).model
    try:
        built.load_state_dict(model.state_dict())
        same = weights_sha256(built) == weights_sha256(model)
        reason = "its weights have other types"
    except RuntimeError as error:
        same, reason = False, str(error).splitlines()[-1].strip()
    if not same:
        raise ModelError(f"recipe {recipe.source!r} does not build this model: {reason}; correct it, or leave it out")


class Folder:
    """A folder for a run: the one that is given, or a temporary one, which goes when nobody holds this any more.

    Raises:
        StoreError: there is something in the folder that is given.
    """

    def __init__(self, path: str | Path | None) -> None:
        """Finds a place; the folder itself is made by who writes to it."""
        if path is not None:
            self.path = Path(path).absolute()
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise StoreError(f"{self.path}: wanted an empty or new folder for a run, and there is something in it")
            return
        temporary = tempfile.mkdtemp(prefix="gradscore-")
        self.path = Path(temporary) / "run"
        weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)

    def copy_of(self, run: Path) -> None:
        """Copies a run here; feature tables, which nobody changes, are shared where the file system can."""
        shutil.copytree(run, self.path, copy_function=_shared, dirs_exist_ok=True)


def _shared(file: str, target: str) -> str:
    if Path(file).suffix == ".parquet":
        try:
            os.link(file, target)
            return target
        except OSError:
            pass
    return str(shutil.copy2(file, target))


def fit_without_reported(
    run: RunFolder, fitted: RunFolder, *, progress: Callable[[str], None] | None
) -> tuple[list[str], list[str]]:
    """Fits the meta models of a run without the samples it reports; those fitted on the same samples before stay.

    Args:
        run: the run that reports.
        fitted: the run of the fit.
        progress: told the name of each model before it is fitted.

    Returns:
        What a reader should know first: that reported samples were among those that fit, if some were. And which models
        could not be fitted, and why.

    Raises:
        EvaluationError: not a single model can be fitted.
        StoreError: a damaged run.
    """
    sources = [info.name for info in fitted.splits() if info.kind != CALIBRATION]
    contents = {content for name in sources for content in fitted.read(name, ["content_hash"])["content_hash"]}
    reported = [run.read(info.name, ["content_hash"])["content_hash"] for info in run.splits() if info.is_reported]
    shared = sum(int(each.isin(contents).sum()) for each in reported)
    samples = sum(map(len, reported))
    try:
        skipped = fit_run(run, progress=progress).skipped
    except EvaluationError:
        if not shared:
            raise
        raise EvaluationError(
            f"evaluate: {shared} of {samples} reported samples were among those that fit, and nothing can be fitted "
            "without them; give samples that fit() did not have"
        ) from None
    if not shared:
        return [], skipped
    were = "1 reported sample was" if shared == 1 else f"{shared} reported samples were"
    return [
        f"{were} among those that fit; the models of this report were fitted anew without them and are not those that "
        "score() uses"
    ], skipped


def choice_notes(run: RunFolder, fitted: RunFolder) -> list[str]:
    """Says whether the OOD sets that a run reports took part in the choice of its score; nothing without such sets."""
    if not any(info.is_reported_ood for info in run.splits()):
        return []
    if deployed_protocol(run) != deployed_protocol(fitted):
        return [
            "half of each OOD set of this report was fitted on, so its OOD model is not the one that score() uses; "
            "with that half in fit(ood=...) it is"
        ]
    return [
        "the OOD sets of this report took no part in choosing the score; on the command line half of each does, which "
        "may choose another: give fit(ood=...) samples of the kinds that you expect"
    ]


class Report:
    """Result of `Detector.evaluate`.

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
        it; `caught`, the share of wrong predictions (OOD samples) found where 5 % of the others are rejected;
        `outcome` against the best baseline (better, worse, undecided, mixed: better in the mean and worse on some set,
        or provisional: better, but baselines that are often stronger are missing or lack a bank), where `worse` allows
        for how many baselines there are, so that a gain may be `undecided` whose interval is below 0. No row where
        labels or the network cannot be right, as `notices` say then.
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
        """Notices for the reader, the most urgent in front."""
        missing = self.evaluation.not_compared
        return [*self.evaluation.notices, *([] if missing is None else [Notice(missing)])]

    @checked
    def save(self, path: str | Path) -> Path:
        """Writes the page: one HTML file that needs nothing but a browser.

        Raises:
            MissingExtraError: the extra `report` is not installed.
            OutputError: the file cannot be written, or is called as another kind of file.
        """
        target = Path(path)
        if target.suffix.lower() not in (".html", ".htm"):
            raise OutputError(
                f"{path}: a report is a page, wanted a name that ends in .html, got {target.suffix or 'no ending'}; a "
                "browser prints it to a PDF"
            )
        page = write_report(self.run, self.evaluation, thumbnail=self._thumbnails.get)
        with replacing(target) as temporary:
            shutil.copyfile(page, temporary)
        return target

    @property
    def answer(self) -> list[str]:
        """Sentences on the score to use, what it catches, whether gradients are worth their time, and what to do next.

        What has to be known before any figure stands above it. Where there is no verdict, why.
        """
        found = self.evaluation.answer
        cautions = [f"{each.level}: {each}" for each in urgent(self.notices)]
        if found.next_command is None:  # then warnings are why
            return [*found.sentences, *(line for line in cautions if line.startswith("caution"))]
        return [*cautions, *found.lines]

    def _repr_html_(self) -> str:
        """The answer, the figures and what else to know, for notebooks."""
        answer = "".join(f"<p>{html.escape(line)}</p>" for line in self.answer)
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in self._notes)
        figures = self.verdict
        table = figures.to_html(index=False, float_format="{:.3f}".format, na_rep="-", border=0) if len(figures) else ""
        return f"<div><h4>gradscore</h4>{answer}{table}<ul>{lines}</ul></div>"

    def __repr__(self) -> str:
        """The answer, the figures and what else to know."""
        figures = self.verdict
        table = [figures.to_string(index=False, float_format="{:.3f}".format)] if len(figures) else []
        return "\n".join([*self.answer, *table, *self._notes])

    @property
    def _notes(self) -> list[str]:
        return [f"note: {each}" for each in self.notices if each.level == "note"]


def _row(verdict: Verdict) -> list[object]:
    area, gain = verdict.area, verdict.gain
    gained = [None] * 3 if gain is None else [gain.value, gain.low, gain.high]
    figures = [area.value, area.low, area.high, verdict.best, *gained, verdict.caught]
    return [verdict.what, verdict.protocol, *figures, verdict.outcome]
