"""One file that holds several, with a checksum of each: a zip archive without compression, read with distrust.

Members are stored as they are, so an archive cannot unpack to more than its own size, and nothing is ever written to
the file system by the names in it. The checksums find damage and careless edits; whoever can write the file can also
write new checksums, so compare the SHA-256 of the whole file where that matters.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BundleError
from ..system import parse_json, replacing, sha256

INDEX = "bundle.json"
CHECKSUM = "bundle.sha256"

_MEMBER = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*\.(json|safetensors|sha256)")
_HEAD = 30
"""Bytes of a zip archive before the name of its first member."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_ADVICE = "copy it again, or make it anew with gradscore bundle"


def write_archive(path: Path, index: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
    """Writes an archive in one step; the same content gives the same bytes.

    Args:
        path: the file.
        index: JSON values; the sizes and hashes of the members are added to it under `members`.
        members: content by name.
    """
    listed = {name: _entry(content) for name, content in members.items()}
    text = (json.dumps({**index, "members": listed}, indent=1, allow_nan=False) + "\n").encode()
    whole = {INDEX: text, CHECKSUM: (sha256(text) + "\n").encode(), **members}
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, content in whole.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)


def is_archive(path: Path) -> bool:
    """Whether a file begins as `write_archive` begins one; a damaged archive is one, too."""
    with path.open("rb") as file:
        head = file.read(_HEAD + len(INDEX))
    return head.startswith(b"PK\x03\x04") and head[_HEAD:] == INDEX.encode()


def read_archive(path: Path, *, digest: str | None = None) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Reads an archive, once: what is hashed is what is used.

    Args:
        path: the file.
        digest: refuse a file with another SHA-256.

    Returns:
        The index, and the content of the members by name.

    Raises:
        BundleError: it is missing, truncated or damaged, a checksum differs, or it holds something it should not.
    """
    whole = _read(path)
    if digest is not None and sha256(whole) != digest.lower():
        raise BundleError(
            f"{path}: wanted the file with SHA-256 {digest}, got {sha256(whole)}; get it from where it was made"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            _check_members(path, archive.infolist(), size=len(whole))
            contents = {info.filename: archive.read(info) for info in archive.infolist()}
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BundleError(f"{path}: not a complete bundle ({error}); {_ADVICE}") from None
    text, checksum = contents.pop(INDEX, None), contents.pop(CHECKSUM, None)
    if text is None or checksum is None:
        raise BundleError(f"{path}: no {INDEX if text is None else CHECKSUM} in it; this is not a bundle of gradscore")
    if sha256(text) != checksum.decode("ascii", "replace").strip():
        raise BundleError(f"{path}: {INDEX} was changed after it was written; {_ADVICE}")
    index = _parsed(path, text)
    _check_contents(path, index.pop("members", None), contents)
    return index, contents


def _read(path: Path) -> bytes:
    if not path.exists():
        raise BundleError(f"{path}: there is no such bundle; make one with gradscore bundle")
    if not path.is_file():
        raise BundleError(f"{path}: wanted the file of a bundle, got something else; check the path")
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}; check its permissions") from None


def _check_members(path: Path, infos: list[zipfile.ZipInfo], *, size: int) -> None:
    names = [info.filename for info in infos]
    odd = [name for name in names if not _MEMBER.fullmatch(name)]
    if odd:
        raise BundleError(
            f"{path}: refused, a member has the name {odd[0]!r}, which no bundle has; do not use this file"
        )
    if len(set(names)) < len(names):
        raise BundleError(f"{path}: refused, two members have the same name; do not use this file")
    packed = [info.filename for info in infos if info.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise BundleError(f"{path}: refused, {packed[0]} is compressed, which no bundle is; do not use this file")
    if sum(info.file_size for info in infos) > size:
        raise BundleError(f"{path}: refused, its members claim to be larger than the file; do not use this file")


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    try:
        index = parse_json(text)
    except ValueError as error:
        raise BundleError(f"{path}: {INDEX} is not JSON ({error}); {_ADVICE}") from None
    if not isinstance(index, dict):
        raise BundleError(f"{path}: {INDEX} holds {type(index).__name__}, wanted a mapping; {_ADVICE}")
    return index


def _check_contents(path: Path, listed: object, contents: Mapping[str, bytes]) -> None:
    wanted = listed if isinstance(listed, dict) else {}
    if set(wanted) != set(contents):
        differing = ", ".join(sorted(set(wanted) ^ set(contents)))
        raise BundleError(f"{path}: members are missing or were added: {differing}; {_ADVICE}")
    changed = [name for name, content in contents.items() if wanted[name] != _entry(content)]
    if changed:
        raise BundleError(f"{path}: {changed[0]} was changed after it was written; {_ADVICE}")


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": sha256(content)}
