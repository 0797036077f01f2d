"""What goes wrong with object storage is said in one line, and leaves a run that goes on."""

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from click.testing import Result
from commands import cli
from distributed_runs import content, settings
from fsspec.implementations.memory import MemoryFileSystem
from storage_server import Bucket

from gradscore.config import dump_config
from gradscore.errors import GradscoreError, MissingExtraError, ObjectStorageError, OutputError
from gradscore.object_storage import S3_OPTIONS, fetched, uploading, working_copy
from gradscore.pipeline import extract

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.yaml").write_text(dump_config(settings(folder)))
    return folder / "config.yaml"


def extracted(config_file: Path, address: str) -> Result:
    return cli("extract", str(config_file), "--trust-code", "--out", address)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


ADDRESSES = {
    "no key": ("s3://bucket", "wanted a bucket and a key, got a bucket alone"),
    "neither": ("s3://", "wanted a bucket and a key, got neither"),
    "a way out": ("s3://bucket/../a", "a part of the key is empty, '.' or '..'"),
    "unknown protocol": ("s9://bucket/a", "no such kind of object storage is known"),
    "the web": ("https://127.0.0.1:9/a", "https://: the web is no object storage; give a file or folder that is here"),
    "storage that goes with the process": ("memory://bucket/a", "what is written there is gone when the process ends"),
    "no bucket": ("s3://no-such-bucket/a", "there is no bucket no-such-bucket at http://127"),
}


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(("address", "said"), ADDRESSES.values(), ids=ADDRESSES)
def test_addresses_that_cannot_be_used(address: str, said: str, config_file: Path) -> None:
    for arguments in (["extract", str(config_file), "--trust-code", "--out", address], ["verify", address]):
        result = cli(*arguments)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


def test_no_run_there(bucket: Bucket) -> None:
    result = cli("evaluate", bucket.address("runs/a"))
    assert (result.exit_code, "there is no run, it has no manifest.json" in result.stderr) == (2, True)


def test_something_else_there(bucket: Bucket, config_file: Path) -> None:
    bucket.put("runs/a/photo.png", b"")
    result = extracted(config_file, bucket.address("runs/a"))
    assert (result.exit_code, "objects of something else than a run" in result.stderr) == (2, True)
    assert bucket.keys() == ["runs/a/photo.png"]


REFUSED = {
    "access denied": (403, "AccessDenied", "access is denied at http://127"),
    "not S3": (404, "Not Found", "does not do it (status 404"),
}


@pytest.mark.parametrize(("status", "code", "said"), REFUSED.values(), ids=REFUSED)
def test_storage_that_refuses(status: int, code: str, said: str, bucket: Bucket) -> None:
    with bucket.server.answering(lambda method, path: (status, code, b"")), pytest.raises(GradscoreError) as error:
        fetched(bucket.address("data/a.npz"))
    assert said in str(error.value)


