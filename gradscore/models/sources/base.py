"""What a source of models is, and what may be asked of one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ...errors import MissingExtraError, ModelError
from ...system import import_torchvision


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """What is asked of a source.

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

    def without(self, *arguments: str) -> None:
        """Refuses arguments that would fetch weights.

        Raises:
            ModelError: one of them is given.
        """
        for argument in arguments:
            if argument in self.arguments:
                raise ModelError(
                    f"model.arguments.{argument} is not taken: put the file of the weights into model.checkpoint"
                )


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


def made(make: Callable[[], object], source: str, arguments: Mapping[str, Any]) -> nn.Module:
    """What a factory returns.

    Args:
        make: the factory.
        source: it, for messages.
        arguments: what it is called with, for messages.

    Raises:
        ModelError: it fails, ends the program, or returns no module.
    """
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
    """Imports a package that is an extra of gradscore.

    Args:
        package: its name, which is that of the extra.
        source: what needs it, for messages.

    Raises:
        MissingExtraError: it is not installed, or does not import.
    """
    try:
        import_torchvision()  # declares what both packages need where torchvision does not import by itself
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f"model.source {source} needs {package} ({error}); run `pip install 'gradscore[{package}]'`"
        ) from error
