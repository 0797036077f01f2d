"""Published OOD detectors on penultimate features, as pytorch-ood has them, with the settings of their papers.

The features are those before the last layer, so that ReAct, ASH and SCALE act on the pooled features, as their papers
and OpenOOD do for residual networks; ASH and SCALE presume features that are not negative.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import EvaluationError, MissingExtraError
from ..models import Head
from ..system import FloatArray, import_torchvision
from .score import Fitted, Ordinary, Samples, Score, penultimate_of

NEIGHBOURS = 50
"""The k of KNN, as the paper has it for CIFAR-10; fewer where fewer samples are fitted on."""


def of_penultimate(fit: Callable[[Tensor, Tensor, Head], Any], *, summary: str, source: str) -> Score:
    """A score of the package pytorch-ood.

    Args:
        fit: from features (N, D), classes (N,) from 0 and the last layer to what scores features.
        summary: see `Score`.
        source: see `Score`.
    """

    def fitted(ordinary: Ordinary) -> Fitted:
        if find_spec("pytorch_ood") is None:
            raise MissingExtraError(
                "no scores of penultimate features: they need pytorch-ood; run `pip install 'gradscore[baselines]'` "
                "and evaluate again"
            )
        import_torchvision()  # which pytorch-ood imports
        if ordinary.head is None:
            raise EvaluationError("scores: penultimate features without the last layer that takes them")
        width = ordinary.head.weight.shape[1]
        features = penultimate_of(ordinary.samples, width=width)
        if len(features) < 2:
            raise EvaluationError(f"scores: wanted at least 2 in-distribution samples to fit on, got {len(features)}")
        numbered = torch.from_numpy(np.unique(ordinary.classes, return_inverse=True)[1])
        predict = fit(_single(features), numbered, ordinary.head)

        def score(samples: Samples) -> FloatArray:
            found = predict(_single(penultimate_of(samples, width=width)))
            return np.asarray(found.numpy(), dtype=np.float64)

        return score

    return Score(fit=fitted, needs="penultimate", summary=summary, source=source)


def _single(values: FloatArray) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def knn(features: Tensor, classes: Tensor, _head: Head) -> Any:
    """Distance to the k-th nearest neighbour of unit length. Source: Sun, Ming, Zhu, Li 2022."""
    from pytorch_ood.detector import KNN

    return KNN(None, k=min(NEIGHBOURS, len(features))).fit_features(features, classes).predict_features


def mahalanobis(features: Tensor, classes: Tensor, _head: Head) -> Any:
    """Squared distance to the nearest class mean, shared covariance. Source: Lee, Lee, Lee, Shin 2018."""
    from pytorch_ood.detector import Mahalanobis

    return Mahalanobis(None).fit_features(features, classes).predict_features


def relative_mahalanobis(features: Tensor, classes: Tensor, _head: Head) -> Any:
    """The same less the distance to the mean of all. Source: Ren, Fort, Liu and others 2021."""
    from pytorch_ood.detector import RMD

    return RMD(None).fit_features(features, classes).predict_features


def vim(features: Tensor, classes: Tensor, head: Head) -> Any:
    """Norm outside the principal subspace against energy. Source: Wang, Li, Feng, Zhang 2022."""
    from pytorch_ood.detector import ViM

    weight, bias = _parameters(head)
    return (
        ViM(None, d=principal_dimensions(features.shape[1]), w=weight, b=bias)
        .fit_features(features, classes)
        .predict_features
    )


def react(features: Tensor, classes: Tensor, head: Head) -> Any:
    """Energy after clipping features at their 90th percentile. Source: Sun, Guo, Li 2021."""
    from pytorch_ood.detector import ReAct

    return ReAct(None, _linear(head)).fit_feature_maps(features, classes).predict_feature_maps


def ash(_features: Tensor, _classes: Tensor, head: Head) -> Any:
    """Energy with 65 % of the features pruned and the rest sharpened (ASH-S). Source: Djurisic and others 2023."""
    from pytorch_ood.detector import ASH

    return _of_maps(ASH(None, _of_vectors(_linear(head))))


def scale(_features: Tensor, _classes: Tensor, head: Head) -> Any:
    """Energy with features scaled by how much of them the largest 35 % make up. Source: Xu, Chen, Franchi, Yao 2024."""
    from pytorch_ood.detector import SCALE

    return _of_maps(SCALE(None, _of_vectors(_linear(head))))


def gradnorm(_features: Tensor, _classes: Tensor, head: Head) -> Any:
    """Minus the L1 norm of the last weight's gradient with a uniform label. Source: Huang, Geng, Li 2021."""
    from pytorch_ood.detector import GradNorm

    weight, bias = _parameters(head)
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")  # draws no random weights
    layer.load_state_dict({"weight": weight, "bias": bias}, assign=True)
    return GradNorm(layer, param_filter=lambda name: name == "weight").predict


def principal_dimensions(width: int) -> int:
    """Dimensions of the principal subspace of ViM: as its authors choose for wide features, else half of them."""
    return 1000 if width >= 2048 else 512 if width >= 768 else max(1, width // 2)


def _parameters(head: Head) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(head.weight).float(), torch.from_numpy(head.bias).float()


def _linear(head: Head) -> Callable[[Tensor], Tensor]:
    weight, bias = _parameters(head)
    return lambda features: features @ weight.T + bias


def _of_vectors(layer: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda maps: layer(maps.flatten(1))


def _of_maps(detector: Any) -> Callable[[Tensor], Tensor]:
    return lambda features: detector.predict_feature_maps(features[:, :, None, None])
