"""The manifest of a run folder: what its values come from, and how a run goes on when that changed.

Every split has an identity of its own: its data, those it is made of, and what else its values depend on. What does not
differ for a split is kept. The model, the preprocessing and the features belong to all splits: a run of others is
another run.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from ..config import Config
from ..data import SplitKind, augmentation_name, base_split, kind_of, planned_splits
from ..errors import FORBIDDEN, StoreError
from ..models import code_hash, code_sha256, processor_sha256, source_path
from ..object_storage import MANIFEST
from ..system import Influence, as_address, is_address, parse_document, settings_of, write_text

FORMAT: Final = 7
"""The version of the layout of run folders."""

_ADVICE = "restore it from a copy or extract into another folder"

_PACKAGES = ("gradscore", "numpy", "pandas", "pillow", "pyarrow", "scikit-learn", "torch", "torchvision")
_MADE_GROUPS_OF = {"parameters", "granularity"}
"""Settings of features that show in the groups made of them."""

_MOST_PARTS = 10**6
_MOST_CHARACTERS, _BEFORE = 40, 10
_SHOWN = 3
_FINGERPRINT = ".fingerprint"

Count = Annotated[int, Field(ge=0)]


class StoredRecord(BaseModel):
    """Part of a JSON file of a run folder, which must be as it was written."""

    model_config = ConfigDict(strict=True, extra="forbid")


class _Settings(StoredRecord):
    """Settings that influence values, beside what is made of them."""

    model_config = ConfigDict(extra="allow")


class CodeInputs(StoredRecord):
    """Hash of the code of a file, if there is any that makes something."""

    code_sha256: str | None


class ModelInputs(CodeInputs, _Settings):
    """The model of a run; `dtype` is the coarsest type among its parameters."""

    source: str
    weights_sha256: str
    dtype: Literal["float16", "bfloat16", "float32", "float64"]


class SplitInputs(CodeInputs, _Settings):
    """The data of a split."""

    fingerprint: str


class AugmentationInputs(CodeInputs):
    """An augmentation."""

    name: str


class FeatureInputs(_Settings):
    """Inputs of features: `groups` are the parameters of each feature group, `penultimate` is a layer."""

    groups: dict[str, list[str]]
    penultimate: str | None
    augmentations: list[AugmentationInputs]


class ExtractInputs(_Settings):
    """Settings of how features are computed."""

    batch_size: int
    on_error: str
    device: str


class RunInputs(StoredRecord):
    """Everything that influences a value of the feature tables, see `describe_inputs`."""

    model: ModelInputs
    preprocessing: dict[str, Any]
    data: dict[str, SplitInputs]
    features: FeatureInputs
    extract: ExtractInputs

    def common(self) -> dict[str, Any]:
        """Inputs that concern all splits."""
        return self.model_dump(exclude={"data": True, "extract": {"batch_size", "on_error"}})


class Skipped(StoredRecord):
    """A sample that could not be used, and why; `empty` are the columns of a table in which its value is missing."""

    sample_id: str
    error: str
    empty: list[str] = []


class Spent(StoredRecord):
    """Samples of a split that were computed the last time, how long it took, and what share of that gradients took."""

    samples: Count
    seconds: Annotated[float, Field(ge=0)]
    gradients: Annotated[float, Field(ge=0, le=1)] | None = None


SplitName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
"""A part of a path."""


class SplitEntry(StoredRecord):
    """A split of a run; one that is finished has counts, and whether images have no signature (see `ShardRows`)."""

    kind: SplitKind
    group: str | None
    auxiliary: bool
    finished: bool = False
    parts: Annotated[int, Field(ge=0, le=_MOST_PARTS)] = 0
    rows: Count = 0
    labelled: Count = 0
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    non_finite: Count = 0
    hides_images: bool = False
    skipped: list[Skipped] = []
    spent: Spent | None = None

    @model_validator(mode="after")
    def _has_shards(self) -> Self:
        if self.finished and not self.parts:
            raise ValueError("a finished split must have parts")
        return self


class Manifest(StoredRecord):
    """Manifest of a run folder.

    Attributes:
        format: the version of the layout.
        finished: nothing is lacking.
        inputs: what influences its values.
        versions: of Python and of packages.
        splits: by name, in order.
        feature_count: columns of features, of a finished run.
        notices: what a reader of its figures should know, of a finished run.
        class_names: of the model, in the order of its outputs; None where they are not known.
        input_columns: names of the columns of a table that the model takes: numbers, or one of text; None for others.
        weight_files_sha256: of the files that the weights came from; None where there are none.
    """

    format: Literal[7]
    finished: bool
    inputs: RunInputs
    versions: dict[str, str]
    splits: dict[SplitName, SplitEntry]
    feature_count: Count = 0
    notices: list[str] = []
    class_names: list[str] | None = None
    input_columns: list[str] | None = None
    weight_files_sha256: str | None = None

    @classmethod
    def begun(cls, inputs: RunInputs) -> Self:
        """That of a run of which nothing is there yet."""
        return cls(format=FORMAT, finished=False, inputs=inputs, versions=package_versions(), splits={})

    @classmethod
    def read(cls, run: Path) -> Self:
        """Reads that of a run folder.

        Raises:
            StoreError: there is none, it is damaged, or another gradscore wrote it.
        """
        if is_address(run):
            raise StoreError(
                f"{as_address(run)}: a run in object storage is read from a local copy: with gradscore.object_storage."
                "working_copy(address) as copy, open RunFolder(copy.path)"
            )
        file = run / MANIFEST
        try:
            content = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError(f"{run}: not a run folder, it has no {MANIFEST}; {_instead(run)}") from None
        except PermissionError:
            raise StoreError(f"{file}: {FORBIDDEN}") from None
        except OSError as error:
            raise StoreError(f"{file}: cannot be read ({error.strerror}); {_ADVICE}") from None
        return parse_document(content, TypeAdapter(cls), where=file, error=StoreError, advice=_ADVICE)

    def write(self, run: Path) -> None:
        """Writes it to a run folder in one step."""
        write_text(run / MANIFEST, self.model_dump_json(indent=2) + "\n")

    def going_on(self, changes: Changes, inputs: RunInputs) -> Self:
        """That of the run with its present inputs: stale splits are not finished, removed ones are gone."""
        splits = {
            name: SplitEntry(kind=entry.kind, group=entry.group, auxiliary=entry.auxiliary)
            if name in changes.stale
            else entry.model_copy()
            for name, entry in self.splits.items()
            if name not in changes.removed
        }
        found = self.model_copy(update={"inputs": inputs, "splits": splits})
        if changes.stale or changes.added:
            found.finished = False
        return found


def describe_inputs(
    config: Config,
    *,
    weights_sha256: str,
    dtype: str,
    device: str,
    groups: Mapping[str, Sequence[str]],
    fingerprints: Mapping[str, str],
    penultimate: str | None,
) -> RunInputs:
    """Everything that influences a value of the feature tables.

    These are the settings declared `InFeatures`, with names in place of paths and patterns, and hashes of what they
    name. Where the checkpoint lies, the number of workers and what later commands do are not in it.

    Args:
        config: the settings of the run.
        weights_sha256: the hash of the model's weights.
        dtype: the coarsest type among the model's parameters, such as `float32`.
        device: the kind of device that computes.
        groups: the parameters of each feature group.
        fingerprints: of the samples of each split, by the name of the split.
        penultimate: name of the layer whose inputs are stored.
    """
    features = config.features
    settings = settings_of(features, Influence.FEATURES)
    network = describe_network(config)
    described = {
        "model": {**network["model"], "weights_sha256": weights_sha256, "dtype": dtype},
        "preprocessing": network["preprocessing"],
        "data": {
            name: {
                **settings_of(spec, Influence.FEATURES),
                "code_sha256": _code_of_data(spec.source),
                "fingerprint": fingerprints[name],
            }
            for name, (_, spec) in planned_splits(config.data).items()
        },
        "features": {
            **{name: value for name, value in settings.items() if name not in _MADE_GROUPS_OF},
            "groups": {name: list(parameters) for name, parameters in groups.items()},
            "penultimate": penultimate,
            "augmentations": [
                {"name": augmentation_name(name), "code_sha256": code_sha256(name)} for name in features.augmentations
            ],
        },
        "extract": {**settings_of(config.extract, Influence.FEATURES), "device": device},
    }
    return RunInputs.model_validate_json(json.dumps(described))


def describe_network(config: Config) -> dict[str, dict[str, Any]]:
    """Description, in plain JSON values, of what makes the model, but for its weights, and of its preprocessing."""
    model, preprocessing = config.model, config.preprocessing
    return {
        "model": {
            **settings_of(model, Influence.FEATURES),
            "source": model.source if source_path(model.source) is None else Path(model.source).name,
            "code_sha256": code_sha256(model.source),
        },
        "preprocessing": {
            **settings_of(preprocessing, Influence.FEATURES),
            "processor_sha256": processor_sha256(preprocessing.processor),
        },
    }


def package_versions() -> dict[str, str]:
    """The versions of Python and of the packages the values pass through."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


