"""Where classifiers come from: the section `model` of a configuration, the kinds of sources, and building them.

In comes what `model.source` says, `<kind>:<name>`, with its arguments, and a checkpoint; out comes a module in eval
mode with its weights. `MODEL_SOURCES` lists the kinds: torchvision, timm, folders of transformers, functions of the
user's, and programs of `torch.export`.
"""

from __future__ import annotations

import importlib
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field, ValidationInfo, model_validator
from torch import nn

from ..errors import MissingExtraError, ModelError, reason
from ..object_storage import fetched
from ..system import (
    AnchoredPath,
    Arguments,
    Elsewhere,
    InFeatures,
    InReport,
    Registry,
    Section,
    anchored,
    as_address,
    closest,
    file_sha256,
    import_torchvision,
    is_address,
    sha256,
)
from .code import ask_for_code, code_hash, load_function
from .interface import OTHER_MODELS, Interface, refuse_foreign
from .weights import READING_ERRORS, format_of, load_checkpoint, misfits, read_state_dict, weight_files

TRANSFORMERS = "transformers"
"""The kind of model source that brings its own processor of samples."""

PYTHON = "python"
"""The kind of source that is code of the user's."""

CONFIG = "config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json")
TASKS = ("ForImageClassification", "ForSequenceClassification", "ForAudioClassification", "ForVideoClassification")
"""Parts of the names of classifiers of transformers."""

_UNNAMED = "LABEL_"
"""Beginning of the names that transformers gives to classes that nobody named."""


def anchored_source(source: str, info: ValidationInfo) -> str:
    """The source of a model or function with the path of a file or folder made absolute."""
    path = source_path(source)
    return source if path is None or not str(path) else at_path(source, anchored(path, info))


CodeSource = Annotated[str, AfterValidator(anchored_source)]


