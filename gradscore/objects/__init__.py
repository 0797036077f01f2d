"""Object storage through fsspec: `s3://` with the extra `s3`, and whatever else fsspec knows.

In come addresses, `s3://bucket/key`; out come local copies. `address` takes them apart, `storage` lists, downloads,
uploads and deletes objects and says in our words what goes wrong, `mirror` keeps a local folder and what lies below an
address alike, `cache` says where local copies are and fetches data, `outputs` uploads what commands write, `names`
calls local copies by their addresses.
Objects are written whole, in one request that shows all or nothing; nothing is ever renamed.
"""

from __future__ import annotations

from .address import Address
from .cache import cache_folder, fetched, local_place, own_folder
from .mirror import Mirror
from .names import call, called, is_copy
from .outputs import uploading, uploading_after
from .storage import ConflictError, Entry, Storage

__all__ = [
    "Address",
    "ConflictError",
    "Entry",
    "Mirror",
    "Storage",
    "cache_folder",
    "call",
    "called",
    "fetched",
    "is_copy",
    "local_place",
    "own_folder",
    "uploading",
    "uploading_after",
]
