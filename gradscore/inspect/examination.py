"""Examining a saved model: what is not well, tried out where looking is not enough."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor, nn

from .finding import Finding, said
from .findings import constant, contradicted, diagnose
from .hooks import first_tensor, leaf_modules, learning_modules
from .influence import confirmed, matters, replaced
from .quantities.geometry import precise_norm
from .sample_groups import Group
from .vitals import Vitals

NUDGE = 1e-2
"""Length of the step which parameters that are all zero are moved by."""

SMALL = 0.1
"""Scales that begin so small, or smaller, hold a branch back until it has learned: 1e-6 to 0.1 are usual."""


def examine(model: nn.Module, batches: Sequence[Group]) -> list[Finding]:
    """Runs a model forwards and backwards and names what is not well.

    The gradients have one size at the logits of every sample: whether they get through a network does not depend on the
    loss, and that of a sample the network is certain of may be too small for any number. Where
    gradients end or shrink because parameters begin at zero, or all at one small value, to hold a branch back until it
    has learned, the network is looked at as it is once they have moved. A layer that no gradient reaches is dead only
    if the logits would change with what it returns.

    Args:
        model: in eval mode, on the device of the batches, returns logits.
        batches: samples; the model and they are left as they are.

    Returns:
        The findings, the gravest first; none if nothing stands out.
    """
    parameters = dict(model.named_parameters())
    vitals, gradients, logits = _run(model, batches)
    found = diagnose(vitals, parameters)
    held = {
        name: moved for name, gradient in gradients.items() if (moved := _moved(parameters[name], gradient)) is not None
    }
    if not any(finding.kind in ("dead layer", "vanishing") for finding in found):
        held = {}
    with replaced(parameters, held):
        last = _run(model, batches)[0] if held else vitals
        images = batches[0].images
        found = confirmed(
            last, parameters, lambda site: matters(model, site, lambda: first_tensor(model(images.clone())))
        )
    found = found or _cut_off(model, vitals, batches[0]) or _shut(vitals, held)
    return found or contradicted(logits, torch.cat([batch.labels for batch in batches]))


def _run(model: nn.Module, batches: Iterable[Group]) -> tuple[Vitals, dict[str, Tensor], Tensor]:
    """Figures of the layers, the summed gradients of the parameters that get one, and logits on the CPU."""
    vitals = Vitals(model, learning_modules(model))
    wanted = {name: each for name, each in model.named_parameters() if each.requires_grad}
    totals: dict[str, Tensor] = {}
    logits = []
    with ExitStack() as stack:
        vitals.attach(stack)
        for batch in batches:
            outputs, found = run_once(vitals, batch.images, list(wanted.values()))
            logits.append(outputs.cpu())
            for name, gradient in zip(wanted, found, strict=True):
                if gradient is not None and bool(gradient.any()):
                    totals[name] = totals[name] + gradient if name in totals else gradient
    return vitals, totals, torch.cat(logits)


def run_once(vitals: Vitals, images: Tensor, wanted: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
    """Runs a batch forwards and backwards.

    Args:
        vitals: attached to the model.
        images: (N, ...).
        wanted: parameters.

    Returns:
        Logits (N, K), and the gradients of the parameters, None for those that the logits do not depend on.
    """
    if images.is_floating_point():
        images = images.detach().requires_grad_()  # so that gradients pass frozen layers as well
    vitals.active = True
    try:
        logits = first_tensor(vitals.model(images.clone()))  # it may work in place on what it is given
        assert logits is not None
        inputs = [*wanted, *([images] if images.requires_grad else [])]
        found: Sequence[Tensor | None] = [None] * len(inputs)
        if logits.requires_grad and inputs:
            found = torch.autograd.grad(
                logits, inputs, direction_of(logits.detach()), retain_graph=True, allow_unused=True
            )
    finally:
        vitals.active = False
    return logits.detach(), list(found[: len(wanted)])


def direction_of(logits: Tensor) -> Tensor:
    """For every sample the direction in which the predicted class gains on the others, of norm 1; (N, K)."""
    chosen = nn.functional.one_hot(logits.nan_to_num().argmax(1), logits.shape[1]).to(logits.dtype)
    direction: Tensor = chosen - 1 / logits.shape[1]
    norms: Tensor = direction.norm(dim=1, keepdim=True)
    return direction / norms


def _moved(parameter: nn.Parameter, gradient: Tensor) -> Tensor | None:
    """Where a parameter goes that holds a branch back; None for any other."""
    values = parameter.detach()
    first = values.flatten()[0].item() if values.numel() else 1.0
    if not abs(first) <= SMALL or not bool((values == first).all()):
        return None
    if first:
        return torch.ones_like(values)
    # Gradients of batches may cancel.
    size = float(precise_norm(gradient))
    return NUDGE / size * gradient if size else None


def _shut(vitals: Vitals, held: Collection[str]) -> list[Finding]:
    """Outputs that are the same for every sample, in a network that is well but for a last layer that is held back."""
    return [
        replace(finding, sentence=f"{finding.sentence}: its weight is all one small value, or zero, as before training")
        for finding in constant(vitals)
        if held and set(vitals.layers[finding.layer].parameters) & set(held)
    ]


def _cut_off(model: nn.Module, vitals: Vitals, batch: Group) -> list[Finding]:
    """Layers whose outputs matter to the logits, but not by way of the graph: something in between is detached."""
    learning = {name for name, each in model.named_parameters() if each.requires_grad}
    modules = leaf_modules(model)
    lost = [
        site
        for site, layer in vitals.layers.items()
        if site in modules and site not in vitals.behind and learning.intersection(layer.parameters)
    ]
    for site in reversed(lost):
        if matters(model, site, lambda: first_tensor(model(batch.images.clone()))):
            sentence = (
                f"{said(vitals, site)} is cut off: the outputs depend on it, but no gradient comes back to it; look "
                "for detach() or no_grad() behind it"
            )
            return [Finding("cut off", site, sentence, tuple(each for each in lost if each != site))]
    return []
