"""Runs in the peers' environment: the same steps looked at by cockpit and by monitorch; values go to a file."""

import sys

import torch
import torch.nn.functional as F
from backpack import extend
from cockpit import Cockpit
from cockpit.quantities import GradHist1d, GradHist2d, MeanGSNR
from inspected_steps import BATCH, BINS, BINS_2D, EPSILON, SPAN, SPANS_2D, batches, lenet
from monitorch.preprocessor import (
    GradientActivation,
    GradientGeometry,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterDifferenceGeometry,
    ParameterNorm,
)
from torch import nn

Values = dict[str, list[float]]


def with_cockpit() -> Values:
    model, criterion = extend(lenet()), extend(nn.CrossEntropyLoss())
    always = {"track_schedule": (0).__le__}
    quantities = {
        "GradHist1d": GradHist1d(**always, bins=BINS, range=SPAN),
        "GradHist2d": GradHist2d(**always, bins=BINS_2D, range=SPANS_2D),
        "MeanGSNR": MeanGSNR(**always, epsilon=EPSILON),
    }
    cockpit = Cockpit(model.parameters(), quantities=list(quantities.values()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (inputs, labels) in enumerate(batches()):
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        info = {"batch_size": BATCH, "loss": loss, "individual_losses": loss.detach().expand(BATCH), "optimizer": None}
        with cockpit(step, info=info):
            loss.backward()
        optimizer.step()
    found: Values = {}
    for name, quantity in quantities.items():
        values = [quantity.output[step] for step in sorted(quantity.output)]
        values = [each["hist"] if isinstance(each, dict) else torch.tensor(each) for each in values]
        found[f"cockpit {name}"] = torch.stack(list(map(torch.as_tensor, values))).double().flatten().tolist()
    return found


def with_monitorch() -> Values:
    model = lenet()
    layers = dict(model.named_children())
    common = {"inplace": False}
    passes = {"record_eval": False, "evaluation_from_grad": True}
    output_gradients = OutputGradientGeometry(correlation=True, normalize=False, **common)
    outputs = [OutputActivation(death=True, **common, **passes), OutputNorm(normalize=True, **common, **passes)]
    gradients = [GradientGeometry(correlation=True, normalize=True, **common), GradientActivation(death=True, **common)]
    differences = ParameterDifferenceGeometry(correlation=True, normalize=False, **common)
    norms = ParameterNorm(["weight", "bias"], normalize=False, **common)
    for name, layer in layers.items():
        layer.register_forward_hook(
            lambda module, inputs, output, name=name: (
                [each.process_fw(name, module, inputs, output) for each in outputs] and None
            )
        )
        if not isinstance(layer, nn.ReLU):
            layer.register_full_backward_hook(
                lambda module, ins, outs, name=name: output_gradients.process_bw(name, module, ins, outs)
            )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, labels in batches():
        for name, parameter in model.named_parameters():
            differences.process_tensor(name, parameter.detach().clone())
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        for name, parameter in model.named_parameters():
            for each in gradients:
                each.process_tensor(name, parameter.grad)
        optimizer.step()
    for name, parameter in model.named_parameters():
        differences.process_tensor(name, parameter.detach().clone())
    for name, layer in layers.items():
        if hasattr(layer, "weight"):
            norms.process_module(name, layer)
    found: Values = {}
    for preprocessor in (output_gradients, *outputs, *gradients, differences):
        kind = type(preprocessor).__name__
        for layer, value in preprocessor.value.items():
            for place, values in enumerate(value if isinstance(value, tuple) else (value,)):
                found[f"monitorch {kind} {place} {layer}"] = [float(each) for each in values]
    for layer, value in norms.value.items():
        found |= {f"monitorch ParameterNorm {attr} {layer}": [float(v) for v in each] for attr, each in value.items()}
    return found


torch.save({**with_cockpit(), **with_monitorch()}, sys.argv[1])
