"""Small valid files of every kind that gradscore reads, and what reads them."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from PIL import Image
from run_inputs import run_inputs
from safetensors.torch import save_file
from score_files import write_scores
from torch import nn

from gradscore.baselines import FittedBaselines, InDistribution, NetworkOutputs
from gradscore.check import ExpectedFigures, Policy, read_expected, write_expected
from gradscore.check.expected import HASH_DIGITS, Probe, SplitScores
from gradscore.config import FeaturesConfig, ModelConfig, PreprocessingConfig, dump_config, load_config, parse_config
from gradscore.data import open_source, open_user_samples
from gradscore.deployment import Bundle, KnownSet, KnownSets, read_bundle, write_bundle
from gradscore.deployment.bundle import SelfTest
from gradscore.deployment.calibration import CalibratedScore, threshold
from gradscore.errors import DataError
from gradscore.evaluation import ScoreFile
from gradscore.evaluation.score_tables import LEADING
from gradscore.meta import Inputs, MetaModel
from gradscore.meta.inputs import Scaling
from gradscore.models import Head
from gradscore.models.weights import load_checkpoint
from gradscore.store import Manifest, RunFolder, ShardRows, SplitEntry, is_complete, read_head, write_head, write_shard
from gradscore.store.manifest import Spent
from gradscore.store.run_files import read_note

SETTINGS = {
    "model": {"source": "torchvision:resnet18", "checkpoint": "x.pt", "num_classes": 3, "arguments": {"a": [1, 2]}},
    "preprocessing": {"mean": [0.5], "std": [0.5], "resize": 8, "crop": 8},
    "data": {
        "auxiliary": [],
        "in_dist": {
            "fit": {"source": "sklearn:digits", "select": {"stop": 10, "classes": [0, 1]}, "label_map": {0: 1, 1: 0}},
            "test": {"source": "folder:images", "select": {"start": 1, "hash": [0.0, 0.5], "count": 3, "seed": 1}},
        },
        "ood": [{"name": "noise", "source": "synthetic:gaussian_noise", "arguments": {"seed": 1}, "group": "far"}],
        "shifted": [{"name": "blurred", "source": "corrupted:blur", "arguments": {"severity": 2}}],
    },
    "features": {"losses": ["uniform"], "statistics": ["max", "l2"], "parameters": ["*"], "granularity": "module"},
    "extract": {"batch_size": 4, "device": "cpu"},
    "meta": {"Cs": [0.1], "cv_folds": 2},
    "run": "run",
}
COLUMNS = ["logit_0", "logit_1", "uniform/a/max"]


@dataclass(frozen=True)
class Target:
    """Files that are read together or each alone.

    Attributes:
        make: writes them into an empty folder.
        read: what is tried after the file at the path was damaged.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]


def _config(folder: Path) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(SETTINGS))


def _read_config(path: Path) -> None:
    config = load_config(path)
    parse_config(dump_config(config), where="x")


def _checkpoints(folder: Path) -> None:
    state = nn.Linear(3, 2).state_dict()
    save_file(state, folder / "a.safetensors")
    torch.save(state, folder / "b.pt")
    torch.save({"state_dict": state, "epoch": 3}, folder / "c.pth", _use_new_zipfile_serialization=False)


def _shard(path: Path, split: str) -> None:
    values = np.random.default_rng(0).normal(size=(6, 3))
    rows = ShardRows(
        split=split,
        sample_ids=[f"{place}.png" for place in range(6)],
        labels=np.array([0, 1, 0, 1, -1, 0]),
        predictions=np.array([0, 1, 1, 1, 0, 0]),
        content_hashes=[f"{place:016x}" for place in range(6)],
        names=COLUMNS,
        values=values,
        skipped=[],
    )
    path.parent.mkdir(parents=True)
    write_shard(path, rows)


def _run(folder: Path) -> None:
    (folder / "run").mkdir()
    run = folder / "run"
    _shard(run / "features" / "in_dist.test" / "part-00000.parquet", "in_dist.test")
    config = parse_config(yaml.safe_dump(SETTINGS), where="x")
    (run / "config.yaml").write_text(dump_config(config))
    entry = SplitEntry(
        kind="in_dist.test",
        group=None,
        auxiliary=False,
        finished=True,
        parts=1,
        rows=6,
        labelled=5,
        accuracy=0.8,
        spent=Spent(samples=6, seconds=1.5),
    )
    found = Manifest.begun(
        run_inputs(
            preprocessing=SETTINGS["preprocessing"],
            data={"in_dist.test": {"fingerprint": "ab", "code_sha256": None}},
        )
    )
    found.splits, found.finished = {"in_dist.test": entry}, True
    found.write(run)


def _read_run(path: Path) -> None:
    folder = next(parent for parent in path.parents if parent.name == "run")
    if path.suffix == ".parquet":
        read_note(path)
    run = RunFolder(folder)
    infos = run.splits()
    _ = run.config, run.share_of_gradients, is_complete(folder, run.manifest)
    _ = run.code
    for info in infos:
        run.read(info.name)


def _inputs() -> Inputs:
    scaling = Scaling(floor=np.ones(1), centre=np.ones(1), scale=np.ones(1))
    samples = InDistribution(outputs=NetworkOutputs(logits=np.ones((4, 2))), classes=np.zeros(4, dtype=np.int64))
    return Inputs(columns=COLUMNS, names=["uniform/a/max"], scaling=scaling, baselines=FittedBaselines.fit(samples))


def _meta_model(label: str) -> MetaModel:
    return MetaModel(
        kind="logistic",
        inputs=_inputs(),
        arrays={"coefficients": np.ones(1), "intercept": np.zeros(1)},
        notes={"n": 10, "n_positive": 3, "shift": 0.0, "fitted_on": {"label": label}},
    )


