"""Which score decides for each detector of a bundle, and what these reject of the samples that a run reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from shlex import quote

import numpy as np

from ..data import CALIBRATION, TEST
from ..errors import BundleError
from ..evaluation import (
    SCORE_LR,
    FitIdentities,
    MetaModelSpecs,
    Verdict,
    advice_by_task,
    count_or_percent,
    places_of_models,
    stored_verdicts,
    where_better,
)
from ..meta import META, BaselineScore, MetaInputs, MetaModel, ScoreChoice, chosen_model
from ..notices import Notice
from ..store import RunFolder
from ..system import BoolArray, closest
from .bundle_file import RIGHT, WRONG, Rejections
from .calibration import DETECTORS, CalibratedScore, ScoreInputs, joint_false_alarms

BASELINE = "baseline"
"""Stands for the protocol of a detector that no meta model decides."""

HELD_OUT = {"sets": "OOD sets held out of the fits", "samples": "samples held out of the fits"}
"""Names of the samples that scores were judged by."""

IMPROBABLE = 0.01
"""Test samples are said to differ from those of the calibration where chance rejects as many less often than this."""

ROWS_OF_A_BLOCK = 2**16

Models = dict[str, tuple[MetaModel | BaselineScore, str]]
"""Score of each detector, and the protocol it was fitted by."""


def deciding_scores(
    run: RunFolder, scores: Sequence[str], specs: MetaModelSpecs, *, protocol: str | None
) -> tuple[Models, dict[str, tuple[Models, str]], list[str]]:
    """Score of each detector and its protocol, and notices on the choice.

    Between them, by the detector that a baseline should decide by the report: what decides then, and advice to do so.
    """
    nothing = f"{run.path}: no meta models; run `gradscore fit-meta {quote(str(run.path))}` first"
    if not run.inputs_path.is_dir():
        raise BundleError(nothing)
    inputs = MetaInputs.load(run.inputs_path)
    wanted = wanted_scores(scores, inputs)
    identities = FitIdentities(run, specs)
    judged = stored_verdicts(run)
    places = places_of_models(protocol)
    found: Models = {}
    notices: list[str] = []
    for name, question in DETECTORS.items():
        place, asked = places.get(question.task), wanted.get(name)
        reported = [each for each in judged if each.area.task == question.task]
        folder = run.meta_path / (place or "")
        if place is not None and identities.asks_for(place) and folder.is_dir():
            model = identities.load(place, inputs)
            choice = ScoreChoice.of_notes(model.notes, where=folder)
            deciding = chosen_model(folder, model, choice, score=asked)
            fitted_on = BASELINE if isinstance(deciding, BaselineScore) else place.split("/")[1]
            found[name] = deciding, fitted_on
            notices += _about_request(question.what, choice, asked, reported)
        elif asked in inputs.baselines.names:
            found[name] = BaselineScore(name=asked, inputs=inputs), BASELINE
        else:
            wanting = [each.label for each in specs.specs if each.task == question.task and each.name == "all"]
            if wanting:
                raise BundleError(
                    f"{run.path}: the configuration asks for a meta model in {run.meta_path / wanting[0]}, and there "
                    f"is none; run `gradscore fit-meta {quote(str(run.path))}`, which says so if it cannot be fitted, "
                    f"or have a baseline decide: --score {name}=NAME, in Python scores=['{name}=NAME']"
                )
            notices.append(f"no detector '{name}': no model was fitted for it")
    if not found:
        raise BundleError(nothing)
    names = [model.name for model, _ in found.values() if isinstance(model, BaselineScore)]
    few = replace(inputs, baselines=inputs.baselines.for_scores(names))
    packed = {name: (replace(model, inputs=few), fitted_on) for name, (model, fitted_on) in found.items()}
    advice = advice_by_task(judged)
    advised = {name: advice.get(DETECTORS[name].task) for name in found if name not in wanted}
    instead = {
        name: ({**found, name: (BaselineScore(name=each[0], inputs=inputs), BASELINE)}, each[1])
        for name, each in advised.items()
        if each is not None
    }
    return packed, instead, notices


def wanted_scores(given: Iterable[str], inputs: MetaInputs) -> dict[str, str]:
    """The name of the score that each detector is to have in the place of the chosen one.

    Args:
        given: names of scores for all detectors, or `<detector>=<name>` for one.
        inputs: what makes the scores.

    Raises:
        BundleError: no such score or detector, or two for one detector.
    """
    found: dict[str, str] = {}
    known = [META, SCORE_LR, *inputs.baselines.names]
    for text in given:
        detector, equals, name = text.rpartition("=")
        if equals and detector not in DETECTORS:
            raise BundleError(
                f"score {text}: no detector {detector!r}; wanted NAME or one of {', '.join(DETECTORS)}=NAME"
            )
        if name not in known:
            raise BundleError(f"score {text}: this run has no score {name!r}; {closest(name, known)}")
        for each in (detector,) if equals else DETECTORS:
            if each in found:
                raise BundleError(f"score {text}: '{each}' has the score {found[each]} already; give one for each")
            found[each] = name
    return found


def _about_request(what: str, choice: ScoreChoice, asked: str | None, reported: Sequence[Verdict]) -> list[str]:
    """Notices on the cost of asking for another score than the chosen one."""
    if asked in (None, choice.score):
        return []
    judged, cost = choice.judged, "nothing could be held out of the fits to judge it by"
    if asked in judged:
        cost = (
            f"mean AUROC of {judged[asked]:.3f} on {HELD_OUT[choice.judged_by or '']}, {judged[choice.score]:.3f} of "
            f"{choice.score}, which was chosen"
        )
        where = where_better(asked, reported)
        cost += f"; in the report {asked} is {where}" if where else ""
    return [f"{asked} decides on {what}, as asked: {cost}"]


def measured_rejections(
    run: RunFolder, detectors: Mapping[str, CalibratedScore], specs: MetaModelSpecs, *, protocol: str | None
) -> list[Rejections]:
    """Rejections among the samples that a run reports, at the thresholds of the detectors, all of them together.

    No sample counts that fitted what decides: of an OOD set that did (protocol `known`), the other half does.

    Args:
        run: a finished run folder.
        detectors: by name.
        specs: of the run, which say what fitted.
        protocol: of the OOD model; None without one.

    Returns:
        Of OOD sets, of wrong predictions, and of correct predictions unless they set the thresholds.
    """
    splits = {info.name: info for info in run.splits()}
    label = places_of_models(protocol).get("ood")
    reported = next((spec.reported for spec in specs.specs if spec.label == label), {})
    found = []
    for name, info in splits.items():
        if info.is_reported_ood:
            fires = _fires(run, name, detectors)
            fires = fires[reported.get(info.dataset_name, {}).get(name, np.full(len(fires), fill_value=True))]
            found.append(_counted(info.dataset_name, fires, group=info.group))
    if TEST in splits:
        fires, correct = _fires(run, TEST, detectors), run.read(TEST, ["correct"])["correct"]
        right, wrong = (np.asarray(correct.eq(each).fillna(False), dtype=np.bool_) for each in (True, False))
        found += [_counted(WRONG, fires[wrong]), *([_counted(RIGHT, fires[right])] if CALIBRATION in splits else [])]
    return [each for each in found if each.samples]


def _fires(run: RunFolder, split: str, detectors: Mapping[str, CalibratedScore]) -> BoolArray:
    """Mask (N,) of the samples of a split that any detector rejects."""
    inputs = next(iter(detectors.values())).model.inputs
    found = []
    for rows in run.blocks(split, rows=ROWS_OF_A_BLOCK):
        scores = ScoreInputs(inputs, rows)
        found.append(np.any([scores.by(each.model) > each.threshold.value for each in detectors.values()], axis=0))
    return np.concatenate(found)


def _counted(what: str, fires: BoolArray, *, group: str | None = None) -> Rejections:
    return Rejections(what=what, group=group, rejected=int(fires.sum()), samples=len(fires))


def more_than_promised(rejections: Sequence[Rejections], detectors: Mapping[str, CalibratedScore]) -> list[Notice]:
    """A caution where more correct predictions are rejected than if test samples were like those of the calibration."""
    limit = joint_false_alarms(detectors)
    measured = [(each, limit.chance_of(each.rejected, each.samples)) for each in rejections if each.what == RIGHT]
    return [
        Notice(
            f"{100 * good.rejected / good.samples:.1f} % of correctly predicted test samples are rejected, more often "
            f"than the calibration samples promise (at most {100 * limit.alpha:.1f} % on average; P = {chance:.1g}): "
            "the two are probably not alike; draw both at random from samples like those to come (select by `hash` "
            "or `lot`)",
            "caution",
        )
        for good, chance in measured
        if chance < IMPROBABLE
    ]


def what_it_would_catch(detector: str, then: Sequence[Rejections], now: Sequence[Rejections]) -> str:
    """Sentence on what another score of a detector catches of its samples, beside the one that decides now."""
    of_both = [_caught(detector, each) for each in (then, now)]
    shares = f"{count_or_percent(*of_both[0])} of {DETECTORS[detector].what} against {count_or_percent(*of_both[1])}"
    here = "on this run" + (", whose sets were fitted," if detector == "ood" else "")
    return (
        f"{here} it would catch fewer: {shares}"
        if of_both[0] < of_both[1]
        else f"this bundle would then catch {shares}"
    )


def _caught(detector: str, rejections: Sequence[Rejections]) -> tuple[float, int]:
    """The share of the samples that one detector is to find which all together catch, and how many these are."""
    kinds = [each for each in rejections if each.what != RIGHT and (each.what == WRONG) == (detector == "wrong")]
    rejected, samples = (sum(getattr(each, name) for each in kinds) for name in ("rejected", "samples"))
    return rejected / samples, samples
