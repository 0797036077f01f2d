"""From the losses of a batch to a stream of per-sample gradients, one parameter at a time.

`Engine` runs it, `prepare` makes an engine ready on a few samples before a run, and `reference_gradients` is the slow,
obvious way that both compare with.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import hypot
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.backends import mha
from torch.utils.checkpoint import CheckpointError

from ..errors import AmplifiedRoundingError, CoupledSamplesError, EngineError, GradscoreError, reason
from ..system import Inputs, checked, each_input, rows_of, sample_count
from .graph import Gradients, Graph, backward_to, read_graph, visited
from .layout import moderate
from .per_sample import Dense, PerSample
from .plan import Collection, Plan, Sink, is_linear, make_plan, norm_of, try_plan

SINGLE = "a single sample"

GRAPHS = 64
"""Kinds of graphs whose plans are kept; of networks that move rows by what is in a batch, each batch may be one."""

SPARSER = 4
"""How much later each next batch is looked at: the first, the fourth, the sixteenth and so on of a kind of graph.

A look takes about a third of what a batch does: of sixteen batches of ResNet-20 three take six percent.
"""

OFTEN = 8
"""Graphs of one structure that have to be learnt before there is a notice."""

CHANGED = {
    "modified by an inplace operation": "the model changes in place what its gradients need; let it work on copies",
    "does not require grad": "the model stops its parameters from needing gradients; leave requires_grad as it is",
}
"""Messages of autograd where networks change themselves or their inputs, and what to do."""

MOVED = (
    "samples lie otherwise in this batch than in those before it, not all of which were looked at: the network moves "
    "them by what is in a batch, in a way that its graph does not show, so gradients that were computed until now may "
    "be those of other samples. Discard them, and compute them again in batches of one sample (batch_size=1), or let "
    "the network move rows by indexing, x[order], which is looked at in every batch"
)
"""Advice where a plan turns out to be wrong after it was trusted."""

NOT_LINEAR = (
    "losses a thousand times as large do not have gradients a thousand times as large: a hook or an autograd.Function "
    "changes gradients by their size, as a clamp does, so what a sample's gradient is depends on how its loss is "
    "scaled; take it out"
)
"""Message about a network whose backward pass is not linear."""

LAST = 3
"""Number of the last samples of a batch that are looked at apart from the others."""

INDEPENDENCE_TOLERANCE = 1e-2
"""Largest accepted difference between logits of a sample alone and in a batch, relative to the largest logit.

Seen on seven torchvision networks: 2e-6 at most in float32 and 2e-3 in bfloat16, which is rounding; 8e-2 or more with
batch norm in training mode, for batches of 2 to 64.
"""

FLOAT32_TOLERANCE = 1e-3
"""The same where all is in float32 on a CPU and the other samples make the difference, not how many there are."""


COUPLED_GRADIENT = 5e-2
"""Largest accepted difference between the gradient of a sample alone and in a batch, relative to its norm."""

COUPLED_HALF = 0.5
"""The same where a part of the network computes in half precision."""

AMPLIFIED = 10
"""How much more a sample may move with the others of its batch than with their number, where both are rounding.

