"""Findings about a saved model, or one that trains; whether outputs depend on a layer is tried out."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..data import tensors_in, with_tensors
from ..errors import DataError
from ..models import first_tensor
from ..system import unwatched
from .findings import Finding, constant, described, diagnose
from .hooks import leaf_modules, learning_modules
from .layer_figures import ModelFigures
from .layer_quantities import precise_norm
from .quantity import MODEL, Schedule, layer_of


@unwatched()
def examine(model: nn.Module, batches: Sequence[Tensor]) -> list[Finding]:
    """Runs a model forwards and backwards and names what is not well.

    The gradients have one size at the logits of every sample: whether they get through a network does not depend on the
    loss, and that of a sample the network is certain of may be too small for any number. Where
    gradients end or shrink because parameters are initialised with zeros, or all with one small value (zero-initialised
    branches, LayerScale), the network is looked at as it is once they have moved. A layer that no gradient reaches is
    dead only if the logits would change with what it returns.

    Args:
        model: in eval mode, on the device of the batches, returns logits.
        batches: a list of tensors of preprocessed samples, (N, ...) each; the model and they are left as they are.

    Returns:
        The findings, the gravest first; none if nothing stands out.

    Raises:
        DataError: `batches` is something else, or empty.
    """
    _check_batches(batches)
    parameters = dict(model.named_parameters())
    figures, gradients = _run(model, batches)
    found = diagnose(figures, parameters)
    held = {
        name: moved for name, gradient in gradients.items() if (moved := _moved(parameters[name], gradient)) is not None
    }
    if not any(finding.kind in ("dead layer", "vanishing") for finding in found):
        held = {}
    with replaced(parameters, held):
        last = _run(model, batches)[0] if held else figures
        images = batches[0]
        found = confirmed(
            last, parameters, lambda site: affects_outputs(model, site, lambda: first_tensor(model(images.clone())))
        )
    # Outputs are the same for every sample where a network is well, but for a last layer that is zero-initialised.
    shut = [
        replace(finding, sentence=f"{finding.sentence}: its weight is all one small value, or zero, as before training")
        for finding in (constant(figures) if held else ())
        if set(figures.layers[finding.layer].parameters) & set(held)
    ]
    return found or _cut_off(model, figures, images) or shut


def _check_batches(batches: object) -> None:
    got = type(batches).__name__
    if isinstance(batches, list | tuple):
        others = [each for each in batches if not isinstance(each, Tensor)]
        if batches and not others:
            return
        got = f"{got} with {type(others[0]).__name__}" if others else f"empty {got}"
    raise DataError(f"batches: wanted a list of tensors of samples, without labels, such as [images]; got {got}")


def _run(model: nn.Module, batches: Iterable[Tensor]) -> tuple[ModelFigures, dict[str, Tensor]]:
    """Runs batches forwards, and backwards from gradients of norm 1 at the logits of every sample.

    They point where the predicted class gains on the others.

    Returns:
        Figures of the layers, and the summed gradients of the parameters that get one.
    """
    figures = ModelFigures(model)
    wanted = {name: each for name, each in model.named_parameters() if each.requires_grad}
    totals: dict[str, Tensor] = {}
    with ExitStack() as stack:
        figures.attach(stack)
        figures.active = True
        for images in batches:
            if images.is_floating_point():
                images = images.detach().requires_grad_()  # so that gradients pass frozen layers as well
            outputs = first_tensor(model(images.clone()))  # it may work in place on what it is given
            assert outputs is not None
            inputs = [*wanted.values(), *([images] if images.requires_grad else [])]
            if not outputs.requires_grad or not inputs:
                continue
            chosen = nn.functional.one_hot(outputs.nan_to_num().argmax(1), outputs.shape[1]).to(outputs.dtype)
            direction: Tensor = chosen - 1 / outputs.shape[1]
            direction = direction / direction.norm(dim=1, keepdim=True)
            found = torch.autograd.grad(outputs, inputs, direction, retain_graph=True, allow_unused=True)
            for name, gradient in zip(wanted, found, strict=False):
                if gradient is not None and bool(gradient.any()):
                    totals[name] = totals[name] + gradient if name in totals else gradient
        figures.active = False
    return figures, totals


NUDGE = 1e-2
"""Length of the step which parameters that are all zero are moved by."""

SMALL = 0.1
"""Initial scales of residual branches up to this are LayerScale's, or of its like: 1e-6 to 0.1 are usual."""


