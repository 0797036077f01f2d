"""Published choices of features against plain autograd, sample by sample in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from gradscore.config import FeaturesConfig
from gradscore.errors import ModelError
from gradscore.extractor import Extractor
from gradscore.models.layers import group_parameters

CLASSES = 4


def net():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, CLASSES)]
    return nn.Sequential(*layers).double().eval()


@pytest.fixture
def images():
    return torch.randn(6, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def features_of(model, images, **settings):
    """The features of a model, by name."""
    features = FeaturesConfig.model_validate(settings)
    extractor = Extractor(model, num_classes=CLASSES, features=features)
    values = torch.from_numpy(extractor.values(images))[:, CLASSES:]
    return dict(zip(extractor.feature_names, values.unbind(1), strict=True))


def gradients(model, images, loss):
    """Gradients of every parameter for every image by itself; `loss` takes the logits (K,) of one."""
    rows = []
    for image in images:
        found = torch.autograd.grad(loss(model(image.unsqueeze(0))[0]), list(model.parameters()))
        rows.append([each.flatten() for each in found])
    return {
        name: torch.stack(column)
        for (name, _), column in zip(model.named_parameters(), zip(*rows, strict=True), strict=True)
    }


def test_gradnorm_is_the_l1_norm_of_the_last_layer(images):
    model = net()
    truth = gradients(model, images, lambda z: -z.log_softmax(0).mean())
    wanted = {f"uniform/{name}/l1": truth[name].abs().sum(1) for name in ("5.weight", "5.bias")}
    found = features_of(model, images, losses=["uniform"], statistics=["l1"], parameters=["@last"])
    assert_close(found, wanted)


def test_exgrad_is_the_expected_norm_over_the_predicted_distribution(images):
    model = net()
    p = model(images).detach().softmax(1)
    by_class = [gradients(model, images, lambda z, y=y: -z.log_softmax(0)[y]) for y in range(CLASSES)]
    norms = {"l1": 1, "l2": 2}
    wanted = {
        f"expected/{name}/{key}": sum(p[:, y] * by_class[y][name].norm(order, dim=1) for y in range(CLASSES))
        for name in ("5.weight", "5.bias")
        for key, order in norms.items()
    }
    found = features_of(model, images, losses=["expected"], statistics=["l1", "l2"], parameters=["@last"])
    assert_close(found, wanted)


def test_lee_alregib_is_the_norm_of_every_layer(images):
    model = net()
    truth = gradients(model, images, lambda z: F.binary_cross_entropy_with_logits(z, torch.ones_like(z)))
    layers = {name.partition(".")[0] for name in truth}
    squared = {
        f"confounding/{layer}/l2": sum(truth[f"{layer}.{kind}"].square().sum(1) for kind in ("weight", "bias"))
        for layer in layers
    }
    found = features_of(model, images, losses=["confounding"], statistics=["l2"], granularity="module")
    assert_close({name: value**2 for name, value in found.items()}, squared)


def test_statistics_of_several_losses_do_not_disturb_each_other(images):
    both = features_of(net(), images, losses=["expected", "uniform"], statistics=["l1"])
    alone = features_of(net(), images, losses=["uniform"], statistics=["l1"])
    assert_close({name: both[name] for name in alone}, alone, rtol=0, atol=0)


def test_a_model_without_a_matrix_has_no_last_layer():
    with pytest.raises(ModelError, match="no layer with a weight matrix"):
        group_parameters(nn.LayerNorm(2), ["@last"])
