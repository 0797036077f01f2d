"""Runs in a peer's environment: statistics of every per-sample gradient, by parameter.

They are max, min, mean, standard deviation, L1 and L2, or L2 alone for what computes norms without the gradients.

Arguments: peer, model, samples, threads, file for the values. Every line on standard input asks for one timed run.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from models import build, images
from torch import Tensor, nn


def gradient_metrics(model: nn.Module) -> Callable[[Tensor], Tensor]:
    from gradient_metrics import GradientMetricCollector
    from gradient_metrics.metrics import Max, MeanStd, Min, PNorm

    metrics = [m for p in model.parameters() for m in (Max(p), Min(p), MeanStd(p), PNorm(p), PNorm(p, p=2))]
    collect = GradientMetricCollector(metrics)

    def run(batch: Tensor) -> Tensor:
        logits = model(batch)
        return collect(F.cross_entropy(logits, logits.argmax(1), reduction="none"))

    return run


def backpack(model: nn.Module, *, norms: bool = False) -> Callable[[Tensor], Tensor]:
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad, BatchL2Grad

    extended, loss = extend(model), extend(nn.CrossEntropyLoss(reduction="sum"))

    def run(batch: Tensor) -> Tensor:
        model.zero_grad()
        logits = extended(batch)
        with backpack(BatchL2Grad() if norms else BatchGrad()):
            loss(logits, logits.argmax(1)).backward()
        if norms:
            return torch.stack([p.batch_l2.sqrt() for p in model.parameters()], 1)
        return reduced([p.grad_batch for p in model.parameters()])

    return run


def opacus(model: nn.Module, *, norms: bool = False) -> Callable[[Tensor], Tensor]:
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    ghost = partial(GradSampleModuleFastGradientClipping, max_grad_norm=1.0, use_ghost_clipping=True)
    # It records nothing in eval mode; the models it runs behave alike in both.
    wrapped = (ghost if norms else GradSampleModule)(model, loss_reduction="sum").train()

    def run(batch: Tensor) -> Tensor:
        wrapped.zero_grad()
        logits = wrapped(batch)
        F.cross_entropy(logits, logits.argmax(1), reduction="sum").backward()
        if norms:
            return torch.stack([p._norm_sample for p in model.parameters()], 1)
        return reduced([p.grad_sample for p in model.parameters()])

    return run


def reduced(gradients: list[Tensor]) -> Tensor:
    """(N, 6 statistics of every parameter) by PyTorch's own reductions."""
    columns = []
    for gradient in gradients:
        flat = gradient.flatten(1)
        columns += [flat.amax(1), flat.amin(1), flat.mean(1), flat.std(1), flat.norm(1, 1), flat.norm(2, 1)]
    return torch.stack(columns, 1)


PEERS = {
    "gradient_metrics": gradient_metrics,
    "backpack": backpack,
    "opacus": opacus,
    "backpack norms": partial(backpack, norms=True),
    "opacus norms": partial(opacus, norms=True),
}


def main(peer: str, name: str, samples: str, threads: str, target: str) -> None:
    torch.set_num_threads(int(threads))
    batch = images(int(samples))
    run = PEERS[peer](build(name))
    for _ in sys.stdin:
        start = time.perf_counter()
        values = run(batch)
        seconds = time.perf_counter() - start
        torch.save(values.detach(), target)
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