@cache
def _version(name: str) -> str:
    return version(name)  # reads a file each time, which nobody changes under a running process


def _code_of_data(source: str) -> str | None:
    """The hash of the user's code that makes samples; None where none does."""
    kind, file = kind_of(source), source.partition(":")[2].rpartition(":")[0]
    return code_hash(file) if kind is not None and kind.is_code else None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings in which two nested mappings differ, each as `dotted.path was ..., is now ...`.

    Of a fingerprint, which says nothing to a reader, stands whose samples changed.
    """
    old, new = _flat(before), _flat(now)
    found = []
    for key in (key for key in {**old, **new} if old.get(key) != new.get(key)):
        if key in old and key in new and key.endswith(_FINGERPRINT):
            split = key.removesuffix(_FINGERPRINT).removeprefix("data.")
            found.append(
                f"the samples of {split} changed (images, names, labels and their classes, or how many there are)"
            )
        else:
            first, second = json.dumps(old.get(key)), json.dumps(new.get(key))
            same = next((place for place, pair in enumerate(zip(first, second, strict=False)) if len(set(pair)) > 1), 0)
            start = max(0, same - _BEFORE)
            found.append(f"{key} was {_short(first, start)}, is now {_short(second, start)}")
    return found


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    parts = [_flat(entry, f"{path}.{key}" if path else str(key)) for key, entry in value.items()]
    return {key: entry for part in parts for key, entry in part.items()}


def _short(text: str, start: int) -> str:
    """A text from where it differs from another, and a little before."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    begin = "..." if start else ""
    end = "..." if len(text) > start + _MOST_CHARACTERS else ""
    return f"{begin}{text[start : start + _MOST_CHARACTERS]}{end}"


