"""Between what models take and return and what all packages rely on: one batch in, logits (N, K) out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from ..errors import ModelError
from ..system import some

LOGITS = "logits"
"""The entry of an output with several that is taken before any other."""

ROUNDING = 1e-5
"""By how much rows of probabilities may miss one, in float32 and wider types; sixteen roundings of narrower ones."""

_PASSED_ON = {
    *("View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Select", "Slice", "Index", "Alias"),
    *("Transpose", "T", "Permute", "Expand", "ToCopy", "Clone", "Cat", "Stack", "Split", "Unbind"),
}
"""Beginnings of the names of nodes that move values and leave them as they are."""


@dataclass(frozen=True, kw_only=True)
class Interface:
    """Interface of a classifier: how to talk to it.

    Attributes:
        num_classes: K as a configuration says it; None where a program gives the model, and these as arguments.
        output: name or position of the logits among what the model returns; None where it is obvious.
        one_logit: the model returns one logit z for two classes, which are scored as `[0, z]`.
    """

    num_classes: int | None = None
    output: str | int | None = None
    one_logit: bool = False

    def attach(self, model: nn.Module) -> Callable[[], None]:
        """Makes a model take batches and return logits as gradscore has them; its parameters keep their names.

        From then on the model takes a tensor, or a mapping whose entries are the keyword arguments of its `forward`;
        floats are brought to the type of its weights. It returns logits (N, K).

        Args:
            model: any module; hooks are registered on it.

        Returns:
            What takes the hooks off again.
        """
        inputs = model.register_forward_pre_hook(_with_inputs, with_kwargs=True)
        outputs = model.register_forward_hook(self._with_logits)

        def detach() -> None:
            inputs.remove()
            outputs.remove()

        return detach

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """Attaches for a while, as `attach`; a model that takes batches and returns logits already is left as it is."""
        if any(isinstance(getattr(hook, "__self__", None), Interface) for hook in model._forward_hooks.values()):
            yield
            return
        detach = self.attach(model)
        try:
            yield
        finally:
            detach()

    def logits(self, returned: object) -> Tensor:
        """The logits among what a model returns.

        Args:
            returned: a tensor, mapping, tuple, list, or an object with `.logits`.

        Returns:
            (N, K) where the model is what `num_classes` says, of another shape where it is not.

        Raises:
            ModelError: none of the entries is called so, or it is not clear which one is meant; or there is not one
                logit where there should be, or no dense tensor of floats.
        """
        found = self._entry(returned)
        if isinstance(found, Tensor) and (not found.is_floating_point() or found.layout is not torch.strided):
            layout = "" if found.layout is torch.strided else f" and layout {found.layout}"
            raise ModelError(
                f"model outputs: wanted logits as floats in an ordinary tensor, got {found.dtype}{layout}; let forward "
                "return what goes into an argmax or softmax, dense"
            )
        if not self.one_logit:
            return self._of_classes(found)
        if found.dim() not in (1, 2) or (found.dim() == 2 and found.shape[1] != 1):
            setting, remedy = (
                ("one_logit=True means", "leave one_logit out")
                if self.num_classes is None
                else ("model.num_classes is 1, which means", "set model.num_classes to the number of classes")
            )
            raise ModelError(
                f"model outputs: {setting} one logit for two classes, of shape (samples, 1), got shape "
                f"{tuple(found.shape)}; {remedy}"
            )
        logit = found.reshape(-1, 1)
        return torch.cat([torch.zeros_like(logit), logit], dim=1)

    def _of_classes(self, found: Tensor) -> Tensor:
        """Output where it is (N, K) of several classes; what other tasks have is refused."""
        if found.dim() == 2 and found.shape[1] != 1:
            return found
        if found.dim() <= 2:
            setting = "one_logit=True" if self.num_classes is None else "model.num_classes to 1"
            advice = f"set {setting} if that is the logit of two classes, not for a regression: {OTHER_MODELS}"
            if tuple(found.shape) == (self.num_classes,):
                advice = (
                    "forward may drop the axis of a single sample, as .squeeze() does; keep it, as .flatten(1) does"
                )
            raise ModelError(
                f"model outputs: wanted logits of shape (samples, classes), got shape {tuple(found.shape)}; {advice}"
            )
        raise ModelError(_of_another_task(found))

    def _with_logits(self, _model: nn.Module, _inputs: object, returned: object) -> Tensor:
        return self.logits(returned)

    def _entry(self, returned: object) -> Tensor:
        if isinstance(returned, Tensor) and self.output is None:
            return returned
        entries = _entries(returned)
        if self.output is not None:
            return _named(entries, self.output, setting="output" if self.num_classes is None else "model.output")
        tensors: dict[str, Tensor] = {
            name: each for name, each in entries.items() if isinstance(each, Tensor) and each.is_floating_point()
        }
        if LOGITS in tensors:
            return tensors[LOGITS]
        shaped = {
            name: each for name, each in tensors.items() if each.dim() == 2 or (self.one_logit and each.dim() == 1)
        }
        width = 1 if self.one_logit else self.num_classes
        fitting = {name: each for name, each in shaped.items() if each.dim() == 1 or each.shape[1] == width}
        maps = any(each.dim() == 4 and each.shape[2:].numel() == 1 for each in tensors.values())
        for candidates in (fitting,) if maps else (shaped, fitting):  # the logits may be a map of one place
            if len(candidates) == 1:
                return next(iter(candidates.values()))
        if not shaped and entries:
            raise ModelError(_of_another_task(returned))
        name = (
            f"name the logits by {'output=...' if self.num_classes is None else 'model.output (in Python output=...)'}"
        )
        raise ModelError(
            f"model outputs: wanted logits of shape (samples, classes), got {type(returned).__name__}"
            f"{_described(entries)}; {name if entries else 'make forward return them'}"
        )


OTHER_MODELS = (
    "gradscore scores classifiers; of any other model, gradscore.features(model, batches, losses=FUNCTION) has the "
    "gradients of a loss of your own (gradscore docs language-models)"
)
"""Message on what is supported, and what there is for models of other tasks."""


def _of_another_task(returned: object) -> str:
    """Why outputs that are no logits of samples cannot be scored, and what there is for such models."""
    entries = {"": returned} if isinstance(returned, Tensor) else _entries(returned)
    tensors = [each for each in entries.values() if isinstance(each, Tensor) and each.is_floating_point()]
    task = ""
    if any("boxes" in each for each in (returned, *entries.values()) if isinstance(each, Mapping)):
        task = ", as object detection has"
    elif tensors and all(each.dim() > 3 for each in tensors):
        task = ", as segmentation has for each place of an image"
    elif tensors and all(each.dim() == 3 for each in tensors):
        task = ", as language models have for each token, and detection for each box"
    shape = f" of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else _described(entries)
    got = f"{type(returned).__name__}{shape}{task}"
    return f"model outputs: wanted logits of shape (samples, classes), got {got}; {OTHER_MODELS}"


def check_logits(outputs: object, count: int) -> Tensor:
    """Makes sure, by a `ModelError`, that a model returned (count, K) logits of two or more classes."""
    if isinstance(outputs, Tensor) and outputs.dim() == 2 and len(outputs) == count and outputs.shape[1] >= 2:
        return outputs
    got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
    raise ModelError(f"model outputs: wanted logits of shape ({count}, classes), got {got}; let forward return those")


def refuse_probabilities(logits: Tensor) -> None:
    """Refuses outputs that went through a softmax or a sigmoid: scores are made of what entered it.

    Logarithms of probabilities are logits as well.

    Args:
        logits: (N, K); with a graph, a softmax or sigmoid at its end is found as well.

    Raises:
        ModelError: every row is a distribution, or the last operation is a softmax or sigmoid.
    """
    last = _last_operations(logits)
    if "Sigmoid" in last:
        raise ModelError(
            "model outputs: they went through a sigmoid. If every class is judged by itself (several labels for one "
            "sample), gradscore cannot score the model: it is for one class out of several; with one output for two "
            "classes, make forward return what enters the sigmoid"
        )
    if "Softmax" in last or _are_distributions(logits):
        raise ModelError(
            "model outputs: every row is a probability distribution (nothing below zero, one sum: 1, or 100 of "
            "percentages), so they went through a softmax; wanted logits, which are what enters it: take the softmax "
            "out of forward (its last layer, or a function), since rounded probabilities tie at one"
        )


def _are_distributions(outputs: Tensor) -> bool:
    """Whether no value (N, K) is below zero and every row sums to one, or every row to 100, up to rounding."""
    values = outputs.detach()
    if values.dim() != 2 or not values.numel() or not bool((values >= 0).all()):
        return False
    allowed = max(ROUNDING, 16 * torch.finfo(values.dtype).eps) if values.is_floating_point() else 0.0
    sums = values.double().sum(1)
    return any(bool(((sums / total - 1).abs() <= allowed).all()) for total in (1, 100))


def check_module(model: object) -> None:
    """Makes sure that what a program gives as a model is a module; `ModelError` says what it is instead."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"model: wanted a classifier as a torch.nn.Module, got {type(model).__name__}; gradients are taken with "
            "respect to the parameters of a module, so wrap what you have in one that holds them"
        )


