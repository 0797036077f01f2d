"""Files and folders that are written here and lie in object storage afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import GradscoreError
from .address import Address
from .cache import own_folder
from .mirror import Mirror
from .names import call
from .storage import Storage


@contextmanager
def uploading(given: str | Path) -> Iterator[Path]:
    """A path on this machine to write to; what is new there is uploaded at the end, also after an error.

    Files have to be written in one step, as `system.replacing` does, so that an error leaves whole ones.

    Args:
        given: the address of a file or, where its last part has no ending, of a folder; what is there is
            downloaded first.

    Raises:
        ObjectStorageError: the storage cannot be reached, or does not take it.
        OutputError: there is no room here.
    """
    place = Address.parsed(given)
    is_file = bool(Path(place.name).suffix)
    with own_folder("outputs", place) as own:
        storage = Storage(place)
        base = Address(place.protocol, place.bucket, place.key.rpartition("/")[0]) if is_file else place
        mirror = Mirror(storage, base, own / "files", own / "index.json")
        there = storage.entry(place) if is_file else None
        # What is there is had here, too, so that what refuses to replace it locally does so.
        mirror.pull(mirror.listing() if not is_file else {} if there is None else {place.name: there})
        path = mirror.folder / place.name if is_file else mirror.folder
        call(path, str(place))
        with uploading_after(lambda: mirror.put_all(mirror.changed())):
            yield path


@contextmanager
def uploading_after(upload: Callable[[], None]) -> Iterator[None]:
    """Uploads what a block makes at its end, also after an error.

    Args:
        upload: does it; what it raises after an error of the block does not count.
    """
    try:
        yield
    except BaseException:
        with suppress(GradscoreError, OSError):  # what went wrong first is what counts
            upload()
        raise
    upload()
