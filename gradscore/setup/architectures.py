"""Which network a checkpoint is of, by the names and shapes of its parameters."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from ..models import COUNTER
from ..system import import_torchvision

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of parameters and buffers by name."""

REPLACED = 4
"""So many parameters of other shapes may be made on the way, as timm makes them to try a layer."""

TRIED = 1009
"""So many classes are asked for to see which shapes depend on them; no layer of these packages is as wide."""

FEWEST = 16
"""No network of these packages has fewer parameters and buffers."""

_WRAPPED = ("net.", "model.", "module.", "network.")
"""Attributes under which training loops hold their network."""

_COPIES = ("student.", "teacher.", "ema.", "ema_model.", "model_ema.")
"""Attributes under which they hold one of several networks."""

_OF_TRAINING = re.compile(r"(^|_)(criterion|loss|losses|metrics?|acc|accuracy|f1|auc|auroc|confmat|n_averaged)(_|$)")
"""In what they call losses, metrics and counters."""


@dataclass(frozen=True)
class Architecture:
    """A network of a package.

    Attributes:
        source: as in `model.source`.
        preprocessing: what the package says its own weights of it want, as in the section `preprocessing`.
        origin: whose preprocessing that is; empty where the package says nothing.
        logits: a weight with a row for each class, and their number.
        others: names of more networks of the package with the same parameters, which may compute something else.
    """

    source: str
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    logits: tuple[str, int] | None = None
    others: Sequence[str] = ()


class _OtherNetworkError(Exception):
    """A network has parameters of shapes that are not wanted."""


class _WithoutMemory(TorchFunctionMode):
    """Makes parameters without memory for them; what is counted or computed on the way stays real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = {"device": "meta"} if func in (torch.empty, torch.zeros, torch.ones, torch.randn) else {}
        return func(*args, **{**(kwargs or {}), **device})


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Shapes by name, without what counts steps."""
    return {name: tuple(value.shape) for name, value in state.items() if not name.endswith(COUNTER)}


