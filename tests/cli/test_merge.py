import json
from pathlib import Path

from commands import cli

from gradscore.store import RunFolder

SMALL = ("--set", "extract.part_size=6", "--device", "cpu")


def extract(config: Path, *options: str):
    return cli("extract", config, "--trust-code", *SMALL, *options)


def merge(run: Path):
    return cli("merge", run, "--trust-code")


def test_shares(config_file: Path, tmp_path: Path) -> None:
    first = extract(config_file, "--share", "0/2")
    assert first.exit_code == 0, first.stderr
    assert f"gradscore merge {tmp_path / 'run'} --trust-code makes a run of all shares" in first.stdout
    refused = merge(tmp_path / "run")
    assert (refused.exit_code, refused.exception.__class__) == (2, SystemExit)
    assert "missing: features/in_dist.fit/part-00001.parquet" in refused.stderr
    second = extract(config_file, "--share", "1/2", "--json")
    assert json.loads(second.stdout)["share"] == "1/2"
    merged = merge(tmp_path / "run")
    assert merged.exit_code == 0, merged.stderr
    assert len(RunFolder(tmp_path / "run").read("in_dist.fit")) == 12
    complete = extract(config_file, "--share", "0/2").stdout
    assert ("this run is already complete" in complete, "gradscore merge" in complete) == (True, False)
