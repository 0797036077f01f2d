"""The example architectures take the weights they are made for."""

from itertools import pairwise
from pathlib import Path

import torch
from trusted import built

from gradscore.config import load_config

CONFIGS = Path(__file__).parents[2] / "configs"


def test_weights_in_the_form_of_openood_are_those_of_its_configuration(tmp_path, monkeypatch):
    """Random weights under the names that OpenOOD's ResNet18_32x32 has, in a checkpoint as it writes them."""
    widths = [64, 64, 128, 256, 512]
    state = {"conv1.weight": torch.randn(64, 3, 3, 3), **batch_norm("bn1", 64)}
    for stage, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        for block, width in enumerate((inputs, outputs)):
            name = f"layer{stage}.{block}"
            state[f"{name}.conv1.weight"] = torch.randn(outputs, width, 3, 3) / 50
            state[f"{name}.conv2.weight"] = torch.randn(outputs, outputs, 3, 3) / 50
            state |= batch_norm(f"{name}.bn1", outputs) | batch_norm(f"{name}.bn2", outputs)
        if stage > 1:
            state[f"layer{stage}.0.shortcut.0.weight"] = torch.randn(outputs, inputs, 1, 1) / 10
            state |= batch_norm(f"layer{stage}.0.shortcut.1", outputs)
    state |= {"fc.weight": torch.randn(10, 512), "fc.bias": torch.zeros(10)}
    (tmp_path / "s0").mkdir()
    torch.save(state, tmp_path / "s0" / "best.ckpt")
    monkeypatch.setenv("OPENOOD_DATA", str(tmp_path))
    monkeypatch.setenv("OPENOOD_RESULTS", str(tmp_path))
    model = built(load_config(CONFIGS / "openood_cifar10.yaml").model)
    loaded = model.state_dict()
    assert {name: bool(torch.equal(values, loaded[name])) for name, values in state.items()} == dict.fromkeys(
        state, True
    )
    assert model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def batch_norm(name, width):
    return {
        f"{name}.weight": torch.rand(width),
        f"{name}.bias": torch.rand(width),
        f"{name}.running_mean": torch.rand(width),
        f"{name}.running_var": torch.rand(width) + 0.5,
        f"{name}.num_batches_tracked": torch.tensor(7),
    }
