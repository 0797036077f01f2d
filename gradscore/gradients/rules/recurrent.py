"""Recurrent layers that run as one node; those that run step by step need no rule of their own."""

from __future__ import annotations

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
            entry, forget, candidate, exit_ = gates[-1].chunk(4, 1)
            cell = forget.sigmoid() * cell + entry.sigmoid() * candidate.tanh()
            hidden = exit_.sigmoid() * cell.tanh()
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
