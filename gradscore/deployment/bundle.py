"""A bundle: everything a decision on a new sample needs, in one file without pickle.

`bundle.json` says what it is; meta models, calibration scores, the self-test and, if wanted, the weights are members of
their own. A `python:` model's code is never inside: the bundle names the file, relative to the folder it lies in.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ..columns import COSINE
from ..config import FeaturesConfig, ModelConfig, PreprocessingConfig
from ..errors import BundleError, EvaluationError, StoreError
from ..evaluation import fit_label
from ..features import MeanGradients
from ..meta import ARRAYS, DESCRIPTION, Inputs, MetaModel
from ..models import at_path, source_path
from ..objects import is_copy
from ..store import MEAN_GRADIENTS
from ..system import FloatArray, file_sha256, is_address
from .archive import is_archive, read_archive, write_archive
from .baseline import Baseline, wanted_scores
from .conformal import Threshold, threshold
from .watched import Reference

FORMAT = "gradscore bundle"
VERSION = 1
DETECTORS = ("wrong", "ood")
"""What a bundle can tell: that a prediction is wrong, and that a sample is out of distribution."""

TASKS = {"wrong": "misclassification", "ood": "ood"}
"""What the meta models of the detectors are fitted for."""

_WEIGHTS = "weights.safetensors"
_REFERENCE = "monitor.safetensors"  # that of older versions, reference.safetensors, lacks classes
_CALIBRATION = "calibration.safetensors"
_INPUTS = "inputs"
_SELF_TEST = "self_test.safetensors"
"""Before the names of keyword inputs in the self-test."""


@dataclass(frozen=True, kw_only=True)
class Detector:
    """A meta model, or a baseline in its place, and when it fires.

    Attributes:
        model: the meta model or the score.
        protocol: what it was fitted on, see `gradscore.evaluation.protocols`; `PROTOCOL` of a baseline.
        calibration: (n,) its scores of the calibration samples that are predicted right, ascending.
        threshold: a score above it fires.
    """

    model: MetaModel | Baseline
    protocol: str
    calibration: FloatArray
    threshold: Threshold

    def at(self, alpha: float) -> Detector:
        """The same detector with another bound of its false-alarm rate; `EvaluationError` as in `threshold`."""
        return Detector(
            model=self.model,
            protocol=self.protocol,
            calibration=self.calibration,
            threshold=threshold(self.calibration, alpha),
        )


TestInputs = NDArray[Any] | Mapping[str, NDArray[Any]]
"""Inputs of a self-test, or several by the names of the arguments they are."""

_IMAGES = "images"


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """Noise and what the model makes of it, to see that it still does.

    Attributes:
        images: (n, C, H, W) uint8, of other samples (n, ...); the model sees bytes divided by 127.5, minus 1, and whole
            numbers or truth values as they are, and so are arrays by the names of the arguments they are.
        answers: (n, columns) float64.
    """

    images: TestInputs
    answers: FloatArray

    @property
    def samples(self) -> int:
        """How many images there are."""
        return min(map(len, self.images.values())) if isinstance(self.images, Mapping) else len(self.images)

    def members(self) -> dict[str, NDArray[Any]]:
        """The arrays by name; see `of_members`."""
        images = self.images
        if not isinstance(images, Mapping):
            return {_IMAGES: images, "answers": self.answers}
        return {f"{_IMAGES}/{name}": each for name, each in images.items()} | {"answers": self.answers}

    @classmethod
    def of_members(cls, members: Mapping[str, NDArray[Any]]) -> SelfTest:
        """Reads back what `members` gave; `KeyError` if something is missing."""
        start = f"{_IMAGES}/"
        named = {name.removeprefix(start): each for name, each in members.items() if name.startswith(start)}
        return cls(images=named or members[_IMAGES], answers=members["answers"])


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What `gradscore score` works with.

    Attributes:
        model: the classifier; its checkpoint is None when the weights are inside.
        weights_sha256: hash of its parameters and buffers, as in the manifest of a run.
        code_sha256: hash of the file of a `python:` model; None for others.
        augmentation_code_sha256: the same of `python:` augmentations, by their names.
        preprocessing: from raw pixels to model inputs.
        features: what is computed of a sample.
        columns: names of the values of a sample, in order: logits, penultimate features, augmentations, features.
        alpha: of new in-distribution samples that are predicted right, at most this share is rejected, on average over
            calibrations.
        detectors: by name, in the order of `DETECTORS`.
        self_test: known answers.
        weights: the weights, if they are inside.
        mean_gradients: what the column `gradient_cosine` compares with, if it is among the features.
        versions: packages it was made with.
        provenance: where it comes from; plain values.
        notices: what its user should know.
        class_names: of the model, in the order of its outputs; None where they are not known.
        reference: what `gradscore monitor` compares with; None in bundles of older versions.
        input_columns: names of the numbers of a sample that is a row of a table, in the order in which the model takes
            them; None where they have none, and in bundles of older versions.
    """

    model: ModelConfig
    weights_sha256: str
    code_sha256: str | None
    preprocessing: PreprocessingConfig
    features: FeaturesConfig
    columns: list[str]
    alpha: float
    detectors: Mapping[str, Detector]
    self_test: SelfTest
    weights: Mapping[str, Tensor] | None = None
    mean_gradients: MeanGradients | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    augmentation_code_sha256: Mapping[str, str | None] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    class_names: Sequence[str] | None = None
    reference: Reference | None = None
    input_columns: Sequence[str] | None = None

    @property
    def inputs(self) -> Inputs:
        """What makes the inputs of the meta models, the same for all of them."""
        return next(iter(self.detectors.values())).model.inputs


