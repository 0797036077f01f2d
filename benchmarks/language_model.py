"""Gradient norms of the sequences of GPT-2 small beside a training step, and beside Opacus' ghost norms.

    OMP_NUM_THREADS=1 python benchmarks/language_model.py --write docs/benchmarks.md

The model is made from its configuration: random weights, 124 million parameters, tied embeddings. Loss: cross entropy
of the next token, averaged over each sequence. `--size tiny` makes a small one, to try the script. Ratios are medians
of those of neighbouring runs in one process, in its own CPU time unless `--clock wall`. Peaks of memory are those of
processes of their own, of which each does one thing. Opacus runs in an environment of its own (`against_opacus`), on a
copy of the model that is changed as it demands; the values of both are compared with the reference in float64.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gpt2
import torch
import torch.nn.functional as F
from environments import ROOT, python_with
from gpt2 import seconds
from pages import put_table
from torch import Tensor, nn

SIX = ["max", "min", "mean", "std", "l1", "l2"]
SIZES: dict[str, dict[str, Any]] = {"small": {}, "tiny": {"n_embd": 48, "n_layer": 2, "n_head": 2, "vocab_size": 900}}
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}
REQUIREMENTS = ("opacus==1.6.0", "transformers==5.23.0")
NEGLIGIBLE = 1e-5
"""Gradients this much smaller than the whole one are rounding noise."""

Found = dict[str, Any]


def build(size: str) -> nn.Module:
    return gpt2.build(**SIZES[size])


def texts(size: str, samples: int, length: int) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"input_ids": torch.randint(0, SIZES[size].get("vocab_size", 50257), (samples, length))}


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    words = batch["input_ids"]
    logits = model(**batch, use_cache=False).logits[:, :-1]
    each = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten(), reduction="none")
    return each.view(len(words), -1).mean(1)


def step(model: nn.Module, batch: dict[str, Tensor]) -> None:
    model.zero_grad(set_to_none=True)
    losses(model, batch).mean().backward()


def high_water_mark() -> float:
    """Most memory this process ever held, in MiB; Linux only."""
    return float(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def ratios(options: argparse.Namespace) -> Found:
    """A training step, L2 norms and six statistics in turns."""
    from gradscore.gradients import Engine
    from gradscore.statistics import reduce_gradients

    model, batch, clock = (
        build(options.size),
        texts(options.size, options.samples, options.length),
        CLOCKS[options.clock],
    )
    engine = Engine(dict(model.named_parameters()))
    groups = {name: [name] for name in engine.parameters}

    def ours(names: list[str]) -> Callable[[], object]:
        def run() -> object:
            found = losses(model, batch)
            return reduce_gradients(engine, found, torch.ones_like(found), statistics=names, groups=groups)

        return run

    few = losses(model, {name: each[:2] for name, each in batch.items()})
    engine.learn(few, torch.ones_like(few))
    del few
    works = {"step": lambda: step(model, batch), "l2": ours(["l2"]), "six": ours(SIX)}
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.runs + 1):
        for name, work in works.items():
            taken[name].append(seconds(clock, work))
            model.zero_grad(set_to_none=True)
    parted = {name: [a / b for a, b in zip(each[1:], taken["step"][1:], strict=True)] for name, each in taken.items()}
    share = sum(p.numel() for n, p in engine.parameters.items() if engine.coverage[n] != "reference")
    return {
        "step": statistics.median(taken["step"][1:]),
        "l2": statistics.median(parted["l2"]),
        "six": statistics.median(parted["six"]),
        "share": share / sum(p.numel() for p in engine.parameters.values()),
    }


def alone(options: argparse.Namespace, names: list[str] | None) -> Found:
    """A training step alone in its process, or `gradscore.features` with its first batch and another one."""
    model, batch, clock = (
        build(options.size),
        texts(options.size, options.samples, options.length),
        CLOCKS[options.clock],
    )
    if names is None:
        step(model, batch)
        return {"peak": high_water_mark()}
    import gradscore

    times = [clock()]
    gradscore.features(
        model, [batch, batch], losses=losses, statistics=names, progress=lambda *_: times.append(clock())
    )
    return {"peak": high_water_mark(), "first": times[1] - times[0], "later": times[2] - times[1]}


def errors(options: argparse.Namespace) -> Found:
    """Largest error of each statistic of two sequences, of parameters whose gradient is above rounding."""
    import gradscore
    from gradscore.gradients import reference_gradients

    batch = texts(options.size, 2, options.length)
    table = gradscore.features(build(options.size), [batch], losses=losses, statistics=SIX)
    model = build(options.size).double()
    found = losses(model, batch)
    worst, left_out = dict.fromkeys(SIX, 0.0), set()
    for index, gradients in reference_gradients(found, torch.ones_like(found), dict(model.named_parameters())):
        whole = sum(float(each.square().sum()) for each in gradients.values()) ** 0.5
        for name, gradient in gradients.items():
            if float(gradient.norm()) < NEGLIGIBLE * whole:
                left_out.add(name)
                continue
            for statistic, (value, scale) in truths(gradient).items():
                error = abs(table[f"loss/{name}/{statistic}"][index] - value) / scale
                worst[statistic] = max(worst[statistic], float(error))
    return {"l2": worst["l2"], "six": max(worst.values()), "left_out": sorted(left_out)}


def truths(gradient: Tensor) -> dict[str, tuple[float, float]]:
    """Each statistic, and what its error is relative to: itself for norms, the largest element for the others."""
    g = gradient.flatten()
    largest, one, two = float(g.abs().max()), float(g.abs().sum()), float(g.norm())
    others = {"max": g.max(), "min": g.min(), "mean": g.mean(), "std": g.std()}
    return {"l1": (one, one), "l2": (two, two), **{name: (float(each), largest) for name, each in others.items()}}


def against_opacus(options: argparse.Namespace) -> Found:
    """Runs in the peer's environment: what it says of the model as it is, then times and norms of a changed copy."""
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping as Ghost,
    )

    warnings.simplefilter("ignore")
    model, clock = build(options.size), CLOCKS[options.clock]
    batch = texts(options.size, options.samples, options.length)
    try:
        few = {name: each[:2, :8] for name, each in batch.items()}
        losses(Ghost(build(options.size), loss_reduction="sum").train(), few).sum().backward()
        refused = ""
    except NotImplementedError as error:
        refused = str(error)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    batch["position_ids"] = torch.arange(options.length).repeat(options.samples, 1)
    plain = [seconds(clock, lambda: step(model, batch)) for _ in range(options.runs + 1)]
    wrapped, taken = Ghost(model, loss_reduction="sum").train(), []
    for _ in range(options.runs + 1):
        wrapped.zero_grad()
        taken.append(seconds(clock, lambda: losses(wrapped, batch).sum().backward()))
    known = [p for p in model.parameters() if getattr(p, "_norm_sample", None) is not None]
    share = sum(p.numel() for p in known if p is not model.lm_head.weight and p is not model.transformer.wte.weight)
    ratio = statistics.median(taken[1:]) / statistics.median(plain[1:])
    tied = model.lm_head.weight.numel()
    return {"refused": refused, "ratio": ratio, "share": share / (sum(p.numel() for p in model.parameters()) - tied)}


