"""From a run folder to a bundle: pick the meta models, calibrate them, and note what the model answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from ..columns import META_COLUMNS
from ..data import FIT, TEST, BadSample, SampleDataset, collate
from ..errors import BundleError
from ..evaluation import MISCLASSIFICATION_MODEL, FitIdentities, specs_of
from ..extractor import Extractor, input_dtype, run_means
from ..meta import Inputs, MetaModel, contributions, tolerance
from ..models import NamedCode, build_model, to_be_named, weights_sha256
from ..pipeline import Progress, open_datasets
from ..store import RunFolder, package_versions
from ..system import FloatArray, as_address, each_input, rows_of, sample_count
from ..system import Inputs as ModelInputs
from .bundle import Bundle
from .detectors import (
    DETECTORS,
    PROTOCOL,
    BaselineScore,
    CalibratedScore,
    ScoreInputs,
    auroc_left_out,
    calibrated,
    calibration_samples,
    deployed_protocol,
    ood_place,
    predicted_right,
    wanted_baselines,
)
from .reference import plain_reference, shifted_reference
from .self_test import SELF_TEST_SAMPLES, SelfTest, TestInputs, self_test_inputs, self_test_of

BATCH_TOLERANCE = 50.0
"""Largest change of a score with the batch that a bundle may have, in what an input of a meta model may move by.

In float32 that is 0.05: 1.3 percentage points at most. Scores of the digits model move by 6e-5. Inputs that hold
nothing but rounding, which fits leave out, moved log-odds by up to 1.2.
"""


def make_bundle(
    run: RunFolder,
    *,
    alpha: float = 0.05,
    with_weights: bool = False,
    trust_code: bool = False,
    model_source: str | None = None,
    scores: Sequence[str] = (),
    tell: Callable[[NamedCode], None] | None = None,
    model: nn.Module | None = None,
    samples: ModelInputs | None = None,
    shifted_copies: int = 0,
    progress: Progress | None = None,
) -> Bundle:
    """Makes a bundle of a run with meta models.

    Args:
        run: a finished run folder; its data and its checkpoint must be there, unless `model` and `samples` are given.
        alpha: of new in-distribution samples that are predicted right, at most this share is rejected, on average
            over calibrations; the detectors share it equally.
        with_weights: put the weights into the bundle; they are where no checkpoint is named.
        trust_code: allow a `python:` model and augmentations, whose code is run.
        model_source: where the model's code is, if not in a file beside the run or in the working directory.
        scores: baselines that decide in the place of meta models: names for all detectors, or `ood=<name>` and
            `wrong=<name>` for one.
        tell: called before the code of a `python:` model or augmentation runs.
        model: the model of the run, where it need not be built.
        samples: a few (n, ...) as the model takes them, which the inputs of the self-test are made like; by default
            the first test samples.
        shifted_copies: for `gradscore monitor`, images of `in_dist.fit` that each of 42 kinds and strengths of shift is
            made of, to learn what P(wrong) is worth under shift; `COPIES` are enough.
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
    config, trust = run.config, run.trust(trust_code, tell=tell)
    if model_source is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"source": model_source})})
    # There is no file to refer to, unless a program has the model.
    with_weights = with_weights or (model is None and config.model.checkpoint is None)
    if model is None:
        advice = f"--model '{to_be_named(config.model.source)}', in Python model_source=..."
        own = replace(trust, advice=advice)
        if model_source is not None:
            known = trust.hashes[run.config.model.source]
            own = replace(own, folders=None, hashes={config.model.source: known})
        model = build_model(config.model, seed=config.extract.seed, trust_code=own)
    _check_weights(run, model)
    calibration = calibration_samples(run)
    labelled, notices = calibration.apart, calibration.notices
    frame = predicted_right(labelled)
    columns = [name for name in frame.columns if name not in META_COLUMNS]
    models, about_models = _deployed_models(run, scores)
    notices += about_models
    detectors = calibrated(models, frame, whole=predicted_right(calibration.whole), alpha=alpha)
    means = run_means(run)
    if means is not None:
        means = replace(means, contents=means.contents[:0])  # hashes of samples, as in _without_content
    hashes = {
        augmentation["name"]: augmentation["code_sha256"]
        for augmentation in run.manifest["inputs"]["features"].get("augmentations", [])
    }
    extractor = Extractor.of(
        model,
        features=config.features,
        num_classes=config.model.num_classes,
        means=means,
        trust_code=trust,
    )
    reference = plain_reference(labelled, detectors, with_labels=shifted_copies > 0)
    if shifted_copies:
        fit = open_datasets(config, only=[FIT], trust_code=trust)[FIT]
        reference = shifted_reference(
            run, reference, detectors, extractor, fit, copies=shifted_copies, progress=progress
        )
    if samples is None:
        dataset = open_datasets(config, only=[TEST], trust_code=trust)[TEST]
        samples = _first_samples(dataset)
    self_test, about_self_test = self_test_of(samples, extractor)
    notices += about_self_test
    test, in_pairs = _self_test(self_test, extractor, columns)
    check_batches(
        detectors,
        columns,
        together=test.answers,
        in_pairs=in_pairs,
        most=BATCH_TOLERANCE * tolerance(run.rounding_unit),
        advice="leave these parameters out (features.parameters), and extract into another folder",
    )
    return Bundle(
        model=config.model.model_copy(update={"checkpoint": None} if with_weights else {}),
        weights_sha256=run.manifest["inputs"]["model"]["weights_sha256"],
        code_sha256=run.manifest["inputs"]["model"]["code_sha256"],
        augmentation_code_sha256=hashes,
        preprocessing=config.preprocessing,
        features=config.features,
        columns=columns,
        alpha=alpha,
        detectors=detectors,
        self_test=test,
        weights=model.state_dict() if with_weights else None,
        mean_gradients=means,
        versions=package_versions(),
        provenance=_provenance(run, frame),
        notices=notices,
        class_names=run.class_names,
        reference=reference,
        input_columns=run.input_columns,
    )


