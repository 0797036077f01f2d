"""Speed and values against gradient_metrics, fed the same model and batch.

    python benchmarks/against_gradient_metrics.py

Both collect max, min, mean, standard deviation, L1 and L2 norm of every parameter's per-sample gradient through the
interface they share. The peer runs in an environment of its own; timed runs of the two alternate, and the ratio is that
of the medians. The values of both are compared with float64.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from environments import python_with
from models import MODELS, build, images

from gradscore import GradientMetricCollector
from gradscore.metrics import Max, MeanStd, Min, PNorm


def collector(model: torch.nn.Module) -> GradientMetricCollector:
    parameters = list(model.parameters())
    return GradientMetricCollector(
        [metric for p in parameters for metric in (Max(p), Min(p), MeanStd(p), PNorm(p), PNorm(p, p=2))]
    )


def run(collect: GradientMetricCollector, model: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, float]:
    start = time.perf_counter()
    logits = model(batch)
    values = collect(F.cross_entropy(logits, logits.argmax(1), reduction="none"))
    return values, time.perf_counter() - start


def error(values: torch.Tensor, truth: torch.Tensor) -> float:
    """Largest difference, relative to the largest element (max, min, mean, std) or to the norm itself (L1, L2)."""
    found, wanted = values.double().unflatten(1, (-1, 6)), truth.unflatten(1, (-1, 6))
    largest = wanted[..., :2].abs().amax(-1, keepdim=True)
    scale = torch.cat([largest.expand(*largest.shape[:-1], 4), wanted[..., 4:]], -1)
    return float(((found - wanted).abs() / scale.clamp(min=1e-12)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["LeNet 32-64", "ResNet-20"], choices=list(MODELS))
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    python = python_with("gradient_metrics", "gradient-metrics==0.5.0")
    torch.set_num_threads(options.threads)
    print(f"batch {options.samples}, {options.threads} threads, float32, median of {options.runs} alternating runs")
    print("| model | gradient_metrics s | first call s | gradscore s | times as fast | error | peer's error |")
    print("|---|---|---|---|---|---|---|")
    for name in options.models:
        model, batch = build(name), images(options.samples)
        collect = collector(model)
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "values.pt"
            arguments = [name, str(options.samples), str(options.threads), str(target)]
            worker = Path(__file__).with_name("peer_gradient_metrics.py")
            with subprocess.Popen(
                [python, worker, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as peer:
                assert peer.stdin is not None
                assert peer.stdout is not None
                _, first = run(collect, model, batch)
                theirs, ours = [], []
                for _ in range(options.runs):
                    peer.stdin.write("run\n")
                    peer.stdin.flush()
                    theirs.append(float(peer.stdout.readline()))
                    values, seconds = run(collect, model, batch)
                    ours.append(seconds)
                peer.stdin.close()
            peers_values = torch.load(target, weights_only=True)
        exact_model = build(name).double()
        truth, _ = run(collector(exact_model), exact_model, batch.double())
        their_time, our_time = statistics.median(theirs), statistics.median(ours)
        print(
            f"| {name} | {their_time:.2f} | {first:.2f} | {our_time:.3f} | {their_time / our_time:.0f} "
            f"| {error(values, truth):.1e} | {error(peers_values, truth):.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
