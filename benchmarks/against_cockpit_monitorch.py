"""Values of `gradscore inspect`'s quantities beside those of cockpit and monitorch, on the same model and steps.

    python benchmarks/against_cockpit_monitorch.py

The peers run in an environment of their own. Every quantity looks at the same four training steps of a LeNet. For each
the largest difference is printed, and where the definitions differ, what is compared (docs/inspect.md says why).
"""

import subprocess
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from environments import python_with
from inspected_steps import BINS, BINS_2D, EPSILON, SPAN, SPANS_2D, batches, lenet

from gradscore.inspect import (
    GradHist1d,
    GradHist2d,
    GradientActivation,
    GradientGeometry,
    Inspector,
    MeanGSNR,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterDifferenceGeometry,
    ParameterNorm,
)

Values = dict[str, list[float]]

REQUIREMENTS = ("cockpit-for-pytorch==1.0.2", "monitorch", "setuptools<81")

MEASURES = {"norm": "0", "correlation": "1", "activation rate": "0", "death rate": "1"}

REMARKS = {
    "OutputGradientGeometry 1": "monitorch's first value, a made-up 0, left out",
    "GradientGeometry 1": "monitorch's first value, a made-up 0, left out",
    "ParameterDifferenceGeometry 1": "monitorch's first value, a made-up 0, left out",
    "MeanGSNR": "with relative=False",
    "GradHist2d": "a value within rounding of an edge may fall on either side",
    "GradHist1d": "a value within rounding of an edge may fall on either side",
}


def ours() -> Values:
    """The values that the peers have, under the same names."""
    model = lenet()
    sampled = {
        "GradHist1d": GradHist1d(bins=BINS, span=SPAN),
        "GradHist2d": GradHist2d(bins=BINS_2D, spans=SPANS_2D),
        "MeanGSNR": MeanGSNR(epsilon=EPSILON, relative=False, inplace=False),
    }
    hooked = [
        OutputGradientGeometry(inplace=False),
        OutputActivation(inplace=False),
        OutputNorm(inplace=False, normalize=True),
        GradientGeometry(inplace=False, normalize=True),
        GradientActivation(inplace=False),
        ParameterDifferenceGeometry(inplace=False),
    ]
    norms = ParameterNorm(inplace=False)
    found: Values = {f"cockpit {name}": [] for name in sampled}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Inspector(model, [*sampled.values(), *hooked, norms]) as inspector:
        for inputs, labels in batches():
            optimizer.zero_grad()
            losses = F.cross_entropy(model(inputs), labels, reduction="none")
            inspector.observe_losses(losses)
            losses.mean().backward()
            optimizer.step()
            for name, quantity in sampled.items():
                if isinstance(quantity, MeanGSNR):
                    found[f"cockpit {name}"].append(quantity.over_data_set()["(model)"])
                else:
                    found[f"cockpit {name}"] += quantity.model.counts.double().flatten().tolist()
                quantity.reset()
        inspector.observe_parameters()
        inspector.observe_modules()
    for quantity in hooked:
        for measure, layers in quantity.value.items():
            for layer, series in layers.items():
                found[f"monitorch {type(quantity).__name__} {MEASURES[measure]} {layer}"] = series.values
    for measure, layers in norms.value.items():
        for layer, series in layers.items():
            found[f"monitorch ParameterNorm {measure.removesuffix(' norm')} {layer}"] = series.values
    return found


def compare(mine: Values, theirs: Values) -> None:
    """Prints the largest difference of every quantity."""
    differences: dict[str, list[float]] = {}
    for name, values in theirs.items():
        package, kind, *rest = name.split(" ")
        key = f"{package} {kind} {rest[0] if package == 'monitorch' else ''}".strip()
        own = mine[name]
        if len(values) == len(own) + 1:
            values = values[1:]
        assert len(own) == len(values), (name, len(own), len(values))
        scale = max(map(abs, values), default=1.0) or 1.0
        differences.setdefault(key, []).append(max(abs(a - b) for a, b in zip(own, values, strict=True)) / scale)
    print("| quantity | series | largest relative difference | remark |")
    print("|---|---|---|---|")
    for key, each in differences.items():
        remark = next((text for name, text in REMARKS.items() if key.endswith(name)), "")
        print(f"| {key} | {len(each)} | {max(each):.1e} | {remark} |")


def main() -> None:
    python = python_with("cockpit_monitorch", *REQUIREMENTS)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "values.pt"
        worker = Path(__file__).with_name("peer_cockpit_monitorch.py")
        subprocess.run([python, "-W", "ignore", worker, target], check=True)
        theirs = torch.load(target, weights_only=True)
    compare(ours(), theirs)


if __name__ == "__main__":
    main()
