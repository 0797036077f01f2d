"""JSON that others wrote gives a value or a ValueError."""

import pytest

from gradscore.system import parse_json


def test_values() -> None:
    assert parse_json(b'{"a": [1, 2.5, null, "\\u00e4"]}') == {"a": [1, 2.5, None, "ä"]}


BAD = {
    "no JSON": ("{", "Expecting"),
    "no text": (b"\xff\xfe\xff", "decode"),
    "half a pair": ('{"a": "\\ud800"}', "surrogates not allowed"),
    "nested too deeply": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_what_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)