class ModelConfig(Section):
    """The classifier: its source, `<kind>:<name>`, and its weights.

    `checkpoint` must be given unless the source has weights of its own (`transformers:`, `program:`); an explicit null
    leaves the model with the weights that it is made with. `prefix` is what the names of the checkpoint begin with.
    `output` is the name or position of the logits among what the model returns. `num_classes: 1` says that it returns
    one logit z for two classes, which become the logits `[0, z]`.
    """

    source: InFeatures[CodeSource]
    """The network: `torchvision:<name>`, `python:<file.py or module>:<function>`, ... ([all kinds](models.md))."""
    arguments: InFeatures[Arguments] = {}
    """What that function is called with."""
    checkpoint: Elsewhere[AnchoredPath | None]
    """File of the trained weights; null, which must be written, for random ones or those that the source brings."""
    prefix: Elsewhere[str | None] = None
    """What names of parameters begin with in the checkpoint alone; found by itself where all share one."""
    num_classes: InFeatures[Annotated[int, Field(ge=1)]]
    """Number of classes; 1 for a network with one logit z, which becomes [0, z]."""
    output: InFeatures[str | int | None] = None
    """Name or position of the logits in the output, where that is not obvious."""
    declared_accuracy: InReport[Annotated[float, Field(ge=0, le=1)] | None] = None
    """The accuracy that is claimed; `doctor` says when in_dist.test is far from it; one at chance is then accepted."""

    @model_validator(mode="before")
    @classmethod
    def _in_full(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        found = dict(settings)
        kind = str(found.get("source", "")).partition(":")[0]
        if kind in MODEL_SOURCES and MODEL_SOURCES[kind].brings_weights:
            found.setdefault("checkpoint", None)
        return found

    @property
    def one_logit(self) -> bool:
        """Whether the model returns one logit for two classes."""
        return self.num_classes == 1

    @property
    def classes(self) -> int:
        """Number of classes, K."""
        return max(2, self.num_classes)


def is_file_source(source: str) -> bool:
    """Whether the code of a model source is a Python file, not a module."""
    return source.startswith(f"{PYTHON}:") and source.rpartition(":")[0].endswith(".py")


def source_path(source: str) -> Path | None:
    """The file or folder in the source of a model or augmentation; None for those that have none."""
    kind, _, rest = source.partition(":")
    if is_file_source(source):
        return Path(rest.rpartition(":")[0])
    return Path(rest) if kind in MODEL_SOURCES and MODEL_SOURCES[kind].is_path else None


def at_path(source: str, path: Path) -> str:
    """Source with another file or folder in it."""
    kind = source.partition(":")[0]
    function = f":{source.rpartition(':')[2]}" if kind == PYTHON else ""
    return f"{kind}:{path.as_posix()}{function}"


def processor_files(folder: Path) -> list[Path]:
    """The files of a folder of transformers that say what becomes of samples."""
    return [folder / name for name in PROCESSORS if (folder / name).is_file()]


def to_be_named(source: str) -> str:
    """A source as its user may name it: with FOLDER in the place of a folder in which there is no such file here."""
    path = source_path(source)
    return source if path is None or path.exists() else at_path(source, Path("FOLDER") / path.name)


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """Arguments of a model source.

    Attributes:
        name: what follows the kind in `model.source`.
        arguments: what the model is made with.
        outputs: the number of its outputs; 1 for one logit for two classes.
        with_weights: load the weights that the source has itself, if it has any; False where a checkpoint replaces
            them.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 2
    with_weights: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A kind of model source: what `model.source` may say before the colon.

    Attributes:
        build: from a request to the model; raises `ModelError` where there is none to be had.
        form: how it is written.
        summary: what it is, on one line.
        is_path: what follows the colon is a path, relative to the configuration file.
        brings_weights: it has weights of its own, so that `model.checkpoint` may be left out.
        files: of what follows the colon, the files that say what the model computes, weights aside.
        class_names: of what follows the colon, the names of the classes in their order, where it knows them.
    """

    build: Callable[[ModelRequest], nn.Module]
    form: str
    summary: str
    is_path: bool = False
    brings_weights: bool = False
    files: Callable[[str], Sequence[Path]] | None = None
    class_names: Callable[[str], list[str] | None] | None = None


def _torchvision_model(request: ModelRequest) -> nn.Module:
    """Builds a classifier of torchvision."""
    _refuse_weights(request, "weights")
    import_torchvision()
    models = importlib.import_module("torchvision.models")
    name, names = request.name, models.list_models(module=models)
    if name not in names:
        raise ModelError(f"torchvision has no classifier {name!r}; {closest(name, names)}")
    make = partial(models.get_model, name, **{"weights": None, **request.arguments})
    return _made(make, f"torchvision:{name}", request.arguments)


def _timm_model(request: ModelRequest) -> nn.Module:
    """Builds a classifier of timm; nothing is fetched."""
    _refuse_weights(request, "pretrained", "checkpoint_path")
    timm = optional("timm", f"timm:{request.name}")
    plain = request.name.partition(".")[0]
    if ":" in request.name or not timm.is_model(plain):
        raise ModelError(f"timm has no model {request.name!r}; {closest(plain, timm.list_models())}")
    arguments = {"num_classes": request.outputs, **request.arguments}
    make = partial(timm.create_model, request.name, pretrained=False, **arguments)
    return _made(make, f"timm:{request.name}", arguments)


def _python_model(request: ModelRequest) -> nn.Module:
    """Runs the code and calls the factory."""
    name, arguments = request.name, request.arguments
    return _made(partial(load_function(name, arguments), **arguments), f"python:{name}", arguments)


def _program_model(request: ModelRequest) -> nn.Module:
    """Reads a program; `torch.load` may run code in it, so it must be trusted."""
    path = Path(request.name)
    source = f"program:{path}"
    if request.arguments:
        raise ModelError(f"model.source {source} takes no model.arguments: a program is finished")
    if not path.is_file():
        raise ModelError(f"model.source {source}: the file does not exist")
    try:
        found = format_of(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelError(f"model.source {source} cannot be read: {error}; is it damaged?") from error
    if found != "program":
        raise ModelError(
            f"model.source {source} is no program of torch.export, by its content ({found}); a file of weights belongs "
            "into model.checkpoint, beside the source of its model"
        )
    ask_for_code(source, str(path), lambda: file_sha256(path), setting="model.source", suffix=".pt2")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other versions of the format; what counts is whether it can be read
            return torch.export.load(path).module()
    except (*READING_ERRORS, KeyError) as error:
        raise ModelError(
            f"model.source {source} cannot be read: {reason(error)}; is it damaged, or of another PyTorch?"
        ) from error


def _transformers_model(request: ModelRequest) -> nn.Module:
    """Builds the classifier of a folder, with its weights unless a checkpoint replaces them; nothing is fetched."""
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
        try:
            config = model_class.config_class.from_pretrained(folder, **request.arguments)
        except READING_ERRORS as error:
            raise ModelError(f"{source}: {CONFIG} cannot be used: {reason(error)}; is it damaged?") from error
        config.use_cache = False
        if not request.with_weights:
            return _made(lambda: model_class(config), source, request.arguments)
        for file in weight_files(folder):
            if file.suffix != ".safetensors":
                read_state_dict(file)  # refuses one that could run code while transformers reads it
        return _made(lambda: _with_weights(model_class, folder, config), source, request.arguments)


def _class_names_of_folder(name: str) -> list[str] | None:
    """The names of the classes in their order; None where the folder does not name them."""
    found = _settings(Path(name)).get("id2label")
    if not isinstance(found, dict) or sorted(found, key=str) != sorted(map(str, range(len(found)))):
        return None
    names = [str(found[str(place)]) for place in range(len(found))]
    return None if all(each == f"{_UNNAMED}{place}" for place, each in enumerate(names)) else names


def _with_weights(model_class: Any, folder: Path, config: Any) -> nn.Module:
    try:
        model, found = model_class.from_pretrained(
            folder, config=config, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
    except READING_ERRORS as error:
        raise ModelError(f"transformers:{folder}: its weights cannot be read: {reason(error)}") from error
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
        raise ModelError(f"{source}: {CONFIG} cannot be read: {reason(error)}; is it damaged?") from error
    if not isinstance(found, dict):
        raise ModelError(f"{source}: {CONFIG} holds {type(found).__name__}, wanted an object")
    return found


def _architecture(settings: dict[str, Any], source: str) -> str:
    kinds = settings.get("architectures") or ["a model without architectures"]
    if len(kinds) == 1 and any(task in str(kinds[0]) for task in TASKS):
        return str(kinds[0])
    raise ModelError(
        f"{source} holds {', '.join(map(str, kinds))}, which is no classifier; wanted one of "
        f"{', '.join(TASKS)}, trained and saved by save_pretrained; {OTHER_MODELS}"
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
            f"{source} has one output; set model.num_classes to 1 if that is the logit of two classes, not for a "
            f"regression: {OTHER_MODELS}"
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


def _refuse_weights(request: ModelRequest, *arguments: str) -> None:
    """Refuses arguments that would fetch weights."""
    for argument in arguments:
        if argument in request.arguments:
            raise ModelError(
                f"model.arguments.{argument} is not taken: put the file of the weights into model.checkpoint"
            )


def _made(make: Callable[[], object], source: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Module that a factory returns, which was called with these arguments."""
    try:
        model = make()
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # sys.exit there must not end the program as if all was well
        raise ModelError(
            f"{source} with arguments {dict(arguments)} failed: {type(error).__name__}: {error}; check model.arguments"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{source} returned {type(model).__name__}, wanted a torch.nn.Module")
    return model


def optional(package: str, source: str) -> ModuleType:
    """Imports a package that is the extra of this name; `source` is what needs it."""
    try:
        import_torchvision()  # declares what both packages need where torchvision does not import by itself
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f"model.source {source} needs {package} ({error}); run `pip install 'gradscore[{package}]'`"
        ) from error


MODEL_SOURCES: Registry[ModelSource] = Registry(
    "model source",
    {
        "torchvision": ModelSource(
            build=_torchvision_model,
            form="torchvision:<name>",
            summary="a classifier of torchvision, which the arguments are passed to",
        ),
        "timm": ModelSource(
            build=_timm_model,
            form="timm:<name>",
            summary="a classifier of timm (extra `timm`), with `model.num_classes` classes unless the arguments say so",
        ),
        "transformers": ModelSource(
            build=_transformers_model,
            form="transformers:<folder>",
            summary="a classifier of images, text or sound that `save_pretrained` wrote (extra `transformers`)",
            is_path=True,
            brings_weights=True,
            files=lambda name: [Path(name) / each for each in (CONFIG, *PROCESSORS)],
            class_names=_class_names_of_folder,
        ),
        "python": ModelSource(
            build=_python_model,
            form="python:<file.py or module>:<function>",
            summary="what a function returns, or a class makes; files beside it may be imported",
        ),
        "program": ModelSource(
            build=_program_model,
            form="program:<file.pt2>",
            summary="a program of `torch.export.save`, with its weights",
            is_path=True,
            brings_weights=True,
            files=lambda name: [Path(name)],
        ),
    },
    wanted=ModelSource,
)
"""Kinds of model sources by name."""


@dataclass(frozen=True)
class BuiltModel:
    """A classifier and what is known of its weights.

    Attributes:
        model: on the CPU, in eval mode, with gradients enabled for all parameters; takes a tensor or a mapping of
            keyword arguments, and returns logits (N, K).
        notices: what a reader of the figures should know of the weights, in sentences.
    """

    model: nn.Module
    notices: tuple[str, ...] = ()


NO_CHECKPOINT = "model.checkpoint is null"
"""Note on a network whose weights, random ones perhaps, come from the code that makes it."""

LIVE = "object"
"""Stands for a kind of source where a program gave the model itself; what follows is the name of its class."""


def build_model(config: ModelConfig, *, seed: int = 0) -> BuiltModel:
    """Builds a classifier and loads its weights.

    Args:
        config: source, arguments and checkpoint.
        seed: of the random weights that no checkpoint replaces; the state of the random numbers outside stays as it is.

    Returns:
        The model, and what is known of its weights.

    Raises:
        ModelError: the source or the checkpoint cannot be used.
        MissingExtraError: the source needs a package that is not installed.
    """
    kind, _, name = config.source.partition(":")
    if kind == LIVE:
        raise ModelError(
            f"this was made in Python with a model ({name}) that there is no recipe for: give the model itself, "
            "Detector.load(path, model=model) or Scorer.load(path, model=model); or make it again with "
            "Detector(model, recipe={'source': 'python:net.py:build'}), which commands can build"
        )
    if kind not in MODEL_SOURCES:
        forms = ", ".join(MODEL_SOURCES[each].form for each in MODEL_SOURCES)
        raise ModelError(f"model.source {config.source!r}: wanted {forms}; {closest(kind, MODEL_SOURCES)}")
    source = MODEL_SOURCES[kind]
    request = ModelRequest(
        name=name,
        arguments=config.arguments,
        outputs=config.num_classes,
        with_weights=config.checkpoint is None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = source.build(request)
    refuse_foreign(model, source=f"model.source {config.source}")
    notices: list[str] = []
    if config.checkpoint is not None:
        weights = fetched(config.checkpoint) if is_address(config.checkpoint) else config.checkpoint
        notices = load_checkpoint(model, weights, prefix=config.prefix, called=as_address(config.checkpoint))
    elif not source.brings_weights:
        notices = [
            f"{NO_CHECKPOINT}: the weights come from the model's own code (random with seed {seed}, unless it "
            "loads some)"
        ]
    model.cpu()
    to_eval(model)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(True)
    Interface(num_classes=config.classes, output=config.output, one_logit=config.one_logit).attach(model)
    return BuiltModel(model, tuple(notices))


def to_eval(model: nn.Module) -> None:
    """Puts a model in eval mode; a program of torch.export stays in the mode it was exported in."""
    try:
        model.eval()
    except NotImplementedError:  # what such a program says
        for module in model.modules():
            module.training = False


def code_sha256(source: str) -> str | None:
    """The hash of the files that say what a model or augmentation computes, weights aside; None where there are none.

    For `python:` they are the file and those beside it that it imports.
    """
    kind, _, rest = source.partition(":")
    if kind == PYTHON:
        return code_hash(rest.rpartition(":")[0])
    entry = MODEL_SOURCES.get(kind)
    files = [each for each in (entry.files(rest) if entry and entry.files else ()) if each.is_file()]
    return file_sha256(files[0]) if len(files) == 1 else _sha256_of(files)


def processor_sha256(folder: Path | None) -> str | None:
    """The hash of the files of a folder that say what becomes of samples; None without such files."""
    return None if folder is None else _sha256_of(processor_files(folder))


def _sha256_of(files: Sequence[Path]) -> str | None:
    lines = [f"{each.name} {file_sha256(each)}\n" for each in files]
    return sha256("".join(lines).encode()) if lines else None


def weight_files_sha256(config: ModelConfig) -> str | None:
    """The hash of the files that a model's weights are read from; no code in them runs.

    Equal hashes say that the weights are the same; another hash may also be that of the same weights written anew.

    Returns:
        None where no file of this machine is known to hold them: they lie at an address, are random, or code of the
        model reads them by itself.

    Raises:
        ModelError: a folder without weights.
        OSError: a file is missing or cannot be read.
    """
    kind = MODEL_SOURCES.get(config.source.partition(":")[0])
    place = config.checkpoint
    if place is None and kind is not None and kind.brings_weights:
        place = source_path(config.source)
    if place is None or is_address(place):
        return None
    files = weight_files(place) if place.is_dir() else [place]
    return sha256("".join(f"{file_sha256(file)}\n" for file in files).encode())


def class_names(config: ModelConfig) -> list[str] | None:
    """The names of the classes in the order of the logits; None where the source of the model does not name them.

    Args:
        config: the model; nothing of it is built, and no code of others runs.

    Raises:
        ModelError: the source cannot be used.
    """
    kind, _, name = config.source.partition(":")
    find = MODEL_SOURCES[kind].class_names if kind in MODEL_SOURCES else None
    names = None if find is None else find(name)
    return names if names is not None and len(names) == config.classes else None
