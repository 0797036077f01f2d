"""A run whose inputs changed: what the change does not concern is kept to the byte, the rest is computed and said."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from net_configs import net_config
from PIL import Image

from gradscore.config import Config
from gradscore.errors import DataError
from gradscore.pipeline import ExtractSummary, extract
from gradscore.store import RunFolder, verify_run

NET = """
from torch import nn


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
"""
SPLITS = ("in_dist.fit", "in_dist.test", "ood.blurred", "ood.late")


def save_images(folder: Path, *, count: int, seed: int) -> None:
    folder.mkdir(parents=True)
    for place, pixels in enumerate(np.random.default_rng(seed).integers(0, 256, (count, 4, 4), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{place}.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of two classes for every split, and the code of a model."""
    for place, split in enumerate(("fit", "test")):
        for name in ("cat", "dog"):
            save_images(tmp_path / split / name, count=4, seed=10 * place + len(name))
    save_images(tmp_path / "late", count=4, seed=5)
    return tmp_path


def make_config(folder: Path, *, late: bool = True, **extract_options: Any) -> Config:
    made = {"name": "blurred", "source": "synthetic:blur"}
    found = {"name": "late", "source": f"folder:{folder}/late"}
    return net_config(
        folder,
        NET,
        model={"num_classes": 2},
        in_dist={name: {"source": f"folder:{folder}/{name}"} for name in ("fit", "test")},
        ood=[made, found] if late else [made],
        extract={"batch_size": 3, "part_size": 3, **extract_options},
    )


def run(folder: Path, **options: Any) -> ExtractSummary:
    return extract(make_config(folder, **options), trust_code=True)


def shards(folder: Path) -> dict[str, dict[str, tuple[bytes, int]]]:
    """Content and time of writing of the shards of each split."""
    return {
        split.name: {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in split.iterdir()}
        for split in sorted((folder / "run/features").iterdir())
    }


def truncate(path: Path) -> bytes:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return whole


def replace_a_fit_image(folder: Path) -> dict[str, Any]:
    Image.fromarray(np.zeros((4, 4), dtype=np.uint8)).save(folder / "fit/cat/0.png")
    return {}


def add_a_late_image(folder: Path) -> dict[str, Any]:
    Image.fromarray(np.zeros((4, 4), dtype=np.uint8)).save(folder / "late/9.png")
    return {}


CHANGES: dict[str, tuple[Callable[[Path], dict[str, Any]], set[str]]] = {
    "a file of an OOD set": (add_a_late_image, {"ood.late"}),
    "a file that a synthetic set is made of": (replace_a_fit_image, {"in_dist.fit", "ood.blurred"}),
    "another batch size": (lambda _: {"batch_size": 2}, set()),
    "skip instead of fail": (lambda _: {"on_error": "skip"}, set()),
}


@pytest.mark.parametrize(("change", "concerned"), CHANGES.values(), ids=CHANGES)
def test_only_the_splits_concerned_are_computed_anew(folder: Path, change, concerned: set[str]) -> None:
    run(folder)
    before = shards(folder)
    found = run(folder, **change(folder))
    after = shards(folder)
    assert {split.name for split in found.splits if split.computed} == concerned
    assert {name for name in SPLITS if before[name] != after[name]} == concerned
    assert {line.split()[0] for line in found.changes} == concerned
    assert verify_run(folder / "run").damaged == []
    assert run(folder, **change(folder)).was_complete
    extract(make_config(folder), out=folder / "new", trust_code=True)
    tables = [[RunFolder(folder / name).table_sha256(split) for split in SPLITS] for name in ("run", "new")]
    assert tables[0] == tables[1]


def test_an_ood_set_that_is_no_longer_asked_for_goes_and_the_others_stay(folder: Path) -> None:
    run(folder)
    before = shards(folder)
    found = run(folder, late=False)
    assert found.changes == ["ood.late is no longer asked for: its table was removed"]
    assert shards(folder) == {name: entry for name, entry in before.items() if name != "ood.late"}
    assert verify_run(folder / "run").damaged == []


def test_nothing_is_said_of_splits_that_were_never_computed(folder: Path) -> None:
    truncate(folder / "test/dog/3.png")  # the last of the second split: two OOD sets come after it
    with pytest.raises(DataError, match=r"in_dist\.test"):
        run(folder, batch_size=2)
    add_a_late_image(folder)
    found = run(folder, batch_size=3, on_error="skip")
    assert {line.split()[0] for line in found.changes} == {"in_dist.test"}
    assert {split.name for split in found.splits if split.computed} == {"in_dist.test", "ood.blurred", "ood.late"}


def skip(_folder: Path, _whole: bytes) -> dict[str, Any]:
    return {"on_error": "skip"}


def repair(folder: Path, whole: bytes) -> dict[str, Any]:
    (folder / "late/2.png").write_bytes(whole)
    return {}


WAYS_OUT = {"skip it": skip, "repair it": repair}


@pytest.mark.parametrize("way", WAYS_OUT.values(), ids=WAYS_OUT)
def test_one_truncated_image_in_a_late_set_does_not_lose_the_run(folder: Path, way) -> None:
    whole = truncate(folder / "late/2.png")
    with pytest.raises(DataError, match=r"ood\.late, sample 2\.png: .*cannot be decoded"):
        run(folder)
    before = shards(folder)
    found = run(folder, **way(folder, whole))
    after = shards(folder)
    assert {split.name for split in found.splits if split.computed} <= {"ood.late"}
    assert all(after[name] == before[name] for name in SPLITS[:3])
    assert RunFolder(folder / "run").manifest.finished


def test_skipped_samples_that_may_not_be_skipped_any_more_concern_their_split_alone(folder: Path) -> None:
    truncate(folder / "late/2.png")
    run(folder, on_error="skip")
    before = shards(folder)
    with pytest.raises(DataError, match=r"ood\.late, sample 2\.png"):
        run(folder, on_error="fail")
    assert all(shards(folder)[name] == before[name] for name in SPLITS[:3])
