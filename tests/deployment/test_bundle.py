"""Bundles survive a round trip and a move, and refuse everything that was done to them."""

import errno
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bundle_parts import parts_of, put_together
from safetensors.numpy import load, save
from safetensors.torch import load_file, save_file

from gradscore.deployment import bundle_making
from gradscore.deployment.bundle_file import read_bundle, write_bundle
from gradscore.deployment.bundle_making import make_bundle
from gradscore.deployment.scorer import Scorer
from gradscore.deployment.self_test import check_batches
from gradscore.errors import BundleError, OutputError
from gradscore.models import weights_sha256
from gradscore.store import RunFolder, changing
from gradscore.system import file_sha256


def rewritten(path: Path, change: Callable[[dict[str, bytes]], object]) -> None:
    """Writes the archive anew with members as `change` leaves them, without mending a checksum."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def reindexed(path: Path, change: Callable[[dict], object]) -> None:
    """Writes the archive anew with another index and right checksums."""
    index, members = parts_of(path)
    change(index)
    put_together(path, index, members)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def compress(path: Path) -> None:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.json", b"0" * 10_000_000)


def oversize(path: Path) -> None:
    content = path.read_bytes()
    size = zipfile.ZipFile(path).getinfo("self_test.safetensors").file_size
    place = content.rindex(b"PK\x01\x02", 0, content.rindex(b"self_test.safetensors"))
    assert int.from_bytes(content[place + 24 : place + 28], "little") == size
    path.write_bytes(content[: place + 24] + (2**31).to_bytes(4, "little") + content[place + 28 :])


def add(name: str) -> Callable[[Path], None]:
    return lambda path: rewritten(path, lambda members: members.update({name: b"{}"}))


def refill(member: str, change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    """Changes the arrays of a member, with right checksums."""

    def damage(path: Path) -> None:
        index, members = parts_of(path)
        arrays = load(members[member])
        change(arrays)
        put_together(path, index, {**members, member: save(arrays)})

    return damage


def empty(arrays: dict[str, np.ndarray]) -> None:
    arrays.update({name: np.ascontiguousarray(values[:0]) for name, values in arrays.items()})


DAMAGES = {
    "an empty self-test": (refill("self_test.safetensors", empty), "the self-test does not fit the columns"),
    "missing": (Path.unlink, "there is no such bundle"),
    "truncated": (truncate, "not a complete bundle"),
    "a flipped bit": (flip, "not a complete bundle"),
    "a changed index": (
        lambda path: rewritten(path, lambda members: members.update({"bundle.json": members["bundle.json"] + b" "})),
        "bundle.json was changed after it was written",
    ),
    "a changed member": (
        lambda path: rewritten(path, lambda members: members.update({"calibration.safetensors": b"x"})),
        "calibration.safetensors was changed after it was written",
    ),
    "a member less": (
        lambda path: rewritten(path, lambda members: members.pop("weights.safetensors")),
        "missing or were added: weights.safetensors",
    ),
    "a member more": (add("../../model.pkl"), r"missing or were added: \.\./\.\./model.pkl"),
    "no index": (lambda path: rewritten(path, lambda members: members.pop("bundle.json")), "no bundle.json in it"),
    "a compressed member": (compress, "refused, bomb.json is compressed"),
    "a size that is not true": (oversize, "claim to be larger than the file"),
    "another format": (
        lambda path: reindexed(path, lambda index: index.update(format="other")),
        "format: Input should be 'gradscore bundle', got 'other'",
    ),
    "a newer version": (
        lambda path: reindexed(path, lambda index: index.update(version=9)),
        "version: Input should be 8, got 9.; copy it again, or make it anew",
    ),
    "an older version": (
        lambda path: reindexed(path, lambda index: index.update(version=7, provenance={})),
        "version: Input should be 8, got 7.; copy it again, or make it anew",
    ),
    "an unknown field": (lambda path: reindexed(path, lambda index: index.update(new=1)), "new: Unexpected keyword"),
    "a baseline that nothing gives": (
        lambda path: reindexed(path, lambda index: index["detectors"]["wrong"].update(score="luck")),
        "its inputs give no score 'luck'",
    ),
    "other columns": (
        lambda path: reindexed(path, lambda index: index["columns"].reverse()),
        "its meta models were fitted on other columns",
    ),
}


@pytest.fixture
def copy(small_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(small_bundle, tmp_path / "copy.gradscore"))


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_refuses(copy: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(copy)
    with pytest.raises(BundleError, match=message):
        read_bundle(copy)


def test_reads_back(small_bundle: Path, small_run: Path) -> None:
    found, made = read_bundle(small_bundle), make_bundle(RunFolder(small_run), alpha=0.1, trust_code=True)
    assert (found.columns, found.features, found.preprocessing) == (made.columns, made.features, made.preprocessing)
    assert {name: each.threshold for name, each in found.detectors.items()} == {
        name: each.threshold for name, each in made.detectors.items()
    }
    assert np.array_equal(found.self_test.answers, made.self_test.answers)
    assert (found.versions, found.notices) == (made.versions, made.notices)


def test_the_same_run_gives_the_same_bytes(small_bundle: Path, small_run: Path) -> None:
    again = small_bundle.with_name("again.gradscore")
    write_bundle(again, make_bundle(RunFolder(small_run), alpha=0.1, with_weights=True, trust_code=True))
    assert again.read_bytes() == small_bundle.read_bytes()


def test_a_bundle_is_written_where_nothing_is_temporary(small_bundle: Path, tmp_path: Path, monkeypatch) -> None:
    """A full disk is that of the target, which the message names."""
    bundle = read_bundle(small_bundle)
    monkeypatch.setattr("tempfile.TemporaryDirectory", None)
    monkeypatch.setattr("gradscore.system.files.os.fsync", full_disk)
    with pytest.raises(OutputError, match=r"x\.gradscore: cannot be written: No space left on device; free some space"):
        write_bundle(tmp_path / "x.gradscore", bundle)


def full_disk(_file: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_sha256_of_the_file(small_bundle: Path) -> None:
    assert read_bundle(small_bundle, sha256=file_sha256(small_bundle)).alpha == 0.1
    with pytest.raises(BundleError, match=r"wanted the file with SHA-256 00, got [0-9a-f]{64}; get it"):
        read_bundle(small_bundle, sha256="00")


def test_holds_no_pickle_and_no_absolute_path(small_bundle: Path) -> None:
    index, members = parts_of(small_bundle)
    assert {name.rpartition(".")[2] for name in members} == {"json", "safetensors"}
    assert str(small_bundle.parent) not in json.dumps(index)


def test_moves_together_with_the_model(small_run: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "a" / "x.gradscore", make_bundle(RunFolder(small_run), alpha=0.1, trust_code=True))
    moved = read_bundle(tmp_path / "a" / "x.gradscore")
    assert moved.model.checkpoint == small_run.parent / "net.safetensors"
    assert moved.weights is None
    scorer = Scorer.load(tmp_path / "a" / "x.gradscore", trust_code=True, model_source=moved.model.source)
    assert scorer.bundle.weights_sha256 == moved.weights_sha256


def test_weights_inside_are_those_of_the_model(small_bundle: Path) -> None:
    scorer = Scorer.load(small_bundle, trust_code=True)
    assert read_bundle(small_bundle).model.checkpoint is None
    assert weights_sha256(scorer._extractor.model) == read_bundle(small_bundle).weights_sha256


def edited(run: Path, folder: Path, change: Callable[[Path], object]) -> RunFolder:
    shutil.copytree(run, folder / "run")
    change(folder / "run")
    return RunFolder(folder / "run")


def replace_in_config(old: str, new: str) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        text = (run / "config.yaml").read_text()
        with changing(run, ["config.yaml"]):
            (run / "config.yaml").write_text(text.replace(old, new))

    return change


BAD_RUNS = {
    "no meta models": (lambda run: shutil.rmtree(run / "meta"), "no meta models; run `gradscore fit-meta"),
    "other features": (replace_in_config("granularity: parameter", "granularity: model"), "has other columns"),
}


@pytest.mark.parametrize(("change", "message"), BAD_RUNS.values(), ids=BAD_RUNS)
def test_runs_that_cannot_be_bundled(small_run, tmp_path: Path, monkeypatch, change, message: str) -> None:
    monkeypatch.chdir(small_run.parent)
    run = edited(small_run, tmp_path, change)
    with pytest.raises(BundleError, match=message):
        make_bundle(run, alpha=0.1, trust_code=True)


def test_a_checkpoint_that_changed_since(small_run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(small_run.parent)
    other = tmp_path / "other.safetensors"
    weights = load_file(small_run.parent / "net.safetensors")
    save_file({**weights, "3.bias": weights["3.bias"] + 1}, other)
    change = replace_in_config(str(small_run.parent / "net.safetensors"), str(other))
    with pytest.raises(BundleError, match="the run was made with weights of hash"):
        make_bundle(edited(small_run, tmp_path, change), alpha=0.1, trust_code=True)


def test_without_calibration_samples_test_samples_are_used_and_it_is_said(make_run) -> None:
    run = make_run(calibration=False, evaluate=False)
    made = make_bundle(RunFolder(run), alpha=0.1, trust_code=True)
    assert "calibrated on samples of in_dist.test" in made.notices[0]
    assert made.detectors["ood"].threshold.n == int(RunFolder(run).read("in_dist.test")["correct"].sum())


NOISE = {
    "a gradient": (
        "uniform/3.bias/l2",
        100.0,
        "detector 'ood': .* through .*uniform/3.bias/l2.*; leave these parameters",
    ),
    "a logit": ("logit_0", -3.0, "detector 'wrong': .* since the logits do, .* outputs of the network depend on the"),
}


@pytest.mark.parametrize(("column", "factor", "message"), NOISE.values(), ids=NOISE)
def test_a_score_that_depends_on_the_batch_is_refused(small_bundle: Path, column: str, factor: float, message) -> None:
    """The misclassification model of this run looks at scores alone."""
    bundle = read_bundle(small_bundle)
    noisy = bundle.self_test.answers.copy()
    noisy[:, bundle.columns.index(column)] *= factor
    options = {"together": bundle.self_test.answers, "most": 0.05}
    check_batches(bundle.detectors, bundle.columns, in_pairs=bundle.self_test.answers, **options)
    with pytest.raises(BundleError, match=message):
        check_batches(bundle.detectors, bundle.columns, in_pairs=noisy, **options)


def test_features_that_a_score_changes_through_are_told_from_parameters(make_run) -> None:
    run = RunFolder(make_run(bank={"start": 500, "stop": 800}, evaluate=False))
    bundle = make_bundle(run, alpha=0.1, trust_code=True)
    noisy = bundle.self_test.answers.copy()
    noisy[:, [name.startswith("penultimate") for name in bundle.columns]] *= 5.0
    with pytest.raises(BundleError, match=r"through baseline/.*features\.penultimate: false"):
        check_batches(
            bundle.detectors, bundle.columns, together=bundle.self_test.answers, in_pairs=noisy, most=0.05
        )  # fmt: skip


def test_a_bundle_is_not_made_of_scores_that_depend_on_the_batch(small_run: Path, monkeypatch) -> None:
    monkeypatch.chdir(small_run.parent)
    monkeypatch.setattr(bundle_making, "BATCH_TOLERANCE", -1.0)
    with pytest.raises(BundleError, match=r"do not depend on the batch .*features.parameters"):
        make_bundle(RunFolder(small_run), alpha=0.1, trust_code=True)
