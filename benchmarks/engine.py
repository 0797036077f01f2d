"""Speed, memory and accuracy beside an ordinary training step and `torch.func.vmap`.

    python benchmarks/engine.py --write docs/benchmarks.md
    python benchmarks/engine.py --device cuda --samples 512

Six statistics (max, min, mean, standard deviation, L1 and L2 norm) of every parameter's per-sample gradient, of
random 32x32 images. A training step is forward and backward of the same model and batch. `gradscore` is given the
outputs of a forward pass, as `GradientMetricCollector` is; what `extract` does is measured with one loss and with two.
Runs alternate in one process, and a ratio is the median of those of neighbours. `--clock cpu` with one thread holds on
a machine that does other things, too. The values of one batch are compared with the reference in float64; memory is the
peak of a process of its own.
"""

import argparse
import functools
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from models import MODELS, build, images
from pages import put_table
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from gradscore import kernels
from gradscore.config import FeaturesConfig
from gradscore.extractor import Extractor
from gradscore.gradients import Engine, prepare, reference_gradients
from gradscore.statistics import reduce_gradients
from gradscore.system import full_precision

STATISTICS = ("max", "min", "mean", "std", "l1", "l2")
LIMITS = {
    "MLP 3072-1024-1024-10": 0.7, "LeNet 32-64": 1.05, "ResNet-20": 1.1, "ResNet-56": 1.1, "MobileNet 0.5": 1.1,
    "ResNet-18": 0.95, "ViT 192x6": 1.05,
}  # fmt: skip
CHUNK = 16


def step(model: nn.Module, batch: Tensor) -> None:
    logits = model(batch)
    torch.autograd.grad(F.cross_entropy(logits, logits.argmax(1)), list(model.parameters()))


def upstream(logits: Tensor) -> Tensor:
    """Gradient of the cross entropy against the predicted class."""
    return torch.softmax(logits.detach(), 1) - F.one_hot(logits.argmax(1), logits.shape[1]).to(logits.dtype)


def gradscore(
    engine: Engine,
    model: nn.Module,
    batch: Tensor,
    *,
    names: tuple[str, ...] = STATISTICS,
    gradient: Tensor | None = None,
) -> dict[str, Tensor]:
    logits = model(batch)
    gradient = upstream(logits) if gradient is None else gradient
    groups = {name: [name] for name in engine.parameters}
    return reduce_gradients(engine, logits, gradient, statistics=names, groups=groups)


def extractor_values(model: nn.Module, batch: Tensor) -> Callable[[], object]:
    """What `extract` does with a batch, after its first samples."""
    settings = FeaturesConfig(losses=["pseudo_label"], statistics=list(STATISTICS))
    extractor = Extractor(model, features=settings, num_classes=10)
    extractor.prepare(batch[:3])
    return functools.partial(extractor.values, batch)


def with_vmap(model: nn.Module, batch: Tensor) -> list[Tensor]:
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(weights: dict[str, Tensor], image: Tensor) -> Tensor:
        logits = functional_call(model, (weights, buffers), (image.unsqueeze(0),))
        return F.cross_entropy(logits, logits.detach().argmax(1))

    found = []
    for images_of_chunk in batch.split(CHUNK):
        for gradient in vmap(grad(loss), (None, 0))(parameters, images_of_chunk).values():
            flat = gradient.flatten(1)
            reductions = (flat.amax(1), flat.amin(1), flat.mean(1), flat.std(1), flat.norm(1, 1), flat.norm(2, 1))
            found.append(torch.stack(reductions))
    return found


def wait() -> None:
    """Until an accelerator has done what it was given."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def alternate(runs: int, clock: Callable[[], float], *functions: Callable[[], object]) -> np.ndarray:
    """Seconds (runs, functions) of functions that take turns; first runs are not counted.

    Threads spin for some milliseconds after a function has ended, so each is called once more before it is timed.
    """
    seconds = np.empty((runs + 1, len(functions)))
    for run in range(runs + 1):
        for place, function in enumerate(functions):
            function()
            wait()
            start = clock()
            function()
            wait()
            seconds[run, place] = clock() - start
    return seconds[1:]


def computes(device: str) -> str:
    """What computes: PyTorch's own products, and with them all ratios, depend on it."""
    if device != "cpu":
        return torch.get_device_module(device).get_device_name()
    vectors = torch.backends.cpu.get_cpu_capability()
    names = Path("/proc/cpuinfo")
    named = [line for line in names.read_text().splitlines() if line.startswith("model name")] if names.exists() else []
    return f"{named[0].split(':')[1].strip() if named else platform.machine()}, {vectors}"


def rounds(function: Callable[[], object], options: argparse.Namespace) -> int:
    """How often two or three functions as slow as this one can take turns in the time there is."""
    function()
    wait()
    start = time.perf_counter()
    function()
    wait()
    return max(5, int(options.seconds / (3 * (time.perf_counter() - start))))


