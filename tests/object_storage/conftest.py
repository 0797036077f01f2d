"""A local S3-compatible server, and this process with an empty cache set up to use it."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem
from storage_server import KEYS, Bucket, Server

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


@pytest.fixture
def bucket(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    settings = {
        **KEYS,
        "AWS_ENDPOINT_URL": server.url,
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        "GRADSCORE_CACHE": str(tmp_path / "cache"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # connections remember the environment
    return Bucket(server, f"bucket-{next(NUMBERS)}")
