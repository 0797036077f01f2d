"""A GPT-2 with random weights, and how long a call takes; no gradscore is needed, so peers can run it too."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def build(**config: Any) -> nn.Module:
    """With tied embeddings, in eval mode; `config` is of its size."""
    try:
        from gradscore.system import import_torchvision
    except ImportError:
        sys.modules["torchvision"] = None  # type: ignore[assignment]  # a wheel that does not fit a CPU build of torch
    else:
        import_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    options = {"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**config, **options)).eval()


def seconds(clock: Callable[[], float], function: Callable[[], object]) -> float:
    start = clock()
    function()
    return clock() - start
