"""The rows of a feature table, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .config import FeaturesConfig
from .data import Batch
from .errors import ModelError
from .gradients import Engine
from .gradients.check import prepare
from .losses import loss_terms
from .parts import Rows, Skipped
from .penultimate import LastLayer
from .statistics import reduce_gradients

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision of the network by its name in the settings; gradients and statistics keep float32 and float64."""


class Extractor:
    """Turns batches into logits and features.

    Args:
        model: the classifier, in evaluation mode, on the device that computes.
        num_classes: K, the number of its outputs.
        features: losses and statistics.
        groups: parameter names by group.
        last_layer: the layer whose inputs are stored, if any.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        num_classes: int,
        features: FeaturesConfig,
        groups: Mapping[str, Sequence[str]],
        last_layer: LastLayer | None = None,
    ) -> None:
        """Sets up the engine for the parameters of the groups."""
        parameters = dict(model.named_parameters())
        wanted = {name for names in groups.values() for name in names}
        self.model = model
        self.device = next(iter(parameters.values())).device
        self.engine = Engine({name: parameter for name, parameter in parameters.items() if name in wanted})
        self.feature_names = [
            f"{loss}/{group}/{statistic}"
            for loss in features.losses
            for group in groups
            for statistic in features.statistics
        ]
        penultimate = [] if last_layer is None else last_layer.columns
        self.names = [f"logit_{k}" for k in range(num_classes)] + penultimate + self.feature_names
        self._last_layer = last_layer
        self._num_classes = num_classes
        self._features = features
        self._groups = groups
        self._autocast = AUTOCAST.get(features.autocast or "")
        self._fitting: int | None = None

    def prepare(self, images: Tensor) -> None:
        """Shows the engine a few images (n, C, H, W), so that it learns the sample layout and checks itself.

        Raises:
            ModelError: as `values`.
            CoupledSamplesError: the output for an image depends on the others of its batch.
        """
        self._with_penultimate(images)
        loss = self._features.losses[0]
        prepare(
            self.engine, self.model, images.to(self.device), lambda logits: next(loss_terms(loss, logits)).direction
        )

    def values(self, images: Tensor) -> npt.NDArray[np.float64]:
        """The logits and features of a batch.

        Args:
            images: (N, C, H, W), preprocessed.

        Returns:
            (N, len(names)) float64.

        Raises:
            ModelError: the model cannot take the images, its outputs are not (N, K) or do not come from the last layer,
                or memory runs out.
            EngineError: gradients that cannot be computed.
        """
        parts = [np.empty((0, len(self.names)))]
        start = 0
        while start < len(images):
            part = images[start : start + (self._fitting or len(images))]
            rows = self._if_memory_allows(part)
            if rows is None:
                self._halve(len(part))
            else:
                parts.append(rows)
                start += len(part)
        return np.concatenate(parts)

    def _if_memory_allows(self, images: Tensor) -> npt.NDArray[np.float64] | None:
        try:
            return self._values_at_once(images)
        except torch.OutOfMemoryError as error:
            if len(images) == 1:
                raise ModelError(f"the device has too little memory for a single sample: {error}") from None
        return None

    def _halve(self, samples: int) -> None:
        """Takes half as many samples at a time from now on, and says so."""
        torch.cuda.empty_cache()
        self._fitting = samples // 2
        self.engine.notices.append(
            f"memory ran out with {samples} samples at a time; went on with {self._fitting} "
            f"(--batch-size {self._fitting} does so from the start)"
        )

    def _values_at_once(self, images: Tensor) -> npt.NDArray[np.float64]:
        outputs, penultimate = self._with_penultimate(images)
        logits = outputs.detach().double()
        blocks = [self._block(loss, outputs, logits) for loss in self._features.losses]
        return np.concatenate([logits.cpu().numpy(), *penultimate, *blocks], axis=1)

    def _block(self, loss: str, outputs: Tensor, logits: Tensor) -> npt.NDArray[np.float64]:
        found = torch.zeros(len(logits), len(self._groups) * len(self._features.statistics), dtype=torch.float64)
        gradients = list(loss_terms(loss, logits))
        for gradient in gradients:
            columns = reduce_gradients(
                self.engine,
                outputs,
                gradient.direction.to(outputs.dtype),
                statistics=self._features.statistics,
                groups=self._groups,
                retain_graph=loss != self._features.losses[-1] or gradient is not gradients[-1],
            )
            found += torch.stack(list(columns.values()), dim=1) * gradient.scale.cpu().unsqueeze(1)
        return found.numpy()

    def _with_penultimate(self, images: Tensor) -> tuple[Tensor, list[npt.NDArray[np.float64]]]:
        if self._last_layer is None:
            return self._outputs(images), []
        outputs, features = self._last_layer.catch(lambda: self._outputs(images))
        return outputs, [features.double().cpu().numpy()]

    def _outputs(self, images: Tensor) -> Tensor:
        try:
            with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
                outputs = self.model(images.to(self.device, non_blocking=True))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            raise ModelError(
                f"the model cannot take images of shape {tuple(images.shape[1:])}: {str(error).splitlines()[0]}; "
                "check preprocessing (resize, crop, channels)"
            ) from None
        wanted = (len(images), self._num_classes)
        if not isinstance(outputs, Tensor) or outputs.shape != wanted:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ModelError(
                f"model outputs: wanted logits of shape {wanted} (samples, model.num_classes), got {got}; "
                "correct model.num_classes or the arguments of the model"
            )
        return outputs


@dataclass(frozen=True)
class Computed:
    """A batch and the values of its rows."""

    batch: Batch
    values: npt.NDArray[np.float64]


def joined_rows(computed: Sequence[Computed], *, split: str, names: Sequence[str], num_classes: int) -> Rows:
    """Joins batches to the rows of one part.

    Args:
        computed: the batches of the part in order.
        split: the split they belong to.
        names: of the columns of values; the first `num_classes` are the logits.
        num_classes: K.

    Returns:
        The rows; a prediction is the class with the largest logit, the first of equal ones.
    """
    values = np.concatenate([entry.values for entry in computed])
    batches = [entry.batch for entry in computed]
    return Rows(
        split=split,
        sample_ids=[name for batch in batches for name in batch.sample_ids],
        labels=np.concatenate([batch.labels.numpy() for batch in batches]),
        predictions=values[:, :num_classes].argmax(axis=1),
        content_hashes=[name for batch in batches for name in batch.content_hashes],
        names=names,
        values=values,
        skipped=[Skipped(bad.sample_id, bad.error) for batch in batches for bad in batch.bad],
    )
