"""Gradients at the logits against closed forms evaluated with many digits."""

import mpmath
import pytest
import torch
from torch.testing import assert_close

from gradscore.errors import EngineError
from gradscore.losses import LOSSES

LOGITS = {
    "ordinary": [1.0, 2.0, 3.0],
    "certain": [40.0, 0.0, 1.0],
    "one-hot in float32": [150.0, 0.0, -3.0],
    "one-hot in float64": [600.0, 1.0, 0.0],
    "nearly uniform": [1e-3, 0.0, 0.0],
    "two equal": [5.0, 5.0, 0.0],
    "negative": [-1000.0, -1001.0, -999.5],
}


def truth(loss, logits):
    """Gradient and value of a loss with 600 digits."""
    with mpmath.workdps(600):
        weights = [mpmath.exp(mpmath.mpf(z) - mpmath.mpf(max(logits))) for z in logits]
        p = [weight / mpmath.fsum(weights) for weight in weights]
        entropy = -mpmath.fsum(q * mpmath.log(q) for q in p)
        top = logits.index(max(logits))
        gradients = {
            "pseudo_label": [q - (k == top) for k, q in enumerate(p)],
            "uniform": [q - mpmath.mpf(1) / len(p) for q in p],
            "entropy": [-q * (mpmath.log(q) + entropy) for q in p],
        }
        values = {
            "pseudo_label": -mpmath.log(p[top]),
            "uniform": -mpmath.fsum(mpmath.log(q) for q in p) / len(p),
            "entropy": entropy,
        }
        return gradients[loss], values[loss]


@pytest.mark.parametrize("logits", LOGITS.values(), ids=LOGITS)
@pytest.mark.parametrize("loss", LOSSES)
def test_equals_the_closed_form(loss, logits):
    found = LOSSES[loss](torch.tensor([logits], dtype=torch.float64))
    gradient, value = truth(loss, logits)
    got = [mpmath.mpf(d) * mpmath.mpf(found.scale.item()) for d in found.direction[0].tolist()]
    errors = [abs(a - b) / abs(b) for a, b in zip(got, gradient, strict=True)]
    assert max(errors) < 1e-11
    assert abs(found.value.item() - value) / value < 1e-12


@pytest.mark.parametrize("loss", LOSSES)
def test_equals_autograd(loss):
    logits = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    log_p = logits.log_softmax(1)
    value = {
        "pseudo_label": -log_p.amax(1),
        "uniform": -log_p.mean(1),
        "entropy": -(log_p.exp() * log_p).sum(1),
    }[loss]
    found = LOSSES[loss](logits)
    assert_close(found.value, value.detach())
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert_close(found.direction * found.scale.unsqueeze(1), gradient)


@pytest.mark.parametrize("loss", ["pseudo_label", "entropy"])
def test_certain_samples_neither_vanish_nor_tie(loss):
    gaps = torch.arange(20, 600, 20, dtype=torch.float32)
    found = LOSSES[loss](torch.stack([gaps, torch.zeros_like(gaps)], 1))
    assert ((found.direction.abs().amax(1) >= 0.5) & (found.direction.abs().amax(1) < 1)).all()
    size = found.direction.abs().amax(1) * found.scale
    assert (size[1:] < size[:-1]).all()
    assert (size > 0).all()


def test_scale_is_a_power_of_two():
    found = LOSSES["pseudo_label"](torch.randn(10, 4))
    assert (found.scale.frexp().mantissa == 0.5).all()


def test_equal_logits_have_no_uniform_gradient():
    found = LOSSES["uniform"](torch.zeros(2, 4))
    assert found.direction.abs().max() < 1e-15


BAD = {"one logit": torch.zeros(3, 1), "not a matrix": torch.zeros(3)}


@pytest.mark.parametrize("logits", BAD.values(), ids=BAD)
def test_refuses_other_shapes(logits):
    with pytest.raises(EngineError, match=r"\(N, K\) with K of at least 2"):
        LOSSES["uniform"](logits)
