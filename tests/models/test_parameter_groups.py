import pytest
from torch import nn

from gradscore.errors import ConfigError, ModelError
from gradscore.models.layers import group_parameters


class Net(nn.Module):
    """Parameters of its own, of a normalisation layer, and one shared by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(nn.Linear(2, 2).weight.detach())
        self.norm = nn.LayerNorm(2)
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight


ALL = ["token", "norm.weight", "norm.bias", "first.weight", "first.bias", "second.bias"]
CASES = {
    "every parameter": ({"patterns": ["*"]}, {name: [name] for name in ALL}),
    "patterns, in the order of the model": (
        {"patterns": ["*.bias", "norm.*"]},
        {name: [name] for name in ["norm.weight", "norm.bias", "first.bias", "second.bias"]},
    ),
    "modules": (
        {"patterns": ["*"], "granularity": "module"},
        {
            ".": ["token"],
            "norm": ["norm.weight", "norm.bias"],
            "first": ["first.weight", "first.bias"],
            "second": ["second.bias"],
        },
    ),
    "model": ({"granularity": "model", "patterns": ["first.*"]}, {"model": ["first.weight", "first.bias"]}),
}


@pytest.mark.parametrize(("features", "wanted"), CASES.values(), ids=CASES)
def test_groups(features: dict, wanted: dict) -> None:
    found = group_parameters(Net(), **features)
    assert list(found.items()) == list(wanted.items())


def test_a_pattern_without_a_match() -> None:
    with pytest.raises(ConfigError, match=r"features\.parameters\.1: 'NORM\.\*' matches no parameter"):
        group_parameters(Net(), ["*", "NORM.*"])


def test_a_model_without_parameters() -> None:
    with pytest.raises(ModelError, match="has no parameters"):
        group_parameters(nn.Flatten(), ["*"])
