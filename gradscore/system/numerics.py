"""One place that decides what a float32 product is: full precision, and the same way every time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

EXACT = "ieee"


@contextmanager
def full_precision() -> Iterator[None]:
    """Switches off what trades digits of float32 for speed (TF32, bfloat16), and the choice of kernels by time.

    Features, thresholds and scores are compared with each other across commands and processes, and what the host
    process has switched on must not show in them. Everything is as it was afterwards. `features.autocast` stays what it
    is: the network then runs in half precision because the settings say so.
    """
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    with ExitStack() as stack:
        for backend in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn):
            stack.callback(_set, backend, backend.fp32_precision)
            _set(backend, EXACT)
        stack.callback(setattr, cudnn, "benchmark", cudnn.benchmark)
        stack.callback(setattr, cudnn, "deterministic", cudnn.deterministic)
        cudnn.benchmark, cudnn.deterministic = False, True
        yield


def _set(backend: Any, precision: str) -> None:
    backend.fp32_precision = precision
