import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gradscore.store import verify_run
from gradscore_cli.main import app


@pytest.fixture
def runs(small_run: Path, tmp_path: Path) -> Path:
    """A complete, a partial and a damaged run."""
    for name in ("a", "b/c", "d"):
        shutil.copytree(small_run, tmp_path / "runs" / name)
    (tmp_path / "runs/b/c/features/ood.noise/part-00000.parquet").unlink()
    (tmp_path / "runs/d/manifest.json").write_text("{")
    return tmp_path / "runs"


def invoke(*arguments: object):
    return CliRunner().invoke(app, ["runs", *map(str, arguments)], env={"COLUMNS": "300"})


def test_list(runs: Path) -> None:
    result = invoke("list", runs)
    assert result.exit_code == 0, result.stderr
    words = [line.split() for line in result.stdout.splitlines() if line.strip().startswith(str(runs))]
    assert [line[:2] for line in words] == [
        [str(runs / "a"), "complete"], [str(runs / "b/c"), "partial"], [str(runs / "d"), "damaged"]
    ]  # fmt: skip
    assert "500 in 4/4 splits" in result.stdout
    assert "note: " in result.stdout
    assert "manifest.json: damaged" in result.stdout
    assert f"3 runs in {runs}" in result.stdout


def test_quiet_lists_runs_alone(runs: Path) -> None:
    assert " runs in " not in invoke("list", runs, "-q").stdout


def test_list_as_json(runs: Path) -> None:
    found = json.loads(invoke("list", runs, "--json").stdout)
    assert [(each["path"], each["state"]) for each in found] == [
        (str(runs / "a"), "complete"), (str(runs / "b/c"), "partial"), (str(runs / "d"), "damaged")
    ]  # fmt: skip
    splits = {"in_dist.fit": 150, "in_dist.test": 150, "in_dist.calibration": 120, "ood.noise": 80}
    assert found[0]["splits"] == splits
    assert found[0]["size"] == sum(path.stat().st_size for path in (runs / "a").rglob("*") if path.is_file())


def test_list_of_nothing(tmp_path: Path) -> None:
    assert f"0 runs in {tmp_path}" in invoke("list", tmp_path).stdout


def test_show(small_run: Path) -> None:
    result = invoke("show", small_run)
    assert result.exit_code == 0, result.stderr
    for wanted in ("complete", "in_dist.fit", "meta models: misclassification/in_dist_only/all", "metrics.json"):
        assert wanted in result.stdout
    assert json.loads((small_run / "manifest.json").read_text())["inputs"]["model"]["weights_sha256"] in result.stdout


def test_show_as_json(small_run: Path) -> None:
    found = json.loads(invoke("show", small_run, "--json").stdout)
    assert found["meta_models"] == ["misclassification/in_dist_only/all", "ood/known/all"]
    assert found["versions"] == json.loads((small_run / "manifest.json").read_text())["versions"]
    assert len(found["columns"]) == 6 + 10 + 2 * 2 * 3


def test_show_a_partial_run(runs: Path) -> None:
    manifest = json.loads((runs / "a/manifest.json").read_text())
    manifest["splits"]["ood.more"] = manifest["splits"]["ood.noise"] | {"finished": False}
    manifest["finished"] = False
    (runs / "a/manifest.json").write_text(json.dumps(manifest))
    result = invoke("show", runs / "a")
    assert result.exit_code == 0, result.stderr
    assert "not finished" in result.stdout


UNUSABLE = {"no folder": ("list", "missing"), "no run": ("show", "."), "damaged": ("show", "d")}


@pytest.mark.parametrize(("command", "path"), UNUSABLE.values(), ids=UNUSABLE)
def test_what_is_no_run(runs: Path, command: str, path: str) -> None:
    result = invoke(command, runs / path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_verify(small_run: Path) -> None:
    result = invoke("verify", small_run)
    assert result.exit_code == 0, result.stderr
    assert ", 0 are not, 0 have no recorded checksum" in result.stdout


def test_verify_names_what_is_damaged(runs: Path) -> None:
    config = runs / "a/config.yaml"
    config.write_text(config.read_text().replace("digits", "digitz"))
    result = invoke("verify", runs / "a")
    assert result.exit_code == 2
    assert "damaged: config.yaml: not the content that was recorded. Restore it" in result.stderr


def test_verify_names_files_without_a_checksum(runs: Path) -> None:
    (runs / "a/SHA256SUMS").unlink()
    result = invoke("verify", runs / "a")
    assert result.exit_code == 0
    assert "not recorded: config.yaml" in result.stdout


def without(manifest: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The manifest as a kill before the last step of extract leaves it."""
    return {key: value for key, value in manifest.items() if key not in keys} | {"finished": False}


def test_a_run_whose_extract_was_killed_in_its_last_step_is_reported_on(runs: Path) -> None:
    manifest = json.loads((runs / "a/manifest.json").read_text())
    (runs / "a/manifest.json").write_text(json.dumps(without(manifest, "feature_count", "notices")))
    result = CliRunner().invoke(app, ["evaluate", str(runs / "a")])
    assert result.exit_code == 0, result.stderr
    assert f"{manifest['feature_count']} per sample" in (runs / "a/evaluation/report.md").read_text()


CHAIN = {
    "extract": ["extract", "{config}", "--trust-code"],
    "fit-meta": ["fit-meta", "{run}"],
    "evaluate": ["evaluate", "{run}"],
    "inspect": ["inspect", "{run}", "--samples", "12", "--trust-code"],
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
        result = CliRunner().invoke(app, [part.format(**places) for part in command])
        found = verify_run(places["run"])
        outcomes[name] = (result.exit_code, found.damaged, found.not_recorded)
    assert outcomes == dict.fromkeys(CHAIN, (0, [], []))
    assert "features/ood.more/part-00000.parquet" in found.intact
    assert [name for name in found.intact if name.startswith("inspect/")] != []