def refuse_foreign(model: nn.Module, *, source: str) -> None:
    """Refuses modules that hide their parameters (TorchScript, `torch.compile`), or wrap one and rename them.

    Args:
        model: a module.
        source: what made it, for messages.

    Raises:
        ModelError: it is one of these, or has one inside that hides parameters; or it is no module.
    """
    check_module(model)
    if lazy := [name for name, each in model.named_parameters() if is_lazy(each)]:
        raise ModelError(
            f"{source} has parameters without values ({some(lazy)}): a lazy module, which its first batch would fill "
            "at random; run a batch through it and load its weights first"
        )
    if isinstance(model, nn.DataParallel | DistributedDataParallel):
        raise ModelError(
            f"{source} is wrapped in {type(model).__name__}, which renames its parameters; wanted the module itself: "
            "pass model.module"
        )
    for name, module in model.named_modules():
        where = f" in '{name}'" if name else ""
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"{source} is a TorchScript module{where}, whose graph hides where parameters are used; wanted the "
                "module it was made of: build that in Python and load its weights, model.state_dict()"
            )
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise ModelError(
                f"{source} is compiled{where} (torch.compile), which hides where parameters are used; wanted the "
                "module itself: leave torch.compile out, or pass compiled._orig_mod"
            )


def _with_inputs(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    batch = args[0] if len(args) == 1 and not kwargs else None
    if isinstance(batch, Mapping) and _takes(model, batch):
        args, kwargs = (), dict(batch)
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), None)
    return tuple(_cast(each, dtype) for each in args), {name: _cast(each, dtype) for name, each in kwargs.items()}


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    known = dtype is not None and isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if known else value


