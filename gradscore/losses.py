"""Losses of one sample and their gradients at the logits.

The gradient is computed in float64 in closed form and without cancellation, and comes as a direction of moderate size
and a power of two. The direction can pass through a network in any precision; statistics of the result are multiplied
by the scale afterwards. So a sample that the classifier is certain of neither underflows to zero nor ties with others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .columns import FORWARD, VIEW
from .errors import EngineError
from .system import Registry, first_line

SMALLEST_EXPONENT = -960
"""Scales do not fall below two to this power (a gap of about 665 between two logits), so that products stay normal."""


@dataclass(frozen=True)
class LogitGradient:
    """Gradient of the loss of every sample at its logits: `direction * scale`.

    Attributes:
        direction: (N, K) float64, largest magnitude in [0.5, 1), or all zero.
        scale: (N,) float64, powers of two.
        value: (N,) float64, the losses.
    """

    direction: Tensor
    scale: Tensor
    value: Tensor


def pseudo_label(logits: Tensor) -> LogitGradient:
    """Cross entropy against the predicted class: -log p[argmax].

    Its gradient is p, less one at the predicted class; that entry is computed as minus the sum of the other
    probabilities, which keeps its digits where p[argmax] rounds to one.

    Args:
        logits: (N, K).

    Returns:
        The gradient at the logits.

    Source: Oberdiek, Rottmann, Gottschalk 2018, "Classification uncertainty of deep neural networks based on gradient
        information", section 2.

    Example:
        >>> found = pseudo_label(torch.tensor([[40.0, 0.0]]))
        >>> bool(found.direction[0, 0] * found.scale[0] < 0)
        True
    """
    predicted, others, shift, log_top = _split(_log_softmax(logits))
    # Relative to the largest of the other probabilities nothing underflows, however certain the prediction.
    relative = (others - shift).exp()
    return normalised(_balanced(relative, predicted), shift.squeeze(1), -log_top.squeeze(1))


def uniform(logits: Tensor) -> LogitGradient:
    """Mean over classes of -log softmax: cross entropy against the uniform distribution.

    Its gradient is p - 1/K.

    Args:
        logits: (N, K).

    Returns:
        The gradient at the logits.

    Source: Huang, Geng, Li 2021, "On the importance of gradients for detecting distributional shifts in the wild",
        equation 4 (up to a constant).
    """
    log_p = _log_softmax(logits)
    # log(p K) is near zero where p is near 1/K: expm1 keeps the digits that the subtraction would lose.
    excess = torch.expm1(log_p + math.log(logits.shape[1]))
    return normalised(excess / logits.shape[1], torch.zeros_like(log_p[:, 0]), -log_p.mean(1))


def entropy(logits: Tensor) -> LogitGradient:
    """Entropy of the softmax distribution.

    Its gradient is -p * (log p + H).

    Args:
        logits: (N, K).

    Returns:
        The gradient at the logits.
    """
    predicted, others, shift, log_top = _split(_log_softmax(logits))
    relative = (others - shift).exp()
    # Both parts of the entropy in units of exp(shift); -log(1 - x) is x for an x that float64 cannot tell from zero.
    tail = torch.where(relative > 0, relative * others, 0.0).sum(1, keepdim=True)
    small = shift < math.log(torch.finfo(torch.float64).tiny) / 2
    top = torch.where(small, -relative.sum(1, keepdim=True), log_top * (-shift.masked_fill(small, 0.0)).exp())
    value = -(tail + log_top.exp() * top) * shift.exp()
    gradient = torch.where(relative > 0, -relative * (others + value), 0.0)
    return normalised(_balanced(gradient, predicted), shift.squeeze(1), value.squeeze(1))


def confounding(logits: Tensor) -> LogitGradient:
    """Mean over classes of binary cross entropy against a label that says every class at once.

    Its gradient is (sigmoid(z) - 1) / K = -sigmoid(-z) / K, computed from log sigmoid(-z), which keeps its digits for
    large logits.

    Args:
        logits: (N, K).

    Returns:
        The gradient at the logits.

    Source: Lee and AlRegib 2020, "Gradients as a measure of uncertainty in neural networks", section 3.
    """
    z = _checked(logits)
    log_sizes = F.logsigmoid(-z)
    shift = log_sizes.amax(1)
    direction = -(log_sizes - shift.unsqueeze(1)).exp() / z.shape[1]
    return normalised(direction, shift, -F.logsigmoid(z).mean(1))


def expected(logits: Tensor) -> Iterator[LogitGradient]:
    """Cross entropy with a label drawn from the prediction: the gradients whose sizes add up to the expected one.

    For every class y, p[y] * -log p[y] with the weight p[y] held fixed; its gradient is p[y] * p, less p[y] at y, where
    that entry is computed as minus the sum of the others. A norm of each, summed over the classes, is the expectation
    of the norm over the predicted distribution.

    Args:
        logits: (N, K).

    Yields:
        K gradients at the logits; their values add up to the entropy.

    Source: Igoe, Chung, Char, Schneider 2022, "How useful are gradients for OOD detection really?", ExGrad.
    """
    log_p = _log_softmax(logits)
    predicted, _, _, log_top = _split(log_p)
    log_p = log_p.scatter(1, predicted, log_top)
    for label in range(log_p.shape[1]):
        place = torch.full_like(predicted, label)
        others = log_p.scatter(1, place, -torch.inf)
        shift = others.amax(1, keepdim=True)
        log_weight = log_p[:, label]
        gradient = _balanced((others - shift).exp(), place)
        yield normalised(gradient, shift.squeeze(1) + log_weight, -log_weight.exp() * log_weight)


def _checked(logits: Tensor) -> Tensor:
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise EngineError(f"losses need logits of shape (N, K) with K of at least 2, got {tuple(logits.shape)}")
    return logits.detach().double()


def _log_softmax(logits: Tensor) -> Tensor:
    return _checked(logits).log_softmax(1)


def _split(log_p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Takes the predicted class apart from the others.

    Returns:
        Of shape (N, 1): the predicted class; (N, K): log probabilities with -inf at the predicted class; (N, 1): the
        largest of them; (N, 1): log probability of the predicted class, as log(1 - the others) without cancellation.
    """
    predicted = log_p.argmax(1, keepdim=True)
    others = log_p.scatter(1, predicted, -torch.inf)
    log_top = -F.softplus(others.logsumexp(1, keepdim=True) - log_p.gather(1, predicted), threshold=700)
    return predicted, others, others.amax(1, keepdim=True), log_top


