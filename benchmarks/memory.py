"""Peak memory of extract, fit-meta and evaluate with many rows.

    OMP_NUM_THREADS=1 python benchmarks/memory.py --rows 1000000 --features 100

Rows are made at random, part by part, and written straight in the format of run folders: half of them in
`in_dist.fit` and `in_dist.test`, half in two OOD sets. `extract` computes as many rows of a small network, from images
of 2 x 2 pixels. Each command runs in a process of its own, whose largest
resident set is reported, with that of a start without work.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gradscore.config import Config
from gradscore.store import RunFolder, RunInputs, RunWriter, ShardRows, shard_path, split_folder, write_shard

CLASSES = 10
PART = 10_000
INPUTS = RunInputs.model_validate(
    {
        "model": {
            "source": "torchvision:resnet18",
            "weights_sha256": "random",
            "code_sha256": None,
            "dtype": "float32",
        },
        "preprocessing": {},
        "data": {},
        "features": {"columns": [], "groups": {}, "penultimate": None, "augmentations": []},
        "extract": {"batch_size": 1024, "on_error": "fail", "device": "cpu"},
    }
)
NET = f"""
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, {CLASSES}))
"""
JOB = f"""
model: {{source: "python:net.py:net", checkpoint: null, num_classes: {CLASSES}}}
preprocessing: {{channels: 1, mean: [0.5], std: [0.5]}}
data:
  in_dist: {{fit: {{source: "npz:fit.npz"}}, test: {{source: "npz:test.npz"}}}}
  ood: [{{name: near, source: "npz:near.npz"}}, {{name: far, source: "npz:far.npz"}}]
extract: {{batch_size: 1024, part_size: 10240, device: cpu}}
run: extracted
"""
GROUPS = ("max", "l1", "l2", "std", "mean")


def config(folder: Path) -> Config:
    digits = {"source": "sklearn:digits"}
    return Config.model_validate(
        {
            "model": {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": CLASSES},
            "data": {
                "in_dist": {"fit": digits, "test": digits},
                "ood": [{"name": name, "source": "synthetic:uniform_noise"} for name in ("near", "far")],
            },
            "meta": {"Cs": [0.01], "cv_folds": 2},
            "evaluate": {"protocols": ["known"]},
            "run": folder / "run",
        }
    )


def part(split: str, number: int, rows: int, features: int) -> ShardRows:
    generator = np.random.default_rng([len(split), number])
    shift = 0.0 if split.startswith("in_dist") else 0.5
    logits = 3 * generator.normal(size=(rows, CLASSES))
    predictions = logits.argmax(axis=1)
    wrong = generator.random(rows) < 0.1
    labels = (predictions + wrong) % CLASSES if split.startswith("in_dist") else np.full(rows, -1)
    names = [f"uniform/layer{place // len(GROUPS)}.weight/{GROUPS[place % len(GROUPS)]}" for place in range(features)]
    values = np.exp(generator.normal(size=(rows, features)) + shift + 0.3 * wrong[:, None])
    return ShardRows(
        split=split,
        sample_ids=[f"{number}-{row}" for row in range(rows)],
        labels=labels.astype(np.int64),
        predictions=predictions.astype(np.int64),
        content_hashes=[f"{split}-{number}-{row}".ljust(64, "0") for row in range(rows)],
        names=[*(f"logit_{place}" for place in range(CLASSES)), *names],
        values=np.concatenate([logits, values], axis=1),
        skipped=[],
    )


def make_run(folder: Path, *, rows: int, features: int) -> Path:
    settings = config(folder)
    with RunWriter.opened(settings.run, config=settings, inputs=INPUTS) as writer:
        for info in RunFolder(settings.run).splits():
            parts = -(-rows // 4 // PART)
            notes = [
                write_shard(
                    shard_path(split_folder(settings.run, info.name), number),
                    part(info.name, number, min(PART, rows // 4), features),
                )
                for number in range(parts)
            ]
            writer.finish_split(info.name, notes, samples=0, seconds=0.0)
        writer.finish(feature_count=features, notices=[])
    return settings.run


def write_job(folder: Path, *, rows: int) -> Path:
    """A configuration with a quarter of the rows in each split, and what it needs."""
    generator = np.random.default_rng(0)
    for name in ("fit", "test", "near", "far"):
        images = generator.integers(0, 256, (rows // 4, 2, 2, 1), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", images=images, labels=generator.integers(0, CLASSES, rows // 4))
    (folder / "net.py").write_text(NET)
    path = folder / "job.yaml"
    path.write_text(JOB)
    return path


def measured(*command: str) -> tuple[float, float, int]:
    """Seconds, peak resident set in GiB, and the exit code of a command in a process of its own."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "gradscore", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    return time.monotonic() - began, usage.ru_maxrss / 2**20, os.waitstatus_to_exitcode(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--limit", type=float, default=40.0, help="GiB of address space that a command may have")
    options = parser.parse_args()
    lines = [f"{options.rows} rows of {options.features} features:", "", "| command | seconds | peak memory, GiB |"]
    lines.append("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), rows=options.rows, features=options.features)
        limit = int(options.limit * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        job = write_job(Path(folder), rows=options.rows)
        for command, *arguments in (
            ("extract", job, "--trust-code"),
            ("fit-meta", run),
            ("evaluate", run),
        ):
            seconds, peak, code = measured(*command.split(), *map(str, arguments))
            lines.append(f"| `{command}` | {seconds:.0f} | {peak:.2f}{'' if code == 0 else f' (exit {code})'} |")
            print(lines[-1], file=sys.stderr, flush=True)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