class _DetectorIndex(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    protocol: str
    model: str
    alpha: float
    threshold: float
    n: int
    rank: int
    score: str | None = None


class _Index(BaseModel):
    """The fields of `bundle.json` as they are written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    version: int
    model: ModelConfig
    weights_sha256: str
    code_sha256: str | None
    augmentation_code_sha256: dict[str, str | None] = {}
    preprocessing: PreprocessingConfig
    features: FeaturesConfig
    columns: list[str]
    alpha: float
    detectors: dict[str, _DetectorIndex]
    versions: dict[str, str]
    provenance: dict[str, Any]
    notices: list[str]
    class_names: list[str] | None = None
    input_columns: list[str] | None = None


def check_bundle_target(path: Path) -> None:
    """Refuses to replace a file that is no bundle.

    Raises:
        BundleError: there is such a file at `path`.
    """
    if path.is_file() and not is_archive(path):
        raise BundleError(f"{path}: this file is there already and is no bundle; give another path, or remove it")


def write_bundle(path: Path, bundle: Bundle) -> str:
    """Writes a bundle in one step and returns the SHA-256 of the file.

    Raises:
        BundleError: the file is there already and is no bundle.
        OutputError: it cannot be written.
    """
    check_bundle_target(path)
    models = {name: _model_members(name, detector.model) for name, detector in bundle.detectors.items()}
    base = _base(path)
    index = {
        "format": FORMAT,
        "version": VERSION,
        "model": _relative(bundle.model, base).model_dump(mode="json"),
        "weights_sha256": bundle.weights_sha256,
        "code_sha256": bundle.code_sha256,
        "augmentation_code_sha256": dict(bundle.augmentation_code_sha256),
        "preprocessing": _relative_preprocessing(bundle.preprocessing, base).model_dump(mode="json"),
        "features": _relative_augmentations(bundle.features, base).model_dump(mode="json"),
        "columns": bundle.columns,
        "alpha": bundle.alpha,
        "detectors": {name: _described(name, detector, models[name]) for name, detector in bundle.detectors.items()},
        "versions": dict(bundle.versions),
        "provenance": dict(bundle.provenance),
        "notices": bundle.notices,
        "class_names": None if bundle.class_names is None else list(bundle.class_names),
        "input_columns": None if bundle.input_columns is None else list(bundle.input_columns),
    }
    members: dict[str, bytes] = {
        _CALIBRATION: save({name: detector.calibration for name, detector in bundle.detectors.items()}),
        _SELF_TEST: save(bundle.self_test.members()),
    }
    for files in models.values():
        members |= files
    members |= _members(_INPUTS, next(iter(bundle.detectors.values())).model.inputs)
    if bundle.weights is not None:
        members[_WEIGHTS] = save_tensors({name: tensor.contiguous() for name, tensor in bundle.weights.items()})
    if bundle.mean_gradients is not None:
        members[MEAN_GRADIENTS] = bundle.mean_gradients.to_bytes()
    if bundle.reference is not None:
        members[_REFERENCE] = save(bundle.reference.members())
    write_archive(path, index, members)
    return file_sha256(path)


def read_bundle(path: Path, *, sha256: str | None = None) -> Bundle:
    """Reads a bundle and checks everything that can be checked without the model.

    Args:
        path: the file.
        sha256: refuse a file with another SHA-256.

    Returns:
        The bundle; the paths of its model are absolute.

    Raises:
        BundleError: it is damaged, was changed, or another version of the format.
    """
    raw, members = read_archive(path, digest=sha256)
    if (raw.get("format"), raw.get("version")) != (FORMAT, VERSION):
        raise BundleError(
            f"{path}: wanted {FORMAT!r} version {VERSION}, got {raw.get('format')!r} version {raw.get('version')!r}; "
            "use the gradscore that wrote it, or make the bundle anew"
        )
    try:
        index = _Index.model_validate(raw, context={"base": path.absolute().parent})
        with _unpacked(_INPUTS, members) as folder:
            inputs = Inputs.load(folder)
        calibration, self_test = load(members[_CALIBRATION]), load(members[_SELF_TEST])
        bundle = Bundle(
            **{
                name: getattr(index, name)
                for name in _Index.model_fields
                if name not in ("format", "version", "detectors")
            },
            detectors={
                name: _read_detector(name, index.detectors[name], members, calibration[name], inputs)
                for name in DETECTORS
                if name in index.detectors
            },
            self_test=SelfTest.of_members(self_test),
            weights=load_tensors(members[_WEIGHTS]) if _WEIGHTS in members else None,
            mean_gradients=_mean_gradients(members),
            reference=Reference.of_members(load(members[_REFERENCE])) if _REFERENCE in members else None,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BundleError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; make the bundle anew") from None
    except (KeyError, SafetensorError, StoreError, EvaluationError, BundleError) as error:
        raise BundleError(f"{path}: incomplete or inconsistent ({error}); make the bundle anew") from None
    _check_columns(path, bundle)
    return bundle


def _mean_gradients(members: Mapping[str, bytes]) -> MeanGradients | None:
    content = members.get(MEAN_GRADIENTS)
    return None if content is None else MeanGradients.from_bytes(content, where=MEAN_GRADIENTS)


def _described(name: str, detector: Detector, files: Mapping[str, bytes]) -> dict[str, Any]:
    limit = detector.threshold
    entry = {"alpha": limit.alpha, "threshold": limit.value, "n": limit.n, "rank": limit.rank}
    single = {"score": detector.model.name} if isinstance(detector.model, Baseline) else {}
    return {"protocol": detector.protocol, "model": _fingerprint(name, detector.model, files), **entry, **single}


def _fingerprint(name: str, model: MetaModel | Baseline, files: Mapping[str, bytes]) -> str:
    """What ties thresholds to the model they came of; its description holds a hash of its arrays."""
    if isinstance(model, Baseline):
        return hashlib.sha256(f"{model.inputs.fingerprint} {model.name}".encode()).hexdigest()
    return hashlib.sha256(files[f"meta/{name}/{DESCRIPTION}"]).hexdigest()


def _model_members(name: str, model: MetaModel | Baseline) -> dict[str, bytes]:
    return _members(name, model) if isinstance(model, MetaModel) else {}


def _members(name: str, saved: MetaModel | Inputs) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        saved.save(folder)
        return {f"meta/{name}/{file}": (Path(folder) / file).read_bytes() for file in (ARRAYS, DESCRIPTION)}


@contextmanager
def _unpacked(name: str, members: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder that holds, for the time being, what `_members` made."""
    with tempfile.TemporaryDirectory() as folder:
        for file in (ARRAYS, DESCRIPTION):
            (Path(folder) / file).write_bytes(members[f"meta/{name}/{file}"])
        yield Path(folder)


def _read_model(name: str, index: _DetectorIndex, members: Mapping[str, bytes], inputs: Inputs) -> MetaModel | Baseline:
    if index.score is not None:
        return wanted_scores([index.score], inputs, [name])[name]
    with _unpacked(name, members) as folder:
        model = MetaModel.load(folder, inputs)
    label = f"{TASKS[name]}/{index.protocol}/"
    if not fit_label(model).startswith(label):
        raise EvaluationError(f"wanted a meta model of {label}* as '{name}', got that of '{fit_label(model)}'")
    return model


def _read_detector(
    name: str, index: _DetectorIndex, members: Mapping[str, bytes], calibration: FloatArray, inputs: Inputs
) -> Detector:
    model = _read_model(name, index, members, inputs)
    if index.model != _fingerprint(name, model, members):
        raise EvaluationError(f"the threshold of '{name}' was calibrated with another meta model")
    if (np.diff(calibration) < 0).any():
        raise EvaluationError(f"the calibration scores of '{name}' are not in ascending order")
    found = threshold(calibration, index.alpha)
    if (found.value, found.n, found.rank) != (index.threshold, index.n, index.rank):
        raise EvaluationError(f"the threshold of '{name}' is not that of its calibration scores")
    return Detector(model=model, protocol=index.protocol, calibration=calibration, threshold=found)


def _check_columns(path: Path, bundle: Bundle) -> None:
    if not bundle.detectors:
        raise BundleError(f"{path}: no meta model in it; make the bundle anew")
    if (COSINE in bundle.features.columns) != (bundle.mean_gradients is not None):
        raise BundleError(f"{path}: its mean gradients do not fit its features; make the bundle anew")
    for name, detector in bundle.detectors.items():
        if bundle.columns != detector.model.inputs.columns:
            raise BundleError(f"{path}: the meta model '{name}' was fitted on other columns; make the bundle anew")
    if not math.isclose(bundle.alpha, sum(each.threshold.alpha for each in bundle.detectors.values()), rel_tol=1e-9):
        raise BundleError(f"{path}: alpha is not the sum of those of its detectors; make the bundle anew")
    if not bundle.self_test.samples:
        raise BundleError(f"{path}: the self-test holds no image; make the bundle anew")
    if bundle.self_test.answers.shape != (bundle.self_test.samples, len(bundle.columns)):
        raise BundleError(f"{path}: the self-test does not fit the columns; make the bundle anew")


def _base(path: Path) -> Path | None:
    """The folder that paths in a bundle are relative to, so that all can be moved together; None at an address."""
    return None if is_copy(path) else path.absolute().parent


def _relative(model: ModelConfig, base: Path | None) -> ModelConfig:
    changes: dict[str, Any] = {"source": _relative_source(model.source, base)}
    if model.checkpoint is not None and not is_address(model.checkpoint):
        changes["checkpoint"] = _relative_path(model.checkpoint, base)
    return model.model_copy(update=changes)


def _relative_preprocessing(preprocessing: PreprocessingConfig, base: Path | None) -> PreprocessingConfig:
    found = preprocessing.processor
    return preprocessing.model_copy(update={"processor": None if found is None else _relative_path(found, base)})


def _relative_augmentations(features: FeaturesConfig, base: Path | None) -> FeaturesConfig:
    return features.model_copy(
        update={"augmentations": [_relative_source(augmentation, base) for augmentation in features.augmentations]}
    )


def _relative_source(source: str, base: Path | None) -> str:
    path = source_path(source)
    return source if path is None else at_path(source, _relative_path(path, base))


def _relative_path(path: Path, base: Path | None) -> Path:
    return path.absolute() if base is None else Path(os.path.relpath(path, base))
