import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gradscore.errors import StoreError
from gradscore.evaluation import compare_runs, evaluate_run, fit_run
from gradscore.pipeline import extract
from gradscore.reporting import write_report
from gradscore.store import CHECKSUMS, RunFolder, changing, verify_run
from gradscore.store.run_files import read_checksums


@pytest.fixture(scope="module")
def reported_run(make_run: Callable[..., Path]) -> Path:
    """A run with everything that commands write; not to be changed."""
    run = RunFolder(make_run(features={"penultimate": True}, evaluate=False))
    write_report(run, evaluate_run(run))
    return run.path


@pytest.fixture
def run(reported_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(reported_run, tmp_path / "run")


@pytest.mark.parametrize("name", ["config.yaml", "head.safetensors", "manifest.json"])
def test_a_run_with_a_file_of_another_is_neither_evaluated_nor_compared(
    run: Path, reported_run: Path, name: str
) -> None:
    with (run / name).open("ab") as file:
        file.write(b"\n")
    said = f"run/{name}: not the content that was recorded"
    with pytest.raises(StoreError, match=said):
        evaluate_run(RunFolder(run))
    with pytest.raises(StoreError, match=said):
        compare_runs([RunFolder(reported_run), RunFolder(run)])


def files(run: Path) -> list[str]:
    """All but what git ignores it by."""
    return sorted(path.relative_to(run).as_posix() for path in run.rglob("[!.]*") if path.is_file())


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def found_damaged(run: Path) -> str:
    """What `verify_run` names, or the error it raises."""
    try:
        return " ".join(verify_run(run).damaged)
    except StoreError as error:
        return str(error)


def test_everything_that_commands_write_is_recorded(reported_run: Path) -> None:
    found = verify_run(reported_run)
    assert (found.damaged, found.not_recorded) == ([], [])
    assert found.intact == [name for name in files(reported_run) if name != CHECKSUMS]


def test_checksums_are_those_of_another_tool(reported_run: Path) -> None:
    sums = dict(line.split("  ")[::-1] for line in (reported_run / CHECKSUMS).read_text().splitlines())
    assert sums == {name: hashlib.sha256((reported_run / name).read_bytes()).hexdigest() for name in sums}
    subprocess.run(["sha256sum", "--check", "--strict", CHECKSUMS], cwd=reported_run, check=True, capture_output=True)


def test_a_flipped_bit_in_any_file_is_found(run: Path) -> None:
    names = files(run)
    unnoticed = []
    for name in names:
        content = (run / name).read_bytes()
        for bit in (0, 8 * (len(content) // 2) + 3, 8 * len(content) - 1):
            flip(run / name, bit)
            unnoticed += [] if found_damaged(run) else [f"{name}, bit {bit}"]
            (run / name).write_bytes(content)
    assert len(names) > 15
    assert unnoticed == []


def test_flipped_bits_in_the_checksums_are_found(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    change(tmp_path, "a", "1")
    change(tmp_path, "b", "2")
    content = (tmp_path / CHECKSUMS).read_bytes()
    unnoticed = []
    for bit in range(0, 8 * len(content), 3):
        flip(tmp_path / CHECKSUMS, bit)
        unnoticed += [] if found_damaged(tmp_path) else [bit]
        (tmp_path / CHECKSUMS).write_bytes(content)
    assert unnoticed == []


def test_a_missing_file_is_named(run: Path) -> None:
    (run / "evaluation/metrics.csv").unlink()
    assert verify_run(run).damaged == ["evaluation/metrics.csv: missing"]


def test_a_missing_shard_of_the_manifest_is_named_without_a_checksum(run: Path) -> None:
    names = ["features/in_dist.test/part-00000.parquet", "features/ood.noise/part-00000.parquet"]
    for name in names:
        (run / name).unlink()
    lines = (run / CHECKSUMS).read_text().splitlines(keepends=True)
    (run / CHECKSUMS).write_text("".join(line for line in lines if names[0] not in line))
    assert verify_run(run).damaged == [f"{name}: missing" for name in names]


MISSING = {
    "head.safetensors": "features",
    "evaluation/scores.parquet": "features",
}


@pytest.mark.parametrize(("name", "part"), MISSING.items())
def test_a_failed_command_does_not_forget_a_missing_file(run: Path, name: str, part: str) -> None:
    (run / name).unlink()
    with pytest.raises(OSError, match="full"), changing(run, [part]):
        raise OSError("full")
    assert verify_run(run).damaged == [f"{name}: missing"]


def test_a_later_command_does_not_forget_a_missing_file_that_it_does_not_make(run: Path) -> None:
    (run / "evaluation/metrics.csv").unlink()
    (run / "head.safetensors").unlink()
    change(run, "new", "1")
    assert verify_run(run).damaged == ["evaluation/metrics.csv: missing", "head.safetensors: missing"]


def test_shards_without_a_checksum_are_read(run: Path) -> None:
    part = "features/ood.noise/part-00000.parquet"
    lines = (run / CHECKSUMS).read_text().splitlines(keepends=True)
    (run / CHECKSUMS).write_text("".join(line for line in lines if part not in line))
    flip(run / part, 900)
    assert found_damaged(run).startswith(f"{part}: this shard is damaged")


def test_a_later_command_does_not_bless_damage_to_what_it_only_reads(run: Path) -> None:
    flip(run / "head.safetensors", 8 * 200)
    with pytest.raises(StoreError, match=r"head\.safetensors: not the content .*, or extract into another folder"):
        fit_run(RunFolder(run))
    assert found_damaged(run) == "head.safetensors: not the content that was recorded"


def test_extract_does_not_bless_damage_to_a_finished_part(run: Path, reported_run: Path) -> None:
    part = run / "features/ood.noise/part-00000.parquet"
    flip(part, 900)
    with pytest.raises(StoreError, match="this shard is damaged"):
        extract(RunFolder(reported_run).config, out=run, trust_code=True)
    assert found_damaged(run) == "features/ood.noise/part-00000.parquet: not the content that was recorded"


def test_a_new_split_in_a_folder_that_was_there_is_recorded_anew(run: Path, reported_run: Path) -> None:
    part = run / "features/ood.noise/part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["splits"]["ood.noise"], manifest["inputs"]["data"]["ood.noise"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    extract(RunFolder(reported_run).config, out=run, trust_code=True)
    assert verify_run(run) == verify_run(reported_run)


def change(run: Path, name: str, content: str, *, fail: type[BaseException] | None = None) -> None:
    with changing(run, ["meta"]):
        (run / "meta" / name).write_text(content)
        if fail is not None:
            raise fail


@pytest.mark.parametrize("fail", [KeyboardInterrupt, OSError])
def test_a_failed_command_leaves_only_what_it_changed_without_a_record(tmp_path: Path, fail) -> None:
    (tmp_path / "meta").mkdir()
    change(tmp_path, "a", "1")
    change(tmp_path, "b", "2")
    with pytest.raises(fail):
        change(tmp_path, "a", "3", fail=fail)
    found = verify_run(tmp_path)
    assert (found.intact, found.damaged, found.not_recorded) == (["meta/b"], [], ["meta/a"])


def test_while_files_are_rewritten_they_are_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    change(tmp_path, "a", "1")
    with changing(tmp_path, ["meta"]):
        assert read_checksums(tmp_path) == {}


def test_files_of_others_are_not_recorded(run: Path) -> None:
    (run / "notes.txt").write_text("mine")
    fit_run(RunFolder(run))
    assert verify_run(run).not_recorded == ["notes.txt"]


@pytest.mark.parametrize("content", [b"\xff\n", b"abc\n", b"\n"])
def test_damaged_checksums_stop_commands(run: Path, content: bytes) -> None:
    (run / CHECKSUMS).write_bytes(content)
    with pytest.raises(StoreError, match=r"SHA256SUMS: damaged .*restore it from a copy. Delete it only where"):
        fit_run(RunFolder(run))


def test_without_checksums_commands_go_on_and_nothing_is_verified(run: Path) -> None:
    """What the advice on damaged checksums says of deleting them."""
    (run / CHECKSUMS).unlink()
    fit_run(RunFolder(run))
    assert "manifest.json: has no checksum in SHA256SUMS" in verify_run(run).damaged


COMMANDS: dict[str, Callable[[Path], object]] = {
    "extract": lambda run: extract(RunFolder(run).config, out=run, trust_code=True),
    "fit-meta": lambda run: fit_run(RunFolder(run)),
    "evaluate": lambda run: evaluate_run(RunFolder(run)),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_command_writes_while_another_does(run: Path, command) -> None:
    before = {name: (run / name).read_bytes() for name in files(run)}
    with changing(run, []), pytest.raises(StoreError, match="another process is writing to this folder"):
        command(run)
    assert {name: (run / name).read_bytes() for name in files(run)} == before


def test_no_report_is_written_while_another_process_writes(run: Path) -> None:
    found = evaluate_run(RunFolder(run))
    with changing(run, []), pytest.raises(StoreError, match="another process is writing to this folder"):
        write_report(RunFolder(run), found)
