"""What each quantity of `gradscore.inspect` costs in a training loop, as a ratio to a plain training step.

    python benchmarks/inspect_overhead.py --threads 1 --clock cpu

Plain and watched steps alternate; a ratio is the median of those of neighbours. `--clock cpu` with one thread holds on
a machine that does other work, too. Batch norm is in eval mode throughout, because gradients of single samples are not
defined otherwise. "Gradients of single samples" is the floor of what looks at those: they are computed and thrown away.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from models import build, images
from torch import Tensor

from gradscore.gradients import PerSample
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
    SampleGradientQuantity,
)
from gradscore.inspect.sample_gradients import BUDGET


class Thrown(SampleGradientQuantity):
    """Asks for all gradients of single samples."""

    name = "thrown away"

    def observe(self, name: str, parameter: Tensor, gradient: PerSample) -> None:
        del name, parameter
        for _ in gradient.blocks(BUDGET):
            pass


QUANTITIES: dict[str, Callable[[], list[Quantity]]] = {
    "nothing": list,
    "OutputGradientGeometry": lambda: [OutputGradientGeometry()],
    "OutputGradientGeometry, no correlation": lambda: [OutputGradientGeometry(correlation=False)],
    "GradientGeometry": lambda: [GradientGeometry()],
    "GradientActivation": lambda: [GradientActivation()],
    "OutputActivation": lambda: [OutputActivation()],
    "OutputNorm": lambda: [OutputNorm()],
    "ParameterDifferenceGeometry": lambda: [ParameterDifferenceGeometry()],
    "gradients of single samples": lambda: [Thrown()],
    "GradHist1d": lambda: [GradHist1d()],
    "GradHist2d": lambda: [GradHist2d()],
    "MeanGSNR": lambda: [MeanGSNR()],
}


class Loop:
    """A model that trains on one batch, watched or not."""

    def __init__(self, name: str, samples: int, clock: Callable[[], float]) -> None:
        self.model = build(name)
        self.inputs, self.labels = images(samples), torch.arange(samples) % 10
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.clock = clock

    def step(self, inspector: Inspector | None) -> float:
        start = self.clock()
        self.optimizer.zero_grad()
        losses = F.cross_entropy(self.model(self.inputs), self.labels, reduction="none")
        if inspector is None:
            losses.mean().backward()
        else:
            inspector.backward(losses)
        self.optimizer.step()
        return self.clock() - start

    def ratio(self, make: Callable[[], list[Quantity]], runs: int) -> float:
        inspector = Inspector(self.model, make())
        seconds = []
        for _ in range(runs + 1):
            plain = self.step(None)
            with inspector:
                seconds.append((plain, self.step(inspector)))
        plain, watched = np.array(seconds[1:]).T
        return float(np.median(watched / plain))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["LeNet 32-64", "ResNet-20"])
    parser.add_argument("--quantities", nargs="+", default=list(QUANTITIES), choices=list(QUANTITIES))
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    loops = {name: Loop(name, options.samples, clock) for name in options.models}
    settings = f"batch {options.samples}, {options.threads} thread(s), float32, {options.clock} time"
    print(f"{settings}, median of {options.runs} ratios of alternating steps")
    print("| quantity | " + " | ".join(loops) + " |")
    print("|---|" + "---|" * len(loops))
    for name in options.quantities:
        ratios = [loop.ratio(QUANTITIES[name], options.runs) for loop in loops.values()]
        print(f"| {name} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |", flush=True)


if __name__ == "__main__":
    main()
