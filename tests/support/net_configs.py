"""Settings of small runs of networks that tests write, on scikit-learn's digits for the most part."""

from collections.abc import Mapping, Sequence
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


def net(outputs=10):
    return Small(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(27, outputs))
"""


def digits(start: int, stop: int, **more: Any) -> dict[str, Any]:
    """Some of the digits."""
    return {"source": "sklearn:digits", "select": {"start": start, "stop": stop}, **more}


def net_config(
    folder: Path,
    code: str,
    name: str = "net",
    *,
    in_dist: Mapping[str, Any] | None = None,
    ood: Sequence[Mapping[str, Any]] = (),
    shifted: Sequence[Mapping[str, Any]] = (),
    model: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Config:
    """Settings of a run of the network that a function of `code` makes, with that code, in a folder."""
    (folder / "net.py").write_text(code)
    source = {"source": f"python:{folder}/net.py:{name}", "checkpoint": None, "num_classes": 10}
    return Config.model_validate({
        "model": source | dict(model or {}),
        "data": {"auxiliary": [], "in_dist": in_dist, "ood": ood, "shifted": shifted},
        "run": folder / "run",
        **sections,
        "extract": {"device": "cpu", **sections.get("extract", {})},
    })  # fmt: skip
