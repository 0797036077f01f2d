"""Classifiers, ready to be scored: built, with their weights, in eval mode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..errors import ModelError
from ..objects import fetched
from ..system import as_address, closest, is_address, some
from .interface import Interface, refuse_foreign
from .settings import ModelConfig
from .sources import MODEL_SOURCES, ModelRequest, ModelSource
from .weights import Loaded, load_checkpoint


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


def build_model(
    config: ModelConfig,
    *,
    seed: int = 0,
    notices: list[str] | None = None,
) -> nn.Module:
    """Builds a classifier and loads its weights.

    Args:
        config: source, arguments and checkpoint.
        seed: of the random weights that no checkpoint replaces; the state of the random numbers outside stays as it is.
        notices: takes what a reader of the figures should know of the weights.

    Returns:
        The model on the CPU, in eval mode, with gradients enabled for all parameters. It takes a tensor or a mapping of
        keyword arguments, and returns logits (N, K).

    Raises:
        ModelError: the source or the checkpoint cannot be used.
        MissingExtraError: the source needs a package that is not installed.
    """
    built = build_classifier(config, seed=seed, look_for_random=notices is not None)
    if notices is not None:
        notices += built.notices
    return built.model


def build_classifier(
    config: ModelConfig,
    *,
    seed: int = 0,
    look_for_random: bool = True,
) -> BuiltModel:
    """As `build_model`, with what is known of the weights.

    Args:
        config: source, arguments and checkpoint.
        seed: of random weights.
        look_for_random: find out which weights are random, for which the model is made twice.

    Raises:
        ModelError: as `build_model`; so does MissingExtraError.
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
        notices = _loading_notices(load_checkpoint(model, weights, prefix=config.prefix), config.checkpoint)
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


def _loading_notices(loaded: Loaded, checkpoint: str | Path) -> list[str]:
    where, notices = as_address(checkpoint), []
    if loaded.beside:
        other = "".join(f"[{key!r}]" for key in (*loaded.keys[:-1], loaded.beside[0]))
        notices.append(
            f"checkpoint {where} holds several state dicts: {loaded.keys[-1]!r} was taken, "
            f"{some([repr(key) for key in loaded.beside])} {'was' if len(loaded.beside) == 1 else 'were'} not; "
            f"to have another, torch.save(torch.load('{Path(where).name}'){other}, 'weights.pt')"
        )
    if loaded.prefix and loaded.left_out:
        notices.append(
            f"the {loaded.names} names in checkpoint {where} that begin with {loaded.prefix!r} were loaded without it, "
            f"and {len(loaded.left_out)} others were left out: {some(loaded.left_out)}"
        )
    elif loaded.prefix:
        notices.append(
            f"all names in checkpoint {where} begin with {loaded.prefix!r}, which was taken off to fit the model"
        )
    return notices


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