Of the 93 networks of docs/coverage.md none moves with the others at all, in float32 on a CPU; one may that deals
samples out to experts, which then take other numbers of them.
"""
ROUNDED = 100
"""So many units in the last place of the largest gradient of some samples may be rounding in those of the others."""


class GradientWarning(UserWarning):
    """Something is computed the slow way."""


class Engine:
    """Per-sample gradients of a fixed set of parameters.

    The engine reads the autograd graph of the outputs it is given: nothing is registered on the model, and only
    `backward` touches `.grad`. Sample layouts are probed on the first batch of every new graph, once more on the second
    one, and looked at more and more rarely after it (`SPARSER`): where they differ, the network moves rows by what is
    in a batch, and each is probed.

    Args:
        parameters: the parameters by name, in the order in which they should be reported. A tensor may have several
            names; its gradient, which adds up all uses, is that of each of them.
        self_check: compare two samples of the first batch of every new graph with the reference, and leave parameters
            that differ to it.
        warns: give notices as a `GradientWarning`, too; what passes its notices on has no need to.

    Attributes:
        notices: what is computed the slow way, and why; each comes once.
        coverage: for every parameter of the last graph: "rule", "parameter-side product", "reference", "unused" or
            "frozen".
        is_linear: whether gradients follow the size of losses, as the first batch of several samples tells.
    """

    @checked
    def __init__(self, parameters: Mapping[str, Tensor], *, self_check: bool = True, warns: bool = True) -> None:
        self.parameters = dict(parameters)
        self._names: dict[int, list[str]] = {}
        for name, tensor in self.parameters.items():
            self._names.setdefault(id(tensor), []).append(name)
        self._distinct = {names[0]: self.parameters[names[0]] for names in self._names.values()}
        self.self_check, self.warns = self_check, warns
        self.notices: list[str] = []
        self.coverage: dict[str, str] = {}
        self.is_linear: bool | None = None
        self._plans: dict[tuple[object, ...], list[Plan]] = {}
        self._times_learnt: dict[int, int] = {}
        self._batches: dict[tuple[object, ...], int] = {}
        self._unseen: set[int] = set()
        self._moving: set[int] = set()
        self._last: weakref.ref[Tensor] | None = None

    def stream(
        self,
        outputs: Tensor,
        grad_outputs: Tensor,
        sink: Sink,
        *,
        retain_graph: bool = False,
    ) -> None:
        """Computes the per-sample gradients of all parameters and hands them to `sink`.

        Args:
            outputs: (N, ...) tensor with a graph; sample n must depend on nothing but input n and the parameters.
            grad_outputs: gradient of the losses at the outputs, of their shape.
            sink: called with a parameter's name, a slice of samples and their gradients, in the order of the backward
                pass. A parameter that the outputs do not depend on, or that needs no gradient, has gradient zero and
                is not reported.
            retain_graph: keep the graph for another call.

        Raises:
            CoupledSamplesError: the losses of the samples depend on one another.
            EngineError: outputs without a graph, of another shape than their gradient, or of a model that is compiled
                or recomputes its activations.
        """
        with self._collecting(outputs, grad_outputs, sink) as (graph, batch):
            if len(outputs):
                backward_to(outputs, grad_outputs, graph, batch.nodes, batch.visit, retain_graph=retain_graph)

    def backward(
        self,
        outputs: Tensor,
        grad_outputs: Tensor,
        sink: Sink,
        *,
        weight: float,
        around: AbstractContextManager[object] | None = None,
    ) -> None:
        """Does what `outputs.backward(weight * grad_outputs)` does, and what `stream` does, in one backward pass.

        Args:
            outputs: as for `stream`; their graph is not kept.
            grad_outputs: as for `stream`.
            sink: as for `stream`; the gradients it is given are not weighted.
            weight: of every sample in what `.grad` sums up, 1 / N for the gradient of a mean; not zero.
            around: entered for the pass which adds to `.grad`, not for what a new graph takes.

        Raises:
            CoupledSamplesError: as `stream`.
            EngineError: as `stream`, or a weight of zero.
        """
        if not weight:
            raise EngineError("a weight of 0 leaves nothing to look at; call stream() instead")
        with self._collecting(outputs, grad_outputs, sink) as (_, batch):

            def unweighted(node: Node, gradients: Gradients) -> None:
                batch.visit(node, tuple(None if each is None else each / weight for each in gradients))

            if len(outputs):
                with visited(batch.nodes, batch.visit if weight == 1 else unweighted), around or nullcontext():
                    torch.autograd.backward(outputs, grad_outputs * weight, retain_graph=bool(batch.late))

    def learn(self, outputs: Tensor, grad_outputs: Tensor) -> None:
        """Probes and self-checks what `stream` would on a first batch, and computes nothing else.

        Args:
            outputs: as for `stream`; their graph is kept.
            grad_outputs: as for `stream`.

        Raises:
            CoupledSamplesError: as `stream`.
            EngineError: as `stream`.
        """
        self._plan(outputs, grad_outputs)

    @contextmanager
    def _collecting(self, outputs: Tensor, grad_outputs: Tensor, sink: Sink) -> Iterator[tuple[Graph, Collection]]:
        """The graph, and what has to visit its nodes in a backward pass; references come before, products after it."""
        graph, plan = self._plan(outputs, grad_outputs)

        def of_all_names(first: str, rows: slice, gradient: PerSample) -> None:
            for name in self._names[id(self.parameters[first])]:
                sink(name, rows, gradient)

        with _readable(outputs):
            by_reference = {name: tensor for name, tensor in self._distinct.items() if name in plan.references}
            for index, gradients in reference_gradients(outputs, grad_outputs, by_reference) if by_reference else ():
                for name, gradient in gradients.items():
                    of_all_names(name, slice(index, index + 1), Dense(gradient.unsqueeze(0)))
            batch = Collection(self._distinct, graph, plan, of_all_names, len(outputs))
            yield graph, batch
            batch.finish_products()
        if batch.not_covered:
            why = "; ".join(f"{name}: {reason}" for name, reason in batch.not_covered.items())
            raise EngineError(f"rules do not cover this batch, but covered one like it ({why})") from batch.cause

    def _plan(self, outputs: Tensor, grad_outputs: Tensor) -> tuple[Graph, Plan]:
        """The graph of the outputs and how its parameters are covered; both are empty for no samples."""
        if outputs.dim() < 1 or outputs.shape != grad_outputs.shape:
            raise EngineError(
                f"outputs have shape {tuple(outputs.shape)} and their gradient {tuple(grad_outputs.shape)}; "
                "both must be (N, ...) and equal"
            )
        if not len(outputs):
            return Graph(), Plan()
        if outputs.grad_fn is None:
            raise EngineError("the outputs have no graph; compute them with gradients enabled")
        graph = read_graph(outputs, self._distinct)
        with _readable(outputs):
            known = (plan.resized(graph, len(outputs)) for plan in self._plans.get(graph.signature, ()))
            found = next((plan for plan in known if plan is not None), None)
            if found is not None and found.is_outdated(outputs, grad_outputs, graph):
                found = None
            if found is None or not self._holds(found, outputs, grad_outputs, graph):
                found = self._new_plan(outputs, grad_outputs, graph)
        self._last = weakref.ref(outputs)
        self._note_coverage(graph, found)
        return graph, found

    def _holds(self, plan: Plan, outputs: Tensor, grad_outputs: Tensor, graph: Graph) -> bool:
        """Whether rows lie in a batch as the plan has it, as far as the batch is one that is looked at.

        Raises:
            EngineError: they do not, and did perhaps not in one before that was not looked at.
        """
        structure = hash(graph.structure)
        if structure in self._moving:
            return False
        if len(outputs) == 1 or (self._last is not None and self._last() is outputs):
            return True
        batch = self._batches[graph.signature] = self._batches.get(graph.signature, -1) + 1
        _drop_oldest(self._batches)
        if not batch:
            holds = plan.agrees(make_plan(outputs, grad_outputs, graph))
        elif plan.is_doubtful:
            holds = plan.is_found_again(outputs, grad_outputs, graph)
        elif is_looked_at(batch, SPARSER):
            holds = plan.keeps_apart(outputs, grad_outputs, graph, seed=batch)
        else:
            self._unseen.add(structure)
            return True
        if not holds:
            self._moving.add(structure)
            if structure in self._unseen:
                raise EngineError(MOVED)
        return holds

    def _new_plan(self, outputs: Tensor, grad_outputs: Tensor, graph: Graph) -> Plan:
        inner = {name for name, tensor in self._distinct.items() if tensor.grad_fn is not None}
        if len(outputs) == 1:
            # One backward pass is all the reference needs, and one sample says nothing about the layout.
            return Plan(references=dict.fromkeys({*graph.leaves, *inner}, SINGLE))
        plan = make_plan(outputs, grad_outputs, graph)
        if self.is_linear is None:
            self.is_linear = is_linear(self._distinct, outputs, grad_outputs, graph)
            if not self.is_linear:
                self._announce(NOT_LINEAR)
        plan.references.update(dict.fromkeys(inner, "a result of the forward pass, not a parameter"))
        plan.references.update(try_plan(self._distinct, graph, plan, outputs, grad_outputs, compare=self.self_check))
        plan.holds_once |= hash(graph.structure) in self._moving
        if plan.holds_once or graph.signature not in self._plans:
            self._count(hash(graph.structure))
        if not plan.holds_once:
            others = [each for each in self._plans.pop(graph.signature, ()) if each.shapes != plan.shapes]
            self._plans[graph.signature] = [*others[1 - GRAPHS :], plan]
            _drop_oldest(self._plans)
        return plan

    def _count(self, structure: int) -> None:
        """Announces it where batch after batch has to be learnt, since rows go elsewhere in each."""
        self._times_learnt[structure] = self._times_learnt.get(structure, 0) + 1
        if self._times_learnt[structure] == OFTEN:
            self._announce(
                "the network moves rows by what is in a batch, so where its samples lie is looked for in every batch "
                "that moves them otherwise, which takes about as long as three more backward passes"
            )
        _drop_oldest(self._times_learnt)

    def _announce(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)
            if self.warns:
                warnings.warn(notice, GradientWarning, stacklevel=3)

    def _note_coverage(self, graph: Graph, plan: Plan) -> None:
        for name, parameter in self.parameters.items():
            first = self._names[id(parameter)][0]
            if not parameter.requires_grad:
                self.coverage[name] = "frozen"
                self._announce(f"{name}: frozen (requires_grad is False), so its gradient is zero")
            elif first in plan.references:
                self.coverage[name] = "reference"
                if plan.references[first] != SINGLE:
                    self._announce(f"{name}: reference, one backward pass per sample ({plan.references[first]})")
            elif first not in graph.leaves:
                self.coverage[name] = "unused"
                self._announce(
                    f"{name}: the losses do not depend on it, so its gradient is zero; where a sample should "
                    "reach it, take out no_grad() and detach() behind it, or leave it out"
                )
            else:
                self.coverage[name] = "parameter-side product" if first in plan.parameter_side else "rule"


def is_looked_at(batch: int, sparser: int) -> bool:
    """Whether the first, second, ... batch is one of those looked at, each so many times as late as the last."""
    while batch % sparser == 0:
        batch //= sparser
    return batch == 1


def _drop_oldest(kept: dict[Any, Any]) -> None:
    """Leaves as many entries as are kept of graphs."""
    while len(kept) > GRAPHS:
        del kept[next(iter(kept))]


@contextmanager
def _readable(outputs: Tensor) -> Iterator[None]:
    """What rules look up is there, and nothing they compute loses digits in the caller's autocast."""
    try:
        with torch.autocast(outputs.device.type, enabled=False):
            yield
    except CheckpointError as error:
        raise EngineError(
            "activation checkpointing recomputes what a rule looks up and allows one look only; switch it off, "
            "for example by model.gradient_checkpointing_disable()"
        ) from error
    except RuntimeError as error:
        advice = next((advice for symptom, advice in CHANGED.items() if symptom in str(error)), None)
        if advice is None:
            raise
        raise EngineError(f"{advice} ({reason(error)})") from error


