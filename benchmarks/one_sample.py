"""What a scorer takes for one sample that comes alone, beside an ordinary training step of one sample.

    python benchmarks/one_sample.py --write docs/service.md

Each network gets a `gradscore.Detector`, with the features that are its default, fitted on a few random 32x32 images,
and its scorer is given one image at a time: raw pixels, which go through the preprocessing of the bundle. A training
step is forward, loss, backward and a step of SGD with the same network and image. They take turns in one process; a
ratio is the median of those of neighbours. Two augmentations of every sample are two more passes forward by definition,
and come in a column of their own. Processor time of one thread (`--clock cpu`) holds on a machine that does other
things, too.
"""

import argparse
import functools
import time
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from engine import alternate, processor, quartiles
from models import MODELS, build
from pages import put_table
from torch import Tensor, nn

import gradscore

NETWORKS = ("MLP 3072-1024-1024-10", "LeNet 32-64", "ResNet-20", "ViT 192x6")

LIMIT = 4.0
"""Training steps of one sample that one decision may take, with the default settings."""

PREPROCESSING = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}

AUGMENTATIONS = ["mirror", "shift:1,1"]


def scorer_of(model: nn.Module, *, augmentations: Sequence[str] = ()) -> gradscore.Scorer:
    """A scorer whose meta models were fitted on random images, a third of them labelled otherwise than predicted."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (240, 3, 32, 32), dtype=torch.uint8, generator=generator)
    with torch.no_grad():
        inputs = (pixels.float() / 255 - 0.5) / 0.25
        labels = (model(inputs).argmax(1) + (torch.arange(len(pixels)) % 3 == 0)) % 10
    detector = gradscore.Detector(
        model,
        preprocessing=PREPROCESSING,
        features={"augmentations": list(augmentations)} if augmentations else None,
        meta={"Cs": [0.01], "cv_folds": 2},
    )
    return detector.fit((pixels, labels), ood={"dark": pixels[:64] // 4}, auxiliary=[]).scorer


def training_step(model: nn.Module, image: Tensor) -> Callable[[], object]:
    trained = deepcopy(model)
    optimiser = torch.optim.SGD(trained.parameters(), lr=1e-6)
    label = torch.zeros(1, dtype=torch.int64)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(trained(image), label).backward()
        optimiser.step()

    return step


def table(options: argparse.Namespace) -> str:
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    lines = [
        f"One sample at a time, {options.threads} thread(s), float32, {options.clock} time, medians of alternating "
        f"runs, torch {torch.__version__}, {processor()}.",
        "",
        "| model | training step ms | one decision ms | ratio (quartiles) | limit | with two augmentations, ratio "
        "| samples a second, 64 at a time |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in options.models:
        model = build(name)
        plain, augmented = scorer_of(model), scorer_of(model, augmentations=AUGMENTATIONS)
        step = training_step(model, image)
        functions = [step, functools.partial(plain, pixels), functools.partial(augmented, pixels)]
        seconds = alternate(options.runs, clock, *functions)
        of_step, alone, _ = np.median(seconds, 0)
        batch = np.median(alternate(5, clock, functools.partial(plain, [pixels] * 64)))
        cells = [name, f"{1e3 * of_step:.1f}", f"{1e3 * alone:.1f}", quartiles(seconds[:, 1] / seconds[:, 0])]
        cells += [f"{LIMIT:g}", f"{np.median(seconds[:, 2] / seconds[:, 0]):.2f}", f"{64 / batch:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(NETWORKS), choices=list(MODELS))
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--write", type=Path, help="put the table into this file, in the place of an earlier one")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    put_table(Path(__file__).name, table(options), options.write)


if __name__ == "__main__":
    main()
