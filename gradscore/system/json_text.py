"""JSON that others wrote."""

from __future__ import annotations

import json
from typing import Any, TypeGuard


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or holds text that no file can hold (half of a pair of
            surrogates).
    """
    try:
        value = json.loads(content)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def are_texts(value: object) -> TypeGuard[list[str]]:
    """Whether a value of JSON is a list of nothing but texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
