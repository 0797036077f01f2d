"""Small runs that are made by several processes, and what is compared of them."""

import json
import re
from pathlib import Path
from typing import Any

from net_configs import NET, digits, net_config

from gradscore.config import Config


def settings(folder: Path, **features: Any) -> Config:
    """Digits: two shards of in_dist.fit, two of in_dist.test, three of the bank, one of OOD samples."""
    return net_config(
        folder,
        NET,
        in_dist={"fit": digits(0, 30), "test": digits(30, 50), "bank": digits(50, 98)},
        ood=[{"source": "synthetic:gaussian_noise", "name": "noise", "select": {"stop": 9}}],
        features={"statistics": ["max", "l2"], "losses": ["uniform"], "penultimate": True, **features},
        extract={"batch_size": 7, "part_size": 18},
    )


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
