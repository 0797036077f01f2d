"""Losses of one sample, by name or as a function of logits and labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import ConfigError, CoupledSamplesError, EngineError
from ..losses import LOSSES, LogitGradient, normalised

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""From logits (N, K) float64 and labels (N,) int64, -1 for none, to the losses (N,)."""

ALONE = 1e-9
"""Largest change of a loss with the other samples of its batch, relative to itself: a million roundings of float64."""


def named(loss: str | Callable[..., Tensor]) -> str:
    """What a loss is called."""
    return loss if isinstance(loss, str) else getattr(loss, "__qualname__", type(loss).__qualname__)


def check_loss(loss: str | LossFunction) -> None:
    """Makes sure that there is such a loss, with one gradient.

    Raises:
        ConfigError: there is not.
    """
    if not isinstance(loss, str):
        if not callable(loss):
            raise ConfigError(
                f"loss: wanted a name ({', '.join(LOSSES)}) or a function of logits and labels, got "
                f"{type(loss).__name__}"
            )
    elif LOSSES.find(loss, where="loss").several:
        single = ", ".join(name for name in LOSSES if not LOSSES[name].several)
        raise ConfigError(f"loss: '{loss}' has several gradients; choose one of {single}, or give a function")


def gradient_at(loss: str | LossFunction, logits: Tensor, labels: Tensor) -> LogitGradient:
    """The gradient of every sample's loss at its logits.

    Args:
        loss: a name, or a function that PyTorch can differentiate.
        logits: (N, K), detached.
        labels: (N,) int64, -1 for none.

    Raises:
        EngineError: the function cannot take them, or returns something else than one loss for each sample.
    """
    if isinstance(loss, str):
        return LOSSES[loss](logits, labels)
    inputs = logits.detach().double().requires_grad_()
    with torch.enable_grad():
        values = _values(loss, inputs, labels)
        (found,) = torch.autograd.grad(values.sum(), inputs, allow_unused=True)
    gradient = torch.zeros_like(inputs) if found is None else found
    return normalised(gradient.detach(), torch.zeros_like(gradient[:, 0]), values.detach().double())


def check_alone(loss: str | LossFunction, logits: Tensor, labels: Tensor) -> None:
    """Makes sure that the loss of a sample does not change with the others of its batch.

    Raises:
        CoupledSamplesError: it does.
        EngineError: as `gradient_at`.
    """
    if isinstance(loss, str):
        return
    parts = [slice(place, place + 1) for place in range(len(logits))]
    _compare_parts(loss, logits, labels, gradient_at(loss, logits, labels).value, parts)


def check_halves(loss: str | LossFunction, logits: Tensor, labels: Tensor, values: Tensor) -> None:
    """Makes sure that the losses (N,) of a batch are those of its two halves; raises as `check_alone`."""
    half = len(logits) // 2
    if not isinstance(loss, str) and half:
        _compare_parts(loss, logits, labels, values, [slice(0, half), slice(half, None)])


def _compare_parts(
    loss: LossFunction, logits: Tensor, labels: Tensor, together: Tensor, parts: Sequence[slice]
) -> None:
    for part in parts:
        apart = gradient_at(loss, logits[part], labels[part]).value
        differ = (apart - together[part]).abs() > ALONE * apart.abs()
        if bool(differ.any()):
            place = int(differ.int().argmax())
            raise CoupledSamplesError(
                f"the loss '{named(loss)}' of a sample changes with the others of its batch (from "
                f"{float(apart[place]):.6g} to {float(together[part][place]):.6g}); it must return the loss of each "
                "sample by itself"
            )


def _values(loss: LossFunction, logits: Tensor, labels: Tensor) -> Tensor:
    try:
        values = loss(logits, labels.to(logits.device, copy=True))  # which the function may write into
    except Exception as error:  # the function is anyone's and may raise anything
        missing = int((labels < 0).sum())
        some = f" ({missing} of {len(labels)} samples have no label, which is -1)" if missing else ""
        wide = "; logits are float64, so weights have to be, too" if "Double" in str(error) else ""
        raise EngineError(
            f"loss '{named(loss)}': cannot take logits {tuple(logits.shape)} and labels {tuple(labels.shape)}{some}: "
            f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}{wide}"
        ) from error
    if isinstance(values, Tensor) and not values.requires_grad:
        raise EngineError(
            f"loss '{named(loss)}': it does not depend on the logits in a way that can be differentiated; compute it "
            "from them with PyTorch, outside no_grad and inference_mode"
        )
    if not isinstance(values, Tensor) or values.shape != (len(logits),):
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise EngineError(
            f"loss '{named(loss)}': wanted one loss for each sample, shape ({len(logits)},), got {got}; "
            'of a loss of PyTorch, use reduction="none"'
        )
    return values
