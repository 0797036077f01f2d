"""From raw pixels to what the model takes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, DataError
from ..models import FolderProcessor
from ..system import import_torchvision
from .settings import PreprocessingConfig
from .sources import Pixels


class Preprocessing:
    """Resize, centre crop, channels and normalisation, or what comes with weights or a model.

    Args:
        config: the settings.

    Raises:
        ConfigError: unknown weights.
        ModelError: a folder without a processor.
    """

    def __init__(self, config: PreprocessingConfig) -> None:
        self.config = config
        import_torchvision()
        self._functional: Any = importlib.import_module("torchvision.transforms.v2.functional")
        self._weights: Callable[[Tensor], Tensor] | None = None
        if config.weights is not None:
            self._weights = _weights_transforms(config.weights)
        self._processor: FolderProcessor | None = None
        if config.processor is not None:
            self._processor = FolderProcessor(config.processor, max_length=config.max_length)

    def __reduce__(self) -> tuple[type[Preprocessing], tuple[PreprocessingConfig]]:
        """Worker processes build their own."""
        return Preprocessing, (self.config,)

    def __call__(self, pixels: Pixels) -> Tensor:
        """Makes a model input of an image.

        Args:
            pixels: (H, W, C) uint8.

        Returns:
            (C, H, W) float32.

        Raises:
            DataError: the image has another number of channels than mean and std.
        """
        if self._processor is not None:
            made = self._processor(pixels)
            if isinstance(made, Tensor):
                return made
            raise DataError(f"preprocessing.processor: it makes {', '.join(made)} of an image, wanted pixels alone")
        image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        config, functional = self.config, self._functional
        if self._weights is not None:
            return self._weights(image if len(image) == 3 else image.expand(3, -1, -1)).float()
        if config.channels is not None:
            convert = functional.rgb_to_grayscale if config.channels == 1 else functional.grayscale_to_rgb
            image = image if len(image) == config.channels else convert(image)
        if config.resize is not None:
            size = [config.resize] if isinstance(config.resize, int) else list(config.resize)
            image = functional.resize(image, size, antialias=True)
        if config.crop is not None:
            crop = [config.crop] * 2 if isinstance(config.crop, int) else list(config.crop)
            image = functional.center_crop(image, crop)
        scaled = image.float() / 255
        if config.mean is None or config.std is None:
            return scaled
        if len(config.mean) not in (1, len(scaled)):
            raise DataError(
                f"preprocessing.mean has {len(config.mean)} values and the image {len(scaled)} channels; "
                "set preprocessing.channels"
            )
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (config.mean, config.std))
        return (scaled - mean) / std


def _weights_transforms(name: str) -> Callable[[Tensor], Tensor]:
    models = importlib.import_module("torchvision.models")
    try:
        transforms: Callable[[Tensor], Tensor] = models.get_weight(name).transforms()
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"preprocessing.weights: torchvision has no weights {name!r}; "
            "wanted a name like ResNet18_Weights.IMAGENET1K_V1"
        ) from error
    return transforms
