"""One thing that is not well, and how layers are spoken of."""

from __future__ import annotations

from dataclasses import dataclass

from .vitals import Vitals


@dataclass(frozen=True)
class Finding:
    """One thing that is not well.

    Attributes:
        kind: what it is, a word or three: "dead layer".
        layer: where its cause is: a layer, a parameter, `(input)`, `(labels)` or `(model)`.
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


def said(vitals: Vitals, site: str) -> str:
    """A layer with its type and its position."""
    layer = vitals.layers[site]
    return f"{site} ({layer.kind}, layer {layer.place} of {len(vitals.layers)})"


def upstream(vitals: Vitals, cause: str, among: set[str]) -> tuple[str, ...]:
    """Which of some layers lie before a layer, with nothing but such layers between."""
    found = {cause}
    for site in reversed(vitals.layers):
        if site in among and vitals.behind.get(site, set()) & found:
            found.add(site)
    return tuple(site for site in vitals.layers if site in found and site != cause)
