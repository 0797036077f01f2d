"""Whether names of images stand in a file, whatever it is: a list in a form that is not read, in any alphabet."""

from __future__ import annotations

import codecs
import gzip
import io
import unicodedata
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from ..data import DAMAGE
from .folders import LARGEST, ImageSet
from .image_tables import LOOKED_AT


def text_of(path: Path) -> str:
    """What a file says, for names to be found in; empty for one that cannot be read, or is too large.

    No more than `LARGEST` bytes are read, of archives after unpacking.
    """
    try:
        if path.stat().st_size > LARGEST:
            return ""
        raw = _READERS.get(path.suffix.lower(), Path.read_bytes)(path)
    except (*DAMAGE, zipfile.BadZipFile, NotImplementedError, RuntimeError):  # another compression, a password
        return ""
    marks = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    coding = next((coding for mark, coding in marks.items() if raw.startswith(mark)), "utf-8")
    return _plain(raw.decode(coding, errors="replace"))


def is_mentioned(of: ImageSet, text: str) -> bool:
    """Whether most of some names of a set stand in a text, without their ending where they are more than a number."""
    names = of.files[:: max(1, len(of.files) // LOOKED_AT)][:LOOKED_AT]
    found = [file.name if file.stem.isdigit() or len(file.stem) < 3 else file.stem for file in names]
    return 2 * sum(_plain(name) in text for name in found) > len(found)


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _unpacked(path: Path) -> bytes:
    with gzip.open(path) as file:
        return file.read(LARGEST)


def _members(path: Path) -> bytes:
    """All members of an archive, spreadsheets among them, one after the other."""
    whole = io.BytesIO()
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                whole.write(file.read(LARGEST - whole.tell()))
    return whole.getvalue()


def _columns(path: Path) -> bytes:
    """Texts of a Parquet table."""
    table = pd.read_parquet(path).select_dtypes(include=["object", "string", "category"])
    return "\n".join(value for name in table for value in table[name] if isinstance(value, str)).encode()


_READERS: Mapping[str, Callable[[Path], bytes]] = {
    ".gz": _unpacked,
    ".zip": _members,
    ".xlsx": _members,
    ".ods": _members,
    ".parquet": _columns,
    ".pq": _columns,
}
