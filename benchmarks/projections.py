"""Projected gradients of a ResNet-9 beside TRAK's, and their products beside exact ones.

    python benchmarks/projections.py --images cifar10_test.npz --train cifar10_train10k.npz --write docs/projections.md

TRAK (the package `traker`) runs in an environment of its own, as its `TRAKer` does on a CPU: the gradient of the margin
of each sample's label by `torch.func`, projected by its BasicProjector. gradscore projects the gradient of the same
margin of the same network on the same images. Timed runs alternate, and the first of gradscore's is not counted.
Products of projections are compared with exact products of whole gradients over all pairs of images. The network is
TRAK's own ResNet-9 for CIFAR-10, trained here unless `--weights` has it.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from environments import python_with
from pages import put_table
from resnet9 import load_images, resnet9, trained
from scipy.stats import spearmanr

import gradscore
from gradscore.projections import Projections

TRAK = ["traker==0.3.2"]


def margin(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """log p / (1 - p) of the label, the output that TRAK differentiates."""
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return logits.gather(1, labels[:, None]).squeeze(1) - others.logsumexp(1)


class Trak:
    """TRAK in its own process; the images and the network lie in files."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.target = folder / "trak.npy"
        worker = Path(__file__).with_name("trak_worker.py")
        arguments = [options.weights, options.images, self.target, options.samples, options.dim, options.threads]
        command = [python_with("trak", *TRAK), "-W", "ignore", worker, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self) -> float:
        """Seconds of CPU time for all samples."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> np.ndarray:
        """The projections, of the gradients over the root of the number of parameters."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        return np.load(self.target)


def step(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))


def timed(function, *arguments, **options) -> tuple[float, object]:
    start = time.process_time()
    found = function(*arguments, **options)
    return time.process_time() - start, found


def correlation(products: np.ndarray, exact: np.ndarray) -> float:
    """Spearman's over all pairs of different samples."""
    pairs = np.triu_indices(len(exact), 1)
    return float(spearmanr(products[pairs], exact[pairs]).statistic)


def of_batch(loss):
    """A loss of logits and labels as one of the model and a batch."""
    return lambda model, batch: loss(model(batch[0]).double(), batch[1])


def exact_products(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, loss) -> np.ndarray:
    """(N, N) float64, of gradients of one backward pass each."""
    rows = []
    for image, label in zip(images, labels, strict=True):
        (value,) = loss(model(image[None]).double(), label[None])
        rows.append(torch.cat([each.flatten() for each in torch.autograd.grad(value, list(model.parameters()))]))
    whole = torch.stack(rows).double()
    return (whole @ whole.T).numpy()


def speed(model: torch.nn.Module, options: argparse.Namespace) -> list[str]:
    images, labels = load_images(options.images, options.samples)
    exact = exact_products(model, images, labels, margin)
    seconds: dict[str, list[float]] = {name: [] for name in ("a training step", "gradscore", "TRAK")}
    found: Projections
    with tempfile.TemporaryDirectory() as folder:
        trak = Trak(Path(folder), options)
        for turn in range(options.runs + 1):
            if turn < options.trak_runs:
                seconds["TRAK"].append(trak.run())
            seconds["a training step"].append(timed(step, model, images, labels)[0])
            took, found = timed(  # type: ignore[assignment]
                gradscore.project, model, [(images, labels)], losses=of_batch(margin), dim=options.dim
            )
            seconds["gradscore"].append(took)
        theirs = trak.close()
    median = {name: statistics.median(each if name == "TRAK" else each[1:]) for name, each in seconds.items()}
    rank = {"gradscore": correlation(found.dot(), exact), "TRAK": correlation(theirs @ theirs.T, exact)}
    size = sum(parameter.numel() for parameter in model.parameters())
    return [
        f"ResNet-9 ({size:,} parameters), {options.samples} test images of CIFAR-10, dim {options.dim}, "
        f"{options.threads} thread(s), float32, CPU time, median of {options.runs} alternating runs "
        f"({options.trak_runs} of TRAK's).",
        "",
        "| | ms a sample | training steps | times as fast as TRAK | rank correlation with exact products |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {1e3 * median[name] / options.samples:.1f} | {median[name] / median['a training step']:.2f} "
            f"| {median['TRAK'] / median[name]:.1f} | {rank[name]:.4f} |"
            for name in rank
        ),
    ]


def correlations(model: torch.nn.Module, options: argparse.Namespace) -> list[str]:
    images, labels = load_images(options.images, options.pairs)

    def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels, reduction="none")

    lines = [
        f"Spearman's rank correlation of products of projections with exact ones, all pairs of {options.pairs} images.",
        "",
        "| loss | dim 512 | dim 2048 | dim 4096 | dim 8192 | cosines, dim 4096 |",
        "|---|---|---|---|---|---|",
    ]
    for name, loss in (("cross entropy of the label", cross_entropy), ("margin of the label", margin)):
        exact = exact_products(model, images, labels, loss)
        norms = np.sqrt(np.diag(exact))
        batches = [*zip(images.split(64), labels.split(64), strict=True)]
        found = {
            dim: gradscore.project(model, batches, losses=of_batch(loss), dim=dim) for dim in (512, 2048, 4096, 8192)
        }
        figures = [correlation(each.dot(), exact) for each in found.values()]
        figures.append(correlation(found[4096].cosines(), exact / norms[:, None] / norms))
        lines.append(f"| {name} | {' | '.join(f'{figure:.4f}' for figure in figures)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--images", type=Path, required=True, help="CIFAR-10 test images, as npz with images and labels"
    )
    parser.add_argument("--train", type=Path, help="the same of training images, where there are no weights")
    parser.add_argument("--weights", type=Path, help="state dict of the network")
    parser.add_argument("--samples", type=int, default=64, help="images of the timed batch")
    parser.add_argument("--pairs", type=int, default=200, help="images for the correlations, all pairs of them")
    parser.add_argument("--dim", type=int, default=4096)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--trak-runs", type=int, default=1, help="each takes minutes, and the first counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", type=Path, help="put the tables into this file, in the place of earlier ones")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        if options.weights is None:
            options.weights = Path(folder) / "resnet9.pt"
            torch.save(trained(options.train).state_dict(), options.weights)
        model = resnet9()
        model.load_state_dict(torch.load(options.weights, weights_only=True))
        lines = [*speed(model.eval(), options), "", *correlations(model, options)]
    put_table(Path(__file__).name, "\n".join(lines), options.write)


if __name__ == "__main__":
    main()
