"""What is not well with a network, in plain words: the cause is named, what follows from it is folded below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from statistics import median

from torch import nn

from .layer_figures import OUTPUT, ModelFigures
from .quantity import MODEL


@dataclass(frozen=True)
class Finding:
    """Finding: one thing that is not well.

    Attributes:
        kind: what it is, a word or three: "dead layer".
        layer: where its cause is: a layer, a parameter, `(input)` or `(model)`.
        sentence: what it is, for a reader.
        because: layers, and other things, that are not well because of it.
        step: of training, at which it was seen first; None for a saved model.
    """

    kind: str
    layer: str
    sentence: str
    because: tuple[str, ...] = ()
    step: int | None = None

    def __str__(self) -> str:
        """The sentence, with what follows from it."""
        text = self.sentence if self.step is None else f"step {self.step}: {self.sentence}"
        if self.because:
            shown = ", ".join(self.because[:3]) + (", ..." if len(self.because) > 3 else "")
            text += f"; and {len(self.because)} more because of it: {shown}"
        return f"{text}."


SCOPE = (
    "looked for inputs, weights, outputs and gradients that are not finite, inputs out of scale, frozen and cut-off "
    "layers, dead units and layers, exploding and vanishing gradients, and outputs that are constant or certain beyond "
    "all measure"
)
"""Scope of `diagnose` and `examine`: all that they can name."""

INPUT = "(input)"
"""Stands for a layer in findings about the data."""


def diagnose(figures: ModelFigures, parameters: Mapping[str, nn.Parameter]) -> list[Finding]:
    """Names what is not well, the cause and not what follows from it.

    Args:
        figures: what was gathered.
        parameters: of the model, by name.

    Returns:
        The findings, the gravest first. A network whose batch norm is in eval mode and has seen no batch does not hold
        signals at their size, so that nothing is said of sizes.
    """
    found = _inputs(figures) or _weights(figures, parameters) or _outputs(figures)
    if found:  # where numbers are not numbers, nothing behind says anything
        return found
    causes = [
        *_scale(figures),
        *_frozen(figures, parameters),
        *_bad_gradients(figures),
        *_dead(figures),
        *_growth(figures),
    ]
    scale = [finding for finding in causes if finding.kind == "wrong scale"]
    follows = [*constant(figures), *_certain(figures)]
    if scale:
        others = [finding for finding in causes if finding.kind != "wrong scale"]
        return [replace(scale[0], because=(*scale[0].because, *(_short(each) for each in (*others, *follows))))]
    if causes and follows:
        first, *others = causes
        return [replace(first, because=(*first.because, *map(_short, follows))), *others]
    return causes or follows[:1]


def _inputs(figures: ModelFigures) -> list[Finding]:
    if not figures.bad_inputs:
        return []
    sentence = f"{figures.bad_inputs} of {figures.samples} samples hold values that are NaN or infinite"
    return [Finding("bad input", INPUT, sentence)]


def _weights(figures: ModelFigures, parameters: Mapping[str, nn.Parameter]) -> list[Finding]:
    owners = {name: site for site, layer in figures.layers.items() for name in layer.parameters}
    bad = [name for name in figures.bad_weights or () if name in parameters]
    if not bad:
        return []
    places = {site: place for place, site in enumerate(figures.layers)}
    first, *others = sorted(bad, key=lambda name: places.get(owners.get(name, ""), len(places)))
    count = (figures.bad_weights or {})[first]
    where = f"{first} of {described(figures, owners[first])}" if first in owners else first
    sentence = f"{where} holds {count} of {parameters[first].numel()} values that are NaN or infinite"
    return [Finding("bad weight", first, sentence, tuple(others))]


def _outputs(figures: ModelFigures) -> list[Finding]:
    broken = [site for site, layer in figures.layers.items() if layer.bad_here]
    if not broken:
        return _made_between(figures)
    places = list(figures.layers)
    before = [figures.layers[site].largest for site in places[: places.index(broken[0])]]
    sentence = f"the outputs of {described(figures, broken[0])} are NaN or infinite, though what it is given is finite"
    if before:
        sentence += f"; the largest output before it is {max(before):.2g}"
    return [Finding("bad output", broken[0], sentence, tuple(broken[1:]))]


def _made_between(figures: ModelFigures) -> list[Finding]:
    """Outputs of the model that are not finite although no layer makes them so: its own forward does."""
    if not figures.bad_outputs:
        return []
    spoilt = next((site for site, layer in figures.layers.items() if layer.bad_from_input), None)
    where = "behind the last of its layers" if spoilt is None else f"in front of {described(figures, spoilt)}"
    sentence = (
        f"the outputs of the model are NaN or infinite for {figures.bad_outputs} of {figures.samples} samples, though "
        f"no layer makes them so: look at what a forward computes {where}"
    )
    return [Finding("bad output", MODEL, sentence)]


LARGE_INPUT = 30.0
"""Root mean square of inputs from which on they are out of scale: 1 is usual, bytes have about 130."""

FAR_MEAN, FAR_DECADES = 5.0, 2.0
"""Batch statistics this far from running ones are named: running standard deviations, and decades of the variance.