@dataclass(frozen=True)
class Changes:
    """Differences between the inputs of a run and those it goes on with.

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

    def sentences(self, is_there: Callable[[str], bool] = lambda _split: True) -> list[str]:
        """Sentences on what is done about splits that there is something of; none where only splits were added."""
        again = [f"{name} is computed anew: {reason}" for name, reason in self.stale.items() if is_there(name)]
        gone = [name for name in self.removed if is_there(name)]
        return [*again, *(f"{name} is no longer asked for: its table was removed" for name in gone)]


def find_changes(manifest: Manifest, config: Config, inputs: RunInputs) -> Changes:
    """Changes since a run with this manifest was made.

    Args:
        manifest: of the run.
        config: the settings it goes on with.
        inputs: what they are made of, as `describe_inputs` gives it.
    """
    before, known = manifest.inputs, manifest.splits
    planned = planned_splits(config.data)
    stale: dict[str, str] = {}
    was, now = before.extract, inputs.extract
    if was.batch_size != now.batch_size:
        # Finished splits keep the batch size they were computed with, which moves the last bits only.
        reason = f"extract.batch_size was {was.batch_size}, is now {now.batch_size}"
        stale |= {name: reason for name, entry in known.items() if not entry.finished}
    if (was.on_error, now.on_error) == ("skip", "fail"):
        reason = "samples were skipped, and extract.on_error is now fail"
        stale |= {name: reason for name, entry in known.items() if entry.skipped or not entry.finished}
    for name in planned:
        datasets = [{name: each.data[name].model_dump()} if name in each.data else {} for each in (before, inputs)]
        changed = differences(*({"data": each} for each in datasets))
        if name in known and changed:
            stale[name] = "; ".join(changed[:_SHOWN])
    for name, (info, spec) in planned.items():
        if (base := base_split(info, spec)) in stale:
            stale.setdefault(name, f"it is made of {base}")
    return Changes(
        common=differences(before.common(), inputs.common()),
        stale={name: reason for name, reason in stale.items() if name in known and name in planned},
        removed=[name for name in known if name not in planned],
        added=[name for name in planned if name not in known],
    )


def other_inputs(path: Path, found: Sequence[str]) -> StoreError:
    """The error that says which inputs of the run in `path` differ."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return StoreError(
        f"{path}: this run folder was made from other inputs: {'; '.join(found[:_SHOWN])}{more}. "
        "Give another folder (--out), remove this one, or go back to its inputs"
    )


def _instead(folder: Path) -> str:
    """Advice where a folder is no run: name the one inside it, or beside a configuration, or make one."""
    is_config = folder.suffix in (".yaml", ".yml") and folder.is_file()
    there = folder.parent if is_config else folder
    found = next((each.parent for each in sorted(there.glob(f"*/{MANIFEST}"))), None)
    if found is not None:
        return f"did you mean {found}?"
    return f"gradscore run {folder} makes one" if is_config else "make one with gradscore run CONFIG"
