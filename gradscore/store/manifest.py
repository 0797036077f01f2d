"""The manifest of a run folder: what its values come from, and how a run goes on when that changed.

Every split has an identity of its own: its data, those it is made of, and what else its values depend on. What does not
differ for a split is kept. The model, the preprocessing and the features belong to all splits: a run of others is
another run.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..columns import COSINE
from ..config import Config, FeaturesConfig
from ..data import BANK, FIT, DatasetConfig, augmentation_name, base_split, kind_of, planned_splits
from ..errors import StoreError
from ..gradients import RULES
from ..losses import LOSSES
from ..models import code_sha256, processor_sha256, source_path
from ..statistics import STATISTICS
from ..system import Influence, as_address, is_address, parse_json, settings_of, write_text

FORMAT = 3
"""The version of the layout of run folders."""

MANIFEST = "manifest.json"
CONFIG = "config.yaml"

_PACKAGES = ("gradscore", "numpy", "pandas", "pillow", "pyarrow", "scikit-learn", "torch", "torchvision")
_MADE_GROUPS_OF = {"parameters", "granularity"}
"""Settings of features that show in the groups made of them."""

_MOST_PARTS = 10**6
_FINGERPRINT = ".fingerprint"

_Count = Annotated[int, Field(ge=0)]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Split(_Open):
    """What every entry of a split has; `name` is a part of a path."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
    kind: str
    group: str | None
    auxiliary: bool
    finished: bool


class _Skipped(_Open):
    sample_id: str
    error: str


class _Spent(_Open):
    samples: _Count
    seconds: Annotated[float, Field(ge=0)]


class _FinishedSplit(_Split):
    finished: Literal[True]
    parts: Annotated[int, Field(ge=1, le=_MOST_PARTS)]
    rows: _Count
    labelled: _Count
    accuracy: Annotated[float, Field(ge=0, le=1)] | None
    non_finite: _Count
    skipped: list[_Skipped]
    spent: _Spent = _Spent(samples=0, seconds=0.0)


class _UnfinishedSplit(_Split):
    finished: Literal[False]


class _Model(_Open):
    source: str
    weights_sha256: str
    code_sha256: str | None
    dtype: Literal["float16", "bfloat16", "float32", "float64"]


class _Data(_Open):
    fingerprint: str


class _Augmentation(_Open):
    name: str
    code_sha256: str | None


class _Features(_Open):
    augmentations: list[_Augmentation] = []


class _Inputs(_Open):
    model: _Model
    preprocessing: dict[str, Any]
    data: dict[str, _Data]
    features: _Features


class _Manifest(_Open):
    """The parts of a manifest that are relied on."""

    finished: bool
    inputs: _Inputs
    versions: dict[str, str]
    splits: dict[str, Annotated[_FinishedSplit | _UnfinishedSplit, Field(discriminator="finished")]]
    feature_count: _Count | None = None
    notices: list[str] | None = None
    class_names: list[str] | None = None
    input_columns: list[str] | None = None
    weight_files_sha256: str | None = None

    @field_validator("splits")
    @classmethod
    def _named(cls, splits: dict[str, _Split]) -> dict[str, _Split]:
        if any(name != split.name for name, split in splits.items()):
            raise ValueError("every split must have the name it is listed by")
        return splits

    @model_validator(mode="after")
    def _whole(self) -> _Manifest:
        if self.finished and None in (self.feature_count, self.notices):
            raise ValueError("a finished run must have feature_count and notices")
        return self


