"""The rows of a feature table, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..config import FeaturesConfig
from ..data import Batch
from ..errors import ModelError
from ..gradients import Engine, prepare
from ..losses import LOSSES
from ..models import Call, LastLayer
from ..statistics import find_statistic, reduce_gradients
from ..store import ShardRows, Skipped
from ..system import full_precision
from .class_gradients import ClassSums, MeanGradients
from .extra_columns import BatchColumns, ExtraColumns

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
        means: mean gradients by class, for the column `gradient_cosine`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        num_classes: int,
        features: FeaturesConfig,
        groups: Mapping[str, Sequence[str]],
        last_layer: LastLayer | None = None,
        means: MeanGradients | None = None,
    ) -> None:
        """Sets up the engine for the parameters of the groups."""
        parameters = dict(model.named_parameters())
        wanted = {name for names in groups.values() for name in names}
        self.model = model
        self.device = next(iter(parameters.values())).device
        self.engine = Engine({name: parameter for name, parameter in parameters.items() if name in wanted})
        self._columns = ExtraColumns(
            model, features=features, groups=groups, parameters=self.engine.parameters, num_classes=num_classes
        )
        self._last_layer = last_layer
        self._num_classes = num_classes
        self._features = features
        self._groups = groups
        degrees = [find_statistic(name).degree for name in features.statistics] * len(groups)
        self._degrees = torch.tensor(degrees, dtype=torch.float64, device=self.device)
        self._autocast = AUTOCAST.get(features.autocast or "")
        self._fitting: int | None = None
        if means is not None:
            self.compare_with(means)

    @property
    def feature_names(self) -> list[str]:
        """The names of the features; `ModelError` where they depend on a forward pass and there was none yet."""
        statistics = [
            f"{loss}/{group}/{statistic}"
            for loss in self._features.losses
            for group in self._groups
            for statistic in self._features.statistics
        ]
        return statistics + self._columns.names

    @property
    def names(self) -> list[str]:
        """The names of all values: logits, penultimate features, features; `ModelError` as `feature_names`."""
        penultimate = [] if self._last_layer is None else self._last_layer.columns
        return [f"logit_{k}" for k in range(self._num_classes)] + penultimate + self.feature_names

    @property
    def notices(self) -> list[str]:
        """What the reader of the values should know."""
        return self.engine.notices + self._columns.notices

    def compare_with(self, means: MeanGradients) -> None:
        """Takes the mean gradients with which those of samples are compared from now on.

        Raises:
            StoreError: they belong to other losses, classes or parameters.
        """
        means.check(
            losses=self._features.losses,
            parameters=self.engine.parameters,
            num_classes=self._num_classes,
            where="features.columns: gradient_cosine",
        )
        self._columns.means = means.to(self.device)

    def prepare(self, images: Tensor) -> None:
        """Shows the engine a few images (n, C, H, W), so that it learns the sample layout and checks itself.

        Raises:
            ModelError: as `values`.
            CoupledSamplesError: the output for an image depends on the others of its batch.
        """
        loss = LOSSES[self._features.losses[0]]
        with full_precision():
            self._forward(images)
            prepare(self.engine, self.model, images.to(self.device), lambda logits: loss(logits).direction)

    def values(self, images: Tensor, *, leave_out: bool = False) -> npt.NDArray[np.float64]:
        """The logits and features of a batch.

        Args:
            images: (N, C, H, W), preprocessed.
            leave_out: they are among the samples of the mean gradients: each is compared with the mean of the others.

        Returns:
            (N, len(names)) float64.

        Raises:
            ModelError: the model cannot take the images, its outputs are not (N, K) or do not come from the last layer,
                or memory runs out.
            EngineError: gradients that cannot be computed.
        """
        parts: list[npt.NDArray[np.float64]] = []
        self._in_parts(images, lambda part: parts.append(self._values_at_once(part, leave_out=leave_out)))
        return np.concatenate(parts) if parts else np.empty((0, len(self.names)))

    def class_sums(self) -> ClassSums:
        """Sums of gradients by predicted class, of no sample yet."""
        return ClassSums(
            losses=self._features.losses,
            parameters=self.engine.parameters,
            num_classes=self._num_classes,
            device=self.device,
        )

    def add_to(self, sums: ClassSums, images: Tensor) -> None:
        """Adds the gradients of a batch, preprocessed (N, C, H, W); raises the same as `values`."""
        self._in_parts(images, lambda part: self._add_at_once(sums, part))

    def _in_parts(self, images: Tensor, compute: Callable[[Tensor], None]) -> None:
        """Calls `compute` with all images in order, as many at a time as memory allows."""
        start = 0
        with full_precision():
            while start < len(images):
                part = images[start : start + (self._fitting or len(images))]
                if self._if_memory_allows(part, compute):
                    start += len(part)
                else:
                    self._halve(len(part))

    def _if_memory_allows(self, images: Tensor, compute: Callable[[Tensor], None]) -> bool:
        try:
            compute(images)
        except torch.OutOfMemoryError as error:
            if len(images) == 1:
                raise ModelError(f"the device has too little memory for a single sample: {error}") from None
            return False
        return True

    def _halve(self, samples: int) -> None:
        """Takes half as many samples at a time from now on, and says so."""
        torch.cuda.empty_cache()
        self._fitting = samples // 2
        self.engine.notices.append(
            f"memory ran out with {samples} samples at a time; went on with {self._fitting} "
            f"(--batch-size {self._fitting} does so from the start)"
        )

    def _values_at_once(self, images: Tensor, *, leave_out: bool) -> npt.NDArray[np.float64]:
        outputs, calls, penultimate = self._forward(images)
        logits = outputs.detach().double()
        extra = self._columns.batch(outputs, calls, leave_out=leave_out)
        blocks = [self._block(loss, outputs, logits, calls, extra) for loss in self._features.losses]
        more = [extra.values()] if self._features.columns else []
        return torch.cat([logits, *penultimate, *blocks, *more], dim=1).cpu().numpy()  # one copy from an accelerator

    def _block(self, loss: str, outputs: Tensor, logits: Tensor, calls: Sequence[Call], extra: BatchColumns) -> Tensor:
        found = logits.new_zeros(len(logits), len(self._groups) * len(self._features.statistics))
        gradients = list(LOSSES[loss].terms(logits))
        for gradient in gradients:
            sinks, taps = extra.listeners(loss, gradient, calls)
            columns = reduce_gradients(
                self.engine,
                outputs,
                gradient.direction.to(outputs.dtype),
                statistics=self._features.statistics,
                groups=self._groups,
                retain_graph=loss != self._features.losses[-1] or gradient is not gradients[-1],
                sinks=sinks,
                taps=taps,
            )
            extra.passed(loss, gradient)
            found += torch.stack(list(columns.values()), dim=1) * gradient.scale.unsqueeze(1) ** self._degrees
        return found

    def _add_at_once(self, sums: ClassSums, images: Tensor) -> None:
        sums.drop()
        outputs = self._outputs(images)
        logits = outputs.detach().double()
        predictions = logits.argmax(1)
        for loss in self._features.losses:
            for gradient in LOSSES[loss].terms(logits):
                direction = gradient.direction.to(outputs.dtype)
                sink = sums.taker(loss, gradient.scale, predictions)
                self.engine.stream(outputs, direction, sink, retain_graph=loss != self._features.losses[-1])
        sums.commit(predictions)

    def _forward(self, images: Tensor) -> tuple[Tensor, list[Call], list[Tensor]]:
        """Logits with their graph, outputs of layers, and penultimate features; each if asked for."""
        calls: list[Call] = []
        penultimate: list[Tensor] = []

        def watched() -> Tensor:
            outputs, found = self._columns.catch(lambda: self._outputs(images))
            calls.extend(found)
            return outputs

        if self._last_layer is None:
            outputs = watched()
        else:
            outputs, features = self._last_layer.catch(watched)
            penultimate.append(features.double())
        if calls:
            gradient = LOSSES[self._features.losses[0]](outputs.detach().double())
            self._columns.learn(outputs, calls, gradient.direction)
        return outputs, calls, penultimate

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


def joined_rows(computed: Sequence[Computed], *, split: str, names: Sequence[str], num_classes: int) -> ShardRows:
    """Joins batches to the rows of one shard.

    Args:
        computed: the batches of the shard in order.
        split: the split they belong to.
        names: of the columns of values; the first `num_classes` are the logits.
        num_classes: K.

    Returns:
        The rows; a prediction is the class with the largest logit, the first of equal ones.
    """
    values = np.concatenate([entry.values for entry in computed])
    batches = [entry.batch for entry in computed]
    return ShardRows(
        split=split,
        sample_ids=[name for batch in batches for name in batch.sample_ids],
        labels=np.concatenate([batch.labels.numpy() for batch in batches]),
        predictions=values[:, :num_classes].argmax(axis=1),
        content_hashes=[name for batch in batches for name in batch.content_hashes],
        names=names,
        values=values,
        skipped=[Skipped(bad.sample_id, bad.error) for batch in batches for bad in batch.bad],
    )
