"""Per-sample weight gradients of convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from .. import kernels
from .factored import Block, Factored, PerSample, sample_slices

GROUPED_WEIGHTS = 1 << 16
"""Weights of a layer up to which a convolution with a group per sample is fast."""

GROUPED_ELEMENTS = 1 << 20
"""Elements of all groups up to which it is."""

FEW_POSITIONS = 64
"""So many positions are done faster by products."""


@dataclass(frozen=True)
class Convolved(PerSample):
    """Products of every output position with the window of the image under it.

    gradient[g, o, i, k] = sum over positions s of left[g, o, s] * image[g, i, s * stride + k * dilation].

    Attributes:
        left: (N, T, G, O, *positions): gradients at the positions, T images per sample.
        image: (N, T, G * I, *size): the images the windows slide over, before padding.
        kernel: window size per spatial axis.
        stride: step between windows.
        dilation: step inside a window.
        padding: zeros added on both sides of each spatial axis.
        sizes: shape of the gradient of one sample: G * O, I and kernel in some shape, in that order.
    """

    left: Tensor
    image: Tensor
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    @property
    @override
    def device(self) -> torch.device:
        return self.left.device

    @override
    def __len__(self) -> int:
        return self.left.shape[0]

    def windows(self, rows: slice) -> Tensor:
        """The windows of some samples, (n, G, I * kernel, T * positions), copied out of the padded images."""
        groups, dims = self.left.shape[2], len(self.kernel)
        images = self.image[rows]
        count, repeats, channels = images.shape[:3]
        images = images.reshape(count, repeats, groups, channels // groups, *images.shape[3:])
        padding = [amount for pad in reversed(self.padding) for amount in (pad, pad)]
        padded = F.pad(images, padding).contiguous() if any(padding) else images.contiguous()
        steps = padded.stride()[-dims:]
        positions = tuple(self.left.shape[4:])
        view = padded.as_strided(
            (count, groups, channels // groups, *self.kernel, repeats, *positions),
            (
                padded.stride(0),
                padded.stride(2),
                padded.stride(3),
                *(step * gap for step, gap in zip(steps, self.dilation, strict=True)),
                padded.stride(1),
                *(step * gap for step, gap in zip(steps, self.stride, strict=True)),
            ),
        )
        return view.reshape(count, groups, channels // groups * prod(self.kernel), repeats * prod(positions))

    def factored(self, rows: slice) -> Factored:
        """The gradients of some samples as products of positions and copied-out windows."""
        left = self.left[rows].movedim(1, 3).flatten(3)
        return Factored(left, self.windows(rows), self.shape)

    def row_sums(self) -> kernels.Sums | None:
        """As `Factored.row_sums`."""
        if not self.over_one_image_or_line():
            return None
        if self.is_product():
            left, image = self.by_groups()
            return kernels.product_sums(left.flatten(3).flatten(0, 1), image.flatten(3).flatten(0, 1))
        return kernels.window_sums(*self.by_groups(), **self.sliding())

    def row_moments(self, *, about_mean: bool) -> kernels.RowMoments | None:
        """As `Factored.row_moments`; windows of several pixels have no kernel."""
        if not self.over_one_image_or_line() or not self.is_product():
            return None
        left, image = self.by_groups()
        return kernels.product_moments(left.flatten(3), image.flatten(3), about_mean=about_mean)

    def is_product(self) -> bool:
        """Whether every window is one pixel of its own, so that images and gradients are multiplied as they are."""
        return self.kernel == self.stride == (1,) * len(self.kernel) and not any(self.padding)

    def over_one_image_or_line(self) -> bool:
        """Whether one or two axes are convolved, one image per sample, none of them empty."""
        return len(self.kernel) <= 2 and self.left.shape[1] == 1 and bool(self.left.numel() and self.image.numel())

    def has_loops(self) -> bool:
        """Whether there are compiled loops for it, which do not write it out."""
        return self.over_one_image_or_line() and kernels.has_products(self.left, self.image)

    def by_groups(self) -> tuple[Tensor, Tensor]:
        """Of one image per sample, (N, G, O, h, w) and (N, G, I, H, W); a line has height 1."""
        samples, groups = len(self.left), self.left.shape[2]
        left, image = self.left[:, 0], self.image.reshape(samples, groups, -1, *self.image.shape[3:])
        return (left, image) if len(self.kernel) == 2 else (left.unsqueeze(3), image.unsqueeze(3))

    def sliding(self) -> kernels.Sliding:
        """How the windows of `by_groups` slide, as the functions of `kernels` take it."""
        return {
            "kernel": _two(self.kernel, 1),
            "stride": _two(self.stride, 1),
            "dilation": _two(self.dilation, 1),
            "padding": _two(self.padding, 0),
        }

    @override
    def blocks(self, budget: int) -> Iterator[Block]:
        if suits_windows(self):
            yield from window_blocks(self, budget)
            return
        if suits_groups(self):
            yield from grouped_blocks(self, min(budget, GROUPED_ELEMENTS))
            return
        if len(self.kernel) <= 2 and self.left.shape[1] == 1:
            yield from shifted_blocks(self, budget)
            return
        positions = self.left.shape[1] * prod(self.left.shape[4:])
        copied = self.image.shape[2] * prod(self.kernel) * positions
        for rows in sample_slices(len(self), max(copied, prod(self.shape)), budget):
            for part, block in self.factored(rows).blocks(budget):
                yield slice(rows.start + part.start, rows.start + part.stop), block

    @override
    def dense(self, rows: slice) -> Tensor:
        return self.factored(rows).dense(slice(None))

    @override
    def reshaped(self, shape: tuple[int, ...]) -> Convolved:
        return replace(self, sizes=shape)


def _two(setting: tuple[int, ...], fill: int) -> tuple[int, int]:
    """A setting of a convolution over one or two axes as one over two."""
    return (fill, *setting)[-2], setting[-1]


def suits_windows(gradient: Convolved) -> bool:
    """Whether compiled loops write the gradients out, which is the fastest way; channels by themselves have no product.

    LeNet with 32 and 64 channels, 64 samples: 21 ms, and 47 ms by a convolution with a group per sample.
    """
    several = gradient.left.shape[3] > 1 or gradient.image.shape[2] > gradient.left.shape[2]
    return several and gradient.has_loops()


def window_blocks(gradient: Convolved, budget: int) -> Iterator[Block]:
    """Blocks of a convolution's weight gradient by compiled loops; see `suits_windows`.

    Args:
        gradient: of a convolution over one or two axes, one image per sample.
        budget: elements of a block.

    Yields:
        See `PerSample.blocks`; elements are ordered (groups, *kernel, input channels, output channels).
    """
    (left, image), sliding = gradient.by_groups(), gradient.sliding()
    elements = prod(gradient.shape)
    step = max(1, min(len(gradient), budget // elements))
    room = left.new_empty(step, left.shape[1], *sliding["kernel"], image.shape[2], left.shape[2])
    for rows in sample_slices(len(gradient), elements, budget):
        target = room[: rows.stop - rows.start]
        kernels.write_window_products(left[rows], image[rows], target, **sliding)
        yield rows, target.view(-1, elements)


def suits_groups(gradient: Convolved) -> bool:
    """Whether the library's own convolution is the fastest way: small kernels that slide over many positions.

    Measured on 28 layer shapes: it takes 0.9 to 1.3 times the summed weight gradient there, shifted images 1.2 to 2.2.
    Beyond some tens of thousands of weights it falls back to a loop ten times slower, and for a kernel of one pixel a
    plain product is as good. It has single precision only.
    """
    if gradient.left.dtype != torch.float32 or gradient.device.type != "cpu" or not torch.backends.mkldnn.enabled:
        return False
    strided = any(step > 1 for step in gradient.stride)
    many = prod(gradient.left.shape[4:]) > FEW_POSITIONS and gradient.left.shape[2] == 1
    return prod(gradient.kernel) > 1 and prod(gradient.shape) <= GROUPED_WEIGHTS and (strided or many)


def grouped_blocks(gradient: Convolved, budget: int) -> Iterator[Block]:
    """Blocks of a convolution's weight gradient from one convolution that has a group per sample.

    Args:
        gradient: of a convolution.
        budget: elements of a block.

    Yields:
        See `PerSample.blocks`.
    """
    repeats, groups, out = gradient.left.shape[1:4]
    channels = gradient.image.shape[2]
    nothing = [0] * len(gradient.kernel)
    for rows in sample_slices(len(gradient), prod(gradient.shape), budget):
        count = rows.stop - rows.start
        left = gradient.left[rows].transpose(0, 1).reshape(repeats, count * groups * out, *gradient.left.shape[4:])
        images = gradient.image[rows].transpose(0, 1).reshape(repeats, count * channels, *gradient.image.shape[3:])
        weights = left.new_empty(count * groups * out, channels // groups, *gradient.kernel)  # only its shape counts
        settings = (list(gradient.stride), list(gradient.padding), list(gradient.dilation), False, nothing)
        found = torch.ops.aten.convolution_backward(
            left, images, weights, None, *settings, count * groups, [False, True, False]
        )
        yield rows, found[1].view(count, -1)


def shifted_blocks(gradient: Convolved, budget: int) -> Iterator[Block]:
    """Blocks of a convolution's weight gradient from a few shifted copies of the images instead of all windows.

    Only the horizontal shifts are copied, kernel-width times the image. In each of them, rows that are a vertical
    stride apart are put next to each other, so that the positions under one vertical tap are a contiguous view, and one
    batched product per vertical tap gives the gradient.

    Args:
        gradient: of a convolution over one or two axes, one image per sample.
        budget: elements of a block.

    Yields:
        See `PerSample.blocks`; blocks are (vertical taps, samples, elements).
    """
    line = (1,) * (2 - len(gradient.kernel))
    (height, width), (down, right) = line + gradient.kernel, line + gradient.stride
    gap_y, gap_x = line + gradient.dilation
    pad_y, pad_x = (0,) * (2 - len(gradient.kernel)) + gradient.padding
    samples, _, groups, out = gradient.left.shape[:4]
    rows, columns = line + tuple(gradient.left.shape[4:])
    channels = gradient.image.shape[2]
    left = gradient.left.reshape(samples * groups, out, rows * columns)
    images = gradient.image.reshape(samples, groups, channels // groups, *(line + tuple(gradient.image.shape[3:])))
    # Rows of the padded image that any window touches, rounded up to whole strides.
    used = -(-(down * (rows - 1) + gap_y * (height - 1) + 1) // down)
    below, beside = down * used - images.shape[3] - pad_y, right * columns
    inner = width * (channels // groups)
    elements, copied = groups * out * inner, groups * inner * down * used * columns
    whole = height * elements <= budget
    step = max(1, min(samples, budget // max(height * elements, copied)))
    taps = torch.empty(height if whole else 1, step * groups, out, inner, dtype=left.dtype, device=left.device)
    shifted = left.new_empty(step, groups, width, channels // groups, down, used, columns)
    for start in range(0, samples, step):
        stop = min(start + step, samples)
        count = stop - start
        padded = F.pad(
            images[start:stop], (pad_x, max(0, beside + gap_x * (width - 1) - images.shape[4] - pad_x), pad_y, below)
        )
        for shift in range(width):
            window = padded[..., shift * gap_x : shift * gap_x + beside : right]
            shifted[:count, :, shift] = window.reshape(*window.shape[:3], used, down, columns).transpose(3, 4)
        flat = shifted[:count].reshape(count * groups, inner, down, used * columns)
        batch = slice(start * groups, stop * groups)
        for tap in range(height):
            offset = tap * gap_y // down * columns
            view = flat[:, :, tap * gap_y % down, offset : offset + rows * columns]
            target = taps[tap if whole else 0, : count * groups]
            torch.bmm(left[batch], view.transpose(1, 2), out=target)
            if not whole:
                yield slice(start, stop), target.view(count, -1)
        if whole:
            yield slice(start, stop), taps[:, : count * groups].view(height, count, elements)