def _moved(parameter: nn.Parameter, gradient: Tensor) -> Tensor | None:
    """Values to which a zero-initialised parameter, or a LayerScale, moves; None for any other."""
    values = parameter.detach()
    first = values.flatten()[0].item() if values.numel() else 1.0
    if not abs(first) <= SMALL or not bool((values == first).all()):
        return None
    if first:
        return torch.ones_like(values)
    # Gradients of batches may cancel.
    size = float(precise_norm(gradient))
    return NUDGE / size * gradient if size else None


def _cut_off(model: nn.Module, figures: ModelFigures, images: Tensor) -> list[Finding]:
    """Layers whose outputs matter to the logits, but not by way of the graph: something in between is detached."""
    learning = {name for name, each in model.named_parameters() if each.requires_grad}
    modules = leaf_modules(model)
    lost = [
        site
        for site, layer in figures.layers.items()
        if site in modules and site not in figures.behind and learning.intersection(layer.parameters)
    ]
    for site in reversed(lost):
        if affects_outputs(model, site, lambda: first_tensor(model(images.clone()))):
            sentence = (
                f"{described(figures, site)} is cut off: the outputs depend on it, but no gradient comes back to it; "
                "look for detach() or no_grad() behind it"
            )
            return [Finding("cut off", site, sentence, tuple(each for each in lost if each != site))]
    return []


def confirmed(
    figures: ModelFigures, parameters: Mapping[str, nn.Parameter], does_matter: Callable[[str], bool]
) -> list[Finding]:
    """Findings without layers that get no gradient because nothing depends on them, whatever the weights are.

    Attention over a single key, say, gives it the weight 1 always, and query and key get no gradient by construction.

    Args:
        figures: what was gathered; such layers are noted in it as immaterial.
        parameters: of the model, by name.
        does_matter: whether the outputs of the model depend on those of a layer, by call.
    """
    found = diagnose(figures, parameters)
    idle = {each.layer for each in found if each.kind == "dead layer" and not does_matter(each.layer)}
    if not idle:
        return found
    figures.immaterial |= idle
    return diagnose(figures, parameters)


def affects_outputs(model: nn.Module, site: str, run: Callable[[], object]) -> bool:
    """Whether outputs change when random numbers take the place of what a layer returns.

    Args:
        model: has the layer; frozen parameters that are all zero are other numbers meanwhile.
        site: a call of the layer.
        run: runs the model, the same every time, and returns its outputs.
    """
    layer, number = layer_of(site)
    calls, parameters = [0], dict(model.named_parameters())
    closed = {
        name: torch.full_like(each, FILL)
        for name, each in parameters.items()
        if not each.requires_grad and not bool(each.any())
    }

    def scramble(module: nn.Module, inputs: object, output: object) -> object:
        del module, inputs
        calls[0] += 1
        if calls[0] != number:
            return None
        first = first_tensor(output)
        return with_tensors(output, lambda each: _scrambled(each) if each is first else each)

    devices = {each.device for each in parameters.values() if each.device.type == "cuda"}
    with torch.no_grad(), replaced(parameters, closed), torch.random.fork_rng(devices):
        torch.manual_seed(0)
        before = list(tensors_in(run()))
        handle = learning_modules(model)[layer].register_forward_hook(scramble)
        try:
            torch.manual_seed(0)
            after = list(tensors_in(run()))
        finally:
            handle.remove()
    return any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


FILL = 1e-2
"""Value that frozen parameters of zeros alone are filled with, so that they let a change through."""


@contextmanager
def replaced(parameters: Mapping[str, nn.Parameter], others: Mapping[str, Tensor]) -> Iterator[None]:
    """Parameters with other values, and with their own afterwards."""
    before = {name: parameters[name].detach().clone() for name in others}
    try:
        with torch.no_grad():
            for name, values in others.items():
                parameters[name].copy_(values)
        yield
    finally:
        with torch.no_grad():
            for name, values in before.items():
                parameters[name].copy_(values)


