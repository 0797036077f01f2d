"""Classifiers, ready to be scored: built, with their weights, in eval mode; and what they are told apart by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..objects import fetched
from ..system import as_address, closest, file_sha256, is_address, sha256, some
from .code import code_hash
from .interface import Interface, refuse_foreign
from .sources import MODEL_SOURCES, PYTHON, ModelConfig, ModelRequest, ModelSource, processor_files, source_path
from .weights import load_checkpoint, weight_files

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True)
class BuiltModel:
    """A classifier and what is known of its weights.

    Attributes:
        model: on the CPU, in eval mode, with gradients enabled for all parameters; takes a tensor or a mapping of
            keyword arguments, and returns logits (N, K).
        notices: what a reader of the figures should know of the weights, in sentences.
        random: names of the parameters that are random numbers, since no file gave them.
        is_own: no checkpoint was named, and the model came with weights that do not depend on random numbers.
    """

    model: nn.Module
    notices: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    is_own: bool = False


LIVE = "object"
"""Stands for a kind of source where a program gave the model itself; what follows is the name of its class."""


def build_model(config: ModelConfig, *, seed: int = 0, look_for_random: bool = False) -> BuiltModel:
    """Builds a classifier and loads its weights.

    Args:
        config: source, arguments and checkpoint.
        seed: of the random weights that no checkpoint replaces; the state of the random numbers outside stays as it is.
        look_for_random: where no checkpoint is named, find out which weights are random: the model is made twice.

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
        outputs=1 if config.one_logit else config.num_classes,
        with_weights=config.checkpoint is None,
    )
    model = _seeded(source, request, seed)
    refuse_foreign(model, source=f"model.source {config.source}")
    notices: list[str] = []
    random: list[str] = []
    is_own = False
    if config.checkpoint is not None:
        weights = fetched(config.checkpoint) if is_address(config.checkpoint) else config.checkpoint
        notices = load_checkpoint(model, weights, prefix=config.prefix, called=as_address(config.checkpoint))
    elif look_for_random and not source.brings_weights:
        random = _random_weights(source, request, model, seed)
        is_own = not random
        which = "" if len(random) == len([*model.parameters()]) else f" in {some(random)}"
        notices = [
            "model.checkpoint is null: the model came with weights of its own, which do not depend on the seed"
            if is_own
            else f"model.checkpoint is null: random weights{which}, made with seed {seed}"
        ]
    model.cpu()
    to_eval(model)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(True)
    Interface(num_classes=config.num_classes, output=config.output, one_logit=config.one_logit).attach(model)
    return BuiltModel(model, tuple(notices), tuple(random), is_own)


def _seeded(source: ModelSource, request: ModelRequest, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return source.build(request)


def _random_weights(source: ModelSource, request: ModelRequest, model: nn.Module, seed: int) -> list[str]:
    """The parameters that come out otherwise with another seed; what a model is filled with from a file does not."""
    other = {name: each.detach() for name, each in _seeded(source, request, seed + 1).named_parameters()}
    return [
        name
        for name, each in model.named_parameters()
        if name not in other or not torch.equal(each.detach().nan_to_num(), other[name].nan_to_num())
    ]


def to_eval(model: nn.Module) -> None:
    """Puts a model in eval mode; a program of torch.export stays in the mode it was exported in."""
    try:
        model.eval()
    except NotImplementedError:  # what such a program says
        for module in model.modules():
            module.training = False


def weights_sha256(model: nn.Module) -> str:
    """The hash of all parameters and buffers of a model: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        dense = tensor.detach().cpu().to_dense()  # a strided tensor is itself
        digest.update(dense.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def memory_state(model: nn.Module) -> list[object]:
    """What changes where a program goes on with a model: its weights, what is frozen, and hooks.

    Of each tensor it has where it lies, how often it was written to, and its sum, since PyTorch does not count what is
    written through `.data`. Hooks of an interface come and go with every call and do not count.
    """
    tensors = [each for each in chain(model.parameters(), model.buffers()) if not each.is_meta]
    hooks = (hook for module in model.modules() for kind in _HOOKS for hook in getattr(module, kind).values())
    return [
        *(
            (
                each.data_ptr() if each.layout == torch.strided else None,
                None if each.is_inference() else each._version,
                each.requires_grad,
            )
            for each in tensors
        ),
        *_sums(tensors),
        *(id(hook) for hook in hooks if getattr(hook, "__module__", "") != Interface.__module__),
    ]


@torch.no_grad()
def _sums(tensors: Sequence[Tensor]) -> Iterator[list[float]]:
    """Sums of tensors, device by device, so that an accelerator is waited for once."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for each in tensors:
        parts = torch.view_as_real(each) if each.is_complex() else each
        is_coarse = parts.is_floating_point() and parts.element_size() < 4
        by_device.setdefault(each.device, []).append(parts.sum(dtype=torch.float32 if is_coarse else None))
    yield from (torch.stack(sums).tolist() for sums in by_device.values())


def coarsest_dtype(model: nn.Module) -> str:
    """The coarsest type of floating numbers among the parameters, such as `float32`."""
    kinds = {each.dtype for each in model.parameters() if each.is_floating_point()}
    return str(max(kinds, key=lambda kind: torch.finfo(kind).eps, default=torch.float32)).removeprefix("torch.")


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
    return names if names is not None and len(names) == config.num_classes else None
