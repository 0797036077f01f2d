"""Runs in object storage against the same runs in a local folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from commands import cli
from distributed_runs import content, settings
from storage_server import Bucket

from gradscore.config import Config, dump_config
from gradscore.distributed import Share, extract_share
from gradscore.errors import ConfigError, StoreError
from gradscore.models import trusting_code
from gradscore.object_storage import working_copy
from gradscore.pipeline import extract
from gradscore.store import RunFolder, verify_run

pytestmark = pytest.mark.slow

SHARDS = [
    *(f"features/in_dist.fit/part-0000{number}.parquet" for number in range(2)),
    *(f"features/in_dist.test/part-0000{number}.parquet" for number in range(2)),
    *(f"features/in_dist.bank/part-0000{number}.parquet" for number in range(3)),
    "features/ood.noise/part-00000.parquet",
]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    found = settings(tmp_path_factory.mktemp("run"))
    (found.run.parent / "config.yaml").write_text(dump_config(found))
    return found


@pytest.fixture(scope="module")
def local(config: Config) -> Path:
    return extract(config, out=config.run.parent / "local", trust_code=True).run


@pytest.fixture
def config_file(config: Config) -> str:
    return str(config.run.parent / "config.yaml")


def extracted(config_file: str, address: str, *options: str) -> Result:
    return cli("extract", config_file, "--trust-code", "--out", address, *options)


def downloaded(bucket: Bucket, key: str, folder: Path) -> Path:
    """A run as any other S3 client copies it."""
    for name, found in bucket.content(key).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(found)
    return folder


def uploads(bucket: Bucket, key: str) -> list[str]:
    """What was written below a key, in order."""
    begin = f"/{bucket.name}/{key}/"
    return [
        path.removeprefix(begin) for method, path in bucket.server.log if method == "PUT" and path.startswith(begin)
    ]


def test_extract_writes_the_local_run(bucket: Bucket, config_file: str, local: Path, tmp_path: Path) -> None:
    address = bucket.address("runs/a")
    result = extracted(config_file, address)
    assert result.exit_code == 0, result.stderr
    assert f"run folder: {address}\n" in result.stdout
    assert str(tmp_path) not in result.stdout + result.stderr
    copy = downloaded(bucket, "runs/a", tmp_path / "copy")
    assert content(copy) == content(local)
    assert f"\nrun: {address}\n" in (copy / "config.yaml").read_text()
    found = verify_run(copy)
    assert (found.damaged, found.not_recorded) == ([], [])


def test_manifest_comes_first_unfinished_and_last_finished(bucket: Bucket, config_file: str) -> None:
    extracted(config_file, bucket.address("runs/a"))
    order = uploads(bucket, "runs/a")
    places = {name: [place for place, each in enumerate(order) if each == name] for name in set(order)}
    assert order[0] == "manifest.json"
    assert sorted(name for name in places if name.endswith(".parquet")) == sorted(SHARDS)
    last_shard = max(places[name][-1] for name in SHARDS)
    assert places["manifest.json"][-1] > last_shard
    assert order[-1] == "SHA256SUMS"


def kill_after_a_shard(bucket: Bucket, config_file: str, key: str, *, cache: Path) -> int:
    """Ends an extraction when it uploads a shard and another lies there already; returns its exit code."""
    started = [sys.executable, "-m", "gradscore", "extract", config_file, "--trust-code", "--out", bucket.address(key)]

    def kill(method: str, path: str) -> tuple[int, str, bytes] | None:
        if method != "PUT" or not path.endswith(".parquet") or not shards(bucket, key):
            return None
        process.kill()
        return 500, "InternalError", b""

    with bucket.server.answering(kill):
        process = subprocess.Popen(started, env=os.environ | {"GRADSCORE_CACHE": str(cache)}, stderr=subprocess.DEVNULL)
        return process.wait(timeout=300)


def shards(bucket: Bucket, key: str) -> list[str]:
    return [name for name in bucket.content(key) if name.endswith(".parquet")]


def test_goes_on_elsewhere_after_a_kill(bucket: Bucket, config_file: str, local: Path, tmp_path: Path) -> None:
    address = bucket.address("runs/a")
    assert kill_after_a_shard(bucket, config_file, "runs/a", cache=tmp_path / "first") == -9
    there = shards(bucket, "runs/a")
    assert 0 < len(there) < len(SHARDS)
    assert not json.loads(bucket.get("runs/a/manifest.json"))["finished"]
    del bucket.server.log[:]
    result = extracted(config_file, address)
    assert result.exit_code == 0, result.stderr
    assert not set(there) & set(uploads(bucket, "runs/a"))
    assert content(downloaded(bucket, "runs/a", tmp_path / "copy")) == content(local)


def test_shares_at_once_have_copies_of_their_own(bucket: Bucket, config: Config, local: Path, tmp_path: Path) -> None:
    address = bucket.address("runs/a")
    with trusting_code(), working_copy(address) as one, working_copy(address) as other:
        assert one.path != other.path
        extract_share(config, Share(0, 2), out=one.path, progress=one.telling())
        extract_share(config, Share(1, 2), out=other.path, progress=other.telling())
    assert cli("merge", address, "--trust-code").exit_code == 0
    assert content(downloaded(bucket, "runs/a", tmp_path / "copy")) == content(local)


def test_fits_and_evaluates_as_a_local_run(bucket: Bucket, config_file: str, local: Path, tmp_path: Path) -> None:
    address, reference = bucket.address("runs/a"), tmp_path / "reference"
    shutil.copytree(local, reference)
    assert extracted(config_file, address).exit_code == 0
    for where in (address, str(reference)):
        assert cli("fit-meta", where, "--set", "evaluate.protocols=[known]", "--set", "meta.cv_folds=2").exit_code == 0
        assert cli("evaluate", where).exit_code in (0, 3)  # so few samples may come to no verdict
    there, here = content(downloaded(bucket, "runs/a", tmp_path / "copy")), content(reference)
    assert there.keys() == here.keys()
    pages = {name for name in here if name.endswith((".html", ".md", "SHA256SUMS"))}
    assert {name: there[name] for name in here.keys() - pages} == {name: here[name] for name in here.keys() - pages}
    assert verify_run(tmp_path / "copy").damaged == []
    assert cli("verify", address).exit_code == 0
    assert uploads(bucket, "runs/a")[-1] == "SHA256SUMS"


def test_reading_writes_nothing(bucket: Bucket, config_file: str) -> None:
    extracted(config_file, bucket.address("runs/a"))
    del bucket.server.log[:]
    assert cli("verify", bucket.address("runs/a")).exit_code == 0
    assert bucket.server.log == []


def test_another_run_at_the_same_address_is_refused(bucket: Bucket, config_file: str) -> None:
    address = bucket.address("runs/a")
    extracted(config_file, address)
    before = bucket.content("runs/a")
    result = extracted(config_file, address, "--set", "features.statistics=[l1]")
    assert result.exit_code == 2
    assert address in result.stderr
    assert "features.statistics was" in result.stderr
    assert bucket.content("runs/a") == before


def test_of_two_runs_begun_at_once_one_is_refused(bucket: Bucket, config: Config, config_file: str) -> None:
    address = bucket.address("runs/a")
    with working_copy(address) as first:
        assert extracted(config_file, address, "--set", "features.statistics=[l1]").exit_code == 0
        before = bucket.content("runs/a")
        with pytest.raises(StoreError, match="another process has begun a run here meanwhile, of other inputs"):
            extract(config, out=first.path, trust_code=True, progress=first.telling())
    assert bucket.content("runs/a") == before


def test_two_that_do_the_same_at_once_make_one_run(
    bucket: Bucket, config: Config, config_file: str, local: Path, tmp_path: Path
) -> None:
    address = bucket.address("runs/a")
    with working_copy(address) as first:
        assert extracted(config_file, address).exit_code == 0
        extract(config, out=first.path, trust_code=True, progress=first.telling())
    copy = downloaded(bucket, "runs/a", tmp_path / "copy")
    assert content(copy) == content(local)
    assert verify_run(copy).damaged == []


def test_an_answer_that_is_lost_changes_nothing(bucket: Bucket, config_file: str, local: Path, tmp_path: Path) -> None:
    """The first manifest arrives, and the process is told that it did not."""
    address, key = bucket.address("runs/a"), f"/{bucket.name}/runs/a/manifest.json"
    lost = iter([True])

    with bucket.server.losing(lambda method, path: (method, path) == ("PUT", key) and next(lost, False)):
        result = extracted(config_file, address)
    assert result.exit_code == 0, result.stderr
    copy = downloaded(bucket, "runs/a", tmp_path / "copy")
    assert content(copy) == content(local)
    assert verify_run(copy).not_recorded == []


def test_goes_on_with_other_data_as_a_local_run(bucket: Bucket, config_file: str, tmp_path: Path) -> None:
    address, fewer = bucket.address("runs/a"), ["--set", "data.in_dist.bank.select.stop=60"]
    extracted(config_file, address)
    result = extracted(config_file, address, *fewer)
    assert result.exit_code == 0, result.stderr
    reference = tmp_path / "reference"
    assert cli("extract", config_file, "--trust-code", "--out", str(reference), *fewer).exit_code == 0
    assert content(downloaded(bucket, "runs/a", tmp_path / "copy")) == content(reference)


def test_the_library_refuses_an_address_as_a_folder(bucket: Bucket, config: Config) -> None:
    address = Path(bucket.address("runs/a"))
    with pytest.raises(ConfigError, match=f"s3://{bucket.name}/runs/a: .*working_copy"):
        extract(config, out=address)
    with pytest.raises(StoreError, match=f"s3://{bucket.name}/runs/a: .*working_copy"):
        RunFolder(address)


def with_ood_samples(config: Config, count: int) -> Config:
    document = config.model_dump()
    document["data"]["ood"][0]["select"]["count"] = count
    return Config.model_validate(document)


def test_the_refused_of_two_that_go_on_with_a_run_touches_nothing(
    bucket: Bucket, config: Config, config_file: str
) -> None:
    """Both go on with a finished run whose OOD set has changed, which takes shards away."""
    address = bucket.address("runs/a")
    extracted(config_file, address)
    fewer, fewest = (with_ood_samples(config, count) for count in (5, 4))
    with working_copy(address) as second:
        with working_copy(address) as first:
            extract(fewer, out=first.path, trust_code=True, progress=first.telling())
        before = bucket.content("runs/a")
        with pytest.raises(StoreError, match="another process has begun a run here meanwhile"):
            extract(fewest, out=second.path, trust_code=True, progress=second.telling())
    assert bucket.content("runs/a") == before
