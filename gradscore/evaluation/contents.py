"""Which samples have the content of others, of columns of millions of hashes: no Python object is made of each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ..system import BoolArray, IntArray


def common(values: pd.Series[str], others: pd.Series[str]) -> set[str]:
    """The distinct contents that are in both columns; the first is the one that is held a second time."""
    there = pc.filter(_column(others), pc.is_in(_column(others), value_set=_column(values)))
    return set(pc.unique(there).to_pylist())


def count_common(values: pd.Series[str], others: pd.Series[str]) -> int:
    """How many distinct contents are in both columns."""
    there = pc.filter(_column(others), pc.is_in(_column(others), value_set=_column(values)))
    return len(pc.unique(there))


def count_distinct(values: pd.Series[str]) -> int:
    """How many distinct contents there are."""
    return len(pc.unique(_column(values)))


class Numbered:
    """Some contents, each with a number, so that sets of them are masks.

    Args:
        columns: the contents, those of several columns together.
    """

    def __init__(self, columns: Iterable[pd.Series[str]]) -> None:
        chunks = [chunk for column in columns for chunk in _column(column).chunks]
        self._values = pc.unique(pa.chunked_array(chunks, pa.large_string()))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._values)

    def of(self, column: pd.Series[str]) -> IntArray:
        """The number (N,) of each content of a column; the number of all for a content without one."""
        found = pc.fill_null(pc.index_in(_column(column), value_set=self._values), len(self))
        return np.asarray(found.to_numpy())

    def mask(self, numbers: Iterable[IntArray] = ()) -> BoolArray:
        """Which contents are among some (len + 1,), by number; the last entry, of contents without one, is False."""
        mask = np.zeros(len(self) + 1, dtype=bool)
        for each in numbers:
            mask[each] = True
        mask[-1] = False
        return mask


def _column(values: pd.Series[str]) -> pa.ChunkedArray:
    found = pa.array(values, pa.large_string())
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])
