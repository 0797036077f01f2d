"""Recurrent layers, or steps of them, that run as one node; others need no rule of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..factored import Dense, Factored, PerSample
from ..graph import Gradients
from .use import NotCoveredError, Use

LSTM_MODE = 2


def lstm_layer(use: Use, gradients: Gradients) -> PerSample:
    """One direction of one layer of an LSTM (oneDNN): weights (slots 1 and 2) and biases (slots 3 and 4).

    The node keeps its inputs and weights. The states are computed again step by step, which gives the gradient at the
    four gates of every step; weights and biases follow from it as for linear layers.
    """
    if use.setting("mode") != LSTM_MODE or not 1 <= use.slot <= 4:
        raise NotCoveredError("not a weight of an LSTM")
    steps = use.saved("input")
    if use.layout.samples != steps.shape[1] or use.layout.repeats != 1:
        raise NotCoveredError("the samples are not the batch of the layer")
    steps = steps.flip(0) if use.setting("reverse") else steps
    states, gates = lstm_gates(use, steps, gradients)
    if use.slot > 2:
        return Dense(gates.sum(0))
    factor = steps if use.slot == 1 else states
    left, right = (item.permute(1, 2, 0).unsqueeze(1) for item in (gates, factor))
    return Factored(left, right, use.shape)


def lstm_gates(use: Use, steps: Tensor, gradients: Gradients) -> tuple[Tensor, Tensor]:
    """Hidden states before every step (T, N, H) and gradients at its gates before their activation (T, N, 4 H).

    Source: the equations in the documentation of `torch.nn.LSTM`; gates in the order input, forget, cell, output.
    """
    weights = use.saved("weight0"), use.saved("weight1")
    biases = use.saved("weight2") + use.saved("weight3") if use.setting("has_biases") else weights[0].new_zeros(())
    hidden, cell = use.saved("hx_"), use.saved("cx_")
    before, gates, after = [], [], []
    with torch.enable_grad():
        # Nothing but this leaf needs a gradient, so the little graph ends at the gates.
        start = torch.zeros((), dtype=steps.dtype, device=steps.device, requires_grad=True)
        for step in steps:
            before.append(hidden.detach())
            gates.append(torch.addmm(biases, step, weights[0].t()) + hidden @ weights[1].t() + start)
            hidden, cell = _lstm_step(gates[-1], cell)
            after.append(hidden)
        at_steps, at_hidden, at_cell = (*gradients, None, None)[:3]
        if at_steps is not None and use.setting("reverse"):
            at_steps = at_steps.flip(0)
        ends = [
            (tensor, gradient.reshape(tensor.shape))
            for tensor, gradient in ((torch.stack(after), at_steps), (hidden, at_hidden), (cell, at_cell))
            if gradient is not None
        ]
    found = torch.autograd.grad([tensor for tensor, _ in ends], gates, [gradient for _, gradient in ends])
    return torch.stack(before), torch.stack(found)


def lstm_cell(use: Use, gradients: Gradients) -> PerSample:
    """One step of an LSTM on an accelerator: biases (slots 3 and 4) have the gradient at the sum of the gates."""
    gates = [use.saved("input_gates") + use.saved("hidden_gates")]
    gates += [use.saved(f"{name}_bias") for name in ("input", "hidden")]
    with torch.enable_grad():
        total = sum(gates[1:], gates[0]).requires_grad_()
        states = _lstm_step(total, use.saved("cx"))
    return _of_biases(use, total, states, gradients)


def gru_cell(use: Use, gradients: Gradients) -> PerSample:
    """One step of a GRU on an accelerator: a bias (slots 3 and 4) has the gradient at the gates that it is added to.

    Source: the equations in the documentation of `torch.nn.GRU`; gates in the order reset, update, new.
    """
    entry, hidden = (use.saved(f"{name}_gates") + use.saved(f"{name}_bias") for name in ("input", "hidden"))
    with torch.enable_grad():
        entry.requires_grad_()
        hidden.requires_grad_()
        ones, others = entry.chunk(3, 1), hidden.chunk(3, 1)
        reset, update = (ones[0] + others[0]).sigmoid(), (ones[1] + others[1]).sigmoid()
        state = torch.lerp((ones[2] + reset * others[2]).tanh(), use.saved("hx"), update)
    return _of_biases(use, entry if use.slot == 3 else hidden, [state], gradients)


def _lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden state and cell after a step, from the gates (N, 4 H) before their activation and the cell before it."""
    entry, forget, candidate, exit_ = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + entry.sigmoid() * candidate.tanh()
    return exit_.sigmoid() * cell.tanh(), cell


def _of_biases(use: Use, gates: Tensor, states: Sequence[Tensor], gradients: Gradients) -> PerSample:
    """The gradients (N, gates) at the gates of a step, from those at the states after it."""
    if use.slot not in (3, 4):
        raise NotCoveredError("not a bias of a recurrent cell")
    if use.layout.axis != 0 or use.layout.samples != len(gates) or use.layout.repeats != 1:
        raise NotCoveredError("the samples are not the batch of the cell")
    ends = [
        (state, found.to(state.dtype)) for state, found in zip(states, gradients, strict=False) if found is not None
    ]
    (found,) = torch.autograd.grad([state for state, _ in ends], gates, [gradient for _, gradient in ends])
    return Dense(found)
