"""Weights: read from files without running any code in them, brought into a model, and told apart there.

What a file is, its content says, before anything parses it: `torch.load` hands a TorchScript archive to another loader,
`weights_only` or not.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from operator import getitem
from pathlib import Path
from typing import Any, Literal, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..errors import FORBIDDEN, ModelError, reason
from ..system import LFS_POINTER, OF_LFS, is_address, some
from .interface import Interface

COUNTER = "num_batches_tracked"
"""Counts the training steps of a batch norm; old checkpoints lack it and no output depends on it."""

NESTED_KEYS = ("state_dict", "model", "model_state_dict", "net")
"""Keys under which training scripts put the weights among other things."""

NAMING_KEYS = ("classes", "class_names", "idx_to_class", "class_to_idx")
"""Keys under which training scripts put the names of classes beside the weights."""

PARALLEL = "module."
"""Beginning of names where several devices trained the model."""

READING_ERRORS = (
    *(OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError),
    *(AssertionError, struct.error, SafetensorError, zipfile.BadZipFile, NotImplementedError, RecursionError),
)
"""What reading a damaged file raises."""

Format = Literal["safetensors", "torch", "TorchScript", "program", "pickle", "zip", "pointer", "unknown"]

WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".pth.tar")
"""Suffixes of files of weights; those of the last are no archives: PyTorch's ImageNet example names its files so."""

_PART = re.compile(r"^(.*)-\d{5}-of-(\d{5})")
"""A file of weights that were saved in parts."""

_LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
"""First bytes of files of `torch.save` before they were zip archives."""

_PROGRAM_BEFORE = "serialized_exported_program.json"
"""Beside what a program of `torch.export` lay before it had a folder of its own in the archive."""

_SAVE = "torch.save(model.state_dict(), {to!r})"

_REFUSED: Mapping[Format, str] = {
    "TorchScript": "is a TorchScript archive, which is code; where you trust it, save the weights alone: "
    "import torch; torch.save(torch.jit.load({path!r}, map_location='cpu').state_dict(), {to!r})",
    "program": "is a program of torch.export, not a file of weights; set model.source: program:{path} and checkpoint: "
    "null, or save the weights of the original module: " + _SAVE,
    "pickle": "is a pickle that torch.save did not write, and is refused, since reading it could run code; load it "
    "where you trust it and save the weights alone: " + _SAVE,
    "zip": "is a zip archive of something else than weights; wanted a file of torch.save or safetensors",
    "pointer": f"is {OF_LFS}",
    "unknown": "is no file of weights, by its first bytes; is it damaged, or a download that failed?",
}


def weight_files(folder: Path) -> list[Path]:
    """The files of weights in a folder: the only one, or those of one model that was saved in parts.

    Raises:
        ModelError: there is none, or it is not clear which one is meant.
    """
    files = sorted(each for each in folder.iterdir() if each.name.endswith(WEIGHT_SUFFIXES) and each.is_file())
    for suffix in (".safetensors", *WEIGHT_SUFFIXES):  # folders of transformers may hold both
        found = [each for each in files if each.name.endswith(suffix)]
        parts = [match.groups() for each in found if (match := _PART.search(each.name))]
        is_whole = len(parts) == len(found) and len(set(parts)) == 1 and len(found) == int(parts[0][1])
        if is_whole or (len(found) == 1 and not parts):
            return found
        if found:
            break
    shown = f"holds {some([each.name for each in files])}" if files else "holds no file of weights"
    raise ModelError(f"checkpoint {folder} is a folder that {shown}; name the file of the weights in it")


Keys = tuple[str | int, ...]


@dataclass(frozen=True)
class StateDict:
    """The weights in a file.

    Attributes:
        tensors: by name, on the CPU.
        keys: under which they lie in the file, from the outside in, or places in a list; none where they are all it
            holds.
        beside: keys in the place of the last of them that hold weights of the same names.
        averages: keys to lists of tensors of the shapes of such weights, as averages of them are kept.
        class_names: in the order of the outputs, where the file names them; None where it does not.
        has_objects: other objects than plain values lie beside; `torch.load` reads such a file where it may run code.
    """

    tensors: dict[str, Tensor]
    keys: Keys = ()
    beside: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
    has_objects: bool = False
    averages: tuple[Keys, ...] = ()