def describe_inputs(
    config: Config,
    *,
    weights_sha256: str,
    dtype: str,
    device: str,
    groups: Mapping[str, Sequence[str]],
    fingerprints: Mapping[str, str],
    penultimate: str | None = None,
) -> dict[str, Any]:
    """Everything that influences a value of the feature tables, as plain JSON values.

    These are the settings declared `InFeatures`, with names in place of paths and patterns, hashes of what they name,
    and the versions of other packages that bring losses, statistics or rules. Where the checkpoint lies, the number of
    workers and what later commands do are not in it.

    Args:
        config: the settings of the run.
        weights_sha256: the hash of the model's weights.
        dtype: the coarsest type among the model's parameters, such as `float32`.
        device: the kind of device that computes.
        groups: the parameters of each feature group.
        fingerprints: of the samples of each split, by the name of the split.
        penultimate: name of the layer whose inputs are stored.
    """
    features = settings_of(config.features, Influence.FEATURES)
    return {
        "model": {
            **settings_of(config.model, Influence.FEATURES),
            "source": _without_folder(config.model.source),
            "code_sha256": code_sha256(config.model.source),
            "weights_sha256": weights_sha256,
            "dtype": dtype,
        },
        "preprocessing": {
            **settings_of(config.preprocessing, Influence.FEATURES),
            "processor_sha256": processor_sha256(config.preprocessing.processor),
        },
        "data": {
            name: _describe_data(spec, fingerprints[name]) for name, (_, spec) in planned_splits(config.data).items()
        },
        "features": {
            **{name: value for name, value in features.items() if name not in _MADE_GROUPS_OF},
            "groups": {name: list(parameters) for name, parameters in groups.items()},
            "penultimate": penultimate,
            "augmentations": _describe_augmentations(config.features.augmentations),
        },
        "extract": {**settings_of(config.extract, Influence.FEATURES), "device": device},
        "packages": _other_packages(config.features),
    }


def _without_folder(source: str) -> str:
    return source if source_path(source) is None else Path(source).name


