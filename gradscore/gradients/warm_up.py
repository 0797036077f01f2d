"""What a run does once before its first batch: learn the sample layout, and see that the images are independent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import AmplifiedRoundingError, CoupledSamplesError, EngineError
from ..system import Inputs, each_input, rows_of, sample_count
from .engine import Engine

INDEPENDENCE_TOLERANCE = 1e-2
"""Largest accepted difference between logits of an image alone and in a batch, relative to the largest logit.

Seen on seven torchvision networks: 2e-6 at most in float32 and 2e-3 in bfloat16, which is rounding; 8e-2 or more with
batch norm in training mode, for batches of 2 to 64.
"""


def prepare(engine: Engine, model: nn.Module, images: Inputs, gradient_at: Callable[[Tensor], Tensor]) -> None:
    """Probes and self-checks on a few images what a later batch would otherwise probe at its full size.

    Args:
        engine: knows the parameters of the model.
        model: in eval mode.
        images: (n, ...) a few inputs, or a mapping of such; three or four are enough.
        gradient_at: from logits (n, K) to the gradient of the losses there, of their shape.

    Raises:
        CoupledSamplesError: the output for an image depends on the other images of its batch.
        AmplifiedRoundingError: it only depends on how many there are; nothing was learned.
        EngineError: the model returns something else than logits (n, K).
    """
    count = sample_count(images)
    logits = _looked_at(model, images)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != count:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise EngineError(f"the model must return logits of shape ({count}, classes) for {count} images, got {got}")
    if count > 1:
        try:
            with torch.no_grad():
                alone = _looked_at(model, rows_of(images, slice(1)))[0]
        except (RuntimeError, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise CoupledSamplesError(
                f"the model takes {count} images but not the first of them alone ({reason}); per-sample "
                "gradients are not defined for it. Use batch norm with running statistics, in eval mode"
            ) from error
        together = logits.detach()[0]
        if bool((alone - together).abs().max() > INDEPENDENCE_TOLERANCE * together.abs().max()):
            if _is_rounding(model, images, together):
                raise AmplifiedRoundingError(
                    "the model's output for an image changes with the size of its batch "
                    f"(by {float((alone - together).abs().max()):.3g}), not with the images in it: it amplifies "
                    "rounding until nothing else is left; `gradscore inspect` shows where its gradients explode"
                )
            raise CoupledSamplesError(
                "the model's output for an image changes with the other images of its batch "
                f"(by {float((alone - together).abs().max()):.3g}); per-sample gradients are not defined for it. "
                "Put batch norm and dropout in eval mode, and remove operations that run across the batch"
            )
    engine.learn(logits, gradient_at(logits.detach()).to(logits.dtype))


def _is_rounding(model: nn.Module, images: Inputs, together: Tensor) -> bool:
    """Whether the output for the first image stays the same, bit for bit, whatever the others of its batch are.

    Batches of one shape are computed by the same operations in the same order, so that rounding cannot differ.
    """
    with torch.no_grad():
        others: Tensor = _looked_at(model, each_input(images, lambda each: each[:1].expand_as(each)))
    return torch.equal(others[0], together)


def _looked_at(model: nn.Module, images: Inputs) -> Any:
    """What a model makes of a copy of its inputs: it may work in place on what it is given."""
    return model(each_input(images, Tensor.clone))
