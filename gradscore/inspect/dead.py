"""Layers and units that no gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .finding import Finding, said, upstream
from .layer_vitals import LayerVitals
from .vitals import OUTPUT, Vitals

MANY_DEAD = 0.25
"""Share of units without a gradient from which on a layer is named.

The digits model is right 93 % of the time with a fifth of the units of a layer dead, over 256 samples.
"""

ENOUGH_SAMPLES = 16
"""Samples below which units are not called dead: some are silent for a few samples in every network."""

UNDERFLOW = -30.0
"""Gradients below so many decades, against 1 at the logits, may be followed by zeros that are none in other numbers:
float32 ends at 1e-38, or 1e-45 with fewer digits."""


def dead(vitals: Vitals) -> list[Finding]:
    """Layers that no gradient gets through, and layers with many units that none reaches."""
    layers = vitals.layers
    silent = {site for site, layer in layers.items() if layer.is_silent}
    found = []
    for site in silent_causes(vitals):
        units = layers[site].width
        what = f"no gradient reaches any of its {units} units" if units else "no gradient reaches its outputs"
        follows = upstream(vitals, site, silent)
        found.append(Finding("dead layer", site, f"{said(vitals, site)} is dead: {what}", follows))
    if vitals.samples_ever < ENOUGH_SAMPLES or vitals.is_fresh:
        return found
    shares = {site: _share(layer) for site, layer in layers.items() if site not in silent}
    for site, share in shares.items():
        later = [shares.get(each, 0.0) for each in vitals.behind.get(site, set())]
        if share >= MANY_DEAD and all(other < share for other in later):
            few, units = layers[site].dead_units, layers[site].width
            follows = tuple(_same_units(vitals, site, shares))
            sentence = f"{said(vitals, site)} is partly dead: {few} of {units} units get no gradient from any sample"
            found.append(Finding("dead units", site, sentence, follows))
    return found


def silent_causes(vitals: Vitals) -> list[str]:
    """Layers without a gradient at their output though there is one behind them, the last one first."""
    layers = vitals.layers

    def reaches(site: str) -> bool:
        return site == OUTPUT or layers[site].slope > UNDERFLOW

    silent = [site for site in layers if layers[site].is_silent and site not in vitals.immaterial]
    return [site for site in reversed(silent) if any(map(reaches, vitals.behind.get(site, ())))]


def _share(layer: LayerVitals) -> float:
    return layer.dead_units / layer.width if layer.width else 0.0


def _same_units(vitals: Vitals, site: str, shares: Mapping[str, float]) -> Iterator[str]:
    """Layers right before a partly dead one whose units are dead with it: what batch norm is given, say."""
    for before in vitals.layers:
        if site in vitals.behind.get(before, set()) and shares.get(before, 0.0) >= MANY_DEAD:
            yield before
            yield from _same_units(vitals, before, shares)
