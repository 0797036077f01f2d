"""Addresses of objects, and of all that lie below a key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Self

from ..errors import ObjectStorageError
from ..system import as_address


@dataclass(frozen=True)
class Address:
    """Where an object is, or objects whose keys begin alike.

    Attributes:
        protocol: as fsspec calls the kind of storage, `s3` for one.
        bucket: the bucket.
        key: of the object, or what keys begin with before a slash.
    """

    protocol: str
    bucket: str
    key: str

    @classmethod
    def parsed(cls, given: str | Path) -> Self:
        """Takes an address apart.

        Raises:
            ObjectStorageError: it names no bucket or no key, or its key cannot be a path of a local copy.
        """
        text = as_address(given)
        protocol, _, rest = text.partition("://")
        bucket, _, key = rest.rstrip("/").partition("/")
        if not bucket or not key:
            raise ObjectStorageError(
                f"{text}: wanted a bucket and a key, got {'a bucket alone' if bucket else 'neither'}; give an address "
                f"such as {protocol}://{bucket or 'bucket'}/runs/example"
            )
        if not is_usable(key):
            raise ObjectStorageError(
                f"{text}: a local copy can have no such name: a part of the key is empty, '.' or '..'; give another key"
            )
        return cls(protocol, bucket, key)

    @property
    def path(self) -> str:
        """As fsspec takes it."""
        return f"{self.bucket}/{self.key}".rstrip("/")

    @property
    def name(self) -> str:
        """The last part of the key."""
        return PurePosixPath(self.key).name

    def __truediv__(self, name: str) -> Address:
        """The address of an object below this one."""
        return replace(self, key=f"{self.key}/{name}".strip("/"))

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.protocol}://{self.path}"


def is_usable(key: str) -> bool:
    """Whether a key can be a relative path that leads nowhere else."""
    return all(part not in ("", ".", "..") and "\0" not in part for part in key.split("/"))
