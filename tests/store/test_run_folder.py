import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from run_inputs import run_inputs
from written_runs import write_split

from gradscore.columns import META_COLUMNS
from gradscore.config import Config
from gradscore.data import SplitInfo
from gradscore.errors import StoreError
from gradscore.models import Head
from gradscore.store import (
    Recomputed,
    RunFolder,
    RunInputs,
    RunWriter,
    ShardNote,
    ShardRows,
    Skipped,
    changing,
    differences,
    is_complete,
    read_head,
    verify_run,
    write_shard,
)
from gradscore.store.manifest import Manifest
from gradscore.store.run_folder import write_head

NAMES = ["logit_0", "logit_1", "uniform/fc.weight/max"]
INPUTS = run_inputs(
    data={"in_dist.fit": {"count": 4, "fingerprint": "cd", "code_sha256": None}},
    features={"groups": {}, "penultimate": None, "augmentations": [{"name": "mirror", "code_sha256": None}]},
)  # fmt: skip
VALUES = np.array([[0.1, -2.0, 1e-300], [1 / 3, 2.0, np.inf], [np.nan, 5.0, 6.0]])


def make_config(**changes: object) -> Config:
    return Config.model_validate(
        {
            "model": {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": 2},
            "data": {
                "in_dist": {"fit": {"source": "sklearn:digits"}, "test": {"source": "sklearn:digits"}},
                "ood": [{"name": "noise", "source": "synthetic:uniform_noise", "group": "far", "auxiliary": True}],
            },
            "run": "run",
            **changes,
        }
    )


def make_rows(split: str, chosen: slice = slice(None)) -> ShardRows:
    return ShardRows(
        split=split,
        sample_ids=["a", "b", "c"][chosen],
        labels=np.array([0, 1, -1])[chosen],
        predictions=np.array([0, 0, 1])[chosen],
        content_hashes=["00", "11", "22"][chosen],
        names=NAMES,
        values=VALUES[chosen],
        skipped=[Skipped(sample_id="d", error="does not decode")],
    )


def write_run(path: Path, inputs: RunInputs = INPUTS) -> None:
    with RunWriter.opened(path, config=make_config(), inputs=inputs) as writer:
        for info in RunFolder(path).splits():
            write_split(writer, make_rows(info.name, slice(0, 2)), make_rows(info.name, slice(2, 3)))
        writer.finish(feature_count=1, notices=["a notice"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"


def test_a_table_reads_back_bit_for_bit(run: Path) -> None:
    frame = RunFolder(run).read("in_dist.fit")
    assert list(frame.columns) == [*META_COLUMNS, *NAMES]
    assert frame["sample_id"].tolist() == ["a", "b", "c"]
    assert frame["split"].tolist() == ["in_dist.fit"] * 3
    assert frame["label"].tolist() == [0, 1, -1]
    assert frame["prediction"].tolist() == [0, 0, 1]
    assert frame["content_hash"].tolist() == ["00", "11", "22"]
    assert frame["correct"].equals(pd.Series([True, False, pd.NA], dtype="boolean"))
    assert frame[NAMES].to_numpy().tobytes() == VALUES.tobytes()


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, True], [True, False, False], [False] * 3])
def test_some_rows(run: Path, mask: list[bool]) -> None:
    frame = RunFolder(run).read("in_dist.fit", rows=np.array(mask))
    wanted = RunFolder(run).read("in_dist.fit")[mask].reset_index(drop=True)
    pd.testing.assert_frame_equal(frame, wanted)


@pytest.mark.parametrize(("rows", "sizes"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3]), (100, [3])])
def test_blocks_are_the_table_cut_in_pieces(run: Path, rows: int, sizes: list[int]) -> None:
    found = list(RunFolder(run).blocks("in_dist.fit", rows=rows))
    assert [len(frame) for frame in found] == sizes
    pd.testing.assert_frame_equal(pd.concat(found, ignore_index=True), RunFolder(run).read("in_dist.fit"))


def with_recomputed(path: Path, *values: float) -> RunFolder:
    """A run whose samples b and c of in_dist.fit were computed twice."""
    with RunWriter.opened(path, config=make_config(), inputs=INPUTS) as writer:
        for info in RunFolder(path).splits():
            rows = make_rows(info.name)
            again = Recomputed(np.array([2, 1]), np.array([values, VALUES[1]])) if info.name == "in_dist.fit" else None
            write_split(writer, replace(rows, recomputed=again))
        writer.finish(feature_count=1, notices=[])
    return RunFolder(path)


