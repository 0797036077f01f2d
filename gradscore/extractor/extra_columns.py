"""Features beyond the statistics of parameter gradients: `features.columns`.

`output_gradient_norm` is the L2 norm of the gradient of a sample's loss with respect to the outputs of a layer,
`activation_rate` the share of the outputs of a layer's activation functions that are not zero, and `gradient_cosine`
the cosine of a sample's gradient with the mean gradient of the in-distribution fit samples of its predicted class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from ..columns import COSINE, FORWARD, NORM, RATE
from ..config import FeaturesConfig
from ..errors import ConfigError, ModelError
from ..gradients import Sink, Tap
from ..losses import LOSSES, LogitGradient, with_labels
from ..models import Call, LayerWatch, owners
from .class_gradients import Cosines, MeanGradients, check_memory


class ExtraColumns:
    """Computes the columns of `features.columns`, batch by batch.

    Args:
        model: the classifier.
        features: the settings; losses and columns.
        groups: parameter names by group.
        parameters: all parameters of the groups by name.
        num_classes: K.

    Attributes:
        means: mean gradients, for `gradient_cosine`; to be set before the first batch.

    Raises:
        ConfigError: `gradient_cosine` with a loss of several gradients or of given labels, or more mean gradients than
            memory.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        features: FeaturesConfig,
        groups: Mapping[str, Sequence[str]],
        parameters: Mapping[str, Tensor],
        num_classes: int,
    ) -> None:
        self.wanted, self.losses, self.groups = features.columns, features.losses, groups
        self.means: MeanGradients | None = None
        self._layers = owners(list(parameters)) if NORM in self.wanted else []
        self._watch = LayerWatch(model, layers=self._layers, activations=RATE in self.wanted)
        if COSINE in self.wanted:
            several = [loss for loss in self.losses if LOSSES[loss].several]
            if several:
                raise ConfigError(
                    f"features.columns: gradient_cosine: loss '{several[0]}' has a gradient for every class, whose sum "
                    "is zero; leave out one of the two"
                )
            given = with_labels(self.losses)
            if given:
                raise ConfigError(
                    f"features.columns: gradient_cosine: loss '{given[0]}' looks at given labels, and mean gradients "
                    "are those of predicted classes; leave out one of the two"
                )
            check_memory(losses=self.losses, parameters=parameters, num_classes=num_classes)

    @property
    def names(self) -> list[str]:
        """The names of the columns; `ModelError` before the first forward pass if they depend on it."""
        names: list[str] = []
        for column in self.wanted:
            if column == RATE:
                names += [f"{FORWARD}/{layer}/{RATE}" for layer in self._watch.activation_layers]
            else:
                rows = self._layers if column == NORM else list(self.groups)
                names += [f"{loss}/{row}/{column}" for loss in self.losses for row in rows]
        return names

    @property
    def notices(self) -> list[str]:
        """What has no figure, and why."""
        found = list(self._watch.notices)
        if self.means is not None and bool((self.means.counts == 0).any()):
            empty = (self.means.counts == 0).nonzero().flatten().tolist()
            shown = ", ".join(map(str, empty[:10])) + (f" and {len(empty) - 10} more" if len(empty) > 10 else "")
            found.append(f"gradient_cosine is 0 for predictions no sample of in_dist.fit has: class {shown}")
        return found

    def catch(self, forward: Callable[[], Tensor]) -> tuple[Tensor, list[Call]]:
        """Runs the model, looking at its layers if a column needs it; see `LayerWatch.catch`."""
        if NORM in self.wanted or RATE in self.wanted:
            return self._watch.catch(forward)
        return forward(), []

    def learn(self, outputs: Tensor, calls: Sequence[Call], direction: Tensor) -> None:
        """Finds out where the samples lie in the outputs of layers; see `LayerWatch.locate`."""
        self._watch.locate(calls, outputs, direction.to(outputs.dtype))

    def batch(self, outputs: Tensor, calls: Sequence[Call], *, copies: Tensor) -> BatchColumns:
        """What is found in one batch.

        Args:
            outputs: (N, K) with a graph.
            calls: of the forward pass.
            copies: (N,) int64, how many samples of the mean gradients each is a copy of; these are left out for it.

        Raises:
            ModelError: the mean gradients are missing.
        """
        if COSINE in self.wanted and self.means is None:
            raise ModelError("features.columns: gradient_cosine needs mean gradients, and there are none")
        rates = self._watch.active_shares(calls, len(outputs)) if RATE in self.wanted else {}
        return BatchColumns(self, outputs, rates, copies=copies)

    def blank_norms(self, samples: int, device: torch.device) -> dict[str, Tensor]:
        """(samples,) zeros for every layer."""
        return {layer: torch.zeros(samples, dtype=torch.float64, device=device) for layer in self._layers}

    def norm_taps(self, calls: Sequence[Call], norms: Mapping[str, Tensor]) -> dict[Node, Tap]:
        """See `LayerWatch.norm_taps`."""
        return self._watch.norm_taps(calls, norms) if norms else {}


class BatchColumns:
    """The columns of one batch; made by `ExtraColumns.batch`."""

    def __init__(self, columns: ExtraColumns, outputs: Tensor, rates: Mapping[str, Tensor], *, copies: Tensor) -> None:
        self._columns, self._rates, self._copies = columns, rates, copies
        self._predictions = outputs.detach().double().argmax(1)
        self._norms = {loss: columns.blank_norms(len(outputs), outputs.device) for loss in columns.losses}
        self._now = self._norms[columns.losses[0]]
        self._cosines: dict[str, Cosines] = {}

    def listeners(
        self, loss: str, gradient: LogitGradient, calls: Sequence[Call]
    ) -> tuple[list[Sink], dict[Node, Tap]]:
        """What looks on in the backward pass of a gradient at the logits, for `reduce_gradients`."""
        self._now = {layer: torch.zeros_like(norms) for layer, norms in self._norms[loss].items()}
        sinks: list[Sink] = []
        if self._columns.means is not None:
            self._cosines[loss] = Cosines(
                self._columns.means,
                loss,
                gradient,
                predictions=self._predictions,
                groups=self._columns.groups,
                copies=self._copies,
            )
            sinks.append(self._cosines[loss].take)
        return sinks, self._columns.norm_taps(calls, self._now)

    def passed(self, loss: str, gradient: LogitGradient) -> None:
        """The backward pass is over."""
        for layer, norms in self._now.items():
            self._norms[loss][layer] += norms * gradient.scale

    def values(self) -> Tensor:
        """(N, columns) float64 on the device of the outputs, in the order of `ExtraColumns.names`."""
        parts: list[Tensor] = []
        for column in self._columns.wanted:
            if column == RATE:
                parts += self._rates.values()
            elif column == NORM:
                parts += [norm for norms in self._norms.values() for norm in norms.values()]
            else:
                parts += [part for loss in self._columns.losses for part in self._cosines[loss].finished().unbind(1)]
        return torch.stack([part.to(self._predictions.device) for part in parts], dim=1)
