"""Text in CSV files, which people open in spreadsheets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
