"""How a run goes on when its inputs changed: what stays, what is computed anew, and what cannot go on.

Every split has an identity of its own: its data, those it is made of, and what else its values depend on. What does not
differ for a split is kept. The model, the preprocessing and the features belong to all splits: a run of others is
another run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..columns import COSINE
from ..config import Config
from ..data import BANK, FIT, base_split, planned_splits
from ..errors import StoreError
from .manifest import differences, package_versions

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
        common=differences(*(_common(each) for each in _with_equal_code(before, now))),
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


def _with_equal_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both inputs without the hashes of code that says the same to Python."""
    first, second = deepcopy(dict(before)), deepcopy(dict(now))
    pairs = [
        (first["model"], second["model"]),
        *zip(first["features"].get("augmentations", []), second["features"].get("augmentations", []), strict=False),
    ]
    for old, new in pairs:
        same_bytes = old.get("code_sha256") == new.get("code_sha256")
        syntax = old.get("code_syntax_sha256")
        if same_bytes or (syntax is not None and syntax == new.get("code_syntax_sha256")):
            for entry in (old, new):
                entry.pop("code_sha256", None)
                entry.pop("code_syntax_sha256", None)
        else:
            old.pop("code_syntax_sha256", None)
            new.pop("code_syntax_sha256", None)
    return first, second


def other_inputs(path: Path, found: list[str]) -> StoreError:
    """The error that says which inputs of the run in `path` differ."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return StoreError(
        f"{path}: this run folder was made from other inputs: {'; '.join(found[:_SHOWN])}{more}. "
        "Give another folder (--out), remove this one, or go back to its inputs"
    )
