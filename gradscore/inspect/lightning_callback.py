"""Watching a model that Lightning trains; importing this module needs Lightning."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from torch import Tensor

from ..errors import ConfigError, MissingExtraError
from ..system import import_torchvision
from .inspector import Inspector
from .quantity import Quantity

import_torchvision()  # which Lightning imports
try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"no InspectorCallback: {error}; run `pip install 'gradscore[lightning]'`, or use an Inspector in your own loop"
    ) from error


class InspectorCallback(Callback):
    """Feeds quantities while a `lightning.pytorch.Trainer` fits a module.

    Hooks are there from the start of training to its end, or to an exception; the module is then as it was. A step is a
    batch of training. Batches of validation are offered to every quantity that looks at outputs, those of the sanity
    check are not. An epoch ends with the trainer's.

    Args:
        quantities: what is fed.
        log: also give every finite figure of an epoch to the loggers of the trainer (Weights & Biases, MLflow, CSV),
            named quantity/measure/layer/statistic.
        options: of `Inspector`: layers, parameters, health and others. Names begin with that of the module's attribute
            ("model.0"); the first tensor of a batch is taken for the samples.

    Attributes:
        inspector: holds the figures, also after the fit; None before the first one. Another fit begins another history.
    """

    def __init__(self, quantities: Sequence[Quantity], *, log: bool = False, **options: Any) -> None:
        self.quantities, self.log, self.options = list(quantities), log, options
        self._saw_losses = False
        self.inspector: Inspector | None = None

    def observe_losses(self, losses: Tensor) -> None:
        """Feeds the quantities that look at gradients of single samples; to be called in `training_step`.

        Args:
            losses: see `Inspector.observe_losses`.

        Raises:
            ConfigError: no fit has begun.
            CoupledSamplesError: the losses depend on one another.
            EngineError: gradients that cannot be computed.
        """
        if self.inspector is None:
            raise ConfigError(
                "observe_losses was called and nothing is watched: give this InspectorCallback to the trainer, "
                "as Trainer(callbacks=[...]), and call it in training_step only"
            )
        self._saw_losses = True
        self.inspector.observe_losses(losses)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attaches an inspector."""
        for quantity in self.quantities:
            quantity.reset()
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        self.inspector = Inspector(pl_module, self.quantities, **{"optimizer": optimizer, **self.options})
        # Not the first ones where a fit resumes.
        self.inspector.epoch, self.inspector.step = trainer.current_epoch, trainer.fit_loop.total_batch_idx
        self.inspector.attach(count_steps=False)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begins a step."""
        del trainer, pl_module, batch_idx
        if self.inspector is not None:
            self.inspector.start_step()
            self.inspector.begin_pass(batch)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Ends a pass."""
        del trainer, pl_module
        if self.inspector is not None:
            self.inspector.end_pass(loss)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keeps the loss of the step, unless `observe_losses` did."""
        del trainer, pl_module, batch, batch_idx
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self.inspector is not None and isinstance(loss, Tensor) and not self._saw_losses:
            self.inspector.push(loss=float(loss.detach()))
        self._saw_losses = False

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begins a pass."""
        del trainer, pl_module, batch, batch_idx, dataloader_idx
        if self.inspector is not None:
            self.inspector.begin_pass()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends an epoch."""
        del pl_module
        if self.inspector is None:
            return
        figures = self.inspector.tick_epoch()
        if self.log:
            metrics = {
                "/".join((each.quantity, each.measure, each.layer, each.statistic)): each.value
                for each in figures
                if isfinite(each.value)
            }
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends the last look at the health of the module."""
        del trainer, pl_module
        if self.inspector is not None and self.options.get("health") is not None:
            self.inspector.findings()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Detaches."""
        del trainer, pl_module
        if self.inspector is not None:
            self.inspector.detach()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Detaches."""
        del exception
        self.on_fit_end(trainer, pl_module)