WORKERS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "ratios": ratios,
    "alone step": lambda options: alone(options, None),
    "alone l2": lambda options: alone(options, ["l2"]),
    "alone six": lambda options: alone(options, SIX),
    "errors": errors,
    "opacus": against_opacus,
}


def in_a_process(name: str, options: argparse.Namespace, python: Path | str = sys.executable) -> Found:
    flags = [f"--{key}={getattr(options, key)}" for key in ("size", "samples", "length", "runs", "clock", "threads")]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    if name != "opacus":
        environment["PYTHONPATH"] = str(ROOT)
    command = [str(python), __file__, "--worker", name, *flags]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: Found = json.loads(done.stdout.splitlines()[-1])
    print(name, found, file=sys.stderr, flush=True)
    return found


def table(options: argparse.Namespace, found: dict[str, Found]) -> Iterable[str]:
    timed, wrong, peer = found["ratios"], found["errors"], found["opacus"]
    columns = ["what", "training steps", "first batch, steps more", "peak MiB above a step", "largest error", "covered"]
    yield f"GPT-2 {options.size}, batch {options.samples}, {options.length} tokens, {options.threads} thread(s),"
    yield f"float32, {options.clock} time, torch {torch.__version__}; a training step takes {timed['step']:.1f} s."
    yield ""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for name, said in (("l2", "gradscore, L2 norms"), ("six", "gradscore, six statistics")):
        mine = found[f"alone {name}"]
        more = (mine["first"] - mine["later"]) / timed["step"]
        memory = mine["peak"] - found["alone step"]["peak"]
        yield f"| {said} | {timed[name]:.2f} | {more:.2f} | {memory:+.0f} | {wrong[name]:.1e} | {timed['share']:.0%} |"
    yield f"| Opacus, ghost norms | {peer['ratio']:.2f} | | | | {peer['share']:.0%} |"
    yield ""
    yield f"Opacus says of the model as it is: {peer['refused']!r}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--python", help="an interpreter with opacus and transformers, instead of a new environment")
    parser.add_argument("--write", type=Path, help="put the table into this file, in the place of an earlier one")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.worker:
        print(json.dumps(WORKERS[options.worker](options)))
        return
    peer = options.python or python_with("opacus-language", *REQUIREMENTS)
    found = {name: in_a_process(name, options, peer if name == "opacus" else sys.executable) for name in WORKERS}
    put_table(Path(__file__).name, "\n".join(table(options, found)), options.write)


if __name__ == "__main__":
    main()
