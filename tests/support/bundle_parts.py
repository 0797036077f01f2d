"""The parts of a bundle's file, to be changed and put together again with right checksums."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any


def parts_of(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The index, and the content of the members by name."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != "bundle.sha256"}
    return json.loads(members.pop("bundle.json")), members


def put_together(path: Path, index: dict[str, Any], members: dict[str, bytes]) -> None:
    """Writes a bundle with these parts."""
    listed = {name: hashlib.sha256(each).hexdigest() for name, each in members.items()}
    text = json.dumps({**index, "members": listed}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {
            "bundle.json": text,
            "bundle.sha256": hashlib.sha256(text).hexdigest().encode(),
            **members,
        }.items():
            archive.writestr(name, content)
