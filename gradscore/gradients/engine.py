"""From the losses of a batch to a stream of per-sample gradients, one parameter at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.checkpoint import CheckpointError

from ..errors import EngineError
from . import exact
from .collect import Collection, Sink, Tap
from .factored import Dense, PerSample
from .graph import Graph, read_graph, refuse_opaque
from .mixing import mixes, refuse_scaled_rows
from .passes import backward_through, backward_to
from .plan import Blueprint, Plan, is_outdated, make_plan
from .trial import try_plan

SINGLE = "a single sample"

GRAPHS = 64
"""Kinds of graphs whose plans are kept; of networks that move rows by what is in a batch, each batch may be one."""

OFTEN = 8
"""Graphs of one structure that have to be learnt before it is said."""

CHANGED = {
    "modified by an inplace operation": "the model changes in place what its gradients need; let it work on copies",
    "does not require grad": "the model stops its parameters from needing gradients; leave requires_grad as it is",
}
"""What autograd says of networks that change themselves or their inputs, and what to do."""


class NewGraphError(EngineError):
    """A graph that the engine has to learn, where it may not."""


class GradientWarning(UserWarning):
    """Something is computed the slow way."""


class Engine:
    """Per-sample gradients of a fixed set of parameters.

    The engine reads the autograd graph of the outputs it is given: nothing is registered on the model, and only
    `backward` touches `.grad`. Sample layouts are probed on the first batch of every new graph and remembered.

    Args:
        parameters: the parameters by name, in the order in which they should be reported. A tensor may have several
            names; its gradient, which adds up all uses, is that of each of them.
        self_check: compare two samples of the first batch of every new graph with the reference, and leave parameters
            that differ to it.
        warns: say notices as a `GradientWarning`, too; what passes its notices on has no need to.

    Attributes:
        notices: what is computed the slow way, and why; each is said once.
        coverage: for every parameter of the last graph: "rule", "parameter-side product", "reference", "unused" or
            "frozen".
    """

    def __init__(self, parameters: Mapping[str, Tensor], *, self_check: bool = True, warns: bool = True) -> None:
        self.parameters = dict(parameters)
        self._names = _names_by_tensor(self.parameters)
        self._distinct = {names[0]: self.parameters[names[0]] for names in self._names.values()}
        self.self_check, self.warns = self_check, warns
        self.notices: list[str] = []
        self.coverage: dict[str, str] = {}
        self._blueprints: dict[tuple[object, ...], list[Blueprint]] = {}
        self._learnt: dict[int, int] = {}
        self._learns = True

    def for_copy(self, parameters: Mapping[str, Tensor]) -> Engine:
        """An engine for a copy of the network, for another thread: it knows what this one learns, and learns nothing.

        What is learnt of a graph depends on the samples that come first, and threads come in any order; so a graph
        that has to be learnt raises a `NewGraphError`.

        Args:
            parameters: those of the copy, by the same names.
        """
        found = Engine(parameters, self_check=self.self_check, warns=self.warns)
        found._blueprints, found.notices, found._learns = self._blueprints, self.notices, False
        return found

    def stream(
        self,
        outputs: Tensor,
        grad_outputs: Tensor,
        sink: Sink,
        *,
        retain_graph: bool = False,
        taps: Mapping[Node, Tap] | None = None,
    ) -> None:
        """Computes the per-sample gradients of all parameters and hands them to `sink`.

        Args:
            outputs: (N, ...) tensor with a graph; sample n must depend on nothing but input n and the parameters.
            grad_outputs: gradient of the losses at the outputs, of their shape.
            sink: called with a parameter's name, a slice of samples and their gradients, in the order of the backward
                pass. A parameter that the outputs do not depend on, or that needs no gradient, has gradient zero and
                is not reported.
            retain_graph: keep the graph for another call.
            taps: nodes of the graph whose output gradients are wanted as well, in the same pass, and what takes them.

        Raises:
            CoupledSamplesError: the losses of the samples depend on one another.
            EngineError: outputs without a graph, of another shape than their gradient, or of a model that is compiled
                or recomputes its activations.
        """

        def walk(batch: Collection) -> None:
            backward_to(outputs, grad_outputs, batch.graph, batch.nodes, batch.visit, retain_graph=retain_graph)

        self._run(outputs, grad_outputs, sink, walk, taps or {})

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

        def walk(batch: Collection) -> None:
            backward_through(
                outputs,
                grad_outputs,
                batch.nodes,
                batch.visit,
                keep_behind=batch.needs_graph_afterwards,
                weight=weight,
                around=around or nullcontext(),
            )

        self._run(outputs, grad_outputs, sink, walk, {})

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

    def _run(
        self,
        outputs: Tensor,
        grad_outputs: Tensor,
        sink: Sink,
        walk: Callable[[Collection], None],
        taps: Mapping[Node, Tap],
    ) -> None:
        found = self._plan(outputs, grad_outputs)
        if found is None:
            return
        graph, plan = found

        def of_all_names(first: str, rows: slice, gradient: PerSample) -> None:
            for name in self._names[id(self.parameters[first])]:
                sink(name, rows, gradient)

        with _readable(outputs):
            self._references(outputs, grad_outputs, plan.references, of_all_names)
            collection = Collection(self._distinct, graph, plan, of_all_names, len(outputs), taps)
            collection.run(walk)
        if collection.not_covered:
            why = "; ".join(f"{name}: {reason}" for name, reason in collection.not_covered.items())
            raise EngineError(f"rules do not cover this batch, but covered one like it ({why})") from collection.cause

    def _plan(self, outputs: Tensor, grad_outputs: Tensor) -> tuple[Graph, Plan] | None:
        """The graph of the outputs and how its parameters are covered; None for no samples."""
        if outputs.dim() < 1 or outputs.shape != grad_outputs.shape:
            raise EngineError(
                f"outputs have shape {tuple(outputs.shape)} and their gradient {tuple(grad_outputs.shape)}; "
                "both must be (N, ...) and equal"
            )
        if not len(outputs):
            return None
        if outputs.grad_fn is None:
            raise EngineError("the outputs have no graph; compute them with gradients enabled")
        graph = read_graph(outputs, self._distinct)
        refuse_opaque(graph)
        refuse_scaled_rows(graph, len(outputs))
        with _readable(outputs):
            known = (blueprint.build(graph, len(outputs)) for blueprint in self._blueprints.get(graph.signature, ()))
            plan = next((each for each in known if each is not None), None)
            if plan is None or is_outdated(plan, outputs, grad_outputs, graph):
                if not self._learns:
                    raise NewGraphError(
                        "this graph was not seen before; the engine that this one is a copy of can learn it"
                    )
                plan = self._new_plan(outputs, grad_outputs, graph)
        self._note_coverage(graph, plan)
        return graph, plan

    def _new_plan(self, outputs: Tensor, grad_outputs: Tensor, graph: Graph) -> Plan:
        inner = {name for name, tensor in self._distinct.items() if tensor.grad_fn is not None}
        if len(outputs) == 1:
            # One backward pass is all the reference needs, and one sample says nothing about the layout.
            return Plan(
                uses={name: [] for name in graph.leaves}, references=dict.fromkeys({*graph.leaves, *inner}, SINGLE)
            )
        plan = make_plan(outputs, grad_outputs, graph)
        plan.references.update(dict.fromkeys(inner, "a result of the forward pass, not a parameter"))
        plan.references.update(try_plan(self._distinct, graph, plan, outputs, grad_outputs, compare=self.self_check))
        self._keep(plan, graph, len(outputs))
        return plan

    def _keep(self, plan: Plan, graph: Graph, samples: int) -> None:
        """Remembers a plan, unless it holds for its batch alone; few of each kind, the oldest of which give way."""
        holds = not mixes(graph, plan.edges(), samples)
        if not holds or graph.signature not in self._blueprints:
            self._count(graph)
        if holds:
            blueprint = Blueprint.of(plan, graph)
            others = [each for each in self._blueprints.pop(graph.signature, ()) if each.shapes != blueprint.shapes]
            self._blueprints[graph.signature] = [*others[1 - GRAPHS :], blueprint]
            _drop_oldest(self._blueprints)

    def _count(self, graph: Graph) -> None:
        """Says so where batch after batch has to be learnt, since rows go elsewhere in each."""
        kind = hash(graph.structure)
        self._learnt[kind] = self._learnt.get(kind, 0) + 1
        if self._learnt[kind] == OFTEN:
            self._announce(
                "the network moves rows by what is in a batch, so where its samples lie is looked for in every batch "
                "that moves them otherwise, which takes about as long as three more backward passes"
            )
        _drop_oldest(self._learnt)

    def _references(self, outputs: Tensor, grad_outputs: Tensor, names: Mapping[str, str], sink: Sink) -> None:
        wanted = {name: parameter for name, parameter in self._distinct.items() if name in names}
        if wanted:
            for index, gradients in exact.per_sample_gradients(outputs, grad_outputs, wanted):
                for name, gradient in gradients.items():
                    sink(name, slice(index, index + 1), Dense(gradient.unsqueeze(0)))

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
                self._announce(f"{name}: the losses do not depend on it, so its gradient is zero")
            else:
                self.coverage[name] = "parameter-side product" if first in plan.parameter_side else "rule"


def _drop_oldest(kept: dict[Any, Any]) -> None:
    """Leaves as many entries as are kept of graphs."""
    while len(kept) > GRAPHS:
        del kept[next(iter(kept))]


def _names_by_tensor(parameters: Mapping[str, Tensor]) -> dict[int, list[str]]:
    """The names of each tensor, by its identity."""
    found: dict[int, list[str]] = {}
    for name, tensor in parameters.items():
        found.setdefault(id(tensor), []).append(name)
    return found


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
        advice = next((advice for said, advice in CHANGED.items() if said in str(error)), None)
        if advice is None:
            raise
        raise EngineError(f"{advice} ({str(error).splitlines()[0]})") from error
