"""`transformers:<folder>`: a classifier that transformers saved with `save_pretrained`, of images, text or sound."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from ...errors import ModelError
from ...system import some
from ..weight_files import READING_ERRORS, refuse_unsafe, weight_files
from .base import ModelRequest, made, optional

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
    told = [f"{len(names)} {kind}: {some(sorted(names))}" for kind, names in problems.items() if names]
    if told:
        raise ModelError(
            f"transformers:{folder}: its weights are not those of a {model_class.__name__}: {'; '.join(told)}; "
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