def read_state_dict(path: Path) -> StateDict:
    """The weights in a file.

    Args:
        path: a file of `torch.save` or safetensors.

    Raises:
        ModelError: it cannot be read, holds something else than a state dict, or several.
    """
    content, has_objects = _read(path)
    state, keys, beside = _state_dict(content, path, has_objects=has_objects)
    if not isinstance(state, Mapping) or not state:
        raise ModelError(f"checkpoint {path} holds {type(state).__name__}, wanted a state dict")
    if quantised := [str(name) for name, value in state.items() if _is_quantised(value)]:
        raise ModelError(
            f"checkpoint {path} holds quantised weights, which have no gradients: {some(quantised)}; "
            "wanted those of the network before it was quantised"
        )
    if empty := [str(name) for name, value in state.items() if isinstance(value, Tensor) and not _is_dense(value)]:
        raise ModelError(
            f"checkpoint {path} holds tensors that are sparse, or on device meta without values: {some(empty)}; save "
            "dense ones (their to_dense()), with the values that training gave them"
        )
    wrong = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if wrong:
        whole = f"torch.load({str(path)!r}, weights_only=False){_subscript(keys)}"
        if any(isinstance(value, _Array) for value in state.values()) and all(
            isinstance(value, Tensor | _Array | int | float) for value in state.values()
        ):
            raise ModelError(
                f"checkpoint {path} holds arrays of NumPy; where you trust it, save tensors: import torch; "
                f"torch.save({{name: torch.as_tensor(value) for name, value in {whole}.items()}}, {_other(path)!r})"
            )
        key = next((name for name in wrong if isinstance(state[name], StandIn)), None)
        advice = "wanted a state dict: names and tensors"
        if key is not None:
            advice = (
                f"where {key!r} is the network and you trust the file, save its weights alone: "
                f"torch.save({whole}[{key!r}].state_dict(), {_other(path)!r})"
            )
        elif inner := next(iter(_lists(state)), None):
            advice = (
                f"{_subscript(inner)} may be weights without names; copy them into the network, as `model`, and save it"
                f"{_copied_in(path, (*keys, *inner), has_objects=has_objects)}"
            )
        count = "1 entry that is not a tensor" if len(wrong) == 1 else f"{len(wrong)} entries that are not tensors"
        raise ModelError(f"checkpoint {path} holds {count}: {some(wrong)}; {advice}")
    tensors = {str(name): value for name, value in state.items()}
    lists = _lists(content) if isinstance(content, Mapping) else {}
    averages = tuple(keys for keys, values in lists.items() if _are_parameters(values, tensors.values()))
    return StateDict(tensors, keys, beside, _class_names(content), has_objects, averages)


def format_of(path: Path) -> Format:
    """Format of a file, by its content.

    Raises:
        OSError: it cannot be read.
        BadZipFile: it begins as a zip archive and is damaged.
    """
    with path.open("rb") as stream:
        head = stream.read(len(LFS_POINTER))
    if head == LFS_POINTER:
        return "pointer"
    if head.startswith(b"PK"):
        return _format_of_archive(path)
    if head.startswith(_LEGACY):
        return "torch"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= path.stat().st_size - 8:
        return "safetensors"
    return "pickle" if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") else "unknown"


def _format_of_archive(path: Path) -> Format:
    with zipfile.ZipFile(path) as archive:
        parts = [name.split("/") for name in archive.namelist()]
    inside = {part for name in parts for part in name[1:]}
    if "code" in inside or "constants.pkl" in inside:
        return "TorchScript"
    if "models" in inside or "archive_format" in inside or [_PROGRAM_BEFORE] in parts:
        return "program"
    return "torch" if any(name[1:] == ["data.pkl"] for name in parts) else "zip"


def _other(path: Path) -> str:
    """Path for the weights in a file: beside it, since they are not to replace it."""
    return str(path.with_name(f"{path.stem}_weights.pt"))