def _scrambled(tensor: Tensor) -> Tensor:
    """Random numbers of the size of a tensor, of either sign."""
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    size = max(1.0, float(tensor.double().square().mean().sqrt()))
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64, device="cpu")
    return (size * noise).to(tensor)


AT_ONCE = frozenset({"bad input", "bad weight", "bad output", "wrong scale", "frozen", "exploding", "saturated"})
"""Kinds that are believed when they are seen first. Others have to be there at two looks in a row: branches that begin
at zero get no gradient in the first step, and with float16 a gradient now and then is not finite."""

NO_NUMBERS = frozenset({"bad weight", "bad output", "bad gradient"})
"""Kinds that are no news once a weight is no number: all others follow."""


class HealthWarning(UserWarning):
    """Something is not well with a model that trains."""


class TrainingHealth(ModelFigures):
    """Looks at some steps of training, and remembers what is not well.

    Args:
        model: what trains.
        parameters: its parameters, by name.
        schedule: the steps that are looked at.

    Attributes:
        found: findings with the step at which each was seen first; each cause once.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], schedule: Schedule) -> None:
        super().__init__(model)
        self.found: list[Finding] = []
        self._parameters, self._schedule = parameters, schedule
        self._suspected: set[tuple[str, str]] = set()
        self._step, self._is_due = -1, False

    def start_step(self, step: int) -> None:
        """Begins a look at this step if it is due; that at the step before was concluded."""
        if self._schedule(step):
            self.forget()
            self.active = self._is_due = True
            self._step = step

    def pause(self, paused: bool) -> None:
        """Looks at nothing from here on, or goes on with the look at this step."""
        self.active = self._is_due and not paused

    def conclude(self) -> None:
        """Ends a look: what it shows is remembered and, where it is new, said in a `HealthWarning`."""
        if not self._is_due:
            return
        self.active = self._is_due = False
        if not self.samples:
            return
        seen = diagnose(self, self._parameters)
        if any((each.kind, each.layer) in self._suspected for each in seen if each.kind == "dead layer"):
            seen = confirmed(self, self._parameters, self._matters)
        self.calls, self._nodes = {}, {}  # no inputs are held, and nothing of the graph
        known = {(each.kind, each.layer) for each in self.found}
        for finding in seen:
            key = finding.kind, finding.layer
            if finding.kind in NO_NUMBERS and any(kind == "bad weight" for kind, _ in known):
                continue
            if key not in known and (finding.kind in AT_ONCE or key in self._suspected):
                self._say(replace(finding, step=self._step))
        self._suspected = {(each.kind, each.layer) for each in seen}

    def take_bad_loss(self, step: int) -> None:
        """Takes the first step whose loss is NaN or infinite: news, unless what was found until then explains it."""
        causes = {"bad input", "bad weight", "bad output", "bad loss"}
        if any(each.kind in causes and (each.step or 0) <= step for each in self.found):
            return
        though = ", though the outputs of the model are finite" if self._step == step else ""
        self._say(Finding("bad loss", MODEL, f"the loss is NaN or infinite{though}", step=step))

    def _say(self, finding: Finding) -> None:
        self.found.append(finding)
        warnings.warn(str(finding), HealthWarning, stacklevel=3)

    def _matters(self, site: str) -> bool:
        """Whether outputs depend on those of a layer, tried on a copy; they do unless the trial says otherwise."""
        root = next((name for name in (MODEL, site.partition(".")[0]) if name in self.calls), None)
        if ("dead layer", site) not in self._suspected or root in (None, site):
            return True
        name = "" if root == MODEL else root
        inputs, named = self.calls[root]
        try:
            double = copy.deepcopy(self.model.get_submodule(name)).eval()
            return affects_outputs(double, site.removeprefix(f"{name}."), lambda: double(*inputs, **named))
        except Exception as error:  # noqa: BLE001  # models are anyone's code, and training goes on
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"cannot try whether anything depends on {site}: {why}", HealthWarning, stacklevel=2)
            return True