def _balanced(gradient: Tensor, predicted: Tensor) -> Tensor:
    """Fills in the predicted class, at zero until now, so that the gradient sums to zero over the classes."""
    return gradient.scatter(1, predicted, -gradient.sum(1, keepdim=True))


def normalised(gradient: Tensor, log_factor: Tensor, value: Tensor) -> LogitGradient:
    """Splits a gradient at the logits into a direction of moderate size and a power of two per sample.

    Args:
        gradient: (N, K) float64, without the factor.
        log_factor: (N,) float64, natural logarithm of a factor of all entries of a sample; zeros for none.
        value: (N,) float64, the losses.

    Returns:
        `gradient * exp(log_factor)`, which may be smaller than float64 can hold.
    """
    # exp(x) = 2**whole * 2**part with the whole number kept apart, so that exp never underflows.
    power = log_factor / math.log(2.0)
    whole = power.floor()
    gradient = gradient * torch.exp2(power - whole).unsqueeze(1)
    _, exponent = torch.frexp(gradient.abs().amax(1))
    return LogitGradient(
        torch.ldexp(gradient, -exponent.unsqueeze(1)),
        torch.exp2((whole + exponent).clamp(min=SMALLEST_EXPONENT)),
        value,
    )


LossHead = Callable[[Tensor], LogitGradient]
"""From logits (N, K) to the gradient of one loss there."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss by name: what `features.losses` may say.

    Attributes:
        head: from logits (N, K) to the gradient there, or to several whose statistics add up; each of those takes a
            backward pass.
        several: whether there are several.
        source: where it comes from.
    """

    head: Callable[[Tensor], LogitGradient] | Callable[[Tensor], Iterator[LogitGradient]]
    several: bool = False
    source: str = ""

    @property
    def summary(self) -> str:
        """What it is, on one line."""
        return first_line(self.head)

    def terms(self, logits: Tensor) -> Iterator[LogitGradient]:
        """The gradients at the logits (N, K): one, or as many as add up."""
        found = self.head(logits)
        return iter((found,)) if isinstance(found, LogitGradient) else found

    def __call__(self, logits: Tensor) -> LogitGradient:
        """The gradient at the logits (N, K), or the first of several."""
        return next(self.terms(logits))


LOSSES: Registry[Loss] = Registry(
    "loss",
    "gradscore.losses",
    {
        "pseudo_label": Loss(head=pseudo_label, source="Oberdiek, Rottmann, Gottschalk 2018"),
        "uniform": Loss(head=uniform, source="Huang, Geng, Li 2021 (GradNorm)"),
        "entropy": Loss(head=entropy),
        "confounding": Loss(head=confounding, source="Lee and AlRegib 2020"),
        "expected": Loss(head=expected, several=True, source="Igoe, Chung, Char, Schneider 2022 (ExGrad)"),
    },
    wanted=Loss,
    reserved=(FORWARD, VIEW, "score"),  # what names of features and inputs of meta models have in its place
)
"""Losses by name."""
