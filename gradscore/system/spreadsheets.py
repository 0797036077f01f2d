"""Text in CSV files, which people open in spreadsheets."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

_BEGIN_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """The same table, with a `'` before texts that a spreadsheet would run as formulas; numbers stay as they are.

    Names of samples and classes are anyone's: one that begins with `=` would compute something, or send it away, on the
    machine of who opens the file.
    """
    texts = [name for name in table if table[name].dtype.kind == "O"]
    return table.assign(**{str(name): table[name].map(_harmless) for name in texts})


def csv_quoting(table: pd.DataFrame) -> Literal[0, 2]:
    """Which texts `to_csv` has to quote: all of them where one holds a carriage return, which ends a row to readers.

    The writer of Python itself quotes those only that hold its own end of a line.
    """
    texts = (table[name] for name in table if table[name].dtype.kind == "O")
    has_return = any(isinstance(value, str) and "\r" in value for column in texts for value in column)
    return csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL


def _harmless(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_BEGIN_FORMULAS) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