def _read(path: Path) -> tuple[object, bool]:
    """Content of a file, and whether there are stand-ins in it."""
    if not path.exists():
        raise ModelError(f"checkpoint {path} does not exist")
    try:
        found = format_of(path)
        if found in _REFUSED:
            raise ModelError(f"checkpoint {path} {_REFUSED[found].format(path=str(path), to=_other(path))}")
        if found == "safetensors":
            return load_file(path), False
        return _load(path)
    except pickle.UnpicklingError as error:
        raise ModelError(f"checkpoint {path} {_why_not(error, path)}") from error
    except PermissionError as error:
        raise ModelError(f"checkpoint {path}: {FORBIDDEN}") from error
    except READING_ERRORS as error:
        raise ModelError(f"checkpoint {path} cannot be read: {reason(error)}; is it damaged?") from error


class StandIn:
    """Takes the place of an object beside the weights, of a class that is not loaded; it does nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, _state: object) -> None:
        """Takes no state."""


class _Array(StandIn):
    """Takes the place of an array of NumPy."""


def _load(path: Path) -> tuple[object, bool]:
    """Content of a file of `torch.save`, and whether there are stand-ins in it, for objects beside plain values.

    Nothing of these objects runs: the unpickler of `weights_only` reads the file, which refuses modules that touch
    files, processes and the like whatever it is told to take.
    """
    with warnings.catch_warnings(), path.open("rb") as file:  # by its name alone, it could be taken for safetensors
        warnings.simplefilter("ignore")  # of other versions of the format; what counts is whether it can be read
        try:
            return torch.load(file, map_location="cpu", weights_only=True), False
        except pickle.UnpicklingError as error:
            others = _other_classes(path)
            if not others:
                raise
            try:
                file.seek(0)
                with torch.serialization.safe_globals(
                    [(_Array if name in _ARRAY else StandIn, name) for name in others]
                ):
                    found: object = torch.load(file, map_location="cpu", weights_only=True)
            except Exception:  # noqa: BLE001 - what counts is why it could not be read as it is
                raise error from None
            if isinstance(found, StandIn):
                raise
            return found, True


_ARRAY = ("numpy._core.multiarray._reconstruct", "numpy.core.multiarray._reconstruct")
"""Functions that make an array of a pickle."""


def _other_classes(path: Path) -> list[str]:
    """Names of the classes in a file that are none of PyTorch's weights; none for the format before zip archives."""
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except (*READING_ERRORS, pickle.UnpicklingError):
        return []


def _why_not(error: pickle.UnpicklingError, path: Path) -> str:
    """Reason why a file of `torch.save` is not read: what it holds beside plain weights."""
    if re.search("operand|load key|magic|truncated|ran out", str(error), re.IGNORECASE):
        reason = re.search(r"WeightsUnpickler error: ([^\n]+)", str(error))  # the rest advises to run the file
        return f"cannot be read: {reason.group(1) if reason else 'no pickle of weights'}; is it damaged?"
    match = re.search(r"GLOBAL (\S+)", str(error))
    what = f"objects of {match.group(1)}" if match else "more than plain weights"
    return (
        f"holds {what} and is refused, since reading it could run code; where you trust it and its code is, save the "
        f"weights alone: import torch; found = torch.load({str(path)!r}, weights_only=False); "
        f"torch.save(found.state_dict() if hasattr(found, 'state_dict') else found['state_dict'], {_other(path)!r}), "
        "or under the key where they lie"
    )


