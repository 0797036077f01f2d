"""The least a manifest says of what a run was made from."""

from typing import Any

INPUTS: dict[str, Any] = {
    "model": {"source": "python:net.py:net", "weights_sha256": "ab", "code_sha256": None},
    "preprocessing": {},
    "data": {},
    "features": {},
}
