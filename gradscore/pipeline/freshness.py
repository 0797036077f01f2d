"""What of a run is out of date: does it still say what its model and its data are now?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import Config
from ..data import FIT, base_split, kind_of, planned_splits
from ..errors import GradscoreError
from ..models import LIVE, weight_files_sha256
from ..store import RunFolder, describe_inputs, find_changes
from ..system import is_address, some
from .plan import open_datasets


@dataclass(frozen=True, kw_only=True)
class Outdated:
    """What of a run is out of date; nothing where all of it is empty but `unseen`.

    Attributes:
        changed: a sentence for each thing that differs from what the run was made from.
        gone: what the run was made from and is no longer there.
        unseen: what nobody looked at, and why.
    """

    changed: list[str]
    gone: list[str]
    unseen: list[str]


def outdated(run: RunFolder) -> Outdated:
    """Compares a run with the files that its configuration names, as they are now.

    What `extract` goes by decides: hashes of code and of what processes samples, and of each split its names, labels
    and content, as far as its source tells a change of that (of image files in folders: their sizes). In place of the
    hash of a built model stands that of its files of weights, so that no code of others runs. Data that code makes,
    and files at addresses, are not looked at.

    Raises:
        StoreError: the stored configuration is damaged.
    """
    before, config = run.manifest["inputs"], run.config
    changed, gone, unseen = _weights(run, config)
    fingerprints: dict[str, str] = {name: entry["fingerprint"] for name, entry in before["data"].items()}
    planned = planned_splits(config.data)
    seen = _openable(config)
    if len(seen) < len(planned):
        unseen.append(f"the samples of {some([name for name in planned if name not in seen])}, {_NO_FILES}")
    try:
        found = open_datasets(config, only=seen) if seen else {}
        fingerprints |= {name: dataset.fingerprint() for name, dataset in found.items()}
    except (GradscoreError, OSError) as error:
        gone.append(f"its samples cannot be opened ({error})")
    now = describe_inputs(
        config,
        weights_sha256=before["model"]["weights_sha256"],
        dtype=before["model"]["dtype"],
        device=before.get("extract", {}).get("device", "cpu"),
        groups=before["features"].get("groups", {}),
        fingerprints={name: fingerprints.get(name, "") for name in planned},
        penultimate=before["features"].get("penultimate"),
    )
    gone += [f"the files of {place}" for place in _emptied(before, now)]
    changes = find_changes(run.manifest, config, now)
    changed += changes.common
    changed += [f"{name}: {reason}" for name, reason in changes.stale.items()]
    changed += [f"{name} is new" for name in changes.added] + [f"{name} is gone" for name in changes.removed]
    return Outdated(changed=changed, gone=gone, unseen=unseen)


_NO_FILES = "which code, a program or an address gives, or whose classes are named by such samples"


def _weights(run: RunFolder, config: Config) -> tuple[list[str], list[str], list[str]]:
    """What of the weights changed, is gone, or is not looked at."""
    name = f"the file of the weights, {config.model.checkpoint or config.model.source}"
    if config.model.source.startswith(f"{LIVE}:"):
        return [], [], ["the model, which a program gave"]
    try:
        now = weight_files_sha256(config.model)
    except (GradscoreError, OSError) as error:
        return [], [f"{name} ({getattr(error, 'strerror', None) or error})"], []
    if now is None:
        return (
            [],
            [],
            [f"the weights, of which no file is known here ({config.model.checkpoint or config.model.source})"],
        )
    return [f"{name}, is another one"] if now != run.manifest.get("weight_files_sha256") else [], [], []


def _openable(config: Config) -> list[str]:
    """The splits whose samples can be opened without running code and without fetching anything.

    Names of classes come from all splits with labels: where one of these cannot be opened, none of them is, nor what
    is made of them. Names of columns come from a table to fit on: where that is at an address, nothing is opened.
    """
    planned = planned_splits(config.data)
    bases = {name: base_split(info, spec) for name, (info, spec) in planned.items()}
    own = {name for name, (_, spec) in planned.items() if bases[name] is None and _is_at_hand(spec.source)}
    labelled = {name for name, (info, _) in planned.items() if info.kind != "ood" and bases[name] is None}
    if FIT not in own and is_address(planned[FIT][1].source.partition(":")[2]):
        return []
    if config.data.class_names is None and not labelled <= own:
        own -= labelled
    return [name for name in planned if name in own or bases[name] in own]


def _is_at_hand(source: str) -> bool:
    kind = kind_of(source)
    return kind is not None and not kind.is_code and not is_address(source.partition(":")[2])


def _emptied(before: Mapping[str, Any], now: dict[str, Any], path: str = "") -> list[str]:
    """The places of hashes that were there and are not, in whose stead those of before are put."""
    found: list[str] = []
    for key, old in before.items():
        new, place = now.get(key), f"{path}.{key}" if path else key
        if isinstance(old, Mapping) and isinstance(new, dict):
            found += _emptied(old, new, place)
        elif isinstance(old, list) and isinstance(new, list):
            pairs = [pair for pair in zip(old, new, strict=False) if all(isinstance(each, dict) for each in pair)]
            found += [lost for first, second in pairs for lost in _emptied(first, second, place)]
        elif key.endswith("sha256") and old is not None and new is None:
            now[key] = old
            found.append(place.removesuffix(f".{key}"))
    return found
