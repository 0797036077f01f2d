"""Scores of more samples than memory holds: columns of numbers in a file that has no name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Self

import numpy as np

from ..system import FloatArray

_SIZE = np.dtype(np.float64).itemsize

Place = Path | str
"""The folder of a meta model, or the name of a score that has none."""


class Spool:
    """Columns of one length, written block by block and read one at a time.

    The file takes 8 bytes for each value. It has no name, so that nothing is left of it however the process ends.

    Args:
        folder: where the file is, on the disk of what is written of it.
        rows: the length of the columns.
    """

    def __init__(self, folder: Path, *, rows: int) -> None:
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115  closed by __exit__
        self._rows = rows
        self._columns: dict[Place, int] = {}
        self._missing: set[Place] = set()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets go of the file."""
        self._file.close()

    def write(self, start: int, columns: Mapping[Place, FloatArray]) -> None:
        """Writes values (n,) of columns from the row `start` on."""
        for place, values in columns.items():
            if np.isnan(values).any():
                self._missing.add(place)
            self._seek(self._columns.setdefault(place, len(self._columns)), start)
            self._file.write(np.ascontiguousarray(values, dtype=np.float64).data)

    def read(self, place: Place) -> FloatArray:
        """A column (rows,)."""
        values = np.empty(self._rows)
        self._seek(self._columns[place], 0)
        self._file.readinto(values.data.cast("B"))
        return values

    def __contains__(self, place: object) -> bool:
        """Whether there is such a column."""
        return place in self._columns

    def is_whole(self, place: Place) -> bool:
        """Whether there is such a column, and no value of it is missing."""
        return place in self and place not in self._missing

    def _seek(self, column: int, row: int) -> None:
        self._file.seek((column * self._rows + row) * _SIZE)
