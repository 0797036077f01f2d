"""Losses of one sample and their gradients at the logits.

The gradient is computed in float64 in closed form, and without cancellation except where logits nearly tie: there the
gradients of `uniform` and `entropy` fall to zero and are right to 1e-14, not to such a share of themselves. It comes as
a direction of moderate size and a power of two. The direction can pass through a network in any precision; statistics
of the result are multiplied by the scale afterwards. So a sample that the classifier is certain of neither underflows
to zero nor ties with others.

A loss is a function of logits (N, K), and of labels (N,) int64 from 0 to K - 1 where it looks at given ones.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .columns import AUGMENTATION
from .errors import ConfigError, CoupledSamplesError, EngineError
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

    Source: Oberdiek, Rottmann, Gottschalk 2018, "Classification uncertainty of deep neural networks based on gradient
        information", section 2.

    Example:
        >>> found = pseudo_label(torch.tensor([[40.0, 0.0]]))
        >>> bool(found.direction[0, 0] * found.scale[0] < 0)
        True
    """
    log_p = _log_softmax(logits)
    return _cross_entropy(log_p, log_p.argmax(1, keepdim=True))


def label(logits: Tensor, labels: Tensor) -> LogitGradient:
    """Cross entropy against the given label: -log p[label].

    Its gradient is p, less one at the label, computed as in `pseudo_label`. Its L2 norm at the logits is the score
    EL2N, that over all parameters the score GraNd.

    Source: Paul, Ganguli, Dziugaite 2021, "Deep learning on a data diet: finding important examples early in training".
    """
    log_p = _log_softmax(logits)
    return _cross_entropy(log_p, _as_column(labels, log_p))


def uniform(logits: Tensor) -> LogitGradient:
    """Mean over classes of -log softmax: cross entropy against the uniform distribution.

    Its gradient is p - 1/K.

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
    """
    log_p = _log_softmax(logits)
    predicted = log_p.argmax(1, keepdim=True)
    others, shift, log_top = _apart(log_p, predicted)
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
    of the norm over the predicted distribution. The values of the K gradients add up to the entropy.

    Source: Igoe, Chung, Char, Schneider 2022, "How useful are gradients for OOD detection really?", ExGrad.
    """
    log_p = _log_softmax(logits)
    predicted = log_p.argmax(1, keepdim=True)
    _, _, log_top = _apart(log_p, predicted)
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


def _as_column(labels: Tensor, log_p: Tensor) -> Tensor:
    """Labels (N,) as (N, 1) on the device of the log probabilities (N, K)."""
    samples, classes = log_p.shape
    if labels.shape != (samples,) or labels.is_floating_point():
        raise EngineError(f"wanted labels ({samples},) int64, got {tuple(labels.shape)} {labels.dtype}")
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        got = int(labels[wrong][0])
        none = ", which stands for none: give inputs and labels, as a pair" if got == -1 else ""
        raise EngineError(f"wanted labels from 0 to {classes - 1}, got {got}{none}")
    return labels.to(log_p.device, torch.int64).unsqueeze(1)


def _apart(log_p: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Takes a class of each sample, `chosen` (N, 1), apart from the others.

    Returns:
        (N, K): log probabilities with -inf at that class; (N, 1): the largest of them; (N, 1): log probability of that
        class, as log(1 - the others) without cancellation.
    """
    others = log_p.scatter(1, chosen, -torch.inf)
    log_chosen = -F.softplus(others.logsumexp(1, keepdim=True) - log_p.gather(1, chosen), threshold=700)
    return others, others.amax(1, keepdim=True), log_chosen


def _cross_entropy(log_p: Tensor, chosen: Tensor) -> LogitGradient:
    """Cross entropy against one class of each sample, `chosen` (N, 1)."""
    others, shift, log_chosen = _apart(log_p, chosen)
    # Relative to the largest of the other probabilities nothing underflows, however certain the prediction.
    return normalised(_balanced((others - shift).exp(), chosen), shift.squeeze(1), -log_chosen.squeeze(1))


