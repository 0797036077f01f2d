"""Throughput of one extraction shared among processes, and what merging their shares costs.

    python benchmarks/scaling.py --write docs/scaling.md

Random images of 32 x 32 pixels through a ResNet-20 with random weights, all six statistics of every parameter, shards
of 256 samples. Every arrangement is a fresh process or two at once, with the waiting policy that the
command line sets. Samples in a second are those of the whole command, start of Python and self-check included.

What merging costs for each shard is measured with a small network and shards of a single sample; what it costs for
each byte is the time to read and hash a large file, which it does twice.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pages import put_table

from gradscore.system import file_sha256

NETWORKS = f"""
import sys
from torch import nn

sys.path.insert(0, {str(Path(__file__).parent)!r})

def resnet20():
    from models import build
    return build("ResNet-20")

def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 10))
"""
CONFIG = """
model: {{source: "python:net.py:{network}", checkpoint: null, num_classes: 10}}
preprocessing: {{channels: {channels}, mean: {mean}, std: {mean}}}
data:
  in_dist:
    fit: {{source: "npz:fit.npz"}}
    test: {{source: "npz:test.npz"}}
extract: {{batch_size: {batch}, part_size: {part}, device: cpu}}
run: run
"""
RESNET_PART = 256
SHARDS = (100, 500, 2000)


class Job:
    """A configuration with its images in a folder, and its commands."""

    def __init__(
        self, folder: Path, network: str, samples: int, *, size: int, channels: int, batch: int, part: int
    ) -> None:
        self.folder, self.samples = folder, samples
        folder.mkdir()
        (folder / "net.py").write_text(NETWORKS)
        mean = [0.5] * channels
        (folder / "config.yaml").write_text(
            CONFIG.format(network=network, channels=channels, mean=mean, batch=batch, part=part)
        )
        generator = np.random.default_rng(0)
        for split, count in (("fit", samples - part), ("test", part)):
            images = generator.integers(0, 256, (count, size, size, channels), dtype=np.uint8)
            np.savez(folder / f"{split}.npz", images=images, labels=generator.integers(0, 10, count))

    def extract(self, out: str, *options: str) -> list[str]:
        return ["extract", "config.yaml", "--trust-code", "--out", out, *options]

    def seconds(self, *commands: Sequence[str]) -> float:
        """How long commands take that are started at once."""
        began = time.monotonic()
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "gradscore", *each],
                cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(),
            )
            for each in commands
        ]  # fmt: skip
        for process in running:
            _, said = process.communicate()
            if process.returncode:
                raise SystemExit(f"{process.args}: {said}")
        return time.monotonic() - began


def environment() -> dict[str, str]:
    """This process's, without numbers of threads."""
    numbers = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name: value for name, value in os.environ.items() if name not in numbers}


def shares(job: Job, out: str, *options: str) -> list[list[str]]:
    return [job.extract(out, "--share", f"{number}/2", *options) for number in range(2)]


def arrangements(job: Job) -> dict[str, list[list[str]]]:
    """Commands that run at once, by what they are."""
    return {
        "one process, one thread": [job.extract("one", "--threads", "1")],
        "one process, two threads": [job.extract("threads", "--threads", "2")],
        "two shares at once, one thread each": shares(job, "shares", "--threads", "1"),
        "two shares at once, two threads each": shares(job, "crowded", "--threads", "2"),
    }


def throughput(folder: Path, samples: int) -> str:
    """The table of arrangements."""
    warm = Job(folder / "warm", "resnet20", 2 * RESNET_PART, size=32, channels=3, batch=64, part=RESNET_PART)
    job = Job(folder / "whole", "resnet20", samples, size=32, channels=3, batch=64, part=RESNET_PART)
    warm.seconds(warm.extract("run"))  # compiles what is not compiled yet
    lines = ["| arrangement | s | samples/s | efficiency |", "|---|---|---|---|"]
    rates: dict[str, float] = {}
    for name, commands in arrangements(job).items():
        seconds = job.seconds(*commands)
        rates[name] = job.samples / seconds
        efficiency = rates[name] / (2 * rates["one process, one thread"])
        lines.append(f"| {name} | {seconds:.1f} | {rates[name]:.0f} | {efficiency:.2f} |")
    print(*lines, sep="\n", file=sys.stderr)  # what follows takes as long again
    return "\n".join(lines)


def merging(folder: Path) -> str:
    """Seconds of a merge by the number of its shards, and of reading and hashing a byte."""
    lines = ["| shards of one sample | `gradscore merge`, s |", "|---|---|"]
    for shards in SHARDS:
        job = Job(folder / str(shards), "small", shards, size=2, channels=1, batch=1, part=1)
        job.seconds(*shares(job, "run", "--threads", "1"))
        lines.append(f"| {shards:,} | {job.seconds(['merge', 'run', '--trust-code']):.1f} |")
    large = folder / "large"
    large.write_bytes(os.urandom(1 << 20) * 1024)
    began = time.monotonic()
    file_sha256(large)
    rate = large.stat().st_size / (time.monotonic() - began) / 1e9
    return "\n".join([*lines, "", f"A file is read and hashed at {rate:.2f} GB/s."])


def bytes_of_a_sample(folder: Path, samples: int) -> float:
    """Of the ResNet-20's tables."""
    files = (folder / "whole" / "one" / "features").rglob("*.parquet")
    return sum(path.stat().st_size for path in files) / samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=8 * RESNET_PART, help="a multiple of 512")
    parser.add_argument("--write", type=Path, help="put the tables into this file, in the place of earlier ones")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = throughput(folder, options.samples)
        size = bytes_of_a_sample(folder, options.samples)
        text = f"{table}\n\nA sample takes {size:,.0f} bytes of tables.\n\n{merging(folder)}"
    put_table("scaling.py", text, options.write)


if __name__ == "__main__":
    main()
