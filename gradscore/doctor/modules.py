"""What the modules and parameters of a model tell before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from ..models import to_eval
from .findings import Finding, note, problem, some, warning


def check_modules(model: nn.Module) -> list[Finding]:
    """Looks at modes, and at parameters that are frozen, shared or not finite.

    Args:
        model: as it would be scored.

    Returns:
        The findings.
    """
    return [*_modes(model), *_parameters(model)]


def _modes(model: nn.Module) -> Iterator[Finding]:
    training = {name or "the model": module for name, module in model.named_modules() if module.training}
    norms = [
        name
        for name, module in training.items()
        if isinstance(module, _BatchNorm) and not isinstance(module, _InstanceNorm)
    ]
    dropouts = [name for name, module in training.items() if isinstance(module, _DropoutNd) and module.p > 0]
    if norms:
        yield problem(
            "batch norm in training mode",
            f"{some(norms)}: the output of a sample depends on its batch; call model.eval() before scoring",
        )
    if dropouts:
        yield problem(
            "dropout in training mode",
            f"{some(dropouts)}: outputs change from call to call; call model.eval() before scoring",
        )
    if training and not norms and not dropouts:
        yield warning(
            "training mode",
            f"{some(list(training))}: none of the usual layers that care, but call model.eval() before scoring",
        )
    frozen_norms = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and not module.training and module.running_mean is None
    ]
    if frozen_norms:
        yield problem(
            "batch norm without running statistics",
            f"{some(frozen_norms)}: it normalises over the batch in eval mode too; train with track_running_stats=True",
        )


def _parameters(model: nn.Module) -> Iterator[Finding]:
    parameters = dict(model.named_parameters())
    if not parameters:
        yield problem("no parameters", "the model has none, so there are no gradients; pass the classifier itself")
        return
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    if len(frozen) == len(parameters):
        yield problem("frozen parameters", "all of them; call model.requires_grad_(True) before scoring")
    elif frozen:
        yield warning(
            "frozen parameters",
            f"{some(frozen)}: requires_grad is False, so their features are zero; set it to True, or leave them out by "
            "features.parameters",
        )
    broken = [name for name, parameter in parameters.items() if not bool(torch.isfinite(parameter).all())]
    if broken:
        yield problem(
            "parameters that are not finite", f"{some(broken)}: the checkpoint is damaged or training diverged"
        )
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    shared = [" = ".join(group) for group in names.values() if len(group) > 1]
    if shared:
        yield note(
            "shared parameters", f"{some(shared)}: one tensor, whose gradient adds up all uses under its first name"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model in eval mode, and every module back in its own mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    to_eval(model)
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
