"""Per-sample gradients written out in memory of the processor: as the engine gives them, and as the reference does."""

import torch

from gradscore.gradients import reference_gradients


def streamed(engine, outputs, grad_outputs, *, retain_graph=True):
    """The engine's gradients, (N, *shape) by name."""
    found = {name: torch.zeros(len(outputs), *p.shape, dtype=p.dtype) for name, p in engine.parameters.items()}

    def sink(name, rows, gradient):
        found[name][rows] = gradient.dense(slice(None)).detach().to("cpu", found[name].dtype)

    engine.stream(outputs, grad_outputs, sink, retain_graph=retain_graph)
    return found


def blocks_streamed(engine, outputs, grad_outputs, *, budget=300, retain_graph=True):
    """All elements of every sample from the engine's blocks, sorted: lists of (p,) by name."""
    found = {name: [[] for _ in range(len(outputs))] for name in engine.parameters}

    def sink(name, rows, gradient):
        for part, block in gradient.blocks(budget):
            for offset, elements in enumerate(block.movedim(-2, 0)):
                found[name][rows.start + part.start + offset].append(elements.clone().flatten().cpu())
        for parts in found[name][rows]:
            parts.append(torch.zeros(gradient.implicit_zeros, dtype=outputs.dtype))

    engine.stream(outputs, grad_outputs, sink, retain_graph=retain_graph)
    return {name: [torch.cat(parts).sort()[0] for parts in each if parts] for name, each in found.items()}


def reference_of(parameters, outputs, grad_outputs):
    """One backward pass per sample, (N, *shape) by name."""
    rows = [gradients for _, gradients in reference_gradients(outputs, grad_outputs, parameters)]
    return {name: torch.stack([row[name] for row in rows]) for name in parameters}


def assert_reference(engine, outputs, grad_outputs=None, *, retain_graph=True, **tolerances):
    """Asserts that the engine gives the gradients of the reference, for random ones at the outputs without others."""
    grad_outputs = torch.randn_like(outputs) if grad_outputs is None else grad_outputs
    truth = reference_of(engine.parameters, outputs, grad_outputs)
    torch.testing.assert_close(streamed(engine, outputs, grad_outputs, retain_graph=retain_graph), truth, **tolerances)
