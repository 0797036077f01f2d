"""The least a manifest says: what a run was made from, and that it is finished."""

from pathlib import Path
from typing import Any

from gradscore.store import RunInputs
from gradscore.store.manifest import Manifest


def run_inputs(**changes: Any) -> RunInputs:
    """The least a run may be made from."""
    least = {
        "model": {"source": "python:net.py:net", "weights_sha256": "ab", "code_sha256": None, "dtype": "float32"},
        "preprocessing": {},
        "data": {},
        "features": {"groups": {}, "penultimate": None, "augmentations": []},
        "extract": {"batch_size": 8, "on_error": "fail", "device": "cpu"},
    }
    return RunInputs.model_validate(least | changes)


INPUTS = run_inputs()


def write_manifest(path: Path) -> None:
    """Makes `path` the folder of a finished run without tables."""
    path.mkdir()
    Manifest.begun(INPUTS).model_copy(update={"finished": True}).write(path)