def _bundle(folder: Path) -> None:
    scores = np.sort(np.random.default_rng(0).normal(size=50))
    wrong, ood = (
        CalibratedScore(
            model=_meta_model(label),
            protocol="known",
            calibration=scores,
            levels=np.arange(1, 51) / 51,
            threshold=threshold(scores, 0.1),
        )
        for label in ("misclassification/known/all", "ood/known/all")
    )
    images = np.zeros((2, 1, 4, 4), dtype=np.uint8)
    columns = {"confidence": np.ones(2), "class": np.zeros(2)}
    known = KnownSet(columns=columns, right=np.ones(2, dtype=np.bool_), label=np.zeros(2, dtype=np.int64))
    made = Bundle(
        model=ModelConfig(source="python:net.py:net", checkpoint=None, num_classes=2),
        weights_sha256="ab",
        code_sha256="cd",
        preprocessing=PreprocessingConfig(mean=[0.5], std=[0.5]),
        features=FeaturesConfig(losses=["uniform"], statistics=["max"]),
        columns=COLUMNS,
        alpha=0.2,
        detectors={"wrong": wrong, "ood": ood},
        self_test=SelfTest(images=images, answers=np.ones((2, 3))),
        known_sets=KnownSets(calibration=known, classes=2),
        weights=nn.Linear(3, 2).state_dict(),
        versions={"python": "3.11"},
        provenance={"run": "x"},
        notices=["a"],
    )
    write_bundle(folder / "x.gradscore", made)


def _read_bundle(path: Path) -> None:
    bundle = read_bundle(path)
    frame = pd.DataFrame(bundle.self_test.answers, columns=bundle.columns)
    for detector in bundle.detectors.values():
        detector.model.decision(frame)
        detector.at(0.2)


def _expected(folder: Path) -> None:
    scores = SplitScores(
        content_hash=[letter * HASH_DIGITS for letter in "abc"],
        correct="10-",
        classes=[0, 1, 2],
        scores={"wrong": [0.1, 0.2, 0.3]},
    )
    made = ExpectedFigures(
        policy=Policy(),
        model={"source": "x", "num_classes": 3, "weights_sha256": "ab"},
        versions={"python": "3.11"},
        protocol="known",
        scored_by={"wrong": "meta"},
        accuracy=0.9,
        thresholds={"wrong": 0.5},
        notices=[],
        samples={"in_dist.test": 3},
        splits={"in_dist.test": scores},
        probe=Probe(content_hash=["a" * HASH_DIGITS], columns={"uniform/a/max": [1.0]}),
    )
    write_expected(folder / "expected.json", made)


def _images(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    for suffix in ("png", "jpg", "gif", "bmp", "tiff", "webp", "ppm"):
        image.save(folder / f"x.{suffix}")
    image.convert("P").save(folder / "p.png")


def _arrays(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 6, 4), dtype=np.uint8)
    np.savez(folder / "plain.npz", images=pixels, labels=np.arange(5))
    np.savez_compressed(folder / "packed.npz", images=pixels)


def _read_images(path: Path) -> None:
    errors = [image.error for image in open_user_samples([str(path)])[0] if image.error]
    if errors:
        raise DataError(errors[0])


def _read_arrays(path: Path) -> None:
    try:
        open_source(f"npz:{path}", {})
    finally:
        _read_images(path)


def _lists(folder: Path) -> None:
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, "png")
    (folder / "a.png").write_bytes(stream.getvalue())
    pq.write_table(pa.table({"image": [stream.getvalue()] * 3}), folder / "bytes.parquet")
    pq.write_table(pa.table({"path": ["a.png", "a.png"]}), folder / "paths.parquet")
    pq.write_table(pa.table({"image": [{"bytes": stream.getvalue(), "path": None}] * 2}), folder / "struct.parquet")


def _scores(folder: Path) -> None:
    row = {name: ["x"] * 4 for name in LEADING[:6]} | {"label": [0] * 4, "prediction": [1] * 4, "positive": [True] * 4}
    write_scores(folder, pd.DataFrame({**row, "probability": [0.5] * 4, "meta": [0.1, 0.2, 0.3, 0.4]}))


def _meta(folder: Path) -> None:
    _meta_model("ood/known/all").save(folder / "meta" / "model")
    _inputs().save(folder / "meta" / "inputs")
    write_head(folder, Head(weight=np.ones((2, 3)), bias=np.zeros(2)))


def _read_meta(path: Path) -> None:
    if path.name == "head.safetensors":
        read_head(path.parent)
    else:
        meta = path.parents[1]
        inputs = Inputs.load(meta / "inputs")
        MetaModel.load(meta / "model", inputs).decision(pd.DataFrame(np.ones((2, 3)), columns=COLUMNS))


TARGETS = {
    "configurations": Target(_config, _read_config),
    "checkpoints": Target(_checkpoints, lambda path: load_checkpoint(nn.Linear(3, 2), path)),
    "run folders (manifests, configurations, shards)": Target(_run, _read_run),
    "meta models and last layers": Target(_meta, _read_meta),
    "bundles": Target(_bundle, _read_bundle),
    "expected figures": Target(
        _expected, lambda path: [scores.frame() for scores in read_expected(path).splits.values()]
    ),
    "images": Target(_images, _read_images),
    "arrays (.npz)": Target(_arrays, _read_arrays),
    "lists (Parquet)": Target(_lists, _read_images),
    "score tables": Target(_scores, lambda path: ScoreFile(path.parent).table()),
}
