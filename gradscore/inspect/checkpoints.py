"""How a model moved from checkpoint to checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from ..errors import ConfigError, ModelError
from ..models import read_weights
from .quantities.geometry import CORRELATION, NORM
from .quantities.parameter_difference_geometry import ParameterDifferenceGeometry
from .quantities.quantity import MODEL

COLUMNS = ["from", "to", "layer", "norm", "relative", "correlation"]


def moves(checkpoints: Sequence[Path]) -> pd.DataFrame:
    """Compares each checkpoint with the next one.

    Args:
        checkpoints: two or more files of weights, `.safetensors`, `.pt` or `.pth`, in the order of training.

    Returns:
        A row for every step and tensor, and one for the whole model: columns from, to, layer, norm (Euclidean norm of
        the difference), relative (norm divided by that of the earlier values, NaN where those are zero), correlation
        (cosine with the step before, NaN for the first). Tensors that are not of floating point are left out.

    Raises:
        ConfigError: fewer than two checkpoints.
        ModelError: a file that cannot be read, or that holds other tensors than the first one.
    """
    if len(checkpoints) < 2:
        raise ConfigError(f"--checkpoints: wanted two or more files, got {len(checkpoints)}")
    rows: list[tuple[str, str, str, float, float, float]] = []
    before: dict[str, Tensor] = {}
    geometry = ParameterDifferenceGeometry()
    for number, path in enumerate(checkpoints):
        weights = {name: each.double() for name, each in read_weights(path).items() if each.is_floating_point()}
        if before:
            _check_fit(before, weights, checkpoints[0], path)
        for name, tensor in {**weights, MODEL: _joined(weights)}.items():
            geometry.observe(name, tensor)
        if before:
            found = _step(geometry, before, [*weights, MODEL])
            rows += [(checkpoints[number - 1].name, path.name, *figures) for figures in found]
        before = {**weights, MODEL: _joined(weights)}
    return pd.DataFrame(rows, columns=COLUMNS)


def _step(
    geometry: ParameterDifferenceGeometry, before: dict[str, Tensor], names: Sequence[str]
) -> list[tuple[str, float, float, float]]:
    rows = []
    for name in names:
        size = float(before[name].norm())
        norm = geometry.value[NORM][name].point("max")
        turn = geometry.value.get(CORRELATION, {}).get(name)
        rows.append((name, norm, norm / size if size else float("nan"), turn.point("max") if turn else float("nan")))
    geometry.value.clear()
    return rows


def _check_fit(before: dict[str, Tensor], weights: dict[str, Tensor], first: Path, path: Path) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in before.items() if name != MODEL}
    others = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = [name for name in {**shapes, **others} if shapes.get(name) != others.get(name)]
    if wrong:
        raise ModelError(
            f"{path} is no later checkpoint of {first}: {wrong[0]} has shape {others.get(wrong[0], 'missing')} there "
            f"and {shapes.get(wrong[0], 'missing')} before; give checkpoints of one model"
        )


def _joined(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in weights.values()])
