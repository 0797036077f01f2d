"""A small run whose images can be read again, with file names and layer names that try to get out of the page."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from run_inputs import INPUTS
from written_runs import write_split

from gradscore.config import Config
from gradscore.data import content_hash, open_splits
from gradscore.evaluation import EvaluationReport, evaluate_run, fit_run
from gradscore.store import RunFolder, RunWriter, ShardRows

SIZE = 40
LAYER = "</script><img src=x onerror=alert(1)>.weight"
HOSTILE = '"><script>alert(1)<img src=x onerror=alert(2)>'
STATISTICS = ["max", "l1", "l2"]
NAMES = [*(f"logit_{place}" for place in range(10)), *(f"uniform/{LAYER}/{each}" for each in STATISTICS),
         *(f"uniform/fc.bias/{each}" for each in STATISTICS)]  # fmt: skip


def settings(images: Path) -> dict:
    return {
        "model": {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": 10},
        "data": {
            "auxiliary": [],
            "in_dist": {
                "fit": {"source": "sklearn:digits", "select": {"stop": SIZE}},
                "test": {"source": "sklearn:digits", "select": {"start": SIZE, "stop": 2 * SIZE}},
            },
            "ood": [
                {"name": "rotated", "source": "synthetic:rotate90", "group": "near"},
                {"name": "files", "source": f"folder:{images}", "group": "far"},
            ],
        },
        "meta": {"cv_folds": 2, "Cs": [0.01, 1.0]},
        "run": "run",
    }


def rows(split: str, images, *, wrong: int) -> ShardRows:
    generator = np.random.default_rng(list(split.encode()))
    size = len(images.ids)
    ood = split.startswith("ood.")
    labels = np.full(size, -1) if ood else np.asarray(images.labels)
    return ShardRows(
        split=split,
        sample_ids=list(images.ids),
        labels=labels,
        predictions=np.where(np.arange(size) < wrong, (labels + 1) % 10, labels % 10),
        content_hashes=[content_hash(images.sample(place)) for place in range(size)],
        names=NAMES,
        values=np.exp(generator.normal(2.0 * ood + (np.arange(size) < wrong)[:, None], 1.0, (size, len(NAMES)))),
        skipped=[],
    )


def write_run(path: Path, images: Path) -> RunFolder:
    config = Config.model_validate(settings(images))
    splits = open_splits(config.data, preprocessing=config.preprocessing, num_classes=10, seed=0)
    with RunWriter.opened(path, config=config, inputs=INPUTS) as writer:
        for split, opened in splits.items():
            wrong = 0 if split.startswith("ood.") else 8
            write_split(writer, rows(split, opened.source, wrong=wrong))
        writer.finish(feature_count=6, notices=[])
    return RunFolder(path)


@pytest.fixture(scope="session")
def report_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A fitted run of 40 samples a set; 8 predictions of either in-distribution set are wrong."""
    base = tmp_path_factory.mktemp("report")
    images = base / "images"
    images.mkdir()
    for place in range(SIZE):
        pixels = np.random.default_rng(place).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{HOSTILE}{place:02d}.png")
    written = write_run(base / "<b>run", images)
    fit_run(written)
    return written


@pytest.fixture(scope="session")
def report_evaluation(report_run: RunFolder) -> EvaluationReport:
    """What `evaluate_run` finds in the run."""
    return evaluate_run(report_run)


@pytest.fixture
def report_copy(report_run: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the run, to be changed."""
    return RunFolder(shutil.copytree(report_run.path, tmp_path / "run"))
