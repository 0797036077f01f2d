"""A bundle: everything a decision on a new sample needs, in one file without pickle.

`bundle.json` says what it is; meta models, calibration scores, the self-test and, if wanted, the weights are members of
their own. A `python:` model's code is never inside: the bundle names the file, relative to the folder it lies in.

The file is a zip archive without compression, with a checksum of each member, read with distrust. Members are stored as
they are, so an archive cannot unpack to more than its own size, and nothing is ever written to the file system by the
names in it. The checksums find damage and careless edits; whoever can write the file can also write new checksums, so
compare the SHA-256 of the whole file where that matters.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import load, save
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ..config import FeaturesConfig, ModelConfig, PreprocessingConfig
from ..errors import BundleError, GradscoreError
from ..meta import SOUGHT, BaselineScore, MetaInputs, MetaModel
from ..models import at_path, source_path
from ..object_storage import MANIFEST, is_copy
from ..system import file_sha256, followed, is_address, parse_document, replacing, sample_count
from ..system import sha256 as sha256_of
from .calibration import DETECTORS, CalibratedScore, threshold
from .known_sets import KnownSets
from .self_test import SelfTest

RIGHT, WRONG = "correct predictions", SOUGHT["misclassification"]
"""In-distribution samples that are predicted right, and the others."""

_INDEX = "bundle.json"
_CHECKSUM = "bundle.sha256"
_WEIGHTS = "weights.safetensors"
_KNOWN_SETS = "monitor.safetensors"
_CALIBRATION = "calibration.safetensors"
_LEVELS = "levels"
_SELF_TEST = "self_test.safetensors"
_META = "meta/"
_INPUTS = "inputs"

_HEAD = 30
"""Bytes of a zip archive before the name of its first member."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_ADVICE = "copy it again, or make it anew with gradscore bundle"


@dataclass(frozen=True, kw_only=True)
class Rejections:
    """Number of rejected samples of a kind.

    Attributes:
        what: `RIGHT`, `WRONG`, or the name of an OOD set.
        group: the group of the OOD set, None without one.
        rejected: how many of them.
        samples: how many there are.
    """

    what: str
    group: str | None
    rejected: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class PlainValues:
    """The fields of a bundle that `bundle.json` holds as they are.

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
        versions: packages it was made with.
        rejections: what it rejects of the samples that the run reports, with all detectors.
        notices: what its user should know.
        class_names: of the model, in the order of its outputs; None where they are not known.
        input_columns: names of the columns of a table that the model takes, of numbers in its order, or one of text;
            None for others.
        magnitudes: the largest absolute value in a few samples as the model takes them, by the name of the argument
            that they are ("" for a tensor alone); none of whole numbers.
    """

    model: ModelConfig
    weights_sha256: str
    code_sha256: str | None
    augmentation_code_sha256: Mapping[str, str | None]
    preprocessing: PreprocessingConfig
    features: FeaturesConfig
    columns: list[str]
    alpha: float
    versions: Mapping[str, str]
    rejections: list[Rejections]
    notices: list[str]
    class_names: list[str] | None
    input_columns: list[str] | None
    magnitudes: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Bundle(PlainValues):
    """Content of a bundle, which `gradscore score` works with.

    Attributes:
        detectors: by name, in the order of `DETECTORS`.
        self_test: known answers.
        known_sets: samples with known answers, which `gradscore monitor` compares with.
        weights: the weights, if they are inside.
    """

    detectors: Mapping[str, CalibratedScore]
    self_test: SelfTest
    known_sets: KnownSets
    weights: Mapping[str, Tensor] | None = None

    @property
    def inputs(self) -> MetaInputs:
        """Inputs of the meta models, the same for all of them."""
        return next(iter(self.detectors.values())).model.inputs

    @cached_property
    def identity(self) -> str:
        """A hash, equal for bundles with the same weights, thresholds and known sets."""
        members = sorted(self.known_sets.members().items())
        arrays = [f"{name} {array.shape}".encode() + array.tobytes() for name, array in members]
        limits = [f"{name} {detector.threshold.value!r}".encode() for name, detector in self.detectors.items()]
        return sha256_of(b"".join([self.weights_sha256.encode(), *limits, *arrays]))

    def at(self, alpha: float) -> Bundle:
        """The bundle with another `alpha`; `EvaluationError` as in `threshold`."""
        detectors = {name: detector.at(alpha) for name, detector in self.detectors.items()}
        return replace(self, alpha=alpha, detectors=detectors)


