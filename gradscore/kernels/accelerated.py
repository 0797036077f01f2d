"""What is computed on an accelerator by kernels of its own, where Triton is there: it comes with PyTorch for CUDA."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .loading import loops as load_loops

TRIED_ON = 3, 70, 35
"""Samples, larger side and positions of the product that a device is tried on: more than a tile, and no multiple."""

TOLERANCE = 1e-5
"""Largest accepted difference of its moments: some hundred times the rounding of float32, and a fiftieth of that of
tensor cores."""


def product_moments(left: Tensor, right: Tensor, *, about_mean: bool) -> Tensor | None:
    """The same as `row_moments` of the elements of all products left[n, g] @ right[n, g].T, which are never written.

    Nothing waits for the device, but for the first call on each, which tries it out.

    Args:
        left: (n, g, o, s).
        right: (n, g, i, s).
        about_mean: take the spread about the mean, not about zero.

    Returns:
        (n, 5) float64 on the device, the moments of the g * o * i elements of every sample; None where there is no
        kernel: only for float32 on CUDA with Triton, where no size is zero.
    """
    if not all(each.device.type == "cuda" and each.dtype == torch.float32 and each.numel() for each in (left, right)):
        return None
    tiles = load_loops("product_tiles")
    if tiles is None or not _works(left.device):
        return None
    found: Tensor = tiles.product_moments(left.detach(), right.detach(), about_mean=about_mean)
    return found


@functools.cache
def _works(device: torch.device) -> bool:
    """Whether the kernel can be compiled for a device, and computes there what it is expected to."""
    tiles = load_loops("product_tiles")
    assert tiles is not None
    samples, size, positions = TRIED_ON
    try:
        generator = torch.Generator(device).manual_seed(0)
        left, right = (
            torch.randn(samples, 1, each, positions, generator=generator, device=device) for each in (size, size + 1)
        )
        found = tiles.product_moments(left, right, about_mean=False)
        products = (left.double() @ right.double().transpose(2, 3)).flatten(1)
    except Exception:  # noqa: BLE001 - compilers and drivers raise anything, and the ordinary way is there
        return False
    ends, magnitudes = [products.amax(1), products.amin(1)], products.abs()
    wanted = torch.stack([*ends, products.mean(1), products.norm(dim=1), magnitudes.sum(1)], 1)
    scale = torch.stack([*ends, magnitudes.mean(1), *wanted[:, 3:].unbind(1)], 1).abs()
    return bool(((found - wanted).abs() <= TOLERANCE * scale).all())
