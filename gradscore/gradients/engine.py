"""From the losses of a batch to a stream of per-sample gradients, one parameter at a time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor

from ..errors import EngineError
from . import exact
from .collect import Collection, Sink
from .factored import Dense
from .graph import Graph, read_graph
from .plan import Blueprint, Plan, is_parameter_side, make_plan


class GradientWarning(UserWarning):
    """Something is computed the slow way."""


class Engine:
    """Per-sample gradients of a fixed set of parameters.

    The engine reads the autograd graph of the outputs it is given: nothing is registered on the model and `.grad` is
    never touched. Sample layouts are probed on the first batch of every new graph and remembered.

    Args:
        parameters: the parameters by name, in the order in which they should be reported.

    Attributes:
        notices: what is computed the slow way, and why; each is said once, as a `GradientWarning` too.
        coverage: for every parameter of the last graph: "rule", "parameter-side product", "exact twin", "unused" or
            "frozen".
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = dict(parameters)
        self.notices: list[str] = []
        self.coverage: dict[str, str] = {}
        self._distrusted: dict[str, str] = {}
        self._blueprints: dict[tuple[object, ...], Blueprint] = {}

    def stream(self, outputs: Tensor, grad_outputs: Tensor, sink: Sink, *, retain_graph: bool = False) -> None:
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
            EngineError: outputs without a graph, or of another shape than their gradient.
        """
        if outputs.dim() < 1 or outputs.shape != grad_outputs.shape:
            raise EngineError(
                f"outputs have shape {tuple(outputs.shape)} and their gradient {tuple(grad_outputs.shape)}; "
                "both must be (N, ...) and equal"
            )
        if not len(outputs):
            return
        if outputs.grad_fn is None:
            raise EngineError("the outputs have no graph; compute them with gradients enabled")
        graph = read_graph(outputs, self.parameters)
        blueprint = self._blueprints.get(graph.signature)
        plan = blueprint.build(graph, len(outputs)) if blueprint else None
        fresh = plan is None
        if plan is None:
            plan = self._new_plan(outputs, grad_outputs, graph)
        self._twins(outputs, grad_outputs, plan.twins, sink)
        # A rule may find out that it does not cover its case, so the graph is kept until a plan has worked once.
        collection = Collection(self.parameters, graph, plan, sink, len(outputs))
        collection.run(outputs, grad_outputs, retain_graph=retain_graph or fresh)
        if collection.not_covered:
            if not fresh:
                raise EngineError(
                    f"rules stopped covering {collection.not_covered} for a graph that they covered before"
                )
            plan.twins.update(collection.not_covered)
            self._twins(outputs, grad_outputs, collection.not_covered, sink)
        if fresh and len(outputs) > 1:
            self._blueprints[graph.signature] = Blueprint.of(plan, graph)
            self._announce(plan.twins)
        self._note_coverage(graph, plan)

    def distrust(self, name: str, why: str) -> None:
        """Leaves a parameter to the exact twin from now on."""
        self._distrusted[name] = why
        self._blueprints.clear()

    def _new_plan(self, outputs: Tensor, grad_outputs: Tensor, graph: Graph) -> Plan:
        if len(outputs) == 1:
            # One backward pass is all the exact twin needs, and one sample says nothing about the layout.
            return Plan(uses={name: [] for name in graph.leaves}, twins=dict.fromkeys(graph.leaves, "a single sample"))
        plan = make_plan(outputs, grad_outputs, graph)
        plan.twins.update({name: why for name, why in self._distrusted.items() if name in plan.uses})
        return plan

    def _twins(self, outputs: Tensor, grad_outputs: Tensor, names: Mapping[str, str], sink: Sink) -> None:
        wanted = {name: parameter for name, parameter in self.parameters.items() if name in names}
        if wanted:
            for index, gradients in exact.per_sample_gradients(outputs, grad_outputs, wanted):
                for name, gradient in gradients.items():
                    sink(name, slice(index, index + 1), Dense(gradient.unsqueeze(0)))

    def _announce(self, twins: Mapping[str, str]) -> None:
        for name, why in twins.items():
            notice = f"{name}: exact twin, one backward pass per sample ({why})"
            if notice not in self.notices:
                self.notices.append(notice)
                warnings.warn(notice, GradientWarning, stacklevel=3)

    def _note_coverage(self, graph: Graph, plan: Plan) -> None:
        for name, parameter in self.parameters.items():
            if not parameter.requires_grad:
                self.coverage[name] = "frozen"
            elif name not in graph.leaves:
                self.coverage[name] = "unused"
            elif name in plan.twins:
                self.coverage[name] = "exact twin"
            else:
                product = any(is_parameter_side(edge) for edge in plan.uses[name])
                self.coverage[name] = "parameter-side product" if product else "rule"
