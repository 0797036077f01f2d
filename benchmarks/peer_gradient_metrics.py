"""Runs in the peer's environment: the metrics by gradient_metrics.

Arguments: model, samples, threads, file for the values. Every line on standard input asks for one timed run.
"""

import sys
import time

import torch
import torch.nn.functional as F  # noqa: N812
from gradient_metrics import GradientMetricCollector
from gradient_metrics.metrics import Max, MeanStd, Min, PNorm
from models import build, images

name, samples, threads, target = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(threads)
model, batch = build(name), images(samples)
parameters = list(model.parameters())
metrics = [metric for p in parameters for metric in (Max(p), Min(p), MeanStd(p), PNorm(p), PNorm(p, p=2))]
collect = GradientMetricCollector(metrics)
for _ in sys.stdin:
    start = time.perf_counter()
    logits = model(batch)
    values = collect(F.cross_entropy(logits, logits.argmax(1), reduction="none"))
    seconds = time.perf_counter() - start
    torch.save(values, target)
    print(seconds, flush=True)