def test_rows_that_were_computed_twice(tmp_path: Path) -> None:
    run = with_recomputed(tmp_path / "run", *(VALUES[2] + 0.5))
    once, again = run.recomputed("in_dist.fit")
    assert once["sample_id"].tolist() == again["sample_id"].tolist() == ["b", "c"]
    np.testing.assert_array_equal(once[list(NAMES)], VALUES[1:])
    np.testing.assert_array_equal(again[list(NAMES)], [VALUES[1], VALUES[2] + 0.5])
    assert list(run.read("in_dist.fit")) == list(once) == list(again) == run.columns("in_dist.fit")


def test_where_no_row_was_computed_twice(run: Path) -> None:
    once, again = RunFolder(run).recomputed("in_dist.fit")
    assert (len(once), len(again)) == (0, 0)


def test_some_columns_in_the_order_asked_for(run: Path) -> None:
    assert list(RunFolder(run).read("in_dist.test", ["logit_1", "label"]).columns) == ["logit_1", "label"]


def test_splits_and_what_they_are(run: Path) -> None:
    assert RunFolder(run).splits() == [
        SplitInfo("in_dist.fit", "in_dist.fit"),
        SplitInfo("in_dist.test", "in_dist.test"),
        SplitInfo("ood.noise", "ood", "far", auxiliary=True),
    ]


def test_the_manifest_counts(run: Path) -> None:
    entry = RunFolder(run).manifest.splits["in_dist.fit"]
    assert (entry.rows, entry.parts, entry.accuracy, entry.non_finite) == (3, 2, 0.5, 2)
    assert entry.skipped == [Skipped(sample_id="d", error="does not decode")] * 2


def test_the_manifest_says_how_fast_it_was(run: Path) -> None:
    with RunWriter.opened(run, config=make_config(), inputs=INPUTS) as writer:
        writer.finish_split("ood.noise", [writer.existing("ood.noise", [0])[0]], samples=0, seconds=100.0)
        kept = RunFolder(run).manifest.splits["ood.noise"].spent
        writer.finish_split("ood.noise", [writer.existing("ood.noise", [0])[0]], samples=2, seconds=1.0)
    now = RunFolder(run).manifest.splits["ood.noise"].spent
    assert (kept.samples, now.samples, now.seconds) == (3, 2, 1.0)


def test_config_reads_back(run: Path) -> None:
    assert RunFolder(run).config == make_config()


def test_a_run_folder_works_elsewhere(run: Path, tmp_path: Path) -> None:
    before = RunFolder(run).read("ood.noise")
    shutil.move(run, tmp_path / "elsewhere" / "copy")
    pd.testing.assert_frame_equal(RunFolder(tmp_path / "elsewhere" / "copy").read("ood.noise"), before)