def package_versions() -> dict[str, str]:
    """The versions of Python and of the packages the values pass through."""
    return {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings in which two nested mappings differ, each as `dotted.path was ..., is now ...`.

    Of a fingerprint, which says nothing to a reader, stands whose samples changed.
    """
    old, new = _flat(before), _flat(now)
    keys = [*old, *(key for key in new if key not in old)]
    return [
        _changed_samples(key)
        if key in old and key in new and key.endswith(_FINGERPRINT)
        else f"{key} was {_short(old.get(key))}, is now {_short(new.get(key))}"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the run folder `path`.

    Raises:
        StoreError: there is none, it is damaged, or another gradscore wrote it.
    """
    if is_address(path):
        raise StoreError(
            f"{as_address(path)}: a run in object storage is read from a local copy: with gradscore.store.working_copy("
            "address) as copy, open RunFolder(copy.path)"
        )
    file = path / MANIFEST
    try:
        manifest = parse_json(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{path}: not a run folder, it has no {MANIFEST}; make one with gradscore extract") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{file}: damaged: {error}; restore it from a copy or extract into another folder") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise StoreError(f"{file}: wanted format {FORMAT}, got {found!r}; extract into another folder")
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise StoreError(f"{file}: damaged: {what}; restore it from a copy or extract into another folder") from None
    return manifest


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest of the run folder `path` in one step."""
    write_text(path / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def _describe_data(entry: DatasetConfig, fingerprint: str) -> dict[str, Any]:
    kind = kind_of(entry.source)
    code = {"code_sha256": code_sha256(entry.source)} if kind is not None and kind.is_code else {}
    return {**settings_of(entry, Influence.FEATURES), **code, "fingerprint": fingerprint}


def _other_packages(features: FeaturesConfig) -> dict[str, str]:
    """The versions of packages whose losses and statistics are computed, and of all that bring rules."""
    return LOSSES.packages(features.losses) | STATISTICS.packages(features.statistics) | RULES.packages()


def _describe_augmentations(augmentations: Sequence[str]) -> list[dict[str, str | None]]:
    return [
        {"name": augmentation_name(augmentation), "code_sha256": code_sha256(augmentation)}
        for augmentation in augmentations
    ]


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    parts = [_flat(entry, f"{path}.{key}" if path else str(key)) for key, entry in value.items()]
    return {key: entry for part in parts for key, entry in part.items()}


def _changed_samples(key: str) -> str:
    split = key.removesuffix(_FINGERPRINT).removeprefix("data.")
    return f"the samples of {split} changed (images, names, labels, or how many there are)"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:20]}...{text[-8:]}"


_SHOWN = 3

_PER_SPLIT = ("batch_size", "on_error")
"""Settings of `extract` that concern some splits alone."""


@dataclass(frozen=True)
class Changes:
    """What differs between the inputs of a run and those it goes on with.

    Attributes:
        common: what concerns all splits, each as `differences` says it: a run of others is another run.
        stale: splits that are computed anew, and why.
        removed: splits that are no longer asked for.
        added: splits that are new.
    """

    common: list[str] = field(default_factory=list)
    stale: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """What is done about each of them; nothing where only splits were added."""
        again = [f"{name} is computed anew: {reason}" for name, reason in self.stale.items()]
        return [*again, *(f"{name} is no longer asked for: its table was removed" for name in self.removed)]


def find_changes(manifest: Mapping[str, Any], config: Config, inputs: Mapping[str, Any]) -> Changes:
    """What changed since a run with this manifest was made.

    Args:
        manifest: of the run.
        config: the settings it goes on with.
        inputs: what they are made of, as `describe_inputs` gives it.
    """
    before, now = manifest["inputs"], json.loads(json.dumps(inputs))
    planned = planned_splits(config.data)
    known: Mapping[str, Mapping[str, Any]] = manifest["splits"]
    stale = _of_settings(before, now, known)
    for name in planned:
        changed = _of_data(name, before, now)
        if name in known and changed:
            stale[name] = "; ".join(changed[:_SHOWN])
    bases = {name: base_split(info, spec) for name, (info, spec) in planned.items()}
    for name, base in bases.items():
        if base in stale:
            stale.setdefault(name, f"it is made of {base}")
    if FIT in stale and COSINE in config.features.columns:
        stale = {name: f"features.columns has {COSINE}, and {FIT} changed" for name in planned if name != BANK} | stale
    return Changes(
        common=differences(_common(before), _common(now)),
        stale={name: reason for name, reason in stale.items() if name in known and name in planned},
        removed=[name for name in known if name not in planned],
        added=[name for name in planned if name not in known],
    )


def check_same_versions(path: Path, manifest: Mapping[str, Any]) -> None:
    """Makes sure that nothing is computed by other versions of packages than the rest of a run.

    Raises:
        StoreError: they differ.
    """
    found = differences({"versions": manifest["versions"]}, {"versions": package_versions()})
    if found:
        raise other_inputs(path, found)


def after(manifest: Mapping[str, Any], changes: Changes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a run with its present inputs: stale splits are not finished, removed ones are gone."""
    found: dict[str, Any] = deepcopy(dict(manifest)) | {"inputs": json.loads(json.dumps(inputs))}
    for name in changes.removed:
        del found["splits"][name]
    for name in changes.stale:
        entry = found["splits"][name]
        found["splits"][name] = {key: entry[key] for key in ("name", "kind", "group", "auxiliary")} | {
            "finished": False
        }
    if FIT in changes.stale:
        found.pop("mean_gradients_sha256", None)
    if changes.stale or changes.added:
        found["finished"] = False
    return found


def _common(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that concern all splits."""
    found = {key: value for key, value in inputs.items() if key != "data"}
    if "extract" in found:
        found["extract"] = {key: value for key, value in found["extract"].items() if key not in _PER_SPLIT}
    return found


def _of_data(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    entries = ({"data": {name: inputs["data"].get(name, {})}} for inputs in (before, now))
    return differences(*entries)


def _of_settings(before: Mapping[str, Any], now: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, str]:
    """The splits that settings of `extract` concern, and why.

    Finished splits keep the batch size they were computed with, which moves the last bits only, unless they are
    compared with gradients of another. Those without a skipped sample are what `on_error=fail` gives.
    """
    was, is_now = before.get("extract", {}), now.get("extract", {})
    found: dict[str, str] = {}
    if was.get("batch_size") != is_now.get("batch_size"):
        compared = COSINE in now["features"].get("columns", [])
        reason = f"extract.batch_size was {was.get('batch_size')}, is now {is_now.get('batch_size')}"
        found |= {name: reason for name, entry in known.items() if compared or not entry["finished"]}
    if was.get("on_error") == "skip" and is_now.get("on_error") == "fail":
        reason = "samples were skipped, and extract.on_error is now fail"
        found |= {name: reason for name, entry in known.items() if entry.get("skipped", True)}
    return found


def other_inputs(path: Path, found: list[str]) -> StoreError:
    """The error that says which inputs of the run in `path` differ."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return StoreError(
        f"{path}: this run folder was made from other inputs: {'; '.join(found[:_SHOWN])}{more}. "
        "Give another folder (--out), remove this one, or go back to its inputs"
    )
