"""Hashes of contents."""

import hashlib
from pathlib import Path

from gradscore.system import file_sha256


def test_file_hash(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert file_sha256(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()