def _balanced(gradient: Tensor, chosen: Tensor) -> Tensor:
    """Fills in the class `chosen` (N, 1), at zero until now, so that the gradient sums to zero over the classes."""
    return gradient.scatter(1, chosen, -gradient.sum(1, keepdim=True))


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
        head: from logits (N, K), and labels (N,) if it needs them, to the gradient there, or to several whose
            statistics add up; each of those takes a backward pass.
        several: whether there are several.
        needs_labels: whether it looks at the given labels.
        source: where it comes from.
    """

    head: Callable[..., LogitGradient | Iterator[LogitGradient]]
    several: bool = False
    needs_labels: bool = False
    source: str = ""

    @property
    def summary(self) -> str:
        """Summary of the loss, on one line."""
        return first_line(self.head)

    def terms(self, logits: Tensor, labels: Tensor | None = None) -> Iterator[LogitGradient]:
        """The gradients at the logits (N, K): one, or as many as add up.

        Raises:
            EngineError: it needs labels (N,), and there are none, or others than classes.
        """
        if self.needs_labels and labels is None:
            raise EngineError("this loss looks at the given labels, and there are none; give samples with labels")
        found = self.head(logits, labels) if self.needs_labels else self.head(logits)
        return iter((found,)) if isinstance(found, LogitGradient) else found

    def __call__(self, logits: Tensor, labels: Tensor | None = None) -> LogitGradient:
        """The gradient at the logits (N, K), or the first of several; raises the same as `terms`."""
        return next(self.terms(logits, labels))


LOSSES: Registry[Loss] = Registry(
    "loss",
    {
        "pseudo_label": Loss(head=pseudo_label, source="Oberdiek, Rottmann, Gottschalk 2018"),
        "uniform": Loss(head=uniform, source="Huang, Geng, Li 2021 (GradNorm)"),
        "entropy": Loss(head=entropy),
        "confounding": Loss(head=confounding, source="Lee and AlRegib 2020"),
        "expected": Loss(head=expected, several=True, source="Igoe, Chung, Char, Schneider 2022 (ExGrad)"),
        "label": Loss(head=label, needs_labels=True, source="Paul, Ganguli, Dziugaite 2021 (EL2N, GraNd)"),
    },
    wanted=Loss,
    reserved=(AUGMENTATION, "baseline"),  # what names of features and inputs of meta models have in its place
)
"""Losses by name."""


OF_LOGITS = "def loss(logits): ... from logits (N, K) to the loss of each sample (N,)"
OF_BATCHES = "def loss(model, batch): ... to the loss of each sample of the batch (N,), or of each of its tokens (N, T)"
"""Signatures of functions of a program that may be losses."""


SAME = 1e-9
"""Values and gradients of a loss differ by no more between two batches: both are of float64."""


@dataclass(frozen=True)
class OfLogits:
    """A function of a program's from logits (N, K) to the losses of samples (N,), differentiated by autograd."""

    function: Callable[..., Tensor]

    def __call__(self, logits: Tensor) -> LogitGradient:
        """The gradient at the logits.

        Raises:
            CoupledSamplesError: the value of a sample depends on others of its batch, or changes from call to call.
            EngineError: the function fails, or returns something else than one differentiable value for each sample.
        """
        gradient, value = self._at(logits)
        # Each sample once more, without the first one: what a sample's loss is must not depend on its batch.
        fewer = logits[1:] if len(logits) > 1 else logits.repeat(2, 1)
        for again, before in zip(self._at(fewer), (gradient, value), strict=True):
            same = before[1:] if len(logits) > 1 else before.expand_as(again)
            if not torch.allclose(
                again, same, rtol=SAME, atol=SAME * float(same.nan_to_num().abs().max()), equal_nan=True
            ):
                raise CoupledSamplesError(
                    f"loss '{name_of(self.function)}': the value of a sample changes with the other samples of its "
                    f"batch, or from call to call; wanted {OF_LOGITS}, each by its own row: reduce over classes, dim=1"
                )
        return normalised(gradient, torch.zeros_like(gradient[:, 0]), value)

    def _at(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient (N, K) and the values (N,)."""
        own = logits.detach().to(torch.float64, copy=True).requires_grad_()
        name = name_of(self.function)
        with torch.enable_grad():
            try:
                value = self.function(own)
            except Exception as error:  # the function is anyone's and may raise anything
                raise self._failure(own, error) from error
            if not isinstance(value, Tensor) or value.shape != own.shape[:1]:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise EngineError(
                    f"loss '{name}': wanted one value for each sample, ({len(own)},), got {got}: {OF_LOGITS}; those of "
                    "torch have reduction='none'"
                )
            if value.is_complex():
                raise EngineError(f"loss '{name}': wanted real values, got {value.dtype}: take real, or abs")
            try:
                found = torch.autograd.grad(value.sum(), own, allow_unused=True)[0] if value.requires_grad else None
            except RuntimeError as error:  # what it saved was changed in place, for one
                raise self._failure(own, error) from error
            if found is None:
                raise EngineError(
                    f"loss '{name}': its values have no gradient with respect to the logits: leave out detach(), "
                    "no_grad(), argmax and rounding"
                )
        return found, value.detach()

    def _failure(self, logits: Tensor, error: Exception) -> EngineError:
        return EngineError(
            f"loss '{name_of(self.function)}': fails for logits of shape {tuple(logits.shape)}: "
            f"{type(error).__name__}: {error}; wanted {OF_LOGITS}"
        )


def name_of(function: Callable[..., object]) -> str:
    """Name of a function of a program, `custom` without one of its own."""
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "custom"


def is_of_logits(function: Callable[..., object]) -> bool:
    """Whether a loss of a program's is a function of logits, not of a model and a batch.

    Raises:
        ConfigError: it can be called as neither.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # what is compiled says nothing
        return False
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    needed = [each for each in places if each.default is each.empty]
    several = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    named = [each.name for each in needed]
    is_other = named[1:2] == ["model"] or (len(named) == 2 and named[0] == "logits")
    if by_name or is_other or len(needed) > 2 or not (places or several):
        signature = f"{name_of(function)}{inspect.signature(function)}"
        raise ConfigError(f"losses: got {signature}, wanted {OF_LOGITS}; or, for any model, {OF_BATCHES}")
    return len(needed) == 1 and len(places) == 1 and not several


def registered(function: Callable[..., Tensor]) -> str:
    """The name in `LOSSES` of a loss that is a function of logits, which is there from now on, in this process."""
    base = name = name_of(function)
    number = 1
    while name in LOSSES and LOSSES[name].head != OfLogits(function):
        number += 1
        name = f"{base}_{number}"
    if name not in LOSSES:
        LOSSES.add(name, Loss(head=OfLogits(function)))
    return name


def with_labels(names: Iterable[str]) -> list[str]:
    """Names of the losses among `names` that look at given labels."""
    return [name for name in names if name in LOSSES and LOSSES[name].needs_labels]


def first_without_labels(names: Iterable[str]) -> str:
    """The first of the losses called `names` that looks at no labels; `pseudo_label` where all of them do."""
    return next((name for name in names if name not in LOSSES or not LOSSES[name].needs_labels), "pseudo_label")


def refuse_with_labels(names: Iterable[str], *, where: str) -> None:
    """Makes sure that none of the losses called `names` looks at given labels: a detector of new samples has none.

    Raises:
        ConfigError: one does; the message names `where`.
    """
    given = with_labels(names)
    if given:
        raise ConfigError(
            f"{where}: features.losses has '{given[0]}', which looks at given labels. New samples have none, so "
            f"nothing that scores them can be fitted to it; leave '{given[0]}' out of features.losses and extract into "
            "another folder"
        )