def self_check(model: nn.Module, batch: Tensor) -> None:
    """What a run does once: learn the layout, and compare with the reference."""
    prepare(Engine(dict(model.named_parameters())), model, batch[:3], upstream)


def error(name: str, samples: int, dtype: torch.dtype, device: str) -> float:
    """Largest difference to the reference in float64, relative to the norm (L1, L2) or the largest element."""
    truth_model, truth_batch = build(name).double(), images(samples).double()
    parameters = dict(truth_model.named_parameters())
    logits = truth_model(truth_batch)
    gradient = upstream(logits)
    model, batch = build(name).to(device, dtype), images(samples).to(device, dtype)
    engine = Engine(dict(model.named_parameters()))
    found = gradscore(engine, model, batch, gradient=gradient.to(device, dtype))
    worst = 0.0
    for index, gradients in reference_gradients(logits, gradient, parameters):
        for parameter, values in gradients.items():
            g = values.flatten().numpy()  # NumPy adds pairwise; torch's own norms are good to 1e-13
            largest = np.abs(g).max()
            if not largest:
                continue
            deviation = g.std(ddof=1) if g.size > 1 else 0.0
            truth = {"max": g.max(), "min": g.min(), "mean": g.mean(), "std": deviation}
            truth |= {"l1": np.abs(g).sum(), "l2": np.sqrt((g * g).sum())}
            for statistic, value in truth.items():
                scale = value if statistic in ("l1", "l2") else largest
                worst = max(worst, abs(float((found[f"{parameter}/{statistic}"][index] - value) / scale)))
    return worst


def peak(name: str, what: str, options: argparse.Namespace) -> float:
    """Peak memory in MiB above that of the loaded model and batch, in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", name, what, "--threads", str(options.threads)]
    command += ["--device", options.device, "--samples", str(options.samples)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(name: str, what: str, options: argparse.Namespace) -> None:
    model, batch = build(name).to(options.device), images(options.samples).to(options.device)
    engine = Engine(dict(model.named_parameters()), self_check=False)
    small = batch[:2]
    work = {
        "step": functools.partial(step, model),
        "gradscore": functools.partial(gradscore, engine, model),
    }[what]
    work(small)  # loads the libraries
    before = high_water_mark(options.device)
    work(batch)
    work(batch)
    print(high_water_mark(options.device) - before)


def high_water_mark(device: str) -> float:
    """Most memory this process ever held, in MiB, on an accelerator or, on Linux, by the processor."""
    if device != "cpu":
        return float(torch.get_device_module(device).max_memory_allocated()) / 2**20
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0]) / 1024


def quartiles(ratios: np.ndarray) -> str:
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def table(options: argparse.Namespace) -> str:
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    compiled = "with" if kernels.row_sums(torch.ones(1, 1)) is not None else "without"
    settings = f"Batch {options.samples}, {options.threads} thread(s), float32, {options.clock} time, alternating runs"
    columns = ["model", "gradscore ms", "ratio (quartiles)", "limit"]
    columns += ["times as fast as vmap"]
    columns += ["self-check, share of 1,000 samples", "error float32", "error float64", "peak MiB: step", "gradscore"]
    lines = [
        f"{settings}, torch {torch.__version__}, {compiled} the extra `fast`, {computes(options.device)}.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for name in options.models:
        model, batch = build(name).to(options.device), images(options.samples).to(options.device)
        engine = Engine(dict(model.named_parameters()))
        one_step = functools.partial(step, model, batch)
        whole = functools.partial(gradscore, engine, model, batch)
        turns = rounds(one_step, options)
        seconds = alternate(turns, clock, one_step, whole, extractor_values(model, batch))
        _, ours, extracted = np.median(seconds, 0)
        check = np.median(alternate(3, clock, functools.partial(self_check, model, batch)))
        slow = alternate(options.vmap_runs, clock, functools.partial(with_vmap, model, batch), whole)
        memory = [peak(name, what, options) for what in ("step", "gradscore")]
        errors = [error(name, 4, dtype, options.device) for dtype in (torch.float32, torch.float64)]
        cells = [name, f"{1e3 * ours:.1f}"]
        cells += [quartiles(seconds[:, 1] / seconds[:, 0]), f"{LIMITS[name]}"]
        cells += [f"{np.median(slow[:, 0] / slow[:, 1]):.1f}"]
        cells += [f"{check / (check + 1000 / options.samples * extracted):.1%}"]
        cells += [*(f"{each:.1e}" for each in errors), *(f"{each:.0f}" for each in memory)]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seconds", type=float, default=20, help="time for the alternating runs of a model")
    parser.add_argument("--vmap-runs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=64, help="of a batch")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--write", type=Path, help="put the table into this file, in the place of an earlier one")
    parser.add_argument("--memory-of", nargs=2, metavar=("MODEL", "WHAT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        with full_precision():
            print_peak(*options.memory_of, options)
        return
    with full_precision():
        put_table(Path(__file__).name, table(options), options.write)


if __name__ == "__main__":
    main()