def reference_gradients(
    outputs: Tensor, grad_outputs: Tensor, parameters: Mapping[str, Tensor]
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """The slow, obvious way: differentiates one sample after the other through the whole batch's graph, which is kept.

    Args:
        outputs: (N, ...) tensor with a graph.
        grad_outputs: gradient at the outputs, of their shape.
        parameters: what to differentiate with respect to, by name.

    Yields:
        The index of a sample and its gradient by parameter name, each of the parameter's shape; zero for a parameter
        that the outputs do not depend on.
    """
    wanted = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    for index in range(len(outputs)):
        alone = torch.zeros_like(grad_outputs)
        alone[index] = grad_outputs[index]
        found: tuple[Tensor | None, ...] = ()
        if wanted:
            found = torch.autograd.grad(outputs, list(wanted.values()), alone, retain_graph=True, allow_unused=True)
        by_name = dict(zip(wanted, found, strict=True))
        gradients = {}
        for name, parameter in parameters.items():
            gradient = by_name.get(name)
            gradients[name] = torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
        yield index, gradients


def prepare(engine: Engine, model: nn.Module, inputs: Inputs, gradient_at: Callable[[Tensor], Tensor]) -> None:
    """Probes and self-checks on a few samples what a later batch would otherwise probe at its full size.

    Args:
        engine: knows the parameters of the model.
        model: in eval mode.
        inputs: (n, ...) a few inputs, or a mapping of such; three or four are enough.
        gradient_at: from logits (n, K) to the gradient of the losses there, of their shape.

    Raises:
        CoupledSamplesError: the output for a sample depends on the other samples of its batch.
        AmplifiedRoundingError: it only depends on how many there are; nothing was learned.
        EngineError: the model returns something else than logits (n, K).
    """
    count = sample_count(inputs)
    logits = _outputs(model, inputs)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != count:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise EngineError(f"the model must return logits of shape ({count}, classes) for {count} samples, got {got}")
    if count > 1:
        rounding = _largest_rounding(model, logits)
        sharp = rounding < INDEPENDENCE_TOLERANCE
        refuse_coupled(model, inputs, logits.detach(), tolerance=rounding, of_size=INDEPENDENCE_TOLERANCE, sharp=sharp)
    directions = gradient_at(logits.detach()).to(logits.dtype)
    engine.learn(logits, directions)
    if count > 1:
        _refuse_coupled_gradient(engine, model, inputs, logits, moderate(directions)[-1])
        # In another order, as a second batch: does the network send rows to where its numbers say?
        again = _outputs(model, rows_of(inputs, torch.arange(count - 1, -1, -1, device=logits.device)))
        engine.learn(again, gradient_at(again.detach()).to(again.dtype))


def _repeated(inputs: Inputs, place: int) -> Inputs:
    """As many copies of one sample as there are samples: a batch that rounds as theirs does."""
    return each_input(inputs, lambda each: each[place : place + 1].expand_as(each))


def _refuse_coupled_gradient(engine: Engine, model: nn.Module, inputs: Inputs, logits: Tensor, along: Tensor) -> None:
    """Raises an error if the gradient of the last sample is another one when it comes alone, and among copies of it."""
    last, together = len(logits) - 1, (logits[-1] * along).sum()[None]
    for batch in (rows_of(inputs, slice(last, None)), _repeated(inputs, last)):
        found = (_outputs(model, batch)[-1] * along).sum()[None]
        worst = coupled_share(engine.parameters, together, found)
        if worst is None:
            return
    raise CoupledSamplesError(
        f"the gradient of a sample changes with the other samples of its batch (by {worst:.0%} of its norm), though "
        "its outputs do not; per-sample gradients are not defined for it. Take out the hook or torch.autograd.Function "
        "whose backward pass runs across the batch"
    )


def coupled_share(parameters: Mapping[str, Tensor], together: Tensor, alone: Tensor) -> float | None:
    """How much the gradients of samples depend on the others of their batch, where that is more than rounding.

    Args:
        parameters: what to differentiate with respect to, by name.
        together: (n,) losses of some samples of a batch, with their graph, which is kept.
        alone: (n,) losses of the same samples in another batch; where it has another size, networks that amplify
            rounding differ as well.

    Returns:
        The largest difference of two gradients, relative to the larger norm of the two; None if all are alike.
    """
    wanted = [parameter for parameter in parameters.values() if parameter.requires_grad]
    if not wanted:
        return None
    half = read_graph(together, parameters).half_precision()
    found = []
    for losses in zip(together, alone, strict=True):
        with _readable(together):
            one, other = (
                torch.autograd.grad(each, wanted, retain_graph=True, materialize_grads=True) for each in losses
            )
        pairs = [(own.to_dense(), that.to_dense()) for own, that in zip(one, other, strict=True)]
        difference = hypot(*(norm_of(own - that) for own, that in pairs))
        found.append((difference, hypot(*(max(norm_of(own), norm_of(that)) for own, that in pairs))))
    # Of a sample that the network is certain of, beside one that it is not, the gradient may be rounding.
    least = ROUNDED * torch.finfo(together.dtype).eps * max(size for _, size in found)
    worst = max((difference - least) / size if size else 0.0 for difference, size in found)
    return worst if worst > (COUPLED_GRADIENT if half is None else COUPLED_HALF) else None


@torch.no_grad()
def refuse_coupled(
    model: Callable[[Inputs], Any],
    inputs: Inputs,
    logits: Tensor,
    *,
    tolerance: float | None = None,
    of_size: float | None = None,
    sharp: bool = False,
) -> None:
    """Makes sure that what a model makes of a sample depends on that sample alone.

    Args:
        model: makes logits of inputs.
        inputs: (n, ...) inputs, or a mapping of such.
        logits: (n, K) what it made of them.
        tolerance: largest difference, relative to the largest logit, that is rounding; by default what rounding is.
        of_size: the same where only how many samples there are makes the difference; by default `tolerance`.
        sharp: of what other samples make of one, accept `AMPLIFIED` times what their number makes of it at most.

    Raises:
        CoupledSamplesError: the same samples have other logits when they come again, or one has when it comes alone.
        AmplifiedRoundingError: logits only depend on how many samples there are.
    """
    refuse_memory(model, inputs, logits)
    tolerance = _rounding(logits) if tolerance is None else tolerance
    for place in range(sample_count(inputs)):
        _refuse_dependence(model, inputs, logits, place, tolerance, of_size=of_size, sharp=sharp)


@torch.no_grad()
def refuse_memory(model: Callable[[Inputs], Any], inputs: Inputs, logits: Tensor) -> None:
    """Makes sure that the same samples have the same logits when they come again.

    Args:
        model: makes logits of inputs.
        inputs: (n, ...) inputs, or a mapping of such.
        logits: (n, K) what it made of them.

    Raises:
        CoupledSamplesError: they have others.
    """
    moved = (_outputs(model, inputs) - logits).abs().max()
    if bool(moved > _rounding(logits) * logits.abs().max()):
        raise CoupledSamplesError(
            f"the model gives the same samples other outputs a second time (by {float(moved):.3g}): it keeps something "
            "from one batch to the next or draws random numbers, so per-sample gradients are not defined for it"
        )


def _largest_rounding(model: nn.Module, logits: Tensor) -> float:
    """The tolerance of logits alone and in a batch: less where nothing was rounded more than to float32."""
    dtypes = {logits.dtype, *(each.dtype for each in model.parameters() if each.is_floating_point())}
    is_exact = all(torch.finfo(dtype).eps <= torch.finfo(torch.float32).eps for dtype in dtypes)
    on_cpu = logits.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return FLOAT32_TOLERANCE if is_exact and on_cpu else INDEPENDENCE_TOLERANCE


def _rounding(logits: Tensor) -> float:
    """Largest difference, relative to the largest logit, that is rounding."""
    return float(min(INDEPENDENCE_TOLERANCE, torch.finfo(logits.dtype).eps ** 0.5))


@torch.no_grad()
def refuse_company(model: Callable[[Inputs], Any], inputs: Inputs, logits: Tensor, *, every: int = 1) -> None:
    """Makes sure that samples have the logits of their batch in another order, and the last few by themselves.

    A few samples do not show it: experts that take at most so many samples of a batch drop none of three.

    Args:
        model: makes logits of inputs.
        inputs: (n, ...) inputs, or a mapping of such, n > `LAST`.
        logits: (n, K) what it made of them.
        every: look at every second sample, say, without those between.

    Raises:
        CoupledSamplesError: a sample has other logits with other samples.
        AmplifiedRoundingError: logits only depend on how many samples there are.
    """
    backwards = torch.arange(len(logits) - 1, -1, -every, device=logits.device)
    parts = [rows_of(inputs, rows) for rows in (backwards[:LAST], backwards[LAST:]) if len(rows)]
    moved = (torch.cat([_outputs(model, part) for part in parts]) - logits[backwards]).abs().amax(dim=1)
    beyond = moved - INDEPENDENCE_TOLERANCE * logits[backwards].abs().amax(dim=1)
    worst = int(beyond.nan_to_num(nan=0.0).argmax())
    if not bool(beyond[worst] > 0):
        return
    place = int(backwards[worst])
    _refuse_dependence(model, inputs, logits, place, INDEPENDENCE_TOLERANCE)
    raise CoupledSamplesError(
        "the model's output for a sample changes with the order of its batch (by "
        f"{float(moved[worst]):.3g}); per-sample gradients are not defined for it. Remove "
        "operations that run across the batch, such as experts that take only so many of its samples"
    )


def _refuse_dependence(
    model: Callable[[Inputs], Any],
    inputs: Inputs,
    logits: Tensor,
    place: int,
    tolerance: float,
    *,
    of_size: float | None = None,
    sharp: bool = False,
) -> None:
    """Raises an error if the output for a sample is another one when the sample comes alone.

    Every sample is asked: one that looks at the first sample, or at its place in the batch, has the first one right.
    """
    together = logits[place]
    try:
        alone = _outputs(model, rows_of(inputs, slice(place, place + 1)))[0]
    except EngineError as error:
        why = reason(error.__cause__ or error)
        raise CoupledSamplesError(
            f"the model takes {sample_count(inputs)} samples but not one of them alone ({why}); per-sample "
            "gradients are not defined for it. Use batch norm with running statistics, in eval mode"
        ) from error
    difference = (alone - together).abs().max()
    largest = together.abs().max()
    is_far = bool(difference > tolerance * largest)
    if not (is_far or sharp):
        return
    # Batches of one shape are computed by the same operations in the same order, so that rounding cannot differ, unless
    # the network computes some of their samples apart: then as it does between one sample and several of it.
    copies = _outputs(model, _repeated(inputs, place))
    if not is_far:
        difference, rounding = ((copies[place] - each).abs().max() for each in (together, alone))
        least = 4 * torch.finfo(logits.dtype).eps * largest
        if not bool(difference > torch.maximum(AMPLIFIED * rounding, least)):
            return
    if torch.equal(copies[place], together) and torch.equal(copies[0], copies[-1]):
        if of_size is not None and not bool(difference > of_size * largest):
            return
        raise AmplifiedRoundingError(
            "the model's output for a sample changes with the size of its batch "
            f"(by {float(difference):.3g}), not with the samples in it: it looks at how many there are, or amplifies "
            "rounding until nothing else is left (`gradscore inspect` shows where its gradients explode)"
        )
    raise CoupledSamplesError(
        "the model's output for a sample changes with the other samples of its batch "
        f"(by {float(difference):.3g}); per-sample gradients are not defined for it. "
        "Put batch norm and dropout in eval mode, and remove operations that run across the batch"
    )


def _outputs(model: Callable[[Inputs], Any], inputs: Inputs) -> Any:
    """Outputs of a model for a copy of its inputs: it may work in place on what it is given.

    Raises:
        EngineError: the model cannot take them; its own error is the cause.
    """
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)  # an encoder takes it without gradients alone, and in bf16 other rounding with it
    try:
        return model(each_input(inputs, Tensor.clone))
    except (GradscoreError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a model is anyone's code, and may raise anything
        raise EngineError(f"the model cannot take {sample_count(inputs)} of its inputs: {reason(error)}") from error
    finally:
        mha.set_fastpath_enabled(fast)
