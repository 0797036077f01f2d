"""From a run folder to a bundle: choose what decides, calibrate it, and note what the model answers to a self-test.

The inputs of a self-test are made up, so that they are no sample of anybody. Floats are noise. Whole numbers have to be
ones that the model takes, such as ids of a table: they are drawn from the ranges that a few samples have, place by
place. Masks stay as they are. Where the model takes nothing that is made up, it is asked the samples themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn

from ..columns import META_COLUMNS, logit_columns
from ..config import Config
from ..data import CALIBRATION, FIT, TEST, BadSample, SampleDataset, collate
from ..errors import BundleError, EvaluationError, ModelError
from ..evaluation import (
    SCORE_LR,
    FitIdentities,
    MetaModelSpecs,
    Verdict,
    advice_by_task,
    class_notices,
    count_or_percent,
    deployed_protocol,
    places_of_models,
    specs_of,
    stored_verdicts,
    where_better,
)
from ..extractor import Extractor, input_dtype
from ..meta import (
    META,
    BaselineScore,
    MetaInputs,
    MetaModel,
    ScoreChoice,
    chosen_model,
    contributions,
    tolerance,
)
from ..models import build_model, to_be_named, trusting_code, weights_sha256
from ..notices import Notice
from ..pipeline import Progress, open_datasets
from ..store import RunFolder, package_versions
from ..system import (
    BoolArray,
    FloatArray,
    Inputs,
    IntArray,
    as_address,
    closest,
    each_input,
    is_address,
    magnitudes,
    rows_of,
    sample_count,
)
from .bundle import RIGHT, WRONG, Bundle, Rejections, SelfTest, TestInputs, self_test_inputs
from .calibration import DETECTORS, CalibratedScore, ScoreInputs, calibrated, joint_false_alarms
from .known_sets import usual_sets, with_shifted_sets

BASELINE = "baseline"
"""Stands for the protocol of a detector that no meta model decides."""

HELD_OUT = {"sets": "OOD sets held out of the fits", "samples": "samples held out of the fits"}
"""Names of the samples that scores were judged by."""

LOGITS_MOVED = 3e-3
"""Change of logits with the batch, relative to the largest, that is more than rounding, in bfloat16 as well."""

BATCH_TOLERANCE = 50.0
"""Largest change of a score with the batch that a bundle may have, in what an input of a meta model may move by.