def _state_dict(content: object, path: Path, *, has_objects: bool) -> tuple[object, Keys, tuple[str, ...]]:
    """State dict: what is there itself, what a usual key names, or the only mapping of tensors in mappings or lists.

    Returns:
        It; the keys that lead to it; and other keys there with weights of the same names.
    """
    if isinstance(content, list | tuple) and any(isinstance(each, Mapping) for each in content):
        content = dict(enumerate(content))
    if not isinstance(content, Mapping):
        return content, (), ()
    for key in NESTED_KEYS:
        if isinstance(content.get(key), Mapping):
            found, keys, beside = _state_dict(content[key], path, has_objects=has_objects)
            here = tuple(str(each) for each in content if each != key and _are_alike(content[each], found))
            return (found, (key, *keys), beside) if beside else (found, (key,) if here else (key, *keys), here)
    inside = _inside(content, Tensor) or _inside(content, _Array)[:1]
    if len(inside) > 1 and not any(isinstance(value, Tensor) for value in content.values()):
        named = some(["/".join(map(repr, keys)) for keys in inside])
        raise ModelError(
            f"checkpoint {path} holds several state dicts: {named}; save the one that is meant"
            f"{_taken_out(path, inside[0], has_objects=has_objects)}"
        )
    return (reduce(getitem, inside[0], content), inside[0], ()) if len(inside) == 1 else (content, (), ())


def _inside(content: Mapping[Any, object], kind: type, *, depth: int = 4) -> list[Keys]:
    """Keys to the mappings of nothing but tensors, or of what stands for arrays, that lie in a mapping outermost."""
    here: list[Keys] = [(key,) for key, value in content.items() if _are_of(value, kind)]
    if here or not depth:
        return here
    return [
        (key, *keys)
        for key, value in content.items()
        if isinstance(value, Mapping)
        for keys in _inside(value, kind, depth=depth - 1)
        if not isinstance(keys[0], int)  # parameters of an optimizer have numbers
    ]


def _lists(content: Mapping[Any, object]) -> dict[Keys, Sequence[Tensor]]:
    """Lists of floating tensors in a mapping, or in a mapping there, by the keys that lead to them."""
    found: dict[Keys, object] = {(key,): value for key, value in content.items()}
    inside = [(key, value) for key, value in content.items() if isinstance(value, Mapping)]
    found |= {(key, name): each for key, value in inside for name, each in value.items()}
    return {keys: value for keys, value in found.items() if _is_list(value)}


def _is_list(value: object) -> TypeGuard[Sequence[Tensor]]:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(each, Tensor) and each.is_floating_point() for each in value)
    )


def _are_parameters(values: Sequence[Tensor], state: Iterable[Tensor]) -> bool:
    """Whether tensors have the shapes of parameters in a state dict, in its order, with buffers between them."""
    shapes = [each.shape for each in state if each.is_floating_point()]
    left = iter(shapes)
    return all(each.shape in left for each in values) and 2 * len(values) >= len(shapes)


def _taken_out(path: Path, keys: Keys, *, has_objects: bool) -> str:
    """The line that saves what lies under some keys of a file, after what it is for."""
    trusting, found = _loaded(path, keys, has_objects=has_objects)
    return f"{trusting}: import torch; torch.save({found}, {_other(path)!r})"


def _copied_in(path: Path, keys: Keys, *, has_objects: bool) -> str:
    """The line that saves a model with a list of parameters from a file, after what it is for."""
    trusting, found = _loaded(path, keys, has_objects=has_objects)
    copied = f"[own.data.copy_(value) for own, value in zip(model.parameters(), {found}, strict=True)]"
    return f"{trusting}: import torch; {copied}; torch.save(model.state_dict(), {_other(path)!r})"


def _loaded(path: Path, keys: Keys, *, has_objects: bool) -> tuple[str, str]:
    """What has to be trusted, if anything, and the code that loads what lies under some keys of a file."""
    trusting, option = (", where you trust the file", ", weights_only=False") if has_objects else ("", "")
    return trusting, f"torch.load({str(path)!r}{option}){_subscript(keys)}"


def _subscript(keys: Keys) -> str:
    return "".join(f"[{key!r}]" for key in keys)


def _class_names(content: object) -> tuple[str, ...] | None:
    """The first list of names, or mapping between names and 0, 1, ..., under one of `NAMING_KEYS`."""
    for found in (content.get(key) for key in NAMING_KEYS) if isinstance(content, Mapping) else ():
        names = found
        if isinstance(found, Mapping):
            by_name = any(isinstance(number, int) for number in found.values())
            pairs = [(number, name) if by_name else (name, number) for name, number in found.items()]
            texts = {str(number): name for number, name in pairs}
            names = [texts.get(str(number)) for number in range(len(texts))]
        if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
            return tuple(names)
    return None


