"""What a folder of transformers makes of samples before its model, as its processor or tokenizer says."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError, ModelError, reason
from ..system import import_torchvision
from .sources import optional, processor_files, quietly

LONGEST = 256
"""Tokens of a text, unless the setting, the tokenizer or the model say otherwise; longer ones are cut."""


class FolderProcessor:
    """Makes model inputs of images, text or waves as transformers does.

    Args:
        folder: what `save_pretrained` of a processor or tokenizer wrote to, beside the model as a rule.
        max_length: tokens of a text, numbers of a wave; None for up to `LONGEST` tokens and waves as they are.

    Raises:
        ModelError: there is neither in the folder.
    """

    def __init__(self, folder: Path, *, max_length: int | None = None) -> None:
        self.folder, self.max_length = folder, max_length
        if not processor_files(folder):
            raise ModelError(
                f"preprocessing.processor: {folder} holds no processor and no tokenizer; save it there by "
                "processor.save_pretrained, or set preprocessing by hand"
            )

    def __call__(self, raw: NDArray[Any] | str) -> Tensor | dict[str, Tensor]:
        """The inputs of one sample, without the axis of samples.

        Args:
            raw: (H, W, C) uint8, a text, or (T,) float at the rate that the feature extractor names.

        Returns:
            A tensor where there is one, else tensors by the names of the arguments of the model.

        Raises:
            DataError: the processor cannot take the sample.
            ModelError: the processor cannot be read.
        """
        if isinstance(raw, str):
            return self._made(lambda: self._tokens(raw), "text")
        if not self.takes(raw):
            raise DataError(
                f"preprocessing.processor: {self.folder} takes images (H, W, C) of 8 bits, text, and waves (T,) of "
                f"floats, got {raw.dtype} of shape {raw.shape}; set preprocessing.processor to null to give numbers as "
                "they are"
            )
        if raw.ndim == 3:
            pixels = raw if raw.shape[2] == 3 else np.repeat(raw[:, :, :1], 3, axis=2)
            return self._made(
                lambda: self._images(images=pixels, input_data_format="channels_last", return_tensors="pt"), "image"
            )
        if not any((self.folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
            raise DataError(
                f"preprocessing.processor: {self.folder} takes text, got {raw.size} numbers; a column whose entries "
                "are all numbers is read as numbers, in Python give them as texts"
            )
        return self._made(lambda: self._wave(raw), "wave")

    def takes(self, raw: object) -> bool:
        """Whether a sample is an image (H, W, C) of 8 bits, a text, or a wave (T,) of floats."""
        if not isinstance(raw, np.ndarray):
            return isinstance(raw, str)
        return (raw.ndim == 3 and raw.dtype == np.uint8) or (raw.ndim == 1 and raw.dtype.kind == "f")

    def _made(self, make: Any, what: str) -> Tensor | dict[str, Tensor]:
        try:
            found = make()
        except ModelError:
            raise
        except Exception as error:
            raise DataError(
                f"preprocessing.processor: {self.folder} cannot take the {what}: {reason(error)}"
            ) from error
        tensors = {name: each[0] for name, each in found.items() if isinstance(each, Tensor)}
        return next(iter(tensors.values())) if len(tensors) == 1 else tensors

    def _tokens(self, text: str) -> Any:
        known = min(self._tokenizer.model_max_length, self._longest_position)
        length = min(self.max_length or LONGEST, known)
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        return self._tokenizer(text, padding="max_length", truncation=True, max_length=length, return_tensors="pt")

    def _wave(self, wave: NDArray[Any]) -> Any:
        size = {} if self.max_length is None else {"max_length": self.max_length, "padding": "max_length"}
        cut = {"truncation": True} if size else {}
        rate = self._waves.sampling_rate
        return self._waves(wave.astype(np.float32), sampling_rate=rate, return_tensors="pt", **size, **cut)

    @cached_property
    def _longest_position(self) -> int:
        """Number of positions of the model, where its configuration says so; RoBERTa keeps the first two to itself."""
        config = self._read("AutoConfig")
        places = getattr(config, "max_position_embeddings", None)
        kept = 2 if getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert") else 0
        return places - kept if isinstance(places, int) and places > 0 else LONGEST

    @cached_property
    def _tokenizer(self) -> Any:
        return self._read("AutoTokenizer")

    @cached_property
    def _images(self) -> Any:
        import_torchvision()
        return self._read("AutoImageProcessor")

    @cached_property
    def _waves(self) -> Any:
        return self._read("AutoFeatureExtractor")

    def _read(self, kind: str) -> Any:
        transformers = optional("transformers", f"transformers:{self.folder}")
        try:
            with quietly(transformers):
                reader = getattr(transformers, kind)
                return reader.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise ModelError(
                f"preprocessing.processor: {self.folder} has nothing that {kind} can read: {reason(error)}"
            ) from error