Seen: 0.6 and 0.5 at most for samples like the training samples.
"""


def _scale(figures: ModelFigures) -> list[Finding]:
    far = [
        site for site, layer in figures.layers.items() if layer.shift > FAR_MEAN or layer.decades > FAR_DECADES
    ]  # NaN is neither
    normalised = next((layer for layer in figures.layers.values() if layer.parameters), None)
    if figures.inputs > LARGE_INPUT and (normalised is None or normalised.shift != normalised.shift or far):
        sentence = (
            f"the inputs are out of scale: their root mean square is {figures.inputs:.3g}, where about 1 is usual"
        )
        return [Finding("wrong scale", INPUT, sentence, tuple(far))]
    if not far:
        return []
    layer = figures.layers[far[0]]
    sentence = (
        f"{described(figures, far[0])} is given something else than it was trained on: means lie {layer.shift:.2g} "
        f"running standard deviations away and variances differ by a factor of {10**layer.decades:.2g}; "
        "look at how inputs are normalised"
    )
    return [Finding("wrong scale", far[0], sentence, tuple(far[1:]))]


def _frozen(figures: ModelFigures, parameters: Mapping[str, nn.Parameter]) -> list[Finding]:
    """Frozen layers behind trainable ones, where most of the model is trained: not a frozen backbone, nor adapters."""
    if not any(each.requires_grad for each in parameters.values()):
        return [Finding("frozen", MODEL, "nothing can learn: no parameter needs a gradient")]
    sizes = {name: parameter.numel() for name, parameter in parameters.items() if parameter.dim() > 1}
    frozen = {name for name in sizes if not parameters[name].requires_grad}
    if not frozen or sum(sizes[name] for name in frozen) > sum(sizes.values()) / 2:
        return []
    learning, found = False, []
    for site, layer in figures.layers.items():
        weights = [name for name in layer.parameters if name in sizes]
        if learning and weights and not layer.is_table and all(name in frozen for name in weights):
            found.append(site)
        learning |= any(name not in frozen for name in weights)
    if not found:
        return []
    sentence = f"{described(figures, found[0])} is frozen, though layers before it learn: requires_grad is False"
    return [Finding("frozen", found[0], sentence, tuple(found[1:]))]


def _bad_gradients(figures: ModelFigures) -> list[Finding]:
    bad = {site for site, layer in figures.layers.items() if layer.bad_slopes}
    causes = [site for site in figures.layers if site in bad and not figures.behind.get(site, set()) & bad]
    sentence = "the gradient at the output of {} is NaN or infinite, though it is finite behind it"
    return [
        Finding("bad gradient", site, sentence.format(described(figures, site)), _upstream(figures, site, bad))
        for site in causes
    ]


MANY_DEAD = 0.25
"""Share of units without a gradient from which on a layer is named.

The digits model is right 93 % of the time with a fifth of the units of a layer dead, over 256 samples.
"""

ENOUGH_SAMPLES = 16
"""Samples below which units are not called dead: some are silent for a few samples in every network."""

UNDERFLOW = -30.0
"""Gradients below so many decades, against 1 at the logits, may be followed by zeros that are none in other numbers:
float32 ends at 1e-38, or 1e-45 with fewer digits."""


def _dead(figures: ModelFigures) -> list[Finding]:
    """Layers that no gradient gets through, and layers with many units that none reaches."""
    layers = figures.layers
    silent = {site for site, layer in layers.items() if layer.is_silent}

    def reaches(site: str) -> bool:
        return site == OUTPUT or layers[site].slope > UNDERFLOW

    found = []
    for site in reversed([site for site in layers if site in silent and site not in figures.immaterial]):
        if not any(map(reaches, figures.behind.get(site, ()))):
            continue
        units = layers[site].width
        what = f"no gradient reaches any of its {units} units" if units else "no gradient reaches its outputs"
        follows = _upstream(figures, site, silent)
        found.append(Finding("dead layer", site, f"{described(figures, site)} is dead: {what}", follows))
    if figures.samples_ever < ENOUGH_SAMPLES or figures.is_fresh:
        return found
    shares = {
        site: layer.dead_units(figures.samples_ever) / layer.width if layer.width else 0.0
        for site, layer in layers.items()
        if site not in silent
    }
    for site, share in shares.items():
        later = [shares.get(each, 0.0) for each in figures.behind.get(site, set())]
        if share >= MANY_DEAD and all(other < share for other in later):
            few, units = layers[site].dead_units(figures.samples_ever), layers[site].width
            follows = tuple(_same_units(figures, site, shares))
            sentence = (
                f"{described(figures, site)} is partly dead: {few} of {units} units get no gradient from any sample"
            )
            found.append(Finding("dead units", site, sentence, follows))
    return found


def _same_units(figures: ModelFigures, site: str, shares: Mapping[str, float]) -> Iterator[str]:
    """Layers right before a partly dead one whose units are dead with it: what batch norm is given, say."""
    for before in figures.layers:
        if site in figures.behind.get(before, set()) and shares.get(before, 0.0) >= MANY_DEAD:
            yield before
            yield from _same_units(figures, before, shares)


GROWTH = 4.0
"""Gradients that grow or shrink by so many decades from the last layer to the first are named.