class _DetectorEntry(BaseModel, extra="forbid"):
    """A detector in `bundle.json`; `score` is the name of a baseline that decides, and the others its probability."""

    protocol: str
    score: str | None
    log_odds: tuple[float, float] | None
    shift: float


@dataclass(frozen=True, kw_only=True)
class _Index(PlainValues):
    """`bundle.json`: plain values, and the SHA-256 of each member beside it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    format: Literal["gradscore bundle"] = "gradscore bundle"
    version: Literal[8] = 8
    detectors: dict[str, _DetectorEntry]
    members: dict[str, str]


_STORED = TypeAdapter(_Index)


def _plain(of: PlainValues) -> dict[str, Any]:
    return {each.name: getattr(of, each.name) for each in fields(PlainValues)}


def check_bundle_target(path: Path) -> None:
    """Refuses to replace a file that is no bundle.

    Raises:
        BundleError: there is such a file at `path`.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(_HEAD + len(_INDEX))
    if not head.startswith(b"PK\x03\x04") or head[_HEAD:] != _INDEX.encode():
        raise BundleError(f"{path}: this file is there already and is no bundle; give another path, or remove it")


def write_bundle(path: Path, bundle: Bundle) -> str:
    """Writes a bundle in one step and returns the SHA-256 of the file; the same content gives the same bytes.

    Raises:
        BundleError: the file is there already and is no bundle.
        OutputError: it cannot be written.
    """
    check_bundle_target(path)
    members: dict[str, bytes] = {
        _CALIBRATION: save(
            {name: detector.calibration for name, detector in bundle.detectors.items()}
            | {_LEVELS: next(iter(bundle.detectors.values())).levels}
        ),
        _SELF_TEST: save(bundle.self_test.members()),
        _KNOWN_SETS: save(bundle.known_sets.members()),
        **_saved(_INPUTS, bundle.inputs),
    }
    for name, detector in bundle.detectors.items():
        members |= _saved(name, detector.model) if isinstance(detector.model, MetaModel) else {}
    if bundle.weights is not None:
        members[_WEIGHTS] = save_tensors({name: tensor.contiguous() for name, tensor in bundle.weights.items()})
    entries = {
        name: _DetectorEntry(protocol=detector.protocol, **_of_baseline(detector.model))
        for name, detector in bundle.detectors.items()
    }
    index = _Index(
        **_plain(bundle) | _with_relative_paths(bundle, path),
        detectors=entries,
        members={name: sha256_of(each) for name, each in members.items()},
    )
    text = (json.dumps(_STORED.dump_python(index, mode="json"), indent=1, allow_nan=False) + "\n").encode()
    whole = {_INDEX: text, _CHECKSUM: (sha256_of(text) + "\n").encode(), **members}
    with replacing(followed(path)) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, content in whole.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return file_sha256(path)


def _of_baseline(model: MetaModel | BaselineScore) -> dict[str, Any]:
    """Fields of a detector's entry about a baseline."""
    if isinstance(model, MetaModel):
        return {"score": None, "log_odds": None, "shift": 0.0}
    return {"score": model.name, "log_odds": model.log_odds, "shift": model.shift}


def read_bundle(path: Path, *, sha256: str | None = None) -> Bundle:
    """Reads a bundle, once: what is hashed is what is used.

    Args:
        path: the file.
        sha256: refuse a file with another SHA-256.

    Returns:
        The bundle; the paths of its model are absolute.

    Raises:
        BundleError: it is missing, damaged, was changed, holds something it should not, or is another version of the
            format.
    """
    archive, contents = _contents(path, sha256)
    text, checksum = contents.pop(_INDEX, None), contents.pop(_CHECKSUM, None)
    if text is None or checksum is None:
        raise BundleError(
            f"{path}: no {_INDEX if text is None else _CHECKSUM} in it; this is not a bundle of gradscore"
        )
    if sha256_of(text) != checksum.decode("ascii", "replace").strip():
        raise BundleError(f"{path}: {_INDEX} was changed after it was written; {_ADVICE}")
    base = {"base": path.absolute().parent}
    index = parse_document(text, _STORED, where=path, error=BundleError, advice=_ADVICE, context=base)
    if set(index.members) != set(contents):
        differing = ", ".join(sorted(set(index.members) ^ set(contents)))
        raise BundleError(f"{path}: members are missing or were added: {differing}; {_ADVICE}")
    changed = [name for name, content in contents.items() if index.members[name] != sha256_of(content)]
    if changed:
        raise BundleError(f"{path}: {changed[0]} was changed after it was written; {_ADVICE}")
    try:
        bundle = _bundle_of(index, contents, archive)
    except (KeyError, ValueError, SafetensorError, GradscoreError) as error:
        raise BundleError(f"{path}: incomplete or inconsistent ({error}); make the bundle anew") from None
    if not bundle.detectors or bundle.columns != bundle.inputs.columns:
        raise BundleError(f"{path}: its meta models were fitted on other columns; make the bundle anew")
    if bundle.self_test.answers.shape != (max(sample_count(bundle.self_test.inputs), 1), len(bundle.columns)):
        raise BundleError(f"{path}: the self-test does not fit the columns; make the bundle anew")
    return bundle


