"""Scores by `map_batches` of Ray Data against the scorer itself.

Not collected by default, since it needs the extra `ray` (227 MB) and starts a cluster: `make ray-test`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from gradscore.deployment import Scorer

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, which come and go with its versions

DIGITS = np.round(load_digits().images[420:516, ..., None] * (255 / 16)).astype(np.uint8)
BATCH = 16


@pytest.fixture(scope="module")
def data() -> Iterator[Any]:
    """Ray Data on a small Ray of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        import ray

        ray.init(num_cpus=3, object_store_memory=80_000_000, include_dashboard=False)
        import ray.data

        yield ray.data
        ray.shutdown()


@pytest.fixture
def wanted(small_bundle: Path) -> list[dict[str, Any]]:
    """By the scorer itself, batch by batch, with one thread as a worker of Ray has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    scorer = Scorer.load(small_bundle, trust_code=True)
    batches = [DIGITS[start : start + BATCH].transpose(0, 3, 1, 2) for start in range(0, len(DIGITS), BATCH)]
    tables = [scorer(batch).drop(columns="sample_id") for batch in batches]
    torch.set_num_threads(before)
    return [row for table in tables for row in table.to_dict("records")]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the digits as images, called by their places."""
    folder = tmp_path_factory.mktemp("images")
    for place, pixels in enumerate(DIGITS[..., 0]):
        Image.fromarray(pixels).save(folder / f"{place:03d}.png")
    return folder


class Scores:
    """As docs/scaling.md has it."""

    def __init__(self, bundle: str) -> None:
        self.scorer = Scorer.load(bundle, trust_code=True)

    def __call__(self, batch: dict[str, Any]) -> pd.DataFrame:
        return self.scorer(list(batch["image"]), sample_ids=batch["path"])


@pytest.mark.parametrize("actors", [1, 2])
def test_map_batches_gives_what_the_scorer_gives(
    data: Any, small_bundle: Path, images: Path, wanted: list[dict[str, Any]], actors: int
) -> None:
    results = data.read_images(str(images), include_paths=True).map_batches(
        Scores, fn_constructor_args=[str(small_bundle)], batch_size=BATCH, concurrency=actors, num_cpus=1
    )
    found = sorted(results.take_all(), key=lambda row: row["sample_id"])
    assert [Path(row["sample_id"]).name for row in found] == [f"{place:03d}.png" for place in range(len(DIGITS))]
    assert [row["prediction"] for row in found] == [row["prediction"] for row in wanted]
    assert [row["score_ood"] for row in found] == pytest.approx([row["score_ood"] for row in wanted], abs=1e-3)
