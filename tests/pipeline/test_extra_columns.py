"""Extra columns against one backward pass per sample and hand-made means."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from columns_reference import (
    COLUMNS,
    GRANULARITIES,
    LOSS_VALUES,
    MODELS,
    K,
    extractor,
    hand_made,
    made,
    norm_of,
    table,
    with_means,
)
from torch import nn

from gradscore.config import FeaturesConfig
from gradscore.extractor import Extractor
from gradscore.models.layers import group_parameters


@pytest.mark.parametrize("loss", LOSS_VALUES)
@pytest.mark.parametrize("name", MODELS)
def test_norms_against_one_backward_pass_per_sample(name: str, loss: str) -> None:
    model, images = made(name)
    found = table(extractor(model, columns=["output_gradient_norm"]), images)
    layers = list(dict.fromkeys(key.rpartition(".")[0] for key, _ in model.named_parameters()))
    columns = [f"{loss}/{layer}/output_gradient_norm" for layer in layers]
    wanted = [[norm_of(model, loss, image, layer) for layer in layers] for image in images]
    np.testing.assert_allclose(found[columns].to_numpy(), wanted, rtol=1e-10)


def test_rates_against_the_outputs_themselves() -> None:
    model, images = made("convolution")
    found = table(extractor(model, columns=["activation_rate"]), images)
    wanted = [float((model[:3](image[None]) > 0).double().mean()) for image in images]
    assert list(found.columns[-1:]) == ["forward/2/activation_rate"]
    np.testing.assert_allclose(found["forward/2/activation_rate"], wanted, rtol=1e-12)
    assert found["forward/2/activation_rate"].std() > 0


def test_rates_of_functions_are_those_of_the_module_that_calls_them() -> None:
    model, images = made("shared")
    found = table(extractor(model, columns=["activation_rate"]), images)
    first = model.first(images)
    once = F.relu(model.twice(first))
    again = F.relu(model.twice(once))
    inner = torch.cat([once.flatten(1), again.flatten(1)], 1)
    outer = torch.cat([again.mean(1) - 0.1, again.sum(1)], 1)
    np.testing.assert_allclose(found["forward/act/activation_rate"], (inner > 0).double().mean(1), rtol=1e-12)
    np.testing.assert_allclose(found["forward/./activation_rate"], (outer > 0).double().mean(1), rtol=1e-12)


def test_rates_where_positions_come_before_samples() -> None:
    model, images = made("folded")
    found = table(extractor(model, columns=["activation_rate"]), images)
    wanted = (model.body(images) > 0).double().flatten(1).mean(1)
    np.testing.assert_allclose(found["forward/./activation_rate"], wanted.numpy(), rtol=1e-12)


@pytest.mark.parametrize("leave_out", [True, False], ids=["of the fit", "new"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", MODELS)
def test_cosines_against_hand_made_means(name: str, granularity: str, leave_out: bool) -> None:
    model, images = made(name)
    fit = images[:6]
    shown = fit if leave_out else images[6:]
    found = with_means(model, [fit[:4], fit[4:]], columns=["gradient_cosine"], granularity=granularity)
    rows = table(found, shown, copies=torch.full((len(shown),), int(leave_out)))
    groups = group_parameters(model, ["*"], granularity=granularity)
    for loss in LOSS_VALUES:
        columns = [f"{loss}/{group}/gradient_cosine" for group in groups]
        wanted = np.transpose([hand_made(model, loss, fit, shown, members) for members in groups.values()])
        np.testing.assert_allclose(rows[columns].to_numpy(), wanted, atol=1e-9)


def test_gradients_that_float32_could_not_hold() -> None:
    """Logits so far apart that the gradient of the pseudo label is about 1e-260, whose square is zero."""
    model = nn.Linear(2, 2, bias=False).double()
    model.weight.data = torch.tensor([[600.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    fit = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.98, -1.0]], dtype=torch.float64)
    settings = FeaturesConfig(losses=["pseudo_label"], statistics=["l2"], columns=["gradient_cosine"])
    found = Extractor(model, num_classes=2, features=settings)
    sums = found.class_sums()
    found.add_to(sums, fit)
    found.compare_with(sums.finished())
    # The third sample's gradient is e^13 times as long as the others', so the means of others are parallel to it.
    cosines = found.values(fit, copies=torch.ones(3, dtype=torch.int64))[:, -1]
    np.testing.assert_allclose(cosines[:2], [0.98 / np.hypot(0.98, 1), -0.02 / np.hypot(0.98, 1) / 2**0.5], atol=1e-4)


def test_a_sample_that_is_not_finite_spoils_no_mean() -> None:
    model, images = made("convolution")
    broken = torch.cat([images[:5], torch.full_like(images[:1], torch.nan)])
    found, clean = (with_means(model, [batch], columns=["gradient_cosine"]) for batch in (broken, images[:5]))
    np.testing.assert_allclose(found.values(images[5:]), clean.values(images[5:]), rtol=1e-9, atol=1e-12)


def test_a_class_without_other_samples_gives_zero_and_is_named() -> None:
    model, images = made("convolution")
    label = int(model(images[:1]).argmax(1))
    found = with_means(model, [images[:1]], columns=["gradient_cosine"])
    columns = [name for name in found.names if name.endswith("/gradient_cosine")]
    assert not table(found, images[:1], copies=torch.tensor([1]))[columns].to_numpy().any()
    assert table(found, images[:1])[columns].to_numpy() == pytest.approx(1.0)
    others = ", ".join(str(place) for place in range(K) if place != label)
    assert found.notices == [f"gradient_cosine is 0 for predictions no sample of in_dist.fit has: class {others}"]


@pytest.mark.parametrize("name", MODELS)
def test_nothing_stays_on_the_model(name: str) -> None:
    model, images = made(name)
    with_means(model, [images]).values(images)
    modules = list(model.modules())
    assert not [module for module in modules if module._forward_hooks or module._forward_pre_hooks]
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_other_values_are_the_same_to_the_bit(name: str) -> None:
    model, images = made(name)
    plain, found = extractor(model, columns=[]), with_means(model, [images])
    np.testing.assert_array_equal(table(found, images)[plain.names].to_numpy(), plain.values(images))


def test_batches_of_another_size() -> None:
    model, images = made("shared")
    found = with_means(model, [images])
    whole = found.values(images)
    parts = [found.values(images[start:stop]) for start, stop in pairwise([0, 1, 3, 8])]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-9, atol=1e-12)


def test_reduced_precision_moves_the_values_a_little() -> None:
    model, images = made("convolution")
    full, reduced = (with_means(model.float(), [images.float()], autocast=kind) for kind in (None, "bf16"))
    one, other = (table(found, images.float()).filter(regex="|".join(COLUMNS)) for found in (full, reduced))
    assert not np.array_equal(one, other)
    np.testing.assert_allclose(other, one, rtol=0.1, atol=0.05)


def test_only_layers_of_chosen_parameters() -> None:
    model, images = made("convolution")
    found = with_means(model, [images], parameters=["@last"])
    found.values(images)
    assert [name for name in found.names if name.endswith(tuple(COLUMNS))] == [
        "pseudo_label/4/output_gradient_norm",
        "uniform/4/output_gradient_norm",
        "forward/2/activation_rate",
        *[f"{loss}/4.{name}/gradient_cosine" for loss in LOSS_VALUES for name in ("weight", "bias")],
    ]


class LastToken(nn.Module):
    """Tokens first; the last token that is not zero is looked at, so that one row of each sample has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.last = nn.Linear(4, K)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = (x[..., 0] != 0).sum(1)
        hidden = torch.tanh(self.body(x.transpose(0, 1).reshape(-1, 5))).unflatten(0, (x.shape[1], len(x)))
        return self.last(hidden[lengths - 1, torch.arange(len(x))])


class InOrder(LastToken):
    """Sorts its samples by their length on the way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = (x[..., 0] != 0).sum(1).argsort(stable=True)
        return self.last(torch.tanh(self.body(x[order]).mean(1))[order.argsort()])


@pytest.mark.filterwarnings("ignore::gradscore.GradientWarning")
@pytest.mark.parametrize("kind", [LastToken, InOrder])
def test_norms_of_batches_whose_rows_go_another_way(kind: type[nn.Module]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model, images = kind().eval().double(), torch.randn(8, 16, 5, dtype=torch.float64)
    found = extractor(model, columns=["output_gradient_norm"])
    for lengths in ([3, 7, 11, 15], [15, 2, 9, 9]):
        batch = images[:4].clone()
        for sample, length in zip(batch, lengths, strict=True):
            sample[length:] = 0
        column = table(found, batch)["uniform/body/output_gradient_norm"].to_numpy()
        wanted = [norm_of(model, "uniform", image, "body") for image in batch]
        is_said = any("body: an output in which samples cannot be told apart" in notice for notice in found.notices)
        np.testing.assert_allclose(column, np.zeros(4) if is_said else wanted, rtol=1e-9)
    assert is_said is (kind is InOrder)
