"""How a model moved from checkpoint to checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from ..errors import ConfigError, ModelError
from ..models import read_weights
from ..system import some
from .findings import Finding
from .quantities.geometry import cosine, precise_norm
from .quantities.quantity import MODEL

COLUMNS = ["from", "to", "layer", "norm", "relative", "correlation"]


@dataclass(frozen=True)
class CheckpointMoves:
    """How a model moved.

    Attributes:
        steps: a row for every step and tensor, and one for the whole model: columns from, to (files, with as many of
            their folders as tell them apart), layer, norm (Euclidean norm of the difference), relative (norm divided by
            that of the earlier values, NaN where those are zero), correlation (cosine with the step before, NaN for the
            first). A complex number counts as two; tensors of whole numbers are left out.
        findings: checkpoints that hold values which are not finite.
    """

    steps: pd.DataFrame
    findings: list[Finding]


def compare_checkpoints(checkpoints: Sequence[Path]) -> CheckpointMoves:
    """Compares each checkpoint with the next one.

    Args:
        checkpoints: two or more files of weights, `.safetensors`, `.pt` or `.pth`, in the order of training.

    Returns:
        The steps, and which checkpoints hold values that are not finite.

    Raises:
        ConfigError: fewer than two checkpoints.
        ModelError: a file that cannot be read, or that holds no numbers that move, or other tensors than the first one.
    """
    if len(checkpoints) < 2:
        raise ConfigError(f"--checkpoints: wanted two or more files, got {len(checkpoints)}")
    rows: list[tuple[str, str, str, float, float, float]] = []
    findings: list[Finding] = []
    before: dict[str, Tensor] = {}
    steps: dict[str, tuple[Tensor, float]] = {}
    names = _names(checkpoints)
    for number, path in enumerate(checkpoints):
        weights = _weights(path)
        if before:
            _check_fit(before, weights, checkpoints[0], path)
        findings += _not_finite(names[number], weights)
        now = {**weights, MODEL: _joined(weights)}
        for name, earlier in before.items():
            step = now[name] - earlier
            norm, size = float(precise_norm(step)), float(earlier.norm())
            last, last_norm = steps.get(name, (step, 0.0))
            turns = 0 < norm < inf and 0 < last_norm < inf
            turn = float(cosine(last, step, last_norm, norm)) if turns else nan
            rows.append((names[number - 1], names[number], name, norm, norm / size if size else nan, turn))
            steps[name] = step, norm
        before = now
    return CheckpointMoves(pd.DataFrame(rows, columns=COLUMNS), findings)


def _names(checkpoints: Sequence[Path]) -> list[str]:
    """The shortest end of each path that no other one has; a file that comes again gets a number."""
    paths = [path.absolute().parts for path in checkpoints]
    found = []
    for place, own in enumerate(paths):
        others = [each for each in paths if each != own]
        ends = (own[-size:] for size in range(1, len(own) + 1))
        end = next(each for each in ends if all(other[-len(each) :] != each for other in others))
        name, again = Path(*end).as_posix(), paths[:place].count(own)
        found.append(f"{name} ({again + 1})" if again else name)
    return found


def _weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint that training moves, with all digits and all entries."""
    held = read_weights(path)
    found = {
        name: (each if each.layout == torch.strided else each.to_dense()).to(
            torch.complex128 if each.is_complex() else torch.float64
        )
        for name, each in held.items()
        if each.is_floating_point() or each.is_complex()
    }
    if not found:
        raise ModelError(
            f"{path}: wanted weights that move, and there is no tensor of real or complex numbers; it holds "
            f"{some([*held])}"
        )
    return found


def _not_finite(checkpoint: str, weights: Mapping[str, Tensor]) -> list[Finding]:
    """One finding for a checkpoint with values that are not finite."""
    bad = [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]
    if not bad:
        return []
    first, *others = bad
    tensor = weights[first]
    sentence = (
        f"{checkpoint}: {first} holds {int((~tensor.isfinite()).sum())} of {tensor.numel()} values that are NaN or "
        "infinite"
    )
    return [Finding("bad weight", first, f"{sentence}, as does {some(others)}" if others else sentence)]


def _check_fit(before: dict[str, Tensor], weights: dict[str, Tensor], first: Path, path: Path) -> None:
    shapes = {name: _shape(tensor) for name, tensor in before.items() if name != MODEL}
    others = {name: _shape(tensor) for name, tensor in weights.items()}
    wrong = [name for name in {**shapes, **others} if shapes.get(name) != others.get(name)]
    if wrong:
        raise ModelError(
            f"{path} is no later checkpoint of {first}: {wrong[0]} has shape {others.get(wrong[0], 'missing')} there "
            f"and {shapes.get(wrong[0], 'missing')} before; give checkpoints of one model"
        )


def _shape(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)}{' of complex numbers' if tensor.is_complex() else ''}"


def _joined(weights: dict[str, Tensor]) -> Tensor:
    """All numbers in one vector, two for a complex one."""
    real = [torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in weights.values()]
    return torch.cat([tensor.flatten() for tensor in real])