Seen: 3.6 at most on fresh networks of torchvision, timm and transformers, which begin with a last layer of 1e-3; 7.6 on
eight hidden layers of sigmoids, 6.5 on sixteen of ReLU as PyTorch initialises them.
"""


def _growth(figures: ModelFigures) -> list[Finding]:
    slopes = {site: each.slope for site, each in figures.layers.items() if each.parameters and each.slope == each.slope}
    finite = [site for site, slope in slopes.items() if slope > -inf]
    if len(finite) < 2 or figures.is_fresh:
        return []
    last = finite[-1]
    firsts = [slopes[site] - slopes[last] for site in list(slopes)[:3] if site != last]
    decades = min(firsts) if min(firsts) > GROWTH else max(firsts)
    if decades == -inf and min(slopes[site] for site in finite) > UNDERFLOW:
        return []  # gradients end somewhere, which is something else
    if abs(decades) <= GROWTH:
        return []
    first = next(iter(slopes)) if decades > -inf else finite[0]
    drops = {after: slopes[before] - slopes[after] for before, after in pairwise(finite)}
    steepest = max(drops, key=lambda site: abs(drops[site]) if drops[site] * decades > 0 else 0.0)
    kind, verb = ("exploding", "explode") if decades > 0 else ("vanishing", "vanish")
    factor = slopes[first] - slopes[last]
    sentence = f"gradients {verb} on their way back: {_power(factor)} times as large at {first} as at {last}"
    if abs(drops[steepest]) > abs(factor) / 2:
        return [Finding(kind, steepest, f"{sentence}, most of it in {described(figures, steepest)}")]
    typical = median(drops[site] for site in drops)
    return [Finding(kind, first, f"{sentence}, {_power(typical)} times from layer to layer")]


def _power(decades: float) -> str:
    return f"{10**decades:.2g}" if abs(decades) < 300 else f"1e{decades:.0f}"


def constant(figures: ModelFigures) -> list[Finding]:
    """A model whose outputs are the same for every sample, at the layer from which on they are."""
    sites = list(figures.layers)
    constant: list[str] = []
    while sites and not figures.layers[sites[-1]].differs:
        constant.append(sites.pop())
    if not constant or figures.samples < 2 or figures.is_fresh:
        return []
    site = constant[-1]
    sentence = f"the outputs are the same for every sample, from {described(figures, site)} on"
    return [Finding("constant output", site, sentence, tuple(constant[-2::-1]))]


CERTAIN = 87.0
"""A logit this far above all others leaves a gradient of e^-87 = 1.6e-38, below what float32 holds in full."""

MANY_CERTAIN = 0.25
"""Share of samples from which on a network is too certain."""


def _certain(figures: ModelFigures) -> list[Finding]:
    certain = sum(margin > CERTAIN for margin in figures.margins)
    if not figures.margins or certain < MANY_CERTAIN * len(figures.margins) or figures.is_fresh:
        return []
    sentence = (
        f"the loss is at its floor and its gradient underflows: for {certain} of {len(figures.margins)} samples the "
        f"largest logit is far above all others, by {median(figures.margins):.3g} in the median, where float32 ends at "
        f"{CERTAIN:.0f}; weights or inputs are too large"
    )
    return [Finding("saturated", MODEL, sentence)]


def described(figures: ModelFigures, site: str) -> str:
    """A layer with its type and its position."""
    layer = figures.layers[site]
    return f"{site} ({layer.kind}, layer {layer.place} of {len(figures.layers)})"


def _upstream(figures: ModelFigures, cause: str, among: set[str]) -> tuple[str, ...]:
    """Names of those of some layers that lie before a layer, with nothing but such layers between."""
    found = {cause}
    for site in reversed(figures.layers):
        if site in among and figures.behind.get(site, set()) & found:
            found.add(site)
    return tuple(site for site in figures.layers if site in found and site != cause)


def _short(finding: Finding) -> str:
    return {"constant output": "the same outputs for every sample", "saturated": "a loss at its floor"}.get(
        finding.kind, f"{finding.kind} at {finding.layer}"
    )
