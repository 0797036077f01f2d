"""Names of array types, and what counts as a whole number beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeIs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def is_whole(value: object) -> TypeIs[int | np.integer[Any]]:
    """Whether it is an integer of Python's or NumPy's; a truth value, which Python takes for one, is none.

    Example:
        >>> is_whole(3), is_whole(np.int64(3)), is_whole(True), is_whole(3.0)
        (True, True, False, False)
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
