"""Addresses that are not written as such are refused before anything is made of them, and said as they are written."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from commands import cli
from distributed_runs import settings
from storage_server import Bucket

from gradscore.config import dump_config, load_config
from gradscore.errors import ConfigError
from gradscore.store import changing

pytestmark = pytest.mark.slow

WRITTEN = {
    "one slash": ("s3:/bucket/key", "s3:/bucket/key: an address has two slashes after the colon; give s3://bucket/key"),
    "three slashes": ("s3:///b/k", "s3:///b/k: an address has two slashes after the colon; give s3://b/k"),
    "an empty part": ("s3://b//k", "s3://b//k: a part of the key is empty, which no path can have; give s3://b/k"),
    "capital letters": ("S3://b/k", "S3://b/k: the kind of storage is written in small letters; give s3://b/k"),
    "a file, in full": (
        "file:///tmp/x",
        "file:///tmp/x: a file of this machine is named by its path alone; give /tmp/x",
    ),
    "other storage": (
        "gs://b/k",
        "gs://: the package that reads this kind of object storage is not installed (Please install gcsfs",
    ),
}

COMMANDS: dict[str, Sequence[str]] = {
    "weights": ("score", "{bundle}", "{samples}", "--trust-code", "--weights", "{address}"),
    "weights, in one": ("score", "{bundle}", "{samples}", "--trust-code", "--weights={address}"),
    "a bundle": ("score", "{address}", "{samples}", "--trust-code"),
    "samples": ("score", "{bundle}", "{address}", "--trust-code"),
    "a run": ("verify", "{address}"),
    "a new bundle": ("bundle", "{run}", "--trust-code", "--out", "{address}"),
}


@pytest.fixture
def places(small_run: Path, small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 8, 8), dtype=np.uint8))
    return {"run": str(small_run), "bundle": str(small_bundle), "samples": str(tmp_path / "a.npz")}


PAIRS = {
    **{name: (COMMANDS["weights"], *each) for name, each in WRITTEN.items()},
    **{name: (command, *WRITTEN["one slash"]) for name, command in COMMANDS.items()},
}


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(("arguments", "address", "said"), PAIRS.values(), ids=PAIRS)
def test_what_is_no_address_is_refused(
    arguments: Sequence[str], address: str, said: str, places: dict[str, str], tmp_path: Path
) -> None:
    result = cli(*(part.format(**places, address=address) for part in arguments))
    assert result.exit_code == 2
    assert f"error: {said}" in result.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["a.npz"]


LOCAL: dict[str, tuple[Sequence[str], str]] = {
    "expected figures": (("check", "{run}", "--expected", "{address}"), "expected figures are a file of this machine"),
    "a configuration": (("run", "{address}"), "a configuration is read from this machine; download it"),
    "a new expected": (
        ("check", "{run}", "--expected", "{address}", "--update"),
        "this cannot be written to object storage",
    ),
}


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(("arguments", "said"), LOCAL.values(), ids=LOCAL)
def test_what_has_to_be_local_is_called_by_its_address(
    arguments: Sequence[str], said: str, places: dict[str, str]
) -> None:
    result = cli(*(part.format(**places, address="s3://bucket/key.json") for part in arguments))
    assert result.exit_code == 2
    assert f"error: s3://bucket/key.json: {said}" in " ".join(result.stderr.split())


SETTINGS = {
    "weights": ("model.checkpoint=s3:/bucket/w.pt", "two slashes after the colon; give s3://bucket/w.pt"),
    "samples": ("data.in_dist.fit.source=npz:S3://bucket/a.npz", "written in small letters; give s3://bucket/a.npz"),
    "what a table names": ("data.in_dist.fit.arguments.root=s3:/b/images", "give s3://b/images"),
}


@pytest.mark.parametrize(("setting", "said"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_are_no_address(setting: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(settings(tmp_path)))
    with pytest.raises(ConfigError, match=said):
        load_config(tmp_path / "config.yaml", [setting])


def test_weights_of_a_bundle_are_called_by_their_address(bucket: Bucket, small_run: Path, tmp_path: Path) -> None:
    run, local = shutil.copytree(small_run, tmp_path / "run"), small_run.parent / "net.safetensors"
    address = bucket.put("weights/net.safetensors", local.read_bytes())
    with changing(run, ["config.yaml"]):
        (run / "config.yaml").write_text((run / "config.yaml").read_text().replace(str(local), address))
    arguments = ["bundle", str(run), "--trust-code", "--model", f"python:{small_run.parent}/net.py:net", "--out"]
    assert f"weights: {address}\n" in cli(*arguments, str(tmp_path / "one.gradscore")).stdout
    assert json.loads(cli(*arguments, str(tmp_path / "one.gradscore"), "--json").stdout)["weights"] == address


def scored(address: str, samples: str, *options: str) -> Result:
    return cli("score", address, samples, "--trust-code", *options)


KEYS = {"at the top": "scorer.gradscore", "in folders": "models/digits/v1/scorer.gradscore"}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_bundle_in_a_bucket_names_the_code_that_is_here(key: str, bucket: Bucket, places: dict[str, str]) -> None:
    address, code = bucket.address(key), f"python:{Path(places['run']).parent}/net.py:net"
    assert cli("bundle", places["run"], "--trust-code", "--out", address).exit_code == 0
    result = scored(address, places["samples"])
    assert result.exit_code == 2
    assert f"wants to run '{code.split(':')[1]}': wanted a file on this machine that you name" in result.stderr
    assert f"name it yourself: --model '{code}', in Python" in result.stderr
    assert scored(address, places["samples"], "--model", code).exit_code == 0


def test_a_bundle_in_a_bucket_whose_code_is_not_here(bucket: Bucket, places: dict[str, str]) -> None:
    address = bucket.put("models/scorer.gradscore", Path(places["bundle"]).read_bytes())
    result = scored(address, places["samples"])
    assert result.exit_code == 2
    place = bucket.address("models/net.py")
    assert f"{address} wants to run '{place}', which is in object storage, where no code is run from" in result.stderr
    assert "name it yourself: --model 'python:FOLDER/net.py:net', in Python" in result.stderr
