"""`transformers:<folder>`: what `save_pretrained` wrote, a classifier of images, text or sound, and its processor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ...errors import DataError, ModelError
from ...system import file_sha256, import_torchvision
from ..weights import READING_ERRORS, misfits, refuse_unsafe, weight_files
from .base import ModelRequest, made, optional

TRANSFORMERS = "transformers"
"""The kind of model source that brings its own."""

LONGEST = 256
"""Tokens of a text, unless the setting, the tokenizer or the model say otherwise; longer ones are cut."""

CONFIG = "config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json")
TASKS = ("ForImageClassification", "ForSequenceClassification", "ForAudioClassification", "ForVideoClassification")
"""What the name of a classifier of transformers has in it."""

_UNNAMED = "LABEL_"
"""How transformers calls classes that nobody named."""


def transformers_model(request: ModelRequest) -> nn.Module:
    """Builds the classifier of a folder, with its weights unless a checkpoint replaces them; nothing is fetched.

    Raises:
        MissingExtraError: transformers is not installed.
        ModelError: the folder cannot be used, or holds another kind of model, or weights that do not fit it.
    """
    folder = Path(request.name)
    source = f"transformers:{folder}"
    settings = _settings(folder)
    kind = _architecture(settings, source)
    _check_task(settings, request, source)
    transformers = optional("transformers", source)
    model_class = getattr(transformers, kind, None)
    if model_class is None:
        raise ModelError(
            f"{source}: transformers has no {kind}, so the model has code of its own, which is not run; build it in "
            "Python and use a python: source"
        )
    with quietly(transformers):
        config = made_config(lambda: model_class.config_class.from_pretrained(folder, **request.arguments), source)
        config.use_cache = False
        if not request.with_weights:
            return made(lambda: model_class(config), source, request.arguments)
        for file in weight_files(folder):
            refuse_unsafe(file)
        return made(lambda: _with_weights(model_class, folder, config), source, request.arguments)


def class_names(name: str) -> list[str] | None:
    """The names of the classes in their order; None where the folder does not name them.

    Raises:
        ModelError: the folder cannot be used.
    """
    found = _settings(Path(name)).get("id2label")
    if not isinstance(found, dict) or sorted(found, key=str) != sorted(map(str, range(len(found)))):
        return None
    names = [str(found[str(place)]) for place in range(len(found))]
    return None if all(each == f"{_UNNAMED}{place}" for place, each in enumerate(names)) else names


def config_files(name: str) -> list[Path]:
    """The files that say what the model computes and what becomes of samples before it."""
    return [Path(name) / each for each in (CONFIG, *PROCESSORS)]


def made_config(make: Callable[[], Any], source: str) -> Any:
    """What `make` makes of a configuration of transformers.

    Raises:
        ModelError: it fails.
    """
    try:
        return make()
    except READING_ERRORS as error:
        raise ModelError(f"{source}: {CONFIG} cannot be used: {_first_line(error)}; is it damaged?") from error


def _with_weights(model_class: Any, folder: Path, config: Any) -> nn.Module:
    try:
        model, found = model_class.from_pretrained(
            folder, config=config, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
    except READING_ERRORS as error:
        raise ModelError(f"transformers:{folder}: its weights cannot be read: {_first_line(error)}") from error
    problems = {
        "missing": found.get("missing_keys", ()),
        "unexpected": found.get("unexpected_keys", ()),
        "of another shape": [str(each) for each in found.get("mismatched_keys", ())],
    }
    if misfit := misfits({kind: sorted(names) for kind, names in problems.items()}):
        raise ModelError(
            f"transformers:{folder}: its weights are not those of a {model_class.__name__}: {misfit}; "
            "save the trained classifier by save_pretrained, or name its weights by model.checkpoint"
        )
    made_model: nn.Module = model
    return made_model


def _settings(folder: Path) -> dict[str, Any]:
    source, file = f"transformers:{folder}", folder / CONFIG
    if not file.is_file():
        raise ModelError(
            f"model.source {source}: wanted a folder that save_pretrained wrote, with {CONFIG} in it; "
            + ("there is none" if folder.is_dir() else "there is no such folder, and nothing is fetched")
        )
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except READING_ERRORS as error:
        raise ModelError(f"{source}: {CONFIG} cannot be read: {_first_line(error)}; is it damaged?") from error
    if not isinstance(found, dict):
        raise ModelError(f"{source}: {CONFIG} holds {type(found).__name__}, wanted an object")
    return found


def _architecture(settings: dict[str, Any], source: str) -> str:
    kinds = settings.get("architectures") or ["a model without architectures"]
    if len(kinds) == 1 and any(task in str(kinds[0]) for task in TASKS):
        return str(kinds[0])
    raise ModelError(
        f"{source} holds {', '.join(map(str, kinds))}, which is no classifier; wanted one of "
        f"{', '.join(TASKS)}: train it, and save that by save_pretrained"
    )


def _check_task(settings: dict[str, Any], request: ModelRequest, source: str) -> None:
    problem = request.arguments.get("problem_type", settings.get("problem_type"))
    if problem not in (None, "single_label_classification"):
        raise ModelError(
            f"{source} is a model for {str(problem).replace('_', ' ')} (problem_type in {CONFIG}); gradscore scores "
            "classifiers that choose one class out of several"
        )
    labels = settings.get("id2label")
    found = len(labels) if isinstance(labels, dict) else settings.get("num_labels", 2)
    found = request.arguments.get("num_labels", found)
    if found == 1 != request.outputs:
        raise ModelError(
            f"{source} has one output: a regression cannot be scored; if it is the logit of two classes, set "
            "model.num_classes to 1"
        )
    if found != request.outputs:
        raise ModelError(
            f"{source} has {found} classes (id2label in {CONFIG}), model.num_classes says {request.outputs}; correct "
            "model.num_classes"
        )


@contextmanager
def quietly(transformers: Any) -> Iterator[None]:
    """Without bars and warnings of transformers, which what is raised here says in other words."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def processor_files(folder: Path) -> list[Path]:
    """The files in a folder that say what becomes of samples."""
    return [folder / name for name in PROCESSORS if (folder / name).is_file()]


def processor_sha256(folder: Path | None) -> str | None:
    """The hash of what becomes of samples; None without such files."""
    files = [] if folder is None else processor_files(folder)
    lines = [f"{each.name} {file_sha256(each)}\n" for each in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None


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
                f"preprocessing.processor: {self.folder} cannot take the {what}: {_first_line(error)}"
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
        """What the model has places for, where its configuration says so; RoBERTa keeps the first two to itself."""
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
                f"preprocessing.processor: {self.folder} has nothing that {kind} can read: {_first_line(error)}"
            ) from error
