"""Speed and values against other tools, fed the same model and batch.

    python benchmarks/against_peers.py --write docs/benchmarks.md

All collect max, min, mean, standard deviation, L1 and L2 norm of every parameter's per-sample gradient:
gradient_metrics and gradscore through the interface they share, BackPACK and Opacus by PyTorch's own reductions of the
per-sample gradients they store, whose float32 sums are most of that error. In the rows of norms BackPACK (BatchL2Grad),
Opacus (ghost norms) and gradscore collect the L2 norm alone, for which none of them stores gradients. Each peer runs in
an environment of its own; timed runs of the two alternate, the first of each is not counted, and the ratio is that of
the medians. The values of both are compared with float64.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from environments import python_with
from models import MODELS, build, images
from pages import put_table

from gradscore import GradientMetricCollector
from gradscore.statistics.gradient_metrics import Max, MeanStd, Min, PNorm

PEERS = {
    "gradient_metrics": ["gradient-metrics==0.5.0"],
    "backpack": ["backpack-for-pytorch==1.7.1"],
    "opacus": ["opacus==1.5.4"],
}
NORMS = " norms"
"""End of the names of what collects L2 norms alone."""
REFUSED = {"backpack": {"ViT 192x6"}, "opacus": {"ResNet-20", "ResNet-56", "MobileNet 0.5", "ResNet-18"}}
"""BackPACK knows no layers of this ViT, Opacus no batch norm that learns in eval mode."""


def collector(model: torch.nn.Module, *, norms: bool) -> GradientMetricCollector:
    parameters = list(model.parameters())
    if norms:
        return GradientMetricCollector([PNorm(p, p=2) for p in parameters])
    return GradientMetricCollector(
        [metric for p in parameters for metric in (Max(p), Min(p), MeanStd(p), PNorm(p), PNorm(p, p=2))]
    )


def run(collect: GradientMetricCollector, model: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, float]:
    start = time.perf_counter()
    logits = model(batch)
    values = collect(F.cross_entropy(logits, logits.argmax(1), reduction="none"))
    return values, time.perf_counter() - start


def error(values: torch.Tensor, truth: torch.Tensor, *, norms: bool) -> float:
    """Largest difference, relative to the largest element (max, min, mean, std) or to the norm itself (L1, L2)."""
    if norms:
        return float(((values.double() - truth).abs() / truth.clamp(min=1e-12)).max())
    found, wanted = values.double().unflatten(1, (-1, 6)), truth.unflatten(1, (-1, 6))
    largest = wanted[..., :2].abs().amax(-1, keepdim=True)
    scale = torch.cat([largest.expand(*largest.shape[:-1], 4), wanted[..., 4:]], -1)
    return float(((found - wanted).abs() / scale.clamp(min=1e-12)).max())


def compare(peer: str, name: str, options: argparse.Namespace) -> str:
    """One line of the table."""
    model, batch = build(name), images(options.samples)
    tool = peer.removesuffix(NORMS)
    norms = tool != peer
    collect = collector(model, norms=norms)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "values.pt"
        arguments = [peer, name, str(options.samples), str(options.threads), str(target)]
        worker = Path(__file__).with_name("peer_worker.py")
        command = [python_with(tool, *PEERS[tool]), "-W", "ignore", worker, *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            theirs, ours = [], []
            for _ in range(options.runs + 1):
                process.stdin.write("run\n")
                process.stdin.flush()
                theirs.append(float(process.stdout.readline()))
                values, seconds = run(collect, model, batch)
                ours.append(seconds)
            process.stdin.close()
        peers_values = torch.load(target, weights_only=True)
    exact_model = build(name).double()
    truth, _ = run(collector(exact_model, norms=norms), exact_model, batch.double())
    their_time, our_time = statistics.median(theirs[1:]), statistics.median(ours[1:])
    return (
        f"| {peer} | {name} | {our_time:.3f} | {their_time / our_time:.1f} "
        f"| {error(values, truth, norms=norms):.1e} | {error(peers_values, truth, norms=norms):.1e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = [*PEERS, f"backpack{NORMS}", f"opacus{NORMS}"]
    parser.add_argument("--peers", nargs="+", default=peers, choices=peers)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", type=Path, help="put the table into this file, in the place of an earlier one")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = [
        f"Batch {options.samples}, {options.threads} thread(s), float32, wall time, {options.runs} alternating runs.",
        "",
        "| peer | model | gradscore s | times as fast | error | peer's error |",
        "|---|---|---|---|---|---|",
    ]
    for peer in options.peers:
        for name in options.models:
            if name not in REFUSED.get(peer.removesuffix(NORMS), ()):
                lines.append(compare(peer, name, options))
                print(lines[-1], file=sys.stderr, flush=True)
    put_table(Path(__file__).name, "\n".join(lines), options.write)


if __name__ == "__main__":
    main()
