"""Files that other libraries write go through extract, fit-meta and evaluate as the same pixels do."""

import io
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from gradscore.config import Config
from gradscore.data import open_source
from gradscore.evaluation import evaluate_run, fit_run
from gradscore.pipeline import extract
from gradscore.store import RunFolder


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def saved_by_datasets(folder: Path, images: np.ndarray, labels: np.ndarray) -> str:
    columns = {"image": [{"bytes": png(each), "path": None} for each in images], "label": labels}
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=[str(digit) for digit in range(10)])}
    datasets.Dataset.from_dict(columns).cast(datasets.Features(kinds)).save_to_disk(folder, num_shards=2)
    return f"hf:{folder}"


def parquet(folder: Path, images: np.ndarray, labels: np.ndarray) -> str:
    pd.DataFrame({"image": [png(each) for each in images], "label": labels}).to_parquet(folder.with_suffix(".parquet"))
    return f"parquet:{folder}.parquet"


LIBRARIES = {"datasets": saved_by_datasets, "pandas": parquet}


def config_of(folder: Path, base: Config, write: Callable[[Path, np.ndarray, np.ndarray], str]) -> Config:
    """The settings of a run with the same samples in files of another kind."""
    digits = open_source("sklearn:digits")
    images = np.stack([digits.sample(place)[..., 0] for place in range(300)])
    noise = np.random.default_rng(0).integers(0, 256, (80, 8, 8), dtype=np.uint8)
    parts = {
        "fit": write(folder / "fit", images[:150], digits.labels[:150]),
        "test": write(folder / "test", images[150:], digits.labels[150:300]),
    }
    data = {
        "auxiliary": [],
        "in_dist": {name: {"source": source} for name, source in parts.items()},
        "ood": [{"name": "noise", "source": write(folder / "noise", noise, np.zeros(80, dtype=np.int64))}],
    }
    return Config.model_validate({**base.model_dump(), "data": data, "run": folder / "run"})


@pytest.mark.parametrize("write", LIBRARIES.values(), ids=LIBRARIES)
def test_a_run_of_files_is_that_of_the_same_pixels(small_run: Path, tmp_path: Path, write) -> None:
    extract(config_of(tmp_path, RunFolder(small_run).config, write), trust_code=True)
    run, same = RunFolder(tmp_path / "run"), RunFolder(small_run)
    alike = ["label", "prediction", "content_hash", *(name for name in same.columns("in_dist.test") if "/" in name)]
    for_files, for_pixels = (each.read("in_dist.test", columns=alike) for each in (run, same))
    pd.testing.assert_frame_equal(for_files, for_pixels, check_exact=True)
    assert {fitted.spec.task for fitted in fit_run(run).models} == {"misclassification", "ood"}
    assert [each.what for each in evaluate_run(run).verdicts] == ["wrong predictions", "noise"]
