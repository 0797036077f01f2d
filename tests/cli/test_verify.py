import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import cli

from gradscore.store import verify_run


@pytest.fixture
def runs(small_run: Path, tmp_path: Path) -> Path:
    """A folder with a run."""
    shutil.copytree(small_run, tmp_path / "a")
    return tmp_path


def invoke(run: Path):
    return cli("verify", run, COLUMNS="300")


def test_verify(small_run: Path) -> None:
    result = invoke(small_run)
    assert result.exit_code == 0, result.stderr
    assert "intact, 0 damaged, 0 without checksum" in result.stdout


def test_verify_names_what_is_damaged(runs: Path) -> None:
    config = runs / "a/config.yaml"
    config.write_text(config.read_text().replace("digits", "digitz"))
    result = invoke(runs / "a")
    assert result.exit_code == 2
    assert "damaged: config.yaml: not the content that was recorded. Restore it" in result.stderr


def test_verify_names_files_without_a_checksum(runs: Path) -> None:
    (runs / "a/notes.txt").write_text("mine")
    result = invoke(runs / "a")
    assert result.exit_code == 0
    assert "not recorded: notes.txt" in result.stdout


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("")], ids=["deleted", "emptied"])
def test_verify_refuses_a_finished_run_without_checksums(runs: Path, change: Callable[[Path], Any]) -> None:
    change(runs / "a/SHA256SUMS")
    result = invoke(runs / "a")
    assert result.exit_code == 2
    assert "SHA256SUMS: has no checksums, and this run is finished; restore it from a copy" in result.stderr


@pytest.mark.parametrize("name", ["manifest.json", "config.yaml", "features/in_dist.fit/part-00000.parquet"])
def test_verify_refuses_a_finished_run_with_a_file_that_is_not_recorded(runs: Path, name: str) -> None:
    sums = runs / "a/SHA256SUMS"
    kept = [line for line in sums.read_text().splitlines(keepends=True) if not line.endswith(f"  {name}\n")]
    assert len(kept) == len(sums.read_text().splitlines()) - 1
    sums.write_text("".join(kept))
    result = invoke(runs / "a")
    assert result.exit_code == 2
    assert f"damaged: {name}: has no checksum in SHA256SUMS" in result.stderr


def without(manifest: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The manifest as a kill before the last step of extract leaves it."""
    return {key: value for key, value in manifest.items() if key not in keys} | {"finished": False}


def test_a_run_whose_extract_was_killed_in_its_last_step_is_reported_on(runs: Path) -> None:
    manifest = json.loads((runs / "a/manifest.json").read_text())
    (runs / "a/manifest.json").write_text(json.dumps(without(manifest, "feature_count", "notices")))
    lines = (runs / "a/SHA256SUMS").read_text().splitlines(keepends=True)  # extract leaves no record of it meanwhile
    (runs / "a/SHA256SUMS").write_text("".join(line for line in lines if "manifest.json" not in line))
    result = cli("evaluate", runs / "a")
    assert result.exit_code == 0, result.stderr
    assert f"{manifest['feature_count']} per sample" in (runs / "a/evaluation/report.html").read_text()


CHAIN = {
    "extract": ["extract", "{config}", "--trust-code"],
    "fit-meta": ["fit-meta", "{run}"],
    "evaluate": ["evaluate", "{run}"],
    "inspect": ["inspect", "{run}", "--samples", "12", "--quantities", "gradient_geometry", "--trust-code"],
    "check": ["check", "{run}", "--expected", "{run}/../expected.json", "--update"],
    "bundle": ["bundle", "{run}", "--out", "{run}/../scorer.gradscore", "--alpha", "0.1", "--trust-code"],
    "extract more sets": ["extract", "{more}", "--trust-code"],
    "fit-meta again": ["fit-meta", "{run}"],
    "evaluate again": ["evaluate", "{run}"],
}


def test_verify_passes_after_every_command(small_run: Path, tmp_path: Path) -> None:
    settings = yaml.safe_load((small_run / "config.yaml").read_text()) | {"run": str(tmp_path / "run")}
    shutil.copy(small_run.parent / "net.py", tmp_path)
    settings["model"]["source"] = f"python:{tmp_path}/net.py:net"
    more = {"source": "synthetic:uniform_noise", "name": "more", "select": {"stop": 60}}
    larger = {**settings, "data": {**settings["data"], "ood": [*settings["data"]["ood"], more]}}
    places = {"config": tmp_path / "config.yaml", "more": tmp_path / "more.yaml", "run": tmp_path / "run"}
    places["config"].write_text(yaml.safe_dump(settings))
    places["more"].write_text(yaml.safe_dump(larger))
    outcomes = {}
    for name, command in CHAIN.items():
        result = cli(*[part.format(**places) for part in command])
        found = verify_run(places["run"])
        outcomes[name] = (result.exit_code, found.damaged, found.not_recorded)
    assert outcomes == dict.fromkeys(CHAIN, (0, [], []))
    assert "features/ood.more/part-00000.parquet" in found.intact
    assert [name for name in found.intact if name.startswith("inspect/")] != []
