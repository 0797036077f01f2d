"""From raw pixels, numbers or text to what the model takes, and the section `preprocessing` of a configuration."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from torch import Tensor

from ..errors import ConfigError, DataError
from ..models import FolderProcessor
from ..system import (
    AnchoredPath,
    Elsewhere,
    InFeatures,
    Positive,
    Section,
    import_torchvision,
)
from .sources.raw_samples import Pixels, Raw, Values, describe_raw, is_image

MOST_PIXELS = 16384
"""Along a side: more fits into hardly any memory."""


def _size(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        size = check(value)
    except ValidationError:
        size = MOST_PIXELS + 1
    if size is not None and np.max(size) > MOST_PIXELS:
        raise ValueError(f"wanted a number of pixels from 1 to {MOST_PIXELS}, [height, width] or null, got {value!r}")
    return size


def _for_all_channels(value: Any) -> Any:
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value


Size = Annotated[Positive | tuple[Positive, Positive] | None, WrapValidator(_size)]


def _grey_or_colours(value: Any) -> Any:
    if isinstance(value, int) and value not in (1, 3):
        raise ValueError(f"wanted 1 or 3, got {value}; {OTHER_CHANNELS}")
    return value


Means = Annotated[list[Annotated[float, Field(ge=-1e12, le=1e12)]], BeforeValidator(_for_all_channels)]

Deviations = Annotated[list[Annotated[float, Field(ge=1e-12, le=1e12)]], BeforeValidator(_for_all_channels)]


class PreprocessingConfig(Section):
    """What happens to an image before the model: resize, centre crop, channels, normalisation.

    `weights` names torchvision weights (`ResNet18_Weights.IMAGENET1K_V1`) whose own transforms are used instead.
    `processor` names a folder of transformers whose processor or tokenizer is used instead; a model of such a folder
    brings its own unless anything else is set. `max_length` cuts and fills its texts (in tokens) and waves.
    """

    resize: InFeatures[Size] = None
    """[height, width], or the length of the shorter side."""
    crop: InFeatures[Size] = None
    """[height, width] or side of the centre that is kept, after `resize`."""
    channels: InFeatures[Annotated[Literal[1, 3], BeforeValidator(_grey_or_colours)] | None] = None
    """1 makes images grey, as Pillow does, 3 RGB."""
    mean: InFeatures[Means | None] = None
    """Subtracted from each channel, of values from 0 to 1. One number is for all channels."""
    std: InFeatures[Deviations | None] = None
    """What each channel is divided by afterwards."""
    weights: InFeatures[str | None] = None
    """torchvision weights whose transforms take the place of all others: `ResNet18_Weights.IMAGENET1K_V1`."""
    processor: Elsewhere[AnchoredPath | None] = None
    """Folder of a processor or tokenizer of transformers; by default that of the model."""
    max_length: InFeatures[Positive | None] = None
    """Tokens after which texts are cut."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std belong together: set both or neither")
        counts = {name: len(values) for name in ("mean", "std") if (values := getattr(self, name)) is not None}
        if len(set(counts.values()) - {1}) > 1 or 0 in counts.values():
            raise ValueError(
                f"mean has {counts['mean']} values and std {counts['std']}: give one per channel, or one for all"
            )
        others = [key for key in ("resize", "crop", "channels", "mean") if getattr(self, key) is not None]
        if self.weights is not None and others:
            raise ValueError(f"weights brings its own transforms: remove {', '.join(others)}, or weights")
        others += [] if self.weights is None else ["weights"]
        if self.processor is not None and others:
            raise ValueError(f"processor says what becomes of samples: remove {', '.join(others)}, or processor")
        if self.max_length is not None and self.processor is None:
            raise ValueError("max_length is for the processor of a model of transformers: set processor, or remove it")
        return self


OTHER_CHANNELS = (
    "files of images are read as grey or RGB, 1 or 3 channels; others come as arrays of floats (N, C, H, W) in an npz: "
    "source, which mean and std standardise"
)
"""Advice where a network takes images of other channels than files are read with."""