def _are_alike(one: object, other: object) -> bool:
    """Whether two entries are weights with some of the same names, but for what parallel training puts before them."""
    if not (_are_tensors(one) and _are_tensors(other)):
        return False
    names, others = ({str(name).removeprefix(PARALLEL) for name in each} for each in (one, other))
    return not names.isdisjoint(others)


def _are_tensors(value: object) -> TypeGuard[Mapping[Any, Tensor]]:
    return _are_of(value, Tensor)


def _are_of(value: object, kind: type) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(each, kind) for each in value.values())


def _is_dense(value: Tensor) -> bool:
    return value.layout == torch.strided and value.device.type != "meta"


def _is_quantised(value: object) -> bool:
    """Whether weights have few bits, be it in what a layer packs them into, with its bias."""
    parts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(each, Tensor) and each.is_quantized for each in parts)


def load_checkpoint(model: nn.Module, path: Path, *, prefix: str | None = None, called: str = "") -> list[str]:
    """Loads weights from a file, or a folder with such files, without running any code in them.

    A state dict among other things (`state_dict`, `model`, or the only one there is), and names that fit once a
    beginning that all of them share is taken off (`module.`, `_orig_mod.`, `net.`), are understood.

    Args:
        model: takes the weights.
        path: a file of `torch.save` or safetensors, or a folder with the files of one model.
        prefix: what the names of the weights begin with; names that begin otherwise are left out; empty for the plain
            names beside others that fit with a prefix. None for what fits.
        called: the address that `path` is a local copy of.

    Returns:
        What of the file was taken and what was not, in sentences; none where all of it was, as it is.

    Raises:
        ModelError: a file cannot be read or its weights do not fit the model.
    """
    whole = _weights(path)
    found = whole.tensors
    wanted = model.state_dict()
    # A prefix of nothing chooses the plain names of several sets that fit.
    others = tuple(filter(None, _fitting_prefixes(found, wanted))) if prefix == "" else ()
    if prefix is None:
        prefix = _common_prefix(found, wanted)
    elif not any(name.startswith(prefix) for name in found):
        raise ModelError(
            f"model.prefix {prefix!r}: no name in checkpoint {path} begins so; its names: {some([*found])}"
        )
    taken = {name: value for name, value in found.items() if name.startswith(prefix) and not name.startswith(others)}
    state = {name.removeprefix(prefix): value for name, value in taken.items()}
    problems = {
        "of another shape": [
            f"{name} (model {tuple(wanted[name].shape)}, file {tuple(state[name].shape)})"
            for name in wanted
            if name in state and state[name].shape != wanted[name].shape
        ],
        "that are no floats, where the model has floats": [
            f"{name} ({state[name].dtype})"
            for name in wanted
            if name in state and wanted[name].is_floating_point() and not state[name].is_floating_point()
        ],
    }
    missing = [name for name in wanted if name not in state and not name.endswith(COUNTER)]
    unexpected = [name for name in state if name not in wanted]
    if (missing or unexpected) and not any(problems.values()):
        try:
            missing, unexpected = _left_over(model, state)
        except RuntimeError as error:  # another shape under a translated name
            raise ModelError(f"checkpoint {path} does not fit the model: {error}") from error
    if misfit := misfits({"missing": missing, "unexpected": unexpected, **problems}):
        raise ModelError(
            f"checkpoint {path} does not fit the model: {misfit}. Check model.source, model.arguments and the number "
            f"of classes{_prefix_advice(found, wanted)}{_parametrised_advice(missing, unexpected)}"
        )
    model.load_state_dict(state, strict=False)
    notices, where = [], called or str(path)
    file = Path(Path(called).name) if is_address(called) else path
    if whole.beside:
        other = (*whole.keys[:-1], whole.beside[0])
        notices.append(
            f"checkpoint {where} holds several state dicts: {whole.keys[-1]!r} was taken, "
            f"{some([repr(key) for key in whole.beside])} {'was' if len(whole.beside) == 1 else 'were'} not; "
            f"to have another{_taken_out(file, other, has_objects=whole.has_objects)}"
        )
    if whole.averages:
        keys = whole.averages[0]
        notices.append(
            f"checkpoint {where} holds weights without names in {_subscript(keys)}, maybe averages, which were not "
            "taken; to have them, copy them into the network, as `model`"
            f"{_copied_in(file, keys, has_objects=whole.has_objects)}"
        )
    left_out = [name for name in found if name not in taken]
    if left_out:
        how = f"that begin with {prefix!r} were loaded without it" if prefix else "of the model itself were loaded"
        notices.append(
            f"the {len(state)} names in checkpoint {where} {how}, and "
            f"{'1 other was' if len(left_out) == 1 else f'{len(left_out)} others were'} left out: {some(left_out)}"
        )
    elif prefix:
        notices.append(f"all names in checkpoint {where} begin with {prefix!r}, which was taken off to fit the model")
    return notices


