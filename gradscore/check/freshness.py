"""Is a run still of the model and data that its configuration names?"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..data import FIT, base_split, kind_of, planned_splits
from ..errors import GradscoreError
from ..models import LIVE, weight_files_sha256
from ..pipeline import open_datasets
from ..store import CodeInputs, RunFolder, RunInputs, describe_inputs, find_changes
from ..system import is_address, some


@dataclass(frozen=True, kw_only=True)
class Outdated:
    """Parts of a run that are out of date; of one that is not, all but `unseen` are empty.

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
    files that code reads, and files at addresses, are not looked at.

    Raises:
        StoreError: the stored configuration is damaged.
    """
    before, config = run.manifest.inputs, run.config
    planned = planned_splits(config.data)
    found = Outdated(changed=[], gone=[], unseen=[])
    if run.moved:
        found.unseen.append(f"copies of its model and data: {run.moved}")
    _compare_weights(run, found)
    sources = [config.model.source, *config.features.augmentations]
    if code := [each for each in sources if each.startswith("python:")]:
        found.unseen.append(f"what the code of {some(code)} reads itself; a check of the configuration runs it")
    fingerprints = {name: before.data[name].fingerprint if name in before.data else "" for name in planned}
    openable = _openable(config)
    if closed := [name for name in planned if name not in openable]:
        found.unseen.append(
            f"the samples of {some(closed)}, which code, a program or an address gives, or whose classes are named by "
            "such samples"
        )
    try:
        datasets = open_datasets(config, only=openable) if openable else {}
        fingerprints |= {name: dataset.fingerprint() for name, dataset in datasets.items()}
    except (GradscoreError, OSError) as error:
        found.gone.append(f"its samples cannot be opened ({error})")
    now = describe_inputs(
        config,
        weights_sha256=before.model.weights_sha256,
        dtype=before.model.dtype,
        device=before.extract.device,
        groups=before.features.groups,
        fingerprints=fingerprints,
        penultimate=before.features.penultimate,
    )
    _keep_hashes_of_lost_files(before, now, found.gone)
    changes = find_changes(run.manifest, config, now)
    found.changed.extend(changes.common)
    found.changed.extend(f"{name}: {reason}" for name, reason in changes.stale.items())
    found.changed.extend(f"{name} is new" for name in changes.added)
    found.changed.extend(f"{name} is gone" for name in changes.removed)
    return found


def _compare_weights(run: RunFolder, found: Outdated) -> None:
    model = run.config.model
    file = model.checkpoint or model.source
    if model.source.startswith(f"{LIVE}:"):
        found.unseen.append("the model, which a program gave")
        return
    try:
        now = weight_files_sha256(model)
    except (GradscoreError, OSError) as error:
        found.gone.append(f"the file of the weights, {file} ({getattr(error, 'strerror', None) or error})")
        return
    if now is None:
        found.unseen.append(f"the weights, of which no file is known here ({file})")
    elif now != run.manifest.weight_files_sha256:
        found.changed.append(f"the file of the weights, {file}, is another one")


def _keep_hashes_of_lost_files(before: RunInputs, now: RunInputs, gone: list[str]) -> None:
    """Names what had a hash of its code and has none now, and puts that of before in its place."""
    code: list[tuple[str, CodeInputs, CodeInputs]] = [("model", before.model, now.model)]
    code += [(f"data.{name}", before.data[name], each) for name, each in now.data.items() if name in before.data]
    augmentations = zip(before.features.augmentations, now.features.augmentations, strict=False)
    code += [("features.augmentations", was, each) for was, each in augmentations]
    for place, was, each in code:
        if was.code_sha256 is not None and each.code_sha256 is None:
            each.code_sha256 = was.code_sha256
            gone.append(f"the files of {place}")
    processor = before.preprocessing["processor_sha256"]
    if processor is not None and now.preprocessing["processor_sha256"] is None:
        now.preprocessing["processor_sha256"] = processor
        gone.append("the files of preprocessing")


def _openable(config: Config) -> list[str]:
    """The splits whose samples can be opened without running code and without fetching anything.

    Names of classes come from all splits with labels: where one of these cannot be opened, none of them is, nor what
    is made of them. Names of columns come from a table to fit on: where that is at an address, nothing is opened.
    """
    planned = planned_splits(config.data)
    bases = {name: base_split(info, spec) for name, (info, spec) in planned.items()}
    own = {name for name, (_, spec) in planned.items() if bases[name] is None and _is_local_data(spec.source)}
    labelled = {name for name, (info, _) in planned.items() if info.kind != "ood" and bases[name] is None}
    if FIT not in own and is_address(planned[FIT][1].source.partition(":")[2]):
        return []
    if config.data.class_names is None and not labelled <= own:
        own -= labelled
    return [name for name in planned if name in own or bases[name] in own]


def _is_local_data(source: str) -> bool:
    kind = kind_of(source)
    return kind is not None and not kind.is_code and not is_address(source.partition(":")[2])