def test_the_same_rows_give_the_same_bytes(run: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "again")
    part = "features/ood.noise/part-00000.parquet"
    assert (tmp_path / "again" / part).read_bytes() == (run / part).read_bytes()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip_a_value(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 0xFF
    path.write_bytes(content)


DAMAGES = {
    "truncated": truncate,
    "a flipped byte": flip_a_value,
    "missing": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_shard_is_named(run: Path, damage) -> None:
    damage(run / "features" / "in_dist.fit" / "part-00001.parquet")
    with pytest.raises(StoreError, match=r"in_dist\.fit/part-00001\.parquet: (this shard is|not the file that)"):
        RunFolder(run).read("in_dist.fit")


def test_shard_of_another_table_is_named(run: Path) -> None:
    folder = run / "features" / "in_dist.fit"
    with changing(run, ["features"]):  # recorded as it is
        pd.DataFrame({"x": [1.0]}).to_parquet(folder / "part-00001.parquet")
    with pytest.raises(StoreError, match=r"part-00001\.parquet: its columns differ from those of part-00000"):
        RunFolder(run).read("in_dist.fit")


UNREADABLE = {
    "no such split": (lambda folder: folder.read("ood.nois"), r"no split 'ood\.nois'; did you mean 'ood\.noise'\?"),
    "no such column": (lambda folder: folder.read("in_dist.fit", ["logit_9"]), r"no column 'logit_9'; did you mean"),
}


@pytest.mark.parametrize(("read", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_asking_for_what_is_not_there(run: Path, read, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        read(RunFolder(run))


MANIFESTS = {
    "no JSON": ("{", "damaged"),
    "another JSON file": ("[1]", "damaged"),
    "an earlier format": (
        '{"format": 2}',
        "damaged, or of another version .format: Input should be 7, got 2.; restore it from a copy or extract",
    ),
}


@pytest.mark.parametrize(("text", "message"), MANIFESTS.values(), ids=MANIFESTS)
def test_unusable_manifest(run: Path, text: str, message: str) -> None:
    (run / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=rf"manifest\.json: {message}"):
        RunFolder(run)


def test_a_configuration_that_is_no_text(run: Path) -> None:
    (run / "config.yaml").write_bytes(b"model: \xff")
    with pytest.raises(StoreError, match=r"config\.yaml: damaged, this is no text"):
        _ = RunFolder(run).config


NOISE = ["splits", "ood.noise"]
EDITS: dict[str, tuple[list[str], object]] = {
    "a split that lies elsewhere": (["splits", "../../other"], {"kind": "ood", "group": None, "auxiliary": False}),
    "more shards than any run has": ([*NOISE, "parts"], 10**12),
    "a finished split without shards": ([*NOISE, "parts"], 0),
    "a flag that is a text": ([*NOISE, "finished"], "yes"),
    "an unknown type of numbers": (["inputs", "model", "dtype"], "int8"),
    "an unknown entry": (["more"], 1),
}


@pytest.mark.parametrize(("place", "value"), EDITS.values(), ids=EDITS)
def test_an_edited_manifest(run: Path, place: list[str], value: object) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    reduce(getitem, place[:-1], manifest)[place[-1]] = value
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=rf"manifest\.json: damaged, .*{re.escape('.'.join(place[:2]))}.*; restore it"):
        RunFolder(run)


def test_a_finished_run_with_a_split_that_is_not(run: Path) -> None:
    manifest = RunFolder(run).manifest
    manifest.splits["ood.noise"].finished = False
    assert not is_complete(run, manifest)


NO_RUNS = {"missing": lambda _path: None, "empty folder": Path.mkdir, "file": Path.touch}


@pytest.mark.parametrize("make", NO_RUNS.values(), ids=NO_RUNS)
def test_not_a_run_folder(tmp_path: Path, make) -> None:
    make(tmp_path / "other")
    with pytest.raises(StoreError, match="other: not a run folder"):
        RunFolder(tmp_path / "other")


def test_a_folder_with_a_run_in_it_is_told_of_it(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").touch()
    with pytest.raises(StoreError, match=f"did you mean {tmp_path / 'run'}"):
        RunFolder(tmp_path)


def test_a_configuration_with_a_run_beside_it_is_told_of_it(tmp_path: Path) -> None:
    config = tmp_path / "gradscore.yaml"
    config.touch()
    with pytest.raises(StoreError, match=f"gradscore run {config} makes one"):
        RunFolder(config)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").touch()
    with pytest.raises(StoreError, match=f"did you mean {tmp_path / 'run'}"):
        RunFolder(config)


def open_run(path: Path, inputs: RunInputs = INPUTS, **changes: object) -> Manifest:
    with RunWriter.opened(path, config=make_config(**changes), inputs=inputs) as writer:
        return writer.manifest


def test_other_inputs_are_refused_and_change_nothing(run: Path) -> None:
    before = (run / "manifest.json").read_bytes()
    other = INPUTS.model_copy(update={"model": INPUTS.model.model_copy(update={"weights_sha256": "cd"})})
    with pytest.raises(StoreError, match=r'made from other inputs: model\.weights_sha256 was "ab", is now "cd"'):
        open_run(run, other)
    assert (run / "manifest.json").read_bytes() == before


def test_the_same_inputs_go_on_where_the_run_stopped(tmp_path: Path) -> None:
    with RunWriter.opened(tmp_path / "run", config=make_config(), inputs=INPUTS) as writer:
        write_shard(tmp_path / "run/features/in_dist.fit/part-00001.parquet", make_rows("in_dist.fit"))
    with RunWriter.opened(tmp_path / "run", config=make_config(), inputs=INPUTS) as writer:
        found = writer.existing("in_dist.fit", range(3))
    note = ShardNote(
        rows=3, labelled=2, correct=1, non_finite=2, skipped=[Skipped(sample_id="d", error="does not decode")]
    )
    assert found == {1: note}


def test_an_unfinished_split_cannot_be_read(tmp_path: Path) -> None:
    open_run(tmp_path / "run")
    with pytest.raises(StoreError, match=r"split 'in_dist\.test' is not finished; run the same extract"):
        RunFolder(tmp_path / "run").read("in_dist.test")


def test_a_damaged_shard_is_not_built_upon(tmp_path: Path) -> None:
    with RunWriter.opened(tmp_path / "run", config=make_config(), inputs=INPUTS) as writer:
        part = tmp_path / "run/features/in_dist.fit/part-00000.parquet"
        write_shard(part, make_rows("in_dist.fit"))
        truncate(part)
        with pytest.raises(StoreError, match=r"part-00000\.parquet: this shard is damaged .*; delete it and run"):
            writer.existing("in_dist.fit", [0])


def test_settings_of_later_commands_are_taken_over(run: Path) -> None:
    open_run(run, meta={"cv_folds": 3})
    assert RunFolder(run).config.meta.cv_folds == 3
    assert RunFolder(run).manifest.finished


TARGETS = {
    "file": (Path.touch, "wanted a folder for the run, got a file"),
    "folder of something else": (lambda path: (path / "mine").mkdir(parents=True), "not empty and not a run folder"),
}


@pytest.mark.parametrize(("make", "message"), TARGETS.values(), ids=TARGETS)
def test_unusable_target(tmp_path: Path, make, message: str) -> None:
    make(tmp_path / "run")
    with pytest.raises(StoreError, match=f"run: .*{message}"):
        open_run(tmp_path / "run")


def test_target_inside_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="this folder cannot be made"):
        open_run(tmp_path / "file" / "run")


def test_git_ignores_a_run_unless_its_user_says_otherwise(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    write_run(tmp_path / "run")
    found = subprocess.run([*git, "status", "--short"], check=True, capture_output=True, text=True)
    assert found.stdout == ""
    assert verify_run(tmp_path / "run").not_recorded == []
    (tmp_path / "run/.gitignore").unlink()
    write_run(tmp_path / "run")
    assert not (tmp_path / "run/.gitignore").exists()


def test_a_folder_that_git_keeps_may_be_that_of_a_run(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("features\n")
    write_run(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "features\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_run_that_is_stopped_before_it_begins_can_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "write", Mock(side_effect=error))
        with pytest.raises(error):
            open_run(tmp_path / "run")
    write_run(tmp_path / "run")
    assert verify_run(tmp_path / "run").damaged == []


def test_a_write_that_fails_leaves_the_old_part(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = run / "features" / "in_dist.fit" / "part-00000.parquet"
    before = part.read_bytes()

    def fail(_table: object, where: Path, **_options: object) -> None:
        where.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("gradscore.store.run_files.pq.write_table", fail)
    with (
        pytest.raises(KeyboardInterrupt),
        RunWriter.opened(run, config=make_config(), inputs=INPUTS),
    ):
        write_shard(part, make_rows("in_dist.fit"))
    assert part.read_bytes() == before
    assert list(run.rglob("*.tmp")) == []


def test_changed_samples_are_named_in_words() -> None:
    before, now = ({"data": {"in_dist.test": {"fingerprint": each, "source": "npz:a"}}} for each in ("e41b", "7c02"))
    assert differences(before, now) == [
        "the samples of in_dist.test changed (images, names, labels and their classes, or how many there are)"
    ]


def test_a_shard_of_another_run_is_refused(run: Path) -> None:
    """One that is whole, and fits in every way but its content."""
    shard = run / "features" / "in_dist.fit" / "part-00000.parquet"
    with changing(run, ["features"]):
        pass
    assert len(RunFolder(run).read("in_dist.fit"))
    table = pq.read_table(shard)
    column = table.column_names.index("label")
    other = table.set_column(column, "label", pc.add(table.column("label"), 1))
    pq.write_table(other.replace_schema_metadata(table.schema.metadata), shard)
    with pytest.raises(StoreError, match=r"part-00000\.parquet: not the file that was recorded in SHA256SUMS"):
        RunFolder(run).read("in_dist.fit")


HEAD = Head(weight=np.arange(6.0).reshape(2, 3).T, bias=np.array([1.0, 2.0, 3.0]))


def test_a_last_layer_comes_back(tmp_path: Path) -> None:
    write_head(tmp_path, HEAD)
    found = read_head(tmp_path)
    np.testing.assert_array_equal(found.weight, HEAD.weight)
    np.testing.assert_array_equal(found.bias, HEAD.bias)


@pytest.mark.parametrize("content", [b"", b"x" * 40], ids=["empty", "no safetensors"])
def test_a_damaged_last_layer(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "head.safetensors").write_bytes(content)
    with pytest.raises(StoreError, match="last layer cannot be read"):
        read_head(tmp_path)


def test_a_missing_last_layer(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="extract into another folder"):
        read_head(tmp_path)
