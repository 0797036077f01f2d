"""What extra columns cannot do, and what is said of it."""

import pytest
import torch
import torch.nn.functional as F
from columns_reference import K, extractor, made, table
from torch import Tensor, nn

from gradscore.check.differences import FeatureDrift
from gradscore.errors import ConfigError, ModelError
from gradscore.extractor import MeanGradients, extra_columns
from gradscore.meta.inputs import logarithmic


class Unseen(nn.Module):
    """A layer whose weights are used without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(5, K)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.linear(x, self.hidden.weight, self.hidden.bias)) + 0.1 * x[:, :K]


def test_a_layer_that_is_not_called_is_named() -> None:
    model, images = Unseen().double(), torch.randn(4, 5, dtype=torch.float64)
    found = extractor(model, columns=["output_gradient_norm"])
    assert not table(found, images)["uniform/hidden/output_gradient_norm"].any()
    assert found.notices == ["hidden: no gradient at an output of its own, so its output_gradient_norm is 0"]


BAD_SETTINGS = {
    "mistyped": ({"columns": ["gradient_cosin"]}, ValueError, "no column 'gradient_cosin'; did you mean 'gradient_co"),
    "twice": ({"columns": ["activation_rate"] * 2}, ValueError, "named more than once: activation_rate"),
    "a loss of many gradients": ({"losses": ["expected"]}, ConfigError, "gradient_cosine: loss 'expected' has a gradi"),
}


@pytest.mark.parametrize(("settings", "error", "message"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_unusable_settings(settings: dict[str, object], error: type[Exception], message: str) -> None:
    model, _ = made("convolution")
    with pytest.raises(error, match=message):
        extractor(model, **settings)


def test_too_many_parameters_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra_columns, "MEMORY_LIMIT", 1000)
    model, _ = made("convolution")
    with pytest.raises(ConfigError, match=r"keep 7.44e-06 GB .*2 losses x 3 classes x 155 parameter entries.*'@last'"):
        extractor(model)


def test_a_model_without_activation_functions() -> None:
    found = extractor(nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, K)), columns=["activation_rate"])
    with pytest.raises(ConfigError, match=r"calls no activation function that gives zeros .*leave it out"):
        found.values(torch.randn(4, 5))


class Fickle(nn.Module):
    """Takes another way for large images."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.ReLU(), nn.ReLU(), nn.Linear(5, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.one(x) if x.mean() > 10 else self.other(x))


def test_activations_that_change_from_batch_to_batch() -> None:
    found = extractor(Fickle(), columns=["activation_rate"])
    found.values(torch.randn(4, 5))
    with pytest.raises(ModelError, match=r"changes from batch to batch \(one, other\)"):
        found.values(torch.randn(4, 5) + 100)


def test_names_before_the_first_sample() -> None:
    model, _ = made("convolution")
    with pytest.raises(ModelError, match="is seen when the model runs"):
        _ = extractor(model).names


def test_cosines_need_means() -> None:
    model, images = made("convolution")
    with pytest.raises(ModelError, match="needs mean gradients"):
        extractor(model).values(images)


def test_means_survive_writing() -> None:
    model, images = made("convolution")
    found = extractor(model)
    sums = found.class_sums()
    found.add_to(sums, images)
    content = sums.finished().to_bytes()
    assert MeanGradients.from_bytes(content).to_bytes() == content


def test_which_inputs_are_logarithms() -> None:
    names = ["uniform/0/output_gradient_norm", "forward/1/activation_rate", "uniform/0/gradient_cosine"]
    assert logarithmic(names).tolist() == [True, False, False]


def test_drift_says_which_layer() -> None:
    drift = FeatureDrift(samples=1, schema="", largest=1.0, column="forward/act/activation_rate", moved=[])
    assert drift.place == "activation_rate of layer act"
