"""Augmentations: the same samples changed a little, in the order and shape in which the classifier takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ConfigError, DataError, GradscoreError
from ..models import is_file_source, load_function
from ..system import Registry

CODE = "python"
"""Start of augmentations that are functions of the user's."""


@dataclass(frozen=True)
class Augmentation:
    """An augmentation.

    Attributes:
        name: in the names of columns; of a Python file without the folder it lies in.
        make: from preprocessed samples (N, C, H, W) to as many of the same shape, each by itself; the same samples must
            give the same values.
    """

    name: str
    make: Callable[[Tensor], Tensor]

    def __call__(self, images: Tensor) -> Tensor:
        """The augmentation of a batch (N, C, H, W), which stays as it is.

        Raises:
            DataError: samples of which there is no such augmentation, or something else than a batch of the same shape.
        """
        try:
            found = self.make(images)
        except (GradscoreError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:  # sys.exit there must not end the program as if all was well
            raise DataError(
                f"features.augmentations: '{self.name}' fails for samples of shape {tuple(images.shape[1:])}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, Tensor) or found.shape != images.shape or found.dtype != images.dtype:
            got = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise DataError(
                f"features.augmentations: '{self.name}' must return floats of the type and shape it is given, "
                f"{images.dtype} {tuple(images.shape)}; got {got}"
            )
        return found.detach()


@dataclass(frozen=True, kw_only=True)
class AugmentationKind:
    """A kind of augmentation: what `features.augmentations` may say before the colon.

    Attributes:
        make: from what follows the colon ("" without one) to an augmented batch; raises `ValueError` with what is
            wanted, where that cannot be used. The augmentation raises `DataError` for samples that it cannot take.
        form: how it is written.
        summary: what it is, on one line.
    """

    make: Callable[[str], Callable[[Tensor], Tensor]]
    form: str
    summary: str


def _is_given(name: str) -> bool:
    """Whether an augmentation, by its name in the settings, is a function that a user gives."""
    return name.partition(":")[0] == CODE


def mirror(argument: str) -> Callable[[Tensor], Tensor]:
    """Left and right change places."""
    if argument:
        raise ValueError("wanted nothing after the name")

    def make(images: Tensor) -> Tensor:
        _check_images(images, "mirror")
        return images.flip(3)

    return make


def shift(argument: str) -> Callable[[Tensor], Tensor]:
    """Moved right and down by so many pixels; what comes in at the borders is the image reflected there."""
    right, down = _integers(argument, 2)

    def make(images: Tensor) -> Tensor:
        _check_images(images, f"shift:{argument}")
        height, width = images.shape[2:]
        if abs(right) >= width or abs(down) >= height:
            raise DataError(
                f"features.augmentations: 'shift:{argument}' moves images of {height} x {width} pixels out of sight; "
                "choose a smaller shift"
            )
        padded = F.pad(images, (max(right, 0), max(-right, 0), max(down, 0), max(-down, 0)), mode="reflect")
        left, top = max(-right, 0), max(-down, 0)
        return padded[:, :, top : top + height, left : left + width].contiguous()

    return make


def crop(argument: str) -> Callable[[Tensor], Tensor]:
    """Without so many pixels at every border, and blown up to the old size (bilinear)."""
    (border,) = _integers(argument, 1)
    if border < 1:
        raise ValueError("wanted one pixel or more")

    def make(images: Tensor) -> Tensor:
        _check_images(images, f"crop:{argument}")
        height, width = images.shape[2:]
        if 2 * border >= min(height, width):
            raise DataError(
                f"features.augmentations: 'crop:{argument}' leaves nothing of images of {height} x {width} pixels; "
                "choose a narrower border"
            )
        inner = images[:, :, border : height - border, border : width - border]
        return F.interpolate(inner, size=(height, width), mode="bilinear", align_corners=False)

    return make


AUGMENTATIONS: Registry[AugmentationKind] = Registry(
    "augmentation",
    {
        "mirror": AugmentationKind(make=mirror, form="mirror", summary="left and right change places"),
        "shift": AugmentationKind(
            make=shift, form="shift:RIGHT,DOWN", summary="moved by so many pixels, with reflected borders"
        ),
        "crop": AugmentationKind(
            make=crop, form="crop:BORDER", summary="without so many pixels at every border, resized to the old size"
        ),
    },
    wanted=AugmentationKind,
    reserved=(CODE,),
)
"""Kinds of augmentations by name."""


def open_augmentations(names: Sequence[str]) -> list[Augmentation]:
    """The augmentations that `features.augmentations` names.

    Args:
        names: as they are written: `<kind>` or `<kind>:<argument>` with a kind of `AUGMENTATIONS`, or
            `python:<file.py or module>:<function>`.

    Raises:
        ConfigError: there is no such kind, its argument cannot be used, or two augmentations have the same name.
        ModelError: code that is not allowed, or cannot be imported.
    """
    found: list[Augmentation] = []
    for place, name in enumerate(names):
        where = f"features.augmentations.{place}"
        opened = _of_code(name, where) if _is_given(name) else _of_kind(name, where)
        if any(opened.name == other.name for other in found):
            raise ConfigError(
                f"{where}: there is an augmentation '{opened.name}' already; rename the file or the function"
            )
        found.append(opened)
    return found


def check_augmentations(names: Sequence[str]) -> None:
    """Refuses what `open_augmentations` would, of the augmentations that are no code of the user's."""
    for place, name in enumerate(names):
        if not _is_given(name):
            _of_kind(name, f"features.augmentations.{place}")


def _of_kind(name: str, where: str) -> Augmentation:
    kind, _, argument = name.partition(":")
    found = AUGMENTATIONS.find(kind, where=where)
    try:
        return Augmentation(name, found.make(argument))
    except ValueError as error:
        raise ConfigError(f"{where}: '{name}': {error}; write {found.form}") from None


def augmentation_name(name: str) -> str:
    """Name of an augmentation in columns: as it is written, without the folder of a Python file."""
    if not is_file_source(name):
        return name
    file, _, function = name.removeprefix(f"{CODE}:").rpartition(":")
    return f"{CODE}:{Path(file).name}:{function}"


def _of_code(name: str, where: str) -> Augmentation:
    function: Callable[..., Any] = load_function(name.removeprefix(f"{CODE}:"), {}, setting=where)
    # It may write into what it is given.
    return Augmentation(augmentation_name(name), lambda images: function(images.clone()))


def _integers(argument: str, count: int) -> list[int]:
    try:
        numbers = [int(part) for part in argument.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise ValueError(f"wanted {count} whole number{'s' if count > 1 else ''} of pixels, got {argument!r}")
    return numbers


def _check_images(images: Tensor, name: str) -> None:
    if images.dim() != 4:
        raise DataError(
            f"features.augmentations: '{name}' is an augmentation of images (N, C, H, W), got samples of shape "
            f"{tuple(images.shape[1:])}; remove it, or name a function of your own: python:<file.py>:<function>"
        )
