"""What each quantity of `gradscore.inspect` costs in a training loop, as a ratio to a plain training step.

    python benchmarks/inspect_overhead.py

Plain and watched steps alternate; the ratio is that of the fastest of each, which other work on the machine
disturbs least. Batch norm is in eval mode throughout, because
gradients of single samples are not defined otherwise.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from models import build, images

from gradscore.inspect import (
    GradHist1d,
    GradHist2d,
    GradientActivation,
    GradientGeometry,
    Inspector,
    MeanGSNR,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterDifferenceGeometry,
    Quantity,
)

QUANTITIES: dict[str, Callable[[], list[Quantity]]] = {
    "nothing": list,
    "OutputGradientGeometry": lambda: [OutputGradientGeometry()],
    "OutputGradientGeometry, no correlation": lambda: [OutputGradientGeometry(compute_correlation=False)],
    "GradientGeometry": lambda: [GradientGeometry()],
    "GradientActivation": lambda: [GradientActivation()],
    "OutputActivation": lambda: [OutputActivation()],
    "OutputNorm": lambda: [OutputNorm()],
    "ParameterDifferenceGeometry": lambda: [ParameterDifferenceGeometry()],
    "GradHist1d": lambda: [GradHist1d()],
    "GradHist2d": lambda: [GradHist2d()],
    "MeanGSNR": lambda: [MeanGSNR()],
}


class Loop:
    """A model that trains on one batch, watched or not."""

    def __init__(self, name: str, samples: int) -> None:
        self.model = build(name)
        self.inputs, self.labels = images(samples), torch.arange(samples) % 10
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def step(self, inspector: Inspector | None) -> float:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        losses = F.cross_entropy(self.model(self.inputs), self.labels, reduction="none")
        if inspector is not None:
            inspector.observe_losses(losses)
        losses.mean().backward()
        self.optimizer.step()
        return time.perf_counter() - start

    def ratio(self, make: Callable[[], list[Quantity]], runs: int) -> float:
        inspector = Inspector(self.model, make())
        plain, watched = [], []
        for _ in range(runs + 1):
            plain.append(self.step(None))
            with inspector:
                watched.append(self.step(inspector))
        return min(watched[1:]) / min(plain[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["LeNet 32-64", "ResNet-20"])
    parser.add_argument("--quantities", nargs="+", default=list(QUANTITIES), choices=list(QUANTITIES))
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loops = {name: Loop(name, options.samples) for name in options.models}
    print(f"batch {options.samples}, {options.threads} threads, float32, fastest of {options.runs} alternating steps")
    print("| quantity | " + " | ".join(loops) + " |")
    print("|---|" + "---|" * len(loops))
    for name in options.quantities:
        ratios = [loop.ratio(QUANTITIES[name], options.runs) for loop in loops.values()]
        print(f"| {name} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |", flush=True)


if __name__ == "__main__":
    main()
