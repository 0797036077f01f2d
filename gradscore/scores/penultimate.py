"""Published OOD detectors on penultimate features, as pytorch-ood has them, with the settings of their papers.

The features are those before the last layer, so that ReAct, ASH and SCALE act on the pooled features, as their papers
and OpenOOD do for residual networks; ASH and SCALE presume features that are not negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..errors import EvaluationError, MissingExtraError
from ..models import Head
from ..system import FloatArray, import_torchvision

Score = Callable[[FloatArray], FloatArray]
"""From features (N, D) to scores (N,), higher = more likely out of distribution."""

NEIGHBOURS = 50
"""The k of KNN, as the paper has it for CIFAR-10; fewer where fewer samples are fitted on."""


def fit_detectors(features: ArrayLike, classes: ArrayLike, head: Head) -> dict[str, Score]:
    """Fits every detector of `FEATURE_BASELINES` on in-distribution samples.

    Args:
        features: (N, D) float64, N >= 2.
        classes: (N,) of the samples; whichever classes occur.
        head: the last layer.

    Returns:
        Name -> score of features.

    Raises:
        EvaluationError: fewer than two samples, values that are not finite, or a head of another width.
        MissingExtraError: pytorch-ood is not installed.
    """
    if find_spec("pytorch_ood") is None:
        raise MissingExtraError(
            f"no scores {', '.join(FEATURE_BASELINES)}: they need pytorch-ood; run "
            "`pip install 'gradscore[baselines]'` and evaluate again"
        )
    import_torchvision()  # which pytorch-ood imports
    values = _checked(features, width=head.weight.shape[1])
    if len(values) < 2:
        raise EvaluationError(f"baselines: wanted at least 2 in-distribution samples to fit on, got {len(values)}")
    numbered = torch.from_numpy(np.unique(np.asarray(classes), return_inverse=True)[1])
    fitted = {name: fit(values, numbered, head) for name, fit in FEATURE_BASELINES.items()}
    return {name: _score(predict, width=values.shape[1]) for name, predict in fitted.items()}


def _score(predict: Callable[[Tensor], Tensor], *, width: int) -> Score:
    def score(features: FloatArray) -> FloatArray:
        return np.asarray(predict(_checked(features, width=width)).numpy(), dtype=np.float64)

    return score


def _checked(features: ArrayLike, *, width: int) -> Tensor:
    values = np.asarray(features, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != width:
        raise EvaluationError(f"baselines: wanted features (N, {width}) as the last layer takes, got {values.shape}")
    if not np.isfinite(values).all():
        raise EvaluationError("baselines: some penultimate features are not finite; leave their samples out")
    return torch.from_numpy(values.astype(np.float32))


def _knn(features: Tensor, classes: Tensor, _head: Head) -> Any:
    """Distance to the k-th nearest neighbour of unit length. Source: Sun, Ming, Zhu, Li 2022."""
    from pytorch_ood.detector import KNN

    return KNN(None, k=min(NEIGHBOURS, len(features))).fit_features(features, classes).predict_features


def _mahalanobis(features: Tensor, classes: Tensor, _head: Head) -> Any:
    """Squared distance to the nearest class mean, shared covariance. Source: Lee, Lee, Lee, Shin 2018."""
    from pytorch_ood.detector import Mahalanobis

    return Mahalanobis(None).fit_features(features, classes).predict_features


def _relative_mahalanobis(features: Tensor, classes: Tensor, _head: Head) -> Any:
    """The same less the distance to the mean of all. Source: Ren, Fort, Liu and others 2021."""
    from pytorch_ood.detector import RMD

    return RMD(None).fit_features(features, classes).predict_features


def _vim(features: Tensor, classes: Tensor, head: Head) -> Any:
    """Norm outside the principal subspace against energy. Source: Wang, Li, Feng, Zhang 2022."""
    from pytorch_ood.detector import ViM

    weight, bias = _parameters(head)
    return (
        ViM(None, d=principal_dimensions(features.shape[1]), w=weight, b=bias)
        .fit_features(features, classes)
        .predict_features
    )


def _react(features: Tensor, classes: Tensor, head: Head) -> Any:
    """Energy after clipping features at their 90th percentile. Source: Sun, Guo, Li 2021."""
    from pytorch_ood.detector import ReAct

    return ReAct(None, _linear(head)).fit_feature_maps(features, classes).predict_feature_maps


def _ash(_features: Tensor, _classes: Tensor, head: Head) -> Any:
    """Energy with 65 % of the features pruned and the rest sharpened (ASH-S). Source: Djurisic and others 2023."""
    from pytorch_ood.detector import ASH

    return _of_maps(ASH(None, _of_vectors(_linear(head))))


def _scale(_features: Tensor, _classes: Tensor, head: Head) -> Any:
    """Energy with features scaled by how much of them the largest 35 % make up. Source: Xu, Chen, Franchi, Yao 2024."""
    from pytorch_ood.detector import SCALE

    return _of_maps(SCALE(None, _of_vectors(_linear(head))))


def _gradnorm(_features: Tensor, _classes: Tensor, head: Head) -> Any:
    """Minus the L1 norm of the last weight's gradient with a uniform label. Source: Huang, Geng, Li 2021."""
    from pytorch_ood.detector import GradNorm

    weight, bias = _parameters(head)
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")  # draws no random weights
    layer.load_state_dict({"weight": weight, "bias": bias}, assign=True)
    return GradNorm(layer, param_filter=lambda name: name == "weight").predict


FEATURE_BASELINES: Mapping[str, Callable[[Tensor, Tensor, Head], Any]] = MappingProxyType(
    {
        "knn": _knn,
        "mahalanobis": _mahalanobis,
        "relative_mahalanobis": _relative_mahalanobis,
        "vim": _vim,
        "react": _react,
        "ash": _ash,
        "scale": _scale,
        "gradnorm": _gradnorm,
    }
)
"""Name -> what fits it to features (N, D), classes (N,) from 0 and the last layer, and returns its prediction."""


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
