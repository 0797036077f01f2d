"""Small runs that are made by several processes, and what is compared of them."""

import json
import re
from pathlib import Path
from typing import Any

from gradscore.config import Config

NET = """
import os
import signal

from torch import nn


class Small(nn.Sequential):
    calls = 0

    def forward(self, images):
        Small.calls += 1
        if str(Small.calls) == os.environ.get("GRADSCORE_TEST_KILL_AT"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


def net():
    return Small(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 10))
"""


def settings(folder: Path, **features: Any) -> Config:
    """Digits: two shards of in_dist.fit, two of in_dist.test, three of the bank, one of OOD samples."""
    (folder / "net.py").write_text(NET)
    source = {"source": "sklearn:digits"}
    in_dist = {
        "fit": {**source, "select": {"stop": 30}},
        "test": {**source, "select": {"start": 30, "stop": 50}},
        "bank": {**source, "select": {"start": 50, "stop": 98}},
    }
    ood = [{"source": "synthetic:gaussian_noise", "name": "noise", "select": {"stop": 9}}]
    return Config.model_validate({
        "model": {"source": f"python:{folder}/net.py:net", "checkpoint": None, "num_classes": 10},
        "data": {"auxiliary": [], "in_dist": in_dist, "ood": ood},
        "features": {"statistics": ["max", "l2"], "losses": ["uniform"], "penultimate": True, **features},
        "extract": {"batch_size": 7, "part_size": 18, "device": "cpu"},
        "run": folder / "run",
    })  # fmt: skip


def content(run: Path) -> dict[str, Any]:
    """Every file of a run; of the manifest all but the time it took, of the settings all but where they were."""
    found: dict[str, Any] = {
        path.relative_to(run).as_posix(): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()
    }
    manifest = json.loads(found.pop("manifest.json"))
    splits = {name: entry | {"spent": None} for name, entry in manifest["splits"].items()}
    text = found.pop("config.yaml").decode()
    return found | {
        "manifest.json": manifest | {"splits": splits},
        "config.yaml": re.sub(r"\nrun: .*", "", text),
        "SHA256SUMS": re.sub(r".* (manifest.json|config.yaml)\n", "", found["SHA256SUMS"].decode()),
    }