def _takes(model: nn.Module, batch: Mapping[str, Any]) -> bool:
    """Whether the entries of a batch are arguments of `forward`, rather than the mapping being one."""
    parameters = inspect.signature(model.forward).parameters
    kinds = {each.kind for each in parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds or len(parameters) > 1 or set(batch) <= set(parameters)


def _entries(returned: object) -> dict[str, Any]:
    if isinstance(returned, Mapping):
        return {str(name): value for name, value in returned.items()}
    if isinstance(getattr(returned, LOGITS, None), Tensor):
        return {LOGITS: getattr(returned, LOGITS)}
    if isinstance(returned, tuple) and hasattr(returned, "_asdict"):
        fields: dict[str, Any] = returned._asdict()
        return fields
    parts: list[Any] = list(returned) if isinstance(returned, tuple | list) else []
    return {str(place): each for place, each in enumerate(parts)}


def _named(entries: Mapping[str, Any], output: str | int, *, setting: str) -> Tensor:
    names = list(entries)
    name = names[output] if isinstance(output, int) and -len(names) <= output < len(names) else str(output)
    if not isinstance(entries.get(name), Tensor):
        raise ModelError(
            f"{setting}: no tensor {output!r} among what the model returns{_described(entries)}; name one of these, or "
            f"leave {setting} out if the model returns the logits alone"
        )
    found: Tensor = entries[name]
    return found


def _described(entries: Mapping[str, Any]) -> str:
    shown = [
        f"{name} {tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__}"
        for name, each in entries.items()
    ]
    return f" of {some(shown)}" if shown else ""


def _last_operations(logits: Tensor) -> set[str]:
    """The operations that gave the values of a tensor, as the autograd graph names them; moves of values left out."""
    found: set[str] = set()
    nodes = [logits.grad_fn]
    while nodes:
        node = nodes.pop()
        name = "" if node is None else node.name().partition("Backward")[0]
        if node is not None and name in _PASSED_ON:
            nodes += [each for each, _ in node.next_functions]
        else:
            found.add(name.removeprefix("Safe"))
    return found