In float32 that is 0.05: 1.3 percentage points at most. Scores of the digits model move by 6e-5. Inputs that hold
nothing but rounding, which fits leave out, moved log-odds by up to 1.2.
"""


IMPROBABLE = 0.01
"""Test samples are said to differ from those of the calibration where chance rejects as many less often than this."""

SELF_TEST_SAMPLES = 8
"""Inputs of a self-test: 1.2 MB of the bundle for 224 x 224 pixels in colour."""

REAL_VALUES = (
    "the self-test holds values of samples, which whoever has the bundle can read: the model takes no whole numbers "
    "that are made up"
)
"""Notice where no made-up samples can be used for the self-test."""

Array = NDArray[Any]

Models = dict[str, tuple[MetaModel | BaselineScore, str]]
"""Score of each detector, and the protocol it was fitted by."""


def make_bundle(
    run: RunFolder,
    *,
    alpha: float = 0.05,
    with_weights: bool = False,
    trust_code: bool = False,
    model_source: str | None = None,
    scores: Sequence[str] = (),
    model: nn.Module | None = None,
    samples: Inputs | None = None,
    shifted_copies: int = 0,
    progress: Progress | None = None,
) -> Bundle:
    """Makes a bundle of a run with meta models.

    Args:
        run: a finished run folder; its data and its checkpoint must be there, unless `model` and `samples` are given.
        alpha: of new in-distribution samples that are predicted right, at most this share is rejected, on average
            over calibrations, by all detectors together.
        with_weights: put the weights into the bundle; they are where no checkpoint is named.
        trust_code: allow a `python:` model and augmentations, whose code is run.
        model_source: where the model's code is, if not in a file beside the run or in the working directory.
        scores: baselines that decide in the place of meta models: names for all detectors, or `ood=<name>` and
            `wrong=<name>` for one.
        model: the model of the run, where it need not be built.
        samples: a few (n, ...) as the model takes them, which the inputs of the self-test are made like; by default
            the first test samples.
        shifted_copies: for `gradscore monitor`, images of `in_dist.fit` that each kind and severity of shift is made
            of, to learn what P(wrong) is worth under shift; `COPIES` are enough.
        progress: told how many shifted copies are scored.

    Returns:
        The bundle.

    Raises:
        BundleError: no meta models, no such score, or a checkpoint that is not that of the run; scores that depend on
            the batch a sample comes in; shifted copies of what are no images, or have no labels.
        EvaluationError: too few calibration samples that are predicted right (the message says how many are needed),
            or none with a label; or a meta model that was fitted with other samples or settings than the run has now.
        ModelError: a model that cannot be built.
        DataError: data that cannot be used.
    """
    run.refuse_other_files()
    config = run.config
    if model_source is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"source": model_source})})
    # There is no file to refer to, unless a program has the model.
    with_weights = with_weights or (model is None and config.model.checkpoint is None)
    if model is None:
        model = _built(run, config, elsewhere=model_source is not None, trust_code=trust_code)
    _check_weights(run, model)
    calibration = calibration_samples(run)
    right, with_copies = (
        each[each["correct"].to_numpy(dtype=bool)] for each in (calibration.distinct, calibration.with_copies)
    )
    columns = [name for name in right.columns if name not in META_COLUMNS]
    specs, protocol = specs_of(run), deployed_protocol(run)

    def deciding(by: Models) -> tuple[dict[str, CalibratedScore], list[Rejections]]:
        found = calibrated(by, right, with_copies=with_copies, alpha=alpha)
        return found, measured_rejections(run, found, specs, protocol=protocol)

    models, advised, about_models = _deployed_models(run, scores, specs, protocol=protocol)
    detectors, rejections = deciding(models)
    about_baselines = [
        f"{words}; {_what_it_would_catch(name, deciding(others)[1], rejections)}"
        for name, (others, words) in advised.items()
    ]
    with trusting_code(trust_code, origin=run.code):
        extractor = Extractor(model, features=config.features, num_classes=config.model.classes)
        if samples is None:
            samples = _first_samples(open_datasets(config, only=[TEST])[TEST])
        fit = open_datasets(config, only=[FIT])[FIT] if shifted_copies else None
    known_sets = usual_sets(calibration.usual, detectors, with_labels=fit is not None)
    if fit is not None:
        known_sets = with_shifted_sets(
            run, known_sets, detectors, extractor, fit, copies=shifted_copies, progress=progress
        )
    images, about_self_test = self_test_of(samples, extractor)
    test, in_pairs = _self_test(images, extractor, columns)
    most = BATCH_TOLERANCE * tolerance(run.rounding_unit)
    check_batches(detectors, columns, together=test.answers, in_pairs=in_pairs, most=most)
    return Bundle(
        model=config.model.model_copy(update={"checkpoint": None} if with_weights else {}),
        weights_sha256=run.manifest.inputs.model.weights_sha256,
        code_sha256=run.manifest.inputs.model.code_sha256,
        augmentation_code_sha256={each.name: each.code_sha256 for each in run.manifest.inputs.features.augmentations},
        preprocessing=config.preprocessing,
        features=config.features,
        columns=columns,
        alpha=alpha,
        detectors=detectors,
        self_test=test,
        weights=model.state_dict() if with_weights else None,
        versions=package_versions(),
        rejections=rejections,
        notices=[
            *_more_than_promised(rejections, detectors),
            *specs.copied_sets,
            *class_notices(run),
            *calibration.notices,
            *about_baselines,
            *about_models,
            *about_self_test,
        ],
        class_names=run.manifest.class_names,
        known_sets=known_sets,
        input_columns=run.manifest.input_columns,
        magnitudes={name: float(each.max()) for name, each in magnitudes(samples).items()},
    )


def _built(run: RunFolder, config: Config, *, elsewhere: bool, trust_code: bool) -> nn.Module:
    """The network of a run, from the code that its configuration names now; `elsewhere` it has to be the same."""
    origin = replace(run.code, advice=f"--model '{to_be_named(config.model.source)}', in Python model_source=...")
    if elsewhere:
        known = origin.hashes[run.config.model.source]
        origin = replace(origin, folders=None, hashes={config.model.source: known})
    try:
        with trusting_code(trust_code, origin=origin):
            return build_model(config.model, seed=config.extract.seed).model
    except ModelError as error:
        checkpoint = config.model.checkpoint
        if checkpoint is None or is_address(checkpoint) or checkpoint.exists():
            raise
        raise ModelError(
            f"{error}; or, where weights and run folder were moved together, run the configuration again, which notes "
            "where they are now (gradscore run CONFIG)"
        ) from None


def _deployed_models(
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


def _more_than_promised(rejections: Sequence[Rejections], detectors: Mapping[str, CalibratedScore]) -> list[Notice]:
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


def _what_it_would_catch(detector: str, then: Sequence[Rejections], now: Sequence[Rejections]) -> str:
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


def _check_weights(run: RunFolder, model: nn.Module) -> None:
    wanted = run.manifest.inputs.model.weights_sha256
    got = weights_sha256(model)
    if got != wanted:
        where = as_address(run.config.model.checkpoint or "no file")
        raise BundleError(
            f"{run.path}: the run was made with weights of hash {wanted[:12]}..., got {got[:12]}... from "
            f"{where}; restore the checkpoint, or extract and fit-meta again"
        )


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


@dataclass(frozen=True, kw_only=True)
class CalibrationSamples:
    """The calibration samples of a run that have a label.

    Attributes:
        distinct: their feature table, each content once and none that is also among those that fit.
        with_copies: the feature table of all of them.
        usual: that of those which a monitor compares with; see `usual_rows`.
        notices: what their user should know.
    """

    distinct: pd.DataFrame
    with_copies: pd.DataFrame
    usual: pd.DataFrame
    notices: list[str]


def calibration_samples(run: RunFolder) -> CalibrationSamples:
    """The calibration samples of a run that have a label.

    Raises:
        EvaluationError: all calibration samples are copies of samples of the fit, or none has a label, so that none is
            known to be predicted right.
        StoreError: the run is not finished or damaged.
    """
    there = {info.name for info in run.splits()}
    split = CALIBRATION if CALIBRATION in there else TEST
    if split not in there:
        raise EvaluationError(
            f"{run.path}: neither data.in_dist.calibration nor data.in_dist.test is set, and thresholds are calibrated "
            "on such samples; give one of them, and extract again"
        )
    frame, notices = run.read(split), []
    fits, fitted = pd.Series(data=False, index=frame.index), pd.Series(dtype=object)
    if split == TEST:
        notices.append(
            f"calibrated on samples of {TEST}, since data.in_dist.calibration is not set: use other samples to measure "
            "how often it rejects"
        )
    else:
        fitted = run.read(FIT, columns=["content_hash"])["content_hash"]
        fits = frame["content_hash"].isin(fitted)
        if fits.any() and fits.all():
            raise EvaluationError(
                f"{run.path}: all {len(fits)} samples of {split} are copies of samples of {FIT}, and thresholds that "
                f"hold for new samples need samples that fitted nothing; give others as data.{split}, and extract again"
            )
    labelled = frame["correct"].notna()
    if not (labelled & ~fits).any():
        raise EvaluationError(
            f"{run.path}: none of the {int((~fits).sum())} samples of {split} has a label, so it is unknown which are "
            "predicted right, and thresholds are calibrated on those; give labelled samples as "
            "data.in_dist.calibration, and extract again"
        )
    if not labelled.all():
        notices.append(
            f"{int((~labelled).sum())} of {len(frame)} calibration samples were left out because they have no label: "
            "the bound of the rate holds for new samples like those that have one"
        )
    with_copies = frame[labelled]
    distinct = with_copies[~fits[labelled]].drop_duplicates("content_hash")
    if len(distinct) < len(with_copies):
        copies = len(with_copies) - len(distinct)
        notices.append(
            f"{copies} of {len(with_copies)} calibration samples are copies of others, or of samples of {FIT}: "
            "thresholds hold whether or not new samples repeat as often"
        )
    usual = with_copies.iloc[usual_rows(with_copies["content_hash"], fitted)]
    return CalibrationSamples(distinct=distinct, with_copies=with_copies, usual=usual, notices=notices)


def usual_rows(contents: pd.Series[str], fitted: pd.Series[str]) -> IntArray:
    """The calibration samples that new ones are compared with, so that either reading of copies (`calibration`) holds.

    They are as many as there are contents, at equal steps through all samples in the order of their contents. Where
    somebody put all samples in as often, that is each content once. Where new samples come again as often, it is each
    about as often as there, and fewer samples say no more than they know.

    Copies of samples of the fit are left out where two samples that are drawn, one from each, are copies more than
    twice as often as two of the calibration: contents that come again by themselves do so in both alike.

    Args:
        contents: (n,) hashes of the calibration samples.
        fitted: (m,) those of the fit.

    Returns:
        Places among the n.
    """
    there, others = contents.value_counts(), fitted.value_counts()
    n, across = len(contents), float((there * others.reindex(there.index, fill_value=0)).sum()) * (len(contents) - 1)
    within = float((there * (there - 1)).sum()) * len(fitted)
    kept = np.flatnonzero(~contents.isin(fitted)) if across > 2 * within else np.arange(n)
    ordered = kept[np.argsort(contents.to_numpy(dtype=str)[kept], kind="stable")]
    count = contents.iloc[kept].nunique()
    return np.asarray(ordered[((np.arange(count) + 0.5) * (len(kept) / count)).astype(np.int64)])


_OF_FEATURES = "leave out the features before the last layer, which hardly differ (features.penultimate: false)"

_TO_LEAVE_OUT = {
    "gradients": "leave these parameters out (features.parameters)",
    "logits": "leave the meta model out (with --score, or score=, give a baseline)",
    "penultimate": _OF_FEATURES,
    "neighbours": _OF_FEATURES,
    "augmentations": "leave the augmentations out (features.augmentations: [])",
}
"""What to do where a score changes with its batch, by the group of the input that it changes through."""


def check_batches(
    detectors: Mapping[str, CalibratedScore],
    columns: list[str],
    *,
    together: FloatArray,
    in_pairs: FloatArray,
    most: float,
) -> None:
    """Makes sure that no score depends on the batch its sample comes in: that a fit left all out that is rounding.

    Args:
        detectors: by name.
        columns: of the values.
        together: (n, columns) logits and features of n samples in one batch.
        in_pairs: the same in batches of two.
        most: what log-odds may differ by.

    Raises:
        BundleError: a score of a meta model differs by more; the message names the inputs that are to blame.
    """
    usable = np.asarray(np.isfinite(together).all(axis=1) & np.isfinite(in_pairs).all(axis=1), dtype=np.bool_)
    one, other = (pd.DataFrame(values[usable], columns=columns) for values in (together, in_pairs))
    inputs = next(iter(detectors.values())).model.inputs
    before, after = ScoreInputs(inputs, one), ScoreInputs(inputs, other)
    for name, detector in detectors.items():
        model = detector.model
        gap = np.abs(after.by(model) - before.by(model)).max(initial=0.0)
        if gap > most and isinstance(model, MetaModel):
            moved = np.abs(contributions(model, after.scaled) - contributions(model, before.scaled)).max(axis=0)
            worst = np.argsort(-moved, kind="stable")[:3]
            names = ", ".join(model.inputs.names[place] for place in worst)
            cause = f"mostly through {names}; {_TO_LEAVE_OUT[model.inputs.groups[worst[0]]]}, and extract anew"
            if (moving := moved_logits(one, other)) > LOGITS_MOVED:
                cause = (
                    f"since the logits do, by up to {100 * moving:.2g} %: outputs of the network depend on the other "
                    "samples of the batch, or on how many there are; take that out of its forward"
                )
            raise BundleError(
                f"detector '{name}': wanted scores that do not depend on the batch a sample comes in, within "
                f"{most:.2g}; they change by up to {gap:.2g}, {cause}"
            )


def moved_logits(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """The largest difference of logits, relative to the largest of them."""
    before, after = (each[logit_columns(each.columns)].to_numpy() for each in (one, other))
    return float(np.abs(after - before).max(initial=0.0) / max(np.abs(before).max(initial=0.0), np.finfo(float).tiny))


def _self_test(images: TestInputs, extractor: Extractor, columns: list[str]) -> tuple[SelfTest, FloatArray]:
    """The self-test, and its answers when the images come in pairs."""
    dtype = input_dtype(extractor.model)
    inputs = each_input(self_test_inputs(images), lambda each: each.to(dtype) if each.is_floating_point() else each)
    pairs = [slice(place, place + 2) for place in range(0, sample_count(inputs), 2)]
    answers = extractor.values(inputs)
    in_pairs = np.concatenate([extractor.values(rows_of(inputs, pair)) for pair in pairs])
    if extractor.names != columns:
        raise BundleError("the feature table has other columns than the model now gives; extract again")
    return SelfTest(images=images, answers=answers), in_pairs


def _first_samples(dataset: SampleDataset) -> Inputs:
    """The first samples that can be read, at most as many as a self-test asks."""
    usable = (each for each in map(dataset.__getitem__, range(len(dataset))) if not isinstance(each, BadSample))
    found = collate(list(islice(usable, SELF_TEST_SAMPLES)))
    if not found.ids:
        raise BundleError(
            f"no sample of {TEST} can be read, so the size of the model's input is unknown; check the data"
        )
    return found.inputs


def self_test_of(samples: Inputs, extractor: Extractor) -> tuple[TestInputs, list[str]]:
    """Samples of a self-test for a model that takes such samples (n, ...), n at least 1.

    Args:
        samples: a few that the model takes.
        extractor: has the model.

    Returns:
        The inputs, bytes in place of floats; and what a user should know of them.
    """
    named = {"": samples} if isinstance(samples, Tensor) else dict(samples)
    known = {name: each.cpu().numpy() for name, each in named.items() if not each.is_floating_point()}
    noise = {
        name: np.random.default_rng(0).integers(0, 256, (SELF_TEST_SAMPLES, *each.shape[1:]), dtype=np.uint8)
        for name, each in named.items()
        if name not in known
    }
    if not known:
        return _as_given(samples, noise), []
    real = {name: values[np.arange(SELF_TEST_SAMPLES) % len(values)] for name, values in known.items()}
    random = np.random.default_rng(0)
    drawn = {name: real[name] if _is_mask(values) else _drawn_like(values, random) for name, values in known.items()}
    found = _as_given(samples, {**noise, **drawn})
    if any((drawn[name] != real[name]).any() for name in known) and _takes(extractor, found):
        return found, []
    return _as_given(samples, {**noise, **real}), [REAL_VALUES]


def _drawn_like(values: Array, random: Generator) -> Array:
    """Whole numbers (`SELF_TEST_SAMPLES`, ...) from the smallest to the largest that samples have at the same place."""
    low, high = (np.asarray(each, np.int64) for each in (values.min(axis=0), values.max(axis=0)))
    drawn = random.integers(low, high, (SELF_TEST_SAMPLES, *values.shape[1:]), endpoint=True)
    return np.asarray(drawn.astype(values.dtype))


def _is_mask(values: Array) -> bool:
    """Whether every row is ones, then zeros, or every row the other way round, and none is empty."""
    if values.ndim != 2 or values.shape[1] < 2 or not np.isin(values, (0, 1)).all() or not values.any(axis=1).all():
        return False
    steps = np.diff(values.astype(np.int64), axis=1)
    return bool((steps <= 0).all() or (steps >= 0).all())


def _takes(extractor: Extractor, images: TestInputs) -> bool:
    """Whether a model answers, all with finite numbers."""
    inputs = self_test_inputs(images)
    try:
        extractor.try_out(inputs)
        return bool(np.isfinite(extractor.forward_values(inputs)).all())
    except ModelError:
        return False


def _as_given(samples: Inputs, found: Mapping[str, Array]) -> TestInputs:
    return found[""] if isinstance(samples, Tensor) else {name: found[name] for name in samples}


ROWS_OF_A_BLOCK = 2**16


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
