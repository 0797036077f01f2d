"""From a run folder to a bundle: choose what decides, calibrate it, and note what the model answers to a self-test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from torch import nn

from ..columns import META_COLUMNS
from ..config import Config
from ..data import CALIBRATION, FIT, TEST
from ..errors import BundleError, EvaluationError, ModelError
from ..evaluation import class_notices, deployed_protocol, specs_of
from ..extractor import Extractor
from ..meta import tolerance
from ..models import build_model, to_be_named, trusting_code, weights_sha256
from ..pipeline import Progress, open_datasets
from ..store import RunFolder, package_versions
from ..system import Inputs, IntArray, as_address, is_address, magnitudes
from .bundle_file import Bundle, Rejections
from .calibration import CalibratedScore, calibrated
from .deciding_scores import Models, deciding_scores, measured_rejections, more_than_promised, what_it_would_catch
from .known_sets import usual_sets, with_shifted_sets
from .self_test import BATCH_TOLERANCE, answered, check_batches, first_samples, self_test_of


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

    models, advised, about_models = deciding_scores(run, scores, specs, protocol=protocol)
    detectors, rejections = deciding(models)
    about_baselines = [
        f"{words}; {what_it_would_catch(name, deciding(others)[1], rejections)}"
        for name, (others, words) in advised.items()
    ]
    with trusting_code(trust_code, origin=run.code):
        extractor = Extractor(model, features=config.features, num_classes=config.model.classes)
        if samples is None:
            samples = first_samples(open_datasets(config, only=[TEST])[TEST])
        fit = open_datasets(config, only=[FIT])[FIT] if shifted_copies else None
    known_sets = usual_sets(calibration.usual, detectors, with_labels=fit is not None)
    if fit is not None:
        known_sets = with_shifted_sets(
            run, known_sets, detectors, extractor, fit, copies=shifted_copies, progress=progress
        )
    images, about_self_test = self_test_of(samples, extractor)
    test, in_pairs = answered(images, extractor, columns)
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
            *more_than_promised(rejections, detectors),
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


def _check_weights(run: RunFolder, model: nn.Module) -> None:
    wanted = run.manifest.inputs.model.weights_sha256
    got = weights_sha256(model)
    if got != wanted:
        where = as_address(run.config.model.checkpoint or "no file")
        raise BundleError(
            f"{run.path}: the run was made with weights of hash {wanted[:12]}..., got {got[:12]}... from "
            f"{where}; restore the checkpoint, or extract and fit-meta again"
        )


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