def test_no_credentials(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(ObjectStorageError, match="there are no credentials for it"):
        fetched(bucket.address("data/a.npz"))


def test_nobody_listens(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(ObjectStorageError, match=f"storage at http://127.0.0.1:{port} cannot be reached"):
        fetched(bucket.address("data/a.npz"))


def test_nobody_answers(bucket: Bucket, silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent_port}")
    monkeypatch.setitem(S3_OPTIONS["config_kwargs"], "read_timeout", 1)
    with pytest.raises(ObjectStorageError, match="cannot be reached"):
        fetched(bucket.address("data/a.npz"))


def test_no_address_of_an_endpoint(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(ObjectStorageError, match="check the address and AWS_ENDPOINT_URL"):
        fetched(bucket.address("data/a.npz"))


def test_without_the_extra(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(MissingExtraError, match=r"run `pip install 'gradscore\[s3\]'`"):
        fetched(bucket.address("data/a.npz"))


def test_an_object_that_goes_while_it_is_read(bucket: Bucket) -> None:
    address = bucket.put("data/a.npz", b"content")

    def gone(method: str, path: str) -> tuple[int, str, bytes] | None:
        return (404, "NoSuchKey", b"") if method == "GET" and path.endswith("a.npz") else None

    with bucket.server.answering(gone), pytest.raises(ObjectStorageError, match="it has gone meanwhile"):
        fetched(address)


def test_an_object_that_ends_early(bucket: Bucket, tmp_path: Path) -> None:
    address = bucket.put("data/a.npz", b"content")

    def half(method: str, path: str) -> tuple[int, str, bytes] | None:
        return (200, "OK", b"cont") if method == "GET" and path.endswith("a.npz") else None

    with bucket.server.answering(half), pytest.raises(ObjectStorageError, match="wanted 7 bytes, got 4"):
        fetched(address)
    assert list((tmp_path / "cache" / "data").rglob("a.npz*")) == []
    assert fetched(address).read_bytes() == b"content"


def test_a_disk_that_is_too_small(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    address = bucket.put("data/a.npz", b"content")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=6))
    with pytest.raises(OutputError, match="name another folder by GRADSCORE_CACHE"):
        fetched(address)


def test_a_cache_that_cannot_be_written(bucket: Bucket, tmp_path: Path) -> None:
    address = bucket.put("data/a.npz", b"content")
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OutputError, match="cannot be written"):
        fetched(address)


def failing(times: int, ending: str, status: int = 503) -> Callable[[str, str], tuple[int, str, bytes] | None]:
    """Refuses the first uploads of some objects."""
    left, lock = [times], threading.Lock()

    def answer(method: str, path: str) -> tuple[int, str, bytes] | None:
        with lock:
            if method != "PUT" or not path.endswith(ending) or not left[0]:
                return None
            left[0] -= 1
            return status, "SlowDown", b""

    return answer


def test_an_upload_that_fails_once_is_tried_again(bucket: Bucket, config_file: Path, tmp_path: Path) -> None:
    with bucket.server.answering(failing(1, "part-00001.parquet")):
        result = extracted(config_file, bucket.address("runs/a"))
    assert result.exit_code == 0, result.stderr
    local = extract(settings(config_file.parent), out=tmp_path / "local", trust_code=True).run
    with working_copy(bucket.address("runs/a")) as copy:
        assert content(copy.path) == content(local)


WHAT = {"a shard": "part-00001.parquet", "the first manifest": "manifest.json"}


@pytest.mark.parametrize("name", WHAT.values(), ids=WHAT)
def test_an_upload_that_always_fails_leaves_a_run_that_goes_on(
    name: str, bucket: Bucket, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    address = bucket.address("runs/a")
    with bucket.server.answering(failing(1000, name)):
        result = extracted(config_file, address)
    assert result.exit_code == 2
    assert f"{name}: the object storage at http://127" in result.stderr
    assert "status 503" in result.stderr
    assert extracted(config_file, address).exit_code == 0
    assert cli("verify", address).exit_code == 0


def test_large_files_are_uploaded_in_parts(bucket: Bucket) -> None:
    content = bytes(range(256)) * 2**17
    del bucket.server.log[:]
    with uploading(bucket.address("large.bin")) as path:
        path.write_bytes(content)
    assert [method for method, _ in bucket.server.log] == ["POST", *["PUT"] * 4, "POST"]
    assert bucket.get("large.bin") == content
    assert fetched(bucket.address("large.bin")).read_bytes() == content


class Kept(MemoryFileSystem):
    """Storage of another protocol."""

    protocol = "kept"


def test_other_storage_of_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADSCORE_CACHE", str(tmp_path / "cache"))
    fsspec.register_implementation("kept", Kept, clobber=True)
    with uploading("kept://bucket/data") as folder:
        (folder / "a").mkdir()
        (folder / "a/b.txt").write_bytes(b"one")
    assert (fetched("kept://bucket/data") / "a/b.txt").read_bytes() == b"one"
    fsspec.filesystem("kept").rm("/bucket/data/a/b.txt")
    with pytest.raises(ObjectStorageError, match="no such object, and none below it"):
        fetched("kept://bucket/data")