def is_of_weights(notice: str) -> bool:
    """Whether a notice of a run, which keeps them as plain text, is one of `load_checkpoint`."""
    return notice.startswith("checkpoint ") or " names in checkpoint " in notice


def misfits(problems: Mapping[str, Sequence[str]]) -> str:
    """Message on how weights do not fit a model, from names by what is wrong with them; empty where they do."""
    return "; ".join(f"{len(names)} {kind}: {some(names)}" for kind, names in problems.items() if names)


def _common_prefix(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Prefix of all names of `state` without which they fit the model; empty where there is none."""
    first = next(iter(state))
    for ending in wanted:
        prefix = first.removesuffix(ending)
        if prefix == first or not prefix.endswith(".") or not all(name.startswith(prefix) for name in state):
            continue
        if _fits({name.removeprefix(prefix) for name in state}, wanted):
            return prefix
    return ""


def _fits(names: set[str], wanted: Mapping[str, Tensor]) -> bool:
    return {name for name in wanted if not name.endswith(COUNTER)} <= names <= wanted.keys()


def _left_over(model: nn.Module, state: Mapping[str, Tensor]) -> tuple[list[str], list[str]]:
    """Names missing and unexpected once modules have translated earlier ones of theirs, as weight_norm does."""
    before = deepcopy(model.state_dict())
    try:
        missing, unexpected = model.load_state_dict(dict(state), strict=False)
    finally:
        model.load_state_dict(before)
    return [name for name in missing if not name.endswith(COUNTER)], unexpected


def _parametrised_advice(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Advice where only the model, or only the file, holds a weight as weight_norm or another parametrisation does."""
    marks = (".weight_g", ".weight_v", ".weight_orig", ".parametrizations.")
    for names, where in ((missing, "the model"), (unexpected, "the file")):
        if held := [name for name in names if any(mark in f".{name}" for mark in marks)]:
            return (
                f"; {where} holds a weight in parts ({held[0]}), as weight_norm and other parametrisations do: build "
                "the model with those that it was trained with"
            )
    return ""


def _fitting_prefixes(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Each `model.prefix` that would make some of the names fit, and the shapes, if any does; none is empty."""
    first = next(iter(wanted), "")
    inside = {
        prefix: {each.removeprefix(prefix): value.shape for each, value in state.items() if each.startswith(prefix)}
        for prefix in (name.removesuffix(first) for name in state if name.endswith(f".{first}"))
    }
    named = [prefix for prefix, shapes in inside.items() if _fits(set(shapes), wanted)]
    fitting = [prefix for prefix in named if all(wanted[each].shape == shape for each, shape in inside[prefix].items())]
    prefixes = fitting or named
    plain = {name for name in state if not name.startswith(tuple(prefixes))}
    return ["", *prefixes] if prefixes and _fits(plain, wanted) else prefixes


def _prefix_advice(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Advice on the `model.prefix` that would make some of the names and shapes fit, if there is one."""
    prefixes = _fitting_prefixes(state, wanted)
    if not prefixes:
        return ""
    which = "it" if len(prefixes) == 1 else "one of them"
    begin = f"the names that begin with {' or '.join(repr(each) for each in prefixes if each)}"
    plain = ", or those without ('')," if "" in prefixes else ""
    return f"; {begin}{plain} would fit: set model.prefix to {which} to leave out the others"


def read_weights(path: Path) -> StateDict:
    """State dict of a checkpoint; formats as for `load_checkpoint`.

    Args:
        path: the file, or a folder.

    Raises:
        ModelError: a file cannot be read or holds something else.
    """
    found = _weights(path)
    prefix = PARALLEL if all(name.startswith(PARALLEL) for name in found.tensors) else ""
    return replace(found, tensors={name.removeprefix(prefix): value for name, value in found.tensors.items()})


def _weights(path: Path) -> StateDict:
    files = [read_state_dict(file) for file in (weight_files(path) if path.is_dir() else [path])]
    tensors = {name: value for file in files for name, value in file.tensors.items()}
    return replace(files[0], tensors=tensors)


def weights_sha256(model: nn.Module) -> str:
    """The hash of all parameters and buffers of a model: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        dense = tensor.detach().cpu().to_dense()  # a strided tensor is itself
        digest.update(dense.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


_PLAIN = (bool, int, float, complex, str, torch.dtype, type(None))

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

_OF_ALL_MODULES = frozenset(vars(nn.Module()))
"""Attributes that every module has: parameters, buffers, modules and hooks, which are looked at by themselves."""

_MOST_LOOKED_AT = 1000
"""Containers of more, such as a vocabulary, are no setting that a program changes."""


def memory_state(model: nn.Module) -> list[object]:
    """State that changes where a program goes on with a model: its weights, what is frozen, and hooks.

    Of each tensor it has where it lies, how often it was written to, and its sum, since PyTorch does not count what is
    written through `.data`. Hooks of an interface come and go with every call and do not count.
    """
    tensors = [each for each in chain(model.parameters(), model.buffers()) if not each.is_meta]
    hooks = (hook for module in model.modules() for kind in _HOOKS for hook in getattr(module, kind).values())
    return [
        *(
            (
                each.data_ptr() if each.layout == torch.strided else None,
                _writes(each),
                each.requires_grad,
            )
            for each in tensors
        ),
        *_sums(tensors),
        *(id(hook) for hook in hooks if getattr(hook, "__module__", "") != Interface.__module__),
    ]


def attribute_state(model: nn.Module) -> list[object]:
    """State that a program may change besides: attributes of modules, what they run, and hooks of all modules.

    Of the attributes those count that are plain values or tensors, or hold some in lists, tuples or dictionaries.
    """
    tensors: list[Tensor] = []
    found = [
        (
            type(module).forward,
            *(
                (name, value if name == "forward" else _comparable(value, tensors))
                for name, value in vars(module).items()
                if name not in _OF_ALL_MODULES
            ),
        )
        for module in model.modules()
    ]
    hooks = (hook for kind in _HOOKS for hook in getattr(torch.nn.modules.module, f"_global{kind}").values())
    return [*found, *_sums(tensors), *map(id, hooks)]


def _comparable(value: object, tensors: list[Tensor], *, depth: int = 3) -> object:
    """A value as one that equals it while nobody changes it; what cannot be told of is None.

    Args:
        value: an attribute.
        tensors: takes those that it holds.
        depth: of containers that are looked into.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        if value.is_meta:
            return None
        tensors.append(value)
        return _writes(value)
    if not depth or not isinstance(value, (list, tuple, dict)) or len(value) > _MOST_LOOKED_AT:
        return None
    names = [key if isinstance(key, _PLAIN) else id(key) for key in value] if isinstance(value, dict) else []
    values = value.values() if isinstance(value, dict) else value
    return [*names, *(_comparable(each, tensors, depth=depth - 1) for each in values)]


def _writes(tensor: Tensor) -> int | None:
    """Number of writes to a tensor; None where PyTorch does not count it."""
    return None if tensor.is_inference() else tensor._version


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