FOR_IMAGES = ("resize", "crop", "channels", "weights")
"""Settings that are for images of 8 bits alone."""


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
        self._weights: Callable[[Tensor], Tensor] | None = None
        if config.weights is not None:
            self._weights = _weights_transforms(config.weights)
        self._processor: FolderProcessor | None = None
        if config.processor is not None:
            self._processor = FolderProcessor(config.processor, max_length=config.max_length)

    @cached_property
    def _functional(self) -> Any:
        """Torchvision's functions, imported when an image is first resized: that takes three seconds."""
        import_torchvision()
        return importlib.import_module("torchvision.transforms.v2.functional")

    def __reduce__(self) -> tuple[type[Preprocessing], tuple[PreprocessingConfig]]:
        """Worker processes build their own."""
        return Preprocessing, (self.config,)

    @property
    def changes(self) -> list[str]:
        """The settings that make other numbers of samples than those they are."""
        return [name for name in (*FOR_IMAGES, "mean") if getattr(self.config, name) is not None]

    @property
    def takes_text(self) -> bool:
        """Whether the preprocessing may make model inputs of text."""
        return self._processor is not None

    def __call__(self, pixels: Pixels) -> Tensor:
        """Makes a model input of an image.

        Args:
            pixels: (H, W, C) uint8.

        Returns:
            (C, H, W) float32.

        Raises:
            DataError: the image has another number of channels than mean and std, or two or four that are to be one
                or three.
        """
        if self._processor is not None:
            made = self._processor(pixels)
            if isinstance(made, Tensor):
                return made
            raise DataError(f"preprocessing.processor: it makes {', '.join(made)} of an image, wanted pixels alone")
        image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        config = self.config
        if self._weights is not None:
            return self._weights(image if len(image) == 3 else image.expand(3, -1, -1)).float()
        if config.channels is not None:
            image = _in_channels(image, config.channels)
        if config.resize is not None:
            size = [config.resize] if isinstance(config.resize, int) else list(config.resize)
            image = self._functional.resize(image, size, antialias=True)
        if config.crop is not None:
            crop = [config.crop] * 2 if isinstance(config.crop, int) else list(config.crop)
            image = self._functional.center_crop(image, crop)
        for name, given in (("mean", config.mean), ("std", config.std)):
            if given is not None and len(given) not in (1, len(image)):
                advice = "set preprocessing.channels, or give samples such as the model takes"
                raise DataError(
                    f"preprocessing.{name} has {len(given)} values and the image {len(image)} channels; "
                    f"{advice if len(given) == 3 else OTHER_CHANNELS}"
                )
        return self._normalised(image.float() / 255)

    def model_input(self, raw: Raw) -> Tensor | dict[str, Tensor]:
        """Makes a model input of a sample of any kind.

        Args:
            raw: an image, (H, W, C) uint8; numbers, which stay as they are but for `mean` and `std`; several arrays by
                name.

        Returns:
            (C, H, W) float32 of an image; of numbers float32, int64 or bool, of their shape, one number alone as (1,);
            several by name.

        Raises:
            DataError: the image has another number of channels than mean and std; settings that are for images alone;
                or text, which needs the tokenizer of a model.
        """
        if is_image(raw):
            return self(raw)
        if self._processor is not None and not isinstance(raw, Mapping):
            return self._processor(raw)
        images_alone = (*FOR_IMAGES, *(("mean",) if isinstance(raw, Mapping) else ()))
        setting = next((name for name in images_alone if getattr(self.config, name) is not None), None)
        if setting is not None:
            raise DataError(
                f"preprocessing.{setting} is for images of 8 bits with 1 or 3 channels, (H, W) or (H, W, C), and the "
                f"samples are {describe_raw(raw)}: give such images, or, for samples that go to the model as they are, "
                "leave the setting out"
            )
        if isinstance(raw, Mapping):
            return {name: self._of_values(values) for name, values in raw.items()}
        if isinstance(raw, str):
            raise DataError(
                "the samples are text, and this model has no tokenizer: use a model with one (transformers:<folder>), "
                "or make token ids of the text in a python: source"
            )
        return self._of_values(np.atleast_1d(raw))

    def _of_values(self, values: Values) -> Tensor:
        array = np.asarray(values, order="C")  # ascontiguousarray would give a single number an axis
        kind = {"f": np.float32, "b": np.bool_}.get(array.dtype.kind, np.int64)
        with np.errstate(over="ignore"):  # what becomes infinite is refused as such
            found = torch.from_numpy(array.astype(kind))
        if self.config.mean is None or self.config.std is None:
            return found
        if not found.is_floating_point():
            raise DataError(
                f"preprocessing.mean is for images and floats, and the samples are {describe_raw(values)}: give images "
                "of 8 bits, uint8, or floats"
            )
        count = max(len(self.config.mean), len(self.config.std))
        if count not in (1, len(found) if found.dim() else 0):
            raise DataError(
                f"preprocessing.mean has {count} values, and the samples are {describe_raw(values)}: "
                "give one, or one for each column (of images, floats (C, H, W), each channel)"
            )
        return self._normalised(found)

    def _normalised(self, values: Tensor) -> Tensor:
        if self.config.mean is None or self.config.std is None:
            return values
        shape = (-1, *[1] * (values.dim() - 1))
        mean, std = (
            torch.tensor(each, device=values.device).view(shape) for each in (self.config.mean, self.config.std)
        )
        return (values - mean) / std


def _in_channels(image: Tensor, channels: int) -> Tensor:
    """An image (C, H, W) uint8 as grey or in colours; grey is rounded as Pillow does, on which networks are trained."""
    if len(image) == channels:
        return image
    if len(image) == 1:
        return image.expand(channels, -1, -1)
    if len(image) != 3:
        raise DataError(
            f"preprocessing.channels: the image has {len(image)} channels, wanted 1 or 3 to make {channels} of; "
            "give samples such as the model takes"
        )
    red, green, blue = image.int()
    grey: Tensor = (19595 * red + 38470 * green + 7471 * blue + 2**15) >> 16
    return grey.to(torch.uint8)[None]


def _weights_transforms(name: str) -> Callable[[Tensor], Tensor]:
    import_torchvision()
    models = importlib.import_module("torchvision.models")
    try:
        transforms: Callable[[Tensor], Tensor] = models.get_weight(name).transforms()
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"preprocessing.weights: torchvision has no weights {name!r}; "
            "wanted a name like ResNet18_Weights.IMAGENET1K_V1"
        ) from error
    return transforms