def _contents(path: Path, digest: str | None) -> tuple[zipfile.ZipFile, dict[str, bytes]]:
    """The archive, in memory, and its members by name."""
    if not path.exists():
        raise BundleError(f"{path}: there is no such bundle; make one with gradscore bundle")
    if (path / MANIFEST).is_file():
        raise BundleError(f"{path}: a run folder, and no bundle; make one with gradscore bundle {quote(str(path))}")
    if not path.is_file():
        raise BundleError(f"{path}: wanted the file of a bundle, got something else; check the path")
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}; check its permissions") from None
    if digest is not None and sha256_of(whole) != digest.lower():
        raise BundleError(
            f"{path}: wanted the file with SHA-256 {digest}, got {sha256_of(whole)}; get it from where it was made"
        )
    try:
        archive = zipfile.ZipFile(io.BytesIO(whole))
        archive.filename = str(path)  # for messages
        infos = archive.infolist()
        for info in infos:
            if info.compress_type != zipfile.ZIP_STORED:
                raise BundleError(
                    f"{path}: refused, {info.filename} is compressed, which no bundle is; do not use this file"
                )
        if sum(info.file_size for info in infos) > len(whole):
            raise BundleError(f"{path}: refused, its members claim to be larger than the file; do not use this file")
        return archive, {info.filename: archive.read(info) for info in infos}
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BundleError(f"{path}: not a complete bundle ({error}); {_ADVICE}") from None


def _bundle_of(index: _Index, members: Mapping[str, bytes], archive: zipfile.ZipFile) -> Bundle:
    saved = zipfile.Path(archive, _META)
    inputs = MetaInputs.load(saved / _INPUTS)
    calibration, detectors = load(members[_CALIBRATION]), {}
    levels = calibration.pop(_LEVELS)
    for name in [each for each in DETECTORS if each in index.detectors]:
        entry = index.detectors[name]
        if entry.score is not None:
            if entry.score not in inputs.baselines.names:
                raise BundleError(f"its inputs give no score {entry.score!r}")
            model: MetaModel | BaselineScore = BaselineScore(
                name=entry.score, inputs=inputs, log_odds=entry.log_odds, shift=entry.shift
            )
        else:
            model = MetaModel.load(saved / name, inputs)
        detectors[name] = CalibratedScore(
            model=model,
            protocol=entry.protocol,
            calibration=calibration[name],
            levels=levels,
            threshold=threshold(calibration[name], index.alpha, levels=levels),
        )
    return Bundle(
        **_plain(index),
        detectors=detectors,
        self_test=SelfTest.of_members(load(members[_SELF_TEST])),
        known_sets=KnownSets.of_members(load(members[_KNOWN_SETS])),
        weights=load_tensors(members[_WEIGHTS]) if _WEIGHTS in members else None,
    )


def _saved(name: str, saved: MetaModel | MetaInputs) -> dict[str, bytes]:
    """The members of a meta model or of inputs."""
    return {f"{_META}{name}/{file}": content for file, content in saved.files().items()}


def _with_relative_paths(bundle: Bundle, target: Path) -> dict[str, Any]:
    """Sections whose paths are relative to the folder of the bundle, so that all move; absolute at an address."""

    def relative(path: Path) -> Path:
        return path.absolute() if is_copy(target) else Path(os.path.relpath(path, target.absolute().parent))

    def relative_source(source: str) -> str:
        path = source_path(source)
        return source if path is None else at_path(source, relative(path))

    model, processor = bundle.model, bundle.preprocessing.processor
    checkpoint = model.checkpoint
    if checkpoint is not None and not is_address(checkpoint):
        checkpoint = relative(checkpoint)
    changes = {"source": relative_source(model.source), "checkpoint": checkpoint}
    augmentations = [relative_source(each) for each in bundle.features.augmentations]
    return {
        "model": model.model_copy(update=changes),
        "preprocessing": bundle.preprocessing.model_copy(
            update={"processor": None if processor is None else relative(processor)}
        ),
        "features": bundle.features.model_copy(update={"augmentations": augmentations}),
    }
