"""Small valid files of every kind that gradscore reads, most of them of a finished run, and what reads them."""

import io
import shutil
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
from safetensors.torch import save_file
from torch import nn

from gradscore.check import Policy, make_expected, read_expected, write_expected
from gradscore.config import dump_config, load_config, parse_config
from gradscore.data import open_source, open_user_samples
from gradscore.deployment import read_bundle
from gradscore.errors import DataError
from gradscore.evaluation import ScoreFile
from gradscore.meta import MetaInputs, MetaModel
from gradscore.models import Head
from gradscore.models.weights import load_checkpoint
from gradscore.store import RunFolder, is_complete, read_head
from gradscore.store.run_files import read_note
from gradscore.store.run_folder import write_head

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


@dataclass(frozen=True)
class Target:
    """Files that are read together or each alone.

    Attributes:
        make: writes them into an empty folder, from those of a finished run with its bundle beside it.
        read: what is tried after the file at the path was damaged.
    """

    make: Callable[[Path, Path], object]
    read: Callable[[Path], object]


def _config(folder: Path, _run: Path) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(SETTINGS))


def _read_config(path: Path) -> None:
    config = load_config(path)
    parse_config(dump_config(config), where="x")


def _checkpoints(folder: Path, _run: Path) -> None:
    state = nn.Linear(3, 2).state_dict()
    save_file(state, folder / "a.safetensors")
    torch.save(state, folder / "b.pt")
    torch.save({"state_dict": state, "epoch": 3}, folder / "c.pth", _use_new_zipfile_serialization=False)


def _run(folder: Path, run: Path) -> None:
    shutil.copytree(run, folder / "run", ignore=shutil.ignore_patterns("meta", "evaluation"))


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


def _bundle(folder: Path, run: Path) -> None:
    shutil.copy(run.parent / "small.gradscore", folder)


def _read_bundle(path: Path) -> None:
    bundle = read_bundle(path)
    frame = pd.DataFrame(bundle.self_test.answers, columns=bundle.columns)
    for detector in bundle.detectors.values():
        detector.model.decision(frame)
        detector.at(0.2)


def _expected(folder: Path, run: Path) -> None:
    write_expected(folder / "expected.json", make_expected(RunFolder(run), Policy()))


def _images(folder: Path, _run: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    for suffix in ("png", "jpg", "gif", "bmp", "tiff", "webp", "ppm"):
        image.save(folder / f"x.{suffix}")
    image.convert("P").save(folder / "p.png")


def _arrays(folder: Path, _run: Path) -> None:
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


def _lists(folder: Path, _run: Path) -> None:
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, "png")
    (folder / "a.png").write_bytes(stream.getvalue())
    pq.write_table(pa.table({"image": [stream.getvalue()] * 3}), folder / "bytes.parquet")
    pq.write_table(pa.table({"path": ["a.png", "a.png"]}), folder / "paths.parquet")
    pq.write_table(pa.table({"image": [{"bytes": stream.getvalue(), "path": None}] * 2}), folder / "struct.parquet")


def _scores(folder: Path, run: Path) -> None:
    for path in (run / "evaluation").glob("*.parquet"):
        shutil.copy(path, folder)


MODEL = "misclassification/in_dist_only/all"


def _meta(folder: Path, run: Path) -> None:
    shutil.copytree(run / "meta" / "inputs", folder / "meta" / "inputs")
    shutil.copytree(run / "meta" / MODEL, folder / "meta" / "model")
    write_head(folder, Head(weight=np.ones((2, 3)), bias=np.zeros(2)))


def _read_meta(path: Path) -> None:
    if path.name == "head.safetensors":
        read_head(path.parent)
    else:
        meta = next(parent for parent in path.parents if parent.name == "meta")
        inputs = MetaInputs.load(meta / "inputs")
        frame = pd.DataFrame(np.ones((2, len(inputs.columns))), columns=inputs.columns)
        MetaModel.load(meta / "model", inputs).decision(frame)


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