def unwrapped(
    state: Shapes, *, parts: Sequence[Collection[str]] = ()
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """The network of a checkpoint that a training loop may have saved as an attribute of its own.

    Args:
        state: of the checkpoint.
        parts: what classes call their layers; of several networks, those that are of one of these classes go first.

    Returns:
        Its shapes, and what names of the network begin with where losses, metrics and other networks are beside it:
        several where any of them may be meant. None for nothing, or where all names begin so, which is found out when
        they are loaded.
    """
    starts = [start for start in (*_WRAPPED, *_COPIES) if any(name.startswith(start) for name in state)]
    others = [name for name in state if not name.startswith(tuple(starts))]
    is_several = len(starts) > 1
    if (
        not starts
        or (is_several and not set(starts) & set(_COPIES))
        or not all(_OF_TRAINING.search(name.partition(".")[0]) for name in others)
    ):
        return dict(state), ()
    inside = {
        start: {name.removeprefix(start): shape for name, shape in state.items() if name.startswith(start)}
        for start in starts
    }
    fitting = [start for start in starts if any(layers_of(inside[start]) <= set(each) for each in parts)] or starts
    return inside[fitting[0]], tuple(fitting) if others or is_several else ()


def layers_of(state: Shapes) -> set[str]:
    """Names of the layers of a network."""
    return {name.partition(".")[0] for name in state}


def class_count(state: Shapes, *, likely: Collection[int] = ()) -> tuple[str, int] | None:
    """The last weight and its number of rows, which is the number of classes; None without any weight.

    In a file that sorts names the last one may be any: there it is that with the fewest rows of those that no other
    weight takes as its columns.

    Args:
        state: shapes in the order of the file.
        likely: numbers of classes, of which one with a weight goes first where the file sorts names (safetensors).
    """
    weights = [(name, shape[0]) for name, shape in state.items() if len(shape) >= 2]
    is_sorted = list(state) == sorted(state)
    fitting = [each for each in weights if is_sorted and each[1] in likely]
    columns = {shape[1] for shape in state.values() if len(shape) >= 2}
    ends = [(name, shape[0]) for name, shape in state.items() if len(shape) == 2 and shape[0] not in columns]
    if is_sorted and ends and not fitting:
        return min(ends, key=lambda each: each[1])
    return next(reversed(fitting or weights), None)


def input_channels(state: Shapes) -> int | None:
    """Channels of the first convolution; None where there is none."""
    return next((shape[1] for shape in state.values() if len(shape) == 4), None)


def input_numbers(state: Shapes) -> tuple[str, int] | None:
    """The first weight with two axes, and how many numbers it takes; None where there is none."""
    return next(((name, shape[1]) for name, shape in state.items() if len(shape) == 2), None)


def recognised(state: Shapes, *, hint: str = "", progress: Callable[[str], None] | None = None) -> Architecture | None:
    """The network of torchvision or, where it is installed, timm whose parameters have these names and shapes.

    Args:
        state: of the checkpoint, in its order.
        hint: a name that may hold that of the network, and is tried first.
        progress: told what is being looked at.

    Returns:
        The network, or None if there is none.
    """
    if len(state) < FEWEST:
        return None
    for package in (_torchvision, _timm):
        catalogue = package()
        found = {} if catalogue is None else dict(_fitting(state, catalogue, hint, progress))
        if catalogue is not None and found:
            name, *others = found
            return replace(catalogue.describe(name), logits=found[name], others=others)
    return None


@dataclass(frozen=True)
class _Catalogue:
    """Networks of a package by their names."""

    title: str
    names: Sequence[str]
    make: Callable[[str], nn.Module]
    describe: Callable[[str], Architecture]


def _fitting(
    state: Shapes, catalogue: _Catalogue, hint: str, progress: Callable[[str], None] | None
) -> Iterator[tuple[str, tuple[str, int] | None]]:
    """The networks that fit, those whose names are in the hint first and then by length of the name; and their logits.

    All are looked at: with the same parameters one pads as TensorFlow does (timm's `tf_*`), and another does not.
    """
    tried = {(TRIED, *shape[1:]) for shape in state.values()}
    by_length = sorted(catalogue.names, key=lambda name: (len(name), name))
    hinted = [name for name in reversed(by_length) if name in hint.lower()]
    for name in dict.fromkeys((*hinted, *by_length)):
        if progress is not None:
            progress(f"comparing with {catalogue.title}'s {name}")
        wanted = None if name in hinted else tried.union(state.values())
        made = _shapes_made(partial(catalogue.make, name), wanted=wanted) or {}
        counts = {each: state[each][0] for each, shape in made.items() if shape[:1] == (TRIED,) and state.get(each)}
        if {each: (counts.get(each, shape[0]), *shape[1:]) if shape else () for each, shape in made.items()} == state:
            yield name, class_count({each: state[each] for each in counts})


def _torchvision() -> _Catalogue:
    import_torchvision()
    models = importlib.import_module("torchvision.models")

    def make(name: str) -> nn.Module:
        # Their way to draw weights is slow, and nobody looks at these.
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        made: nn.Module = models.get_model(name, weights=None, num_classes=TRIED, **options)
        return made

    return _Catalogue(
        "torchvision", models.list_models(module=models), make, partial(_torchvision_architecture, models)
    )


def _timm() -> _Catalogue | None:
    import_torchvision()
    if find_spec("timm") is None:
        return None
    timm = importlib.import_module("timm")

    def make(name: str) -> nn.Module:
        made: nn.Module = timm.create_model(name, num_classes=TRIED)
        return made

    return _Catalogue("timm", timm.list_models(), make, partial(_timm_architecture, timm))


def _torchvision_architecture(models: Any, name: str) -> Architecture:
    weights = getattr(models.get_model_weights(name), "DEFAULT", None)
    if weights is None:
        return Architecture(f"torchvision:{name}")
    made = weights.transforms()
    preprocessing = {
        "resize": made.resize_size[0] if len(made.resize_size) == 1 else list(made.resize_size),
        "crop": made.crop_size[0] if len(made.crop_size) == 1 else list(made.crop_size),
        "mean": list(made.mean),
        "std": list(made.std),
    }
    return Architecture(f"torchvision:{name}", preprocessing, f"torchvision's {weights}")


def _timm_architecture(timm: Any, name: str) -> Architecture:
    known = timm.get_pretrained_cfg(name, allow_unregistered=True)
    if known is None or not known.mean:
        return Architecture(f"timm:{name}")
    height, width = known.input_size[1:]
    resize = int(height / known.crop_pct)
    preprocessing = {
        "resize": resize,
        "crop": height if height == width else [height, width],
        "mean": list(known.mean),
        "std": list(known.std),
    }
    return Architecture(f"timm:{name}", preprocessing, f"timm's {name}")


def _shapes_made(
    make: Callable[[], nn.Module], *, wanted: Collection[tuple[int, ...]] | None
) -> dict[str, tuple[int, ...]] | None:
    """Shapes of a network, which is made without memory; None where it cannot be.

    Parameters of shapes that are not wanted end the making: that is what makes a thousand networks quick.
    """
    others: list[tuple[int, ...]] = []

    def look(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        if wanted is not None and parameter is not None and tuple(parameter.shape) not in wanted:
            others.append(tuple(parameter.shape))
            if len(others) > REPLACED:
                raise _OtherNetworkError

    hook = register_module_parameter_registration_hook(look)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), _WithoutMemory():
            warnings.simplefilter("ignore")
            return shapes_of(make().state_dict())
    except Exception:  # noqa: BLE001  a network that cannot be made this way is not the one
        return None
    finally:
        hook.remove()
