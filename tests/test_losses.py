"""Gradients at the logits against closed forms evaluated with many digits."""

import mpmath
import pytest
import torch

from gradscore.columns import AUGMENTATION
from gradscore.errors import ConfigError, EngineError
from gradscore.losses import LOSSES, expected
from gradscore.meta.inputs import BASELINE_PREFIX

SINGLE = [name for name in LOSSES if not LOSSES[name].several and not LOSSES[name].needs_labels]

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
            "confounding": [-1 / (1 + mpmath.exp(mpmath.mpf(z))) / len(p) for z in logits],
        }
        values = {
            "pseudo_label": -mpmath.log(p[top]),
            "uniform": -mpmath.fsum(mpmath.log(q) for q in p) / len(p),
            "entropy": entropy,
            "confounding": mpmath.fsum(mpmath.log1p(mpmath.exp(-mpmath.mpf(z))) for z in logits) / len(p),
        }
        return gradients[loss], values[loss]


@pytest.mark.parametrize("logits", LOGITS.values(), ids=LOGITS)
@pytest.mark.parametrize("loss", SINGLE)
def test_equals_the_closed_form(loss, logits):
    found = LOSSES[loss](torch.tensor([logits], dtype=torch.float64))
    gradient, value = truth(loss, logits)
    got = [mpmath.mpf(d) * mpmath.mpf(found.scale.item()) for d in found.direction[0].tolist()]
    errors = [abs(a - b) / abs(b) for a, b in zip(got, gradient, strict=True)]
    assert max(errors) < 1e-11
    assert abs(found.value.item() - value) / value < 1e-12


TIES = {"of all": [1e-9, 0.0, 0.0], "of the largest": [1.0, 0.9999999, -30.0], "of many": [1e-6, *[0.0] * 99]}


@pytest.mark.parametrize("logits", TIES.values(), ids=TIES)
@pytest.mark.parametrize("loss", SINGLE)
def test_where_logits_nearly_tie_gradients_are_right_to_an_absolute_error(loss, logits):
    found = LOSSES[loss](torch.tensor([logits], dtype=torch.float64))
    got = [mpmath.mpf(d) * mpmath.mpf(found.scale.item()) for d in found.direction[0].tolist()]
    assert max(abs(a - b) for a, b in zip(got, truth(loss, logits)[0], strict=True)) < 1e-14


def truth_of_label(logits, label):
    """Gradient and value of the loss of a given label with 1,000 digits."""
    with mpmath.workdps(1000):
        weights = [mpmath.exp(mpmath.mpf(z) - mpmath.mpf(max(logits))) for z in logits]
        p = [weight / mpmath.fsum(weights) for weight in weights]
        return [q - (k == label) for k, q in enumerate(p)], -mpmath.log(p[label])


@pytest.mark.parametrize("logits", LOGITS)
def test_of_a_given_label_equals_the_closed_form(logits):
    """Of each of the three classes."""
    found = LOSSES["label"](torch.tensor([LOGITS[logits]] * 3, dtype=torch.float64), torch.arange(3))
    truths = [truth_of_label(LOGITS[logits], label) for label in range(3)]
    got = [
        [mpmath.mpf(d) * mpmath.mpf(scale) for d in row]
        for row, scale in zip(found.direction.tolist(), found.scale.tolist(), strict=True)
    ]
    errors = [
        abs(a - b) / max(map(abs, wanted))
        for row, (wanted, _) in zip(got, truths, strict=True)
        for a, b in zip(row, wanted, strict=True)
    ]
    assert max(errors) < 1e-11
    values = zip(found.value.tolist(), truths, strict=True)
    assert max(abs(value - wanted) / wanted for value, (_, wanted) in values) < 1e-12


def test_the_label_loss_of_predicted_classes_is_that_of_pseudo_labels():
    logits = torch.randn(9, 5, dtype=torch.float64)
    given, predicted = LOSSES["label"](logits, logits.argmax(1)), LOSSES["pseudo_label"](logits)
    assert torch.equal(given.direction, predicted.direction)
    assert torch.equal(given.scale, predicted.scale)


WRONG_LABELS = {
    "none": (None, "looks at the given labels, and there are none"),
    "another number": (torch.zeros(2, dtype=torch.int64), r"wanted labels \(3,\) int64, got \(2,\)"),
    "numbers with fractions": (torch.zeros(3), r"got \(3,\) torch.float32"),
    "missing ones": (torch.tensor([0, -1, 1]), "wanted labels from 0 to 3, got -1"),
    "no class": (torch.tensor([0, 4, 1]), "wanted labels from 0 to 3, got 4"),
}


@pytest.mark.parametrize(("labels", "message"), WRONG_LABELS.values(), ids=WRONG_LABELS)
def test_refuses_other_labels(labels, message):
    with pytest.raises(EngineError, match=message):
        LOSSES["label"](torch.zeros(3, 4), labels)


def expected_truth(logits):
    """The gradients p[y] (p - e[y]) of all classes y, with 600 digits, and the entropy."""
    with mpmath.workdps(600):
        weights = [mpmath.exp(mpmath.mpf(z) - mpmath.mpf(max(logits))) for z in logits]
        p = [weight / mpmath.fsum(weights) for weight in weights]
        entropy = -mpmath.fsum(q * mpmath.log(q) for q in p)
        return [[p[y] * (q - (k == y)) for k, q in enumerate(p)] for y in range(len(p))], entropy


@pytest.mark.parametrize("logits", [each for name, each in LOGITS.items() if name != "one-hot in float64"])
def test_expected_gradients_equal_the_closed_form(logits):
    found = list(expected(torch.tensor([logits], dtype=torch.float64)))
    gradients, entropy = expected_truth(logits)
    got = [[mpmath.mpf(d) * mpmath.mpf(each.scale.item()) for d in each.direction[0].tolist()] for each in found]
    pairs = zip([g for row in got for g in row], [t for row in gradients for t in row], strict=True)
    assert max(abs(a - b) / abs(b) for a, b in pairs) < 1e-11
    assert abs(sum(each.value.item() for each in found) - entropy) / entropy < 1e-12


def test_expected_gradients_are_of_moderate_size():
    terms = list(expected(torch.tensor([[900.0, 0.0, 0.0], [0.0, 0.0, 0.0]])))
    sizes = torch.stack([each.direction.abs().amax(1) for each in terms])
    assert ((sizes >= 0.5) & (sizes < 1)).all()
    assert all((each.scale > 0).all() for each in terms)


@pytest.mark.parametrize(("loss", "count"), [("uniform", 1), ("expected", 4)])
def test_losses_have_one_gradient_or_one_for_each_class(loss, count):
    assert len(list(LOSSES[loss].terms(torch.zeros(2, 4)))) == count


def test_every_loss_has_a_name():
    without = {"confounding", "entropy", "expected", "pseudo_label", "uniform"}
    assert set(LOSSES.built_in) == without | {"label"}


@pytest.mark.parametrize("name", [AUGMENTATION, BASELINE_PREFIX.removesuffix("/")])
def test_a_loss_cannot_be_called_like_what_stands_in_its_place(name):
    with pytest.raises(ConfigError, match=f"loss '{name}': this name means something else already"):
        LOSSES.add(name, LOSSES["uniform"])


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