def _deployed_models(
    run: RunFolder, scores: Sequence[str]
) -> tuple[dict[str, tuple[MetaModel | BaselineScore, str]], list[str]]:
    """What decides for each detector and its protocol, and what a user should know of the choice."""
    nothing = f"{run.path}: no meta models; run `gradscore fit-meta {run.path}` first"
    if not run.inputs_path.is_dir():
        raise BundleError(nothing)
    inputs = _without_content(Inputs.load(run.inputs_path))
    single = wanted_baselines(scores, inputs)
    identities = FitIdentities(run, specs_of(run))
    protocol = deployed_protocol(run)
    places = {"wrong": MISCLASSIFICATION_MODEL, "ood": None if protocol is None else ood_place(protocol)}
    fitted: dict[str, tuple[MetaModel | BaselineScore, str]] = {
        name: (identities.load(place, inputs), place.split("/")[1])
        for name, place in places.items()
        if place is not None and identities.asks_for(place) and (run.meta_path / place).is_dir() and name not in single
    }
    decided = {**fitted, **{name: (each, PROTOCOL) for name, each in single.items()}}
    found = {name: decided[name] for name in DETECTORS if name in decided}
    if not found:
        raise BundleError(nothing)
    notices = [f"no detector '{name}': {run.path / 'meta'} has no model for it" for name in places if name not in found]
    notices += [
        f"detector '{name}': the baseline {each.name} decides, not a meta model, so there is no probability and "
        "nothing to explain it by"
        for name, each in single.items()
    ]
    if protocol is not None and "ood" not in single and np.isfinite(auroc_left_out(run, protocol)):
        notices.append(
            f"detector 'ood': of protocol {protocol}, whose models have the highest mean AUROC, "
            f"{auroc_left_out(run, protocol):.3f}, on OOD sets that were left out of their fits"
        )
    return found, notices


def _check_weights(run: RunFolder, model: nn.Module) -> None:
    wanted = run.manifest["inputs"]["model"]["weights_sha256"]
    got = weights_sha256(model)
    if got != wanted:
        where = as_address(run.config.model.checkpoint or "no file")
        raise BundleError(
            f"{run.path}: the run was made with weights of hash {wanted[:12]}..., got {got[:12]}... from "
            f"{where}; restore the checkpoint, or extract and fit-meta again"
        )


def _without_content(inputs: Inputs) -> Inputs:
    """The inputs without the hashes by which samples of a run are told from themselves; new samples are others."""
    bank = inputs.scores.bank
    if bank is None:
        return inputs
    return replace(inputs, scores=replace(inputs.scores, bank=replace(bank, content=None)))


def check_batches(
    detectors: Mapping[str, CalibratedScore],
    columns: list[str],
    *,
    together: FloatArray,
    in_pairs: FloatArray,
    most: float,
    advice: str,
) -> None:
    """Makes sure that no score depends on the batch its sample comes in: that a fit left all out that is rounding.

    Args:
        detectors: by name.
        columns: of the values.
        together: (n, columns) logits and features of n samples in one batch.
        in_pairs: the same in batches of two.
        most: what log-odds may differ by.
        advice: what a user can do.

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
            worst = [model.inputs.names[place] for place in np.argsort(-moved, kind="stable")[:3]]
            raise BundleError(
                f"detector '{name}': wanted scores that do not depend on the batch a sample comes in, within "
                f"{most:.2g}; they change by up to {gap:.2g}, mostly through {', '.join(worst)}; {advice}"
            )


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


def _first_samples(dataset: SampleDataset) -> ModelInputs:
    """The first samples that can be read, at most as many as a self-test asks."""
    usable = (each for each in map(dataset.__getitem__, range(len(dataset))) if not isinstance(each, BadSample))
    found = collate(list(islice(usable, SELF_TEST_SAMPLES)))
    if not found.ids:
        raise BundleError(
            f"no sample of {TEST} can be read, so the size of the model's input is unknown; check the data"
        )
    return found.inputs


def _provenance(run: RunFolder, frame: pd.DataFrame) -> dict[str, object]:
    data, splits = run.manifest["inputs"]["data"], run.manifest["splits"]
    return {
        "run": Path(run.path).absolute().name,
        "data": {name: entry["fingerprint"] for name, entry in data.items()},
        "calibration": {"split": str(frame["split"].iloc[0]), "samples": len(frame)},
        "accuracy": {name: entry["accuracy"] for name, entry in splits.items() if entry.get("accuracy")},
    }
