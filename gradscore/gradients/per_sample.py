"""The forms in which a rule returns per-sample gradients, and their sums.

All forms answer the same few questions, so that nobody has to know which one is at hand: how many samples, the shape of
one sample's gradient, its blocks (for statistics, where the order of the elements does not matter), and the gradients
of a few samples written out (for everything else). Blocks live in one buffer that is used again: whoever wants to keep
a block copies it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from math import prod
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from .. import kernels
from ..system import FloatArray

Block = tuple[slice, Tensor]
"""Samples, and (samples, elements) or (parts, samples, elements) of their gradients."""

GROUPED_WEIGHTS = 1 << 16
"""Weights of a layer up to which a convolution with a group per sample is fast."""

GROUPED_ELEMENTS = 1 << 20
"""Elements of all gradients, and of all images, up to which it is."""

FEW_POSITIONS = 64
"""So many positions are done faster by products."""


class PerSample(ABC):
    """Per-sample gradients of one parameter: `dense` writes them out under `shape`.

    Args:
        samples: N.
        shape: shape of the gradient of one sample.
        device: where the gradients are.
    """

    def __init__(self, samples: int, shape: tuple[int, ...], device: torch.device) -> None:
        self._samples, self.shape, self.device = samples, shape, device

    def __len__(self) -> int:
        """The number of samples."""
        return self._samples

    @property
    def implicit_zeros(self) -> int:
        """Elements per sample that the blocks leave out because they are zero."""
        return 0

    def blocks(self, budget: int) -> Iterator[Block]:
        """All elements of all samples, a few samples at a time, in blocks of about `budget` elements."""
        for rows in sample_slices(len(self), prod(self.shape), budget):
            yield rows, self.dense(rows).reshape(rows.stop - rows.start, -1)

    @abstractmethod
    def dense(self, rows: slice) -> Tensor:
        """The gradients of some samples written out, (n, *shape)."""

    def reshaped(self, shape: tuple[int, ...]) -> Self:
        """The same elements in the same order under another shape."""
        found = copy(self)
        found.shape = shape
        return found


def sample_slices(samples: int, elements: int, budget: int) -> Iterator[slice]:
    """Cuts `samples` into slices so that a slice has about `budget` elements, one sample at least."""
    step = max(1, budget // max(1, elements))
    for start in range(0, samples, step):
        yield slice(start, min(start + step, samples))


class Dense(PerSample):
    """Gradients written out: `values` is (N, *shape)."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(values.shape[0], tuple(values.shape[1:]), values.device)
        self.values = values

    @override
    def dense(self, rows: slice) -> Tensor:
        return self.values[rows]

    @override
    def reshaped(self, shape: tuple[int, ...]) -> Dense:
        return Dense(self.values.reshape(len(self), *shape))


class Factored(PerSample):
    """Sums over positions of outer products: gradient[g, o, i] = sum over s of left[g, o, s] * right[g, i, s].

    Args:
        left: (N, G, O, S).
        right: (N, G, I, S).
        shape: of the gradient of one sample, G * O * I elements in that order.
    """

    def __init__(self, left: Tensor, right: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__(left.shape[0], shape, left.device)
        self.left, self.right = left, right

    @property
    def is_outer_product(self) -> bool:
        """True for one group and one position: a plain outer product, of which statistics have closed forms."""
        return self.left.shape[1] == 1 and self.left.shape[3] == 1

    @property
    def is_matrix(self) -> bool:
        """True if the shape is that of the one matrix which the factors make."""
        return self.shape == (self.left.shape[2], self.right.shape[2]) and self.left.shape[1] == 1

    @override
    def blocks(self, budget: int) -> Iterator[Block]:
        """Samples that do not fit into the budget are cut into rows."""
        samples, groups, out, positions = self.left.shape
        inner = self.right.shape[2]
        left = self.left.reshape(samples * groups, out, positions)
        right = self.right.reshape(samples * groups, inner, positions).transpose(1, 2)
        height = max(1, min(out, budget // max(1, groups * inner)))
        step = max(1, budget // max(1, groups * height * inner))
        buffer = left.new_empty(min(step, samples) * groups * height * inner)
        for start in range(0, samples, step):
            stop = min(start + step, samples)
            batch = slice(start * groups, stop * groups)
            for top in range(0, out, height):
                rows = left[batch, top : top + height]
                target = buffer[: len(rows) * rows.shape[1] * inner].view(len(rows), rows.shape[1], inner)
                torch.bmm(rows, right[batch], out=target)
                yield slice(start, stop), target.view(stop - start, -1)

    def row_sums(self) -> FloatArray | None:
        """Sums over the elements of each sample and group, N * G, without writing these out; None without a kernel."""
        if not self.left.numel() or not self.right.numel():
            return None
        return kernels.product_sums(self.left.flatten(0, 1), self.right.flatten(0, 1))

    @override
    def dense(self, rows: slice) -> Tensor:
        product = self.left[rows] @ self.right[rows].transpose(2, 3)
        return product.reshape(len(product), *self.shape)


class TableRows(PerSample):
    """Gradients of a table of which a sample uses a few rows.

    Args:
        index: (N, T) int64, the rows a sample uses; a row may be used several times.
        values: (N, T, D), what each use adds to its row.
        height: the number of rows V of the table.
        shape: of the gradient of one sample, V * D elements in that order.
    """

    def __init__(self, index: Tensor, values: Tensor, height: int, shape: tuple[int, ...]) -> None:
        super().__init__(index.shape[0], shape, values.device)
        self.index, self.values, self.height = index, values, height

    @property
    @override
    def implicit_zeros(self) -> int:
        return max(0, self.height - self.index.shape[1]) * self.values.shape[2]

    @override
    def blocks(self, budget: int) -> Iterator[Block]:
        """Only rows in use, with the uses of one row added up at the first of them."""
        uses, width = self.values.shape[1:]
        if uses >= self.height:
            yield from super().blocks(budget)
            return
        for rows in sample_slices(len(self), uses * max(uses, width), budget):
            index = self.index[rows]
            first = (index.unsqueeze(2) == index.unsqueeze(1)).int().argmax(2)
            merged = torch.zeros_like(self.values[rows])
            merged.scatter_add_(1, first.unsqueeze(2).expand_as(merged), self.values[rows])
            yield rows, merged.flatten(1)

    @override
    def dense(self, rows: slice) -> Tensor:
        values = self.values[rows]
        table = values.new_zeros(len(values), self.height, values.shape[2])
        table.scatter_add_(1, self.index[rows].unsqueeze(2).expand_as(values), values)
        return table.reshape(len(values), *self.shape)


class Convolved(PerSample):
    """Products of every output position with the window of the image under it.

    gradient[g, o, i, k] = sum over positions s of left[g, o, s] * image[g, i, s * stride + k * dilation].

    Args:
        left: (N, T, G, O, *positions): gradients at the positions, T images per sample.
        image: (N, T, G * I, *size): the images the windows slide over, before padding.
        kernel: window size per spatial axis.
        stride: step between windows.
        dilation: step inside a window.
        padding: zeros added on both sides of each spatial axis.
        shape: of the gradient of one sample: G * O, I and kernel in some shape, in that order.
    """

    def __init__(
        self,
        left: Tensor,
        image: Tensor,
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: tuple[int, ...],
        padding: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> None:
        super().__init__(left.shape[0], shape, left.device)
        self.left, self.image = left, image
        self.kernel, self.stride, self.dilation, self.padding = kernel, stride, dilation, padding

    def has_loops(self) -> bool:
        """Whether there are compiled loops for it, which do not write it out."""
        return self._is_over_one_image_or_line() and kernels.has_products(self.left, self.image)

    def row_sums(self) -> FloatArray | None:
        """As `Factored.row_sums`."""
        if not self._is_over_one_image_or_line():
            return None
        left, image = self.by_groups()
        if self._is_product():
            return kernels.product_sums(left.flatten(3).flatten(0, 1), image.flatten(3).flatten(0, 1))
        return kernels.window_sums(left, image, **self.sliding())

    def _is_product(self) -> bool:
        """Whether every window is one pixel of its own, so that images and gradients are multiplied as they are."""
        return self.kernel == self.stride == (1,) * len(self.kernel) and not any(self.padding)

    def _is_over_one_image_or_line(self) -> bool:
        """Whether one or two axes are convolved, one image per sample, none of them empty."""
        return len(self.kernel) <= 2 and self.left.shape[1] == 1 and bool(self.left.numel() and self.image.numel())

    def _suits_shifts(self) -> bool:
        """Whether to copy shifted images: on an accelerator few operations are faster than little memory."""
        return len(self.kernel) <= 2 and self.left.shape[1] == 1 and self.device.type == "cpu"

    def is_depthwise(self) -> bool:
        """Whether every channel is convolved by itself, into one."""
        return self.left.shape[3] == 1 and self.image.shape[2] == self.left.shape[2]

    def by_groups(self) -> tuple[Tensor, Tensor]:
        """Arrays of one image per sample, (N, G, O, h, w) and (N, G, I, H, W); a line has height 1."""
        samples, _, channels, *size = self.image.shape
        groups = self.left.shape[2]
        left, image = self.left[:, 0], self.image.reshape(samples, groups, channels // groups, *size)
        return (left, image) if len(self.kernel) == 2 else (left.unsqueeze(3), image.unsqueeze(3))

    def sliding(self) -> kernels.Sliding:
        """Settings of the windows of `by_groups`, as the functions of `kernels` take them."""
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
        elif suits_groups(self):
            yield from grouped_blocks(self, min(budget, GROUPED_ELEMENTS))
        elif self._suits_shifts():
            yield from shifted_blocks(self, budget)
        else:
            copied = self.image.shape[2] * prod(self.kernel) * self.left.shape[1] * prod(self.left.shape[4:])
            for rows in sample_slices(len(self), max(copied, prod(self.shape)), budget):
                for part, block in self.factored(rows).blocks(budget):
                    yield slice(rows.start + part.start, rows.start + part.stop), block

    def block_entries(self) -> list[Tensor] | None:
        """Entries of the flattened parameter that the parts of `blocks` hold, in turn: (p,) int64 each.

        None where blocks are cut otherwise.
        """
        groups, out = self.left.shape[2:4]
        taps = (1, *self.kernel)[-2:] if len(self.kernel) <= 2 else self.kernel
        entries = torch.arange(prod(self.shape), device=self.device)
        by_tap = entries.view(groups, out, self.image.shape[2] // groups, *taps)
        if suits_windows(self):
            return [by_tap.permute(0, 3, 4, 2, 1).flatten()]
        if suits_groups(self):
            return [entries]
        if self._suits_shifts():
            # A part is of one vertical tap, and has horizontal taps before channels.
            return [by_tap[:, :, :, tap].transpose(2, 3).flatten() for tap in range(taps[0])]
        return None

    @override
    def dense(self, rows: slice) -> Tensor:
        return self.factored(rows).dense(slice(None))

    def factored(self, rows: slice) -> Factored:
        """The gradients of some samples as products of positions and copied-out windows."""
        return Factored(self.left[rows].movedim(1, 3).flatten(3), self._windows(rows), self.shape)

    def _windows(self, rows: slice) -> Tensor:
        """The windows of some samples, (n, G, I * kernel, T * positions), copied out of the padded images."""
        groups, dims = self.left.shape[2], len(self.kernel)
        images = self.image[rows]
        count, repeats, channels = images.shape[:3]
        images = images.reshape(count, repeats, groups, channels // groups, *images.shape[3:])
        padding = [amount for pad in reversed(self.padding) for amount in (pad, pad)]
        padded = F.pad(images, padding).contiguous() if any(padding) else images.contiguous()
        across_images, across_groups, across_channels = padded.stride()[1:4]
        steps = padded.stride()[-dims:]
        positions = tuple(self.left.shape[4:])
        view = padded.as_strided(
            (count, groups, channels // groups, *self.kernel, repeats, *positions),
            (
                padded.stride(0),
                across_groups,
                across_channels,
                *(step * gap for step, gap in zip(steps, self.dilation, strict=True)),
                across_images,
                *(step * gap for step, gap in zip(steps, self.stride, strict=True)),
            ),
        )
        return view.reshape(count, groups, channels // groups * prod(self.kernel), repeats * prod(positions))


def _two(setting: tuple[int, ...], fill: int) -> tuple[int, int]:
    """A setting of a convolution over one or two axes as one over two."""
    return (fill, *setting)[-2], setting[-1]


def suits_windows(gradient: Convolved) -> bool:
    """Whether compiled loops write the gradients out, which is the fastest way; channels by themselves have no product.

    LeNet with 32 and 64 channels, 64 samples: 21 ms, and 47 ms by a convolution with a group per sample.
    """
    return not gradient.is_depthwise() and gradient.has_loops()


def window_blocks(gradient: Convolved, budget: int) -> Iterator[Block]:
    """Blocks by compiled loops, whose elements are ordered (groups, *kernel, input channels, output channels)."""
    (left, image), sliding = gradient.by_groups(), gradient.sliding()
    elements = prod(gradient.shape)
    step = max(1, min(len(gradient), budget // elements))
    buffer = left.new_empty(step, left.shape[1], *sliding["kernel"], image.shape[2], left.shape[2])
    for rows in sample_slices(len(gradient), elements, budget):
        target = buffer[: rows.stop - rows.start]
        kernels.write_window_products(left[rows], image[rows], target, **sliding)
        yield rows, target.view(-1, elements)


def suits_groups(gradient: Convolved) -> bool:
    """Whether the library's own convolution is the fastest way: small kernels that slide over many positions, or alone.

    Measured on 28 layer shapes: it takes 0.9 to 1.3 times the summed weight gradient there, shifted images 1.2 to 2.2.
    Of channels by themselves with kernels of three it takes a tenth to a half of the time of shifted images, with wider
    ones up to twice that. Beyond some tens of thousands of weights it falls back to a loop ten times slower, and for a
    kernel of one pixel a plain product is as good. It has single precision only.
    """
    if gradient.left.dtype != torch.float32 or gradient.device.type != "cpu" or not torch.backends.mkldnn.enabled:
        return False
    strided = any(step > 1 for step in gradient.stride)
    many = prod(gradient.left.shape[4:]) > FEW_POSITIONS and gradient.left.shape[2] == 1
    alone = gradient.is_depthwise() and max(gradient.kernel) <= 3
    return prod(gradient.kernel) > 1 and prod(gradient.shape) <= GROUPED_WEIGHTS and (strided or many or alone)


def grouped_blocks(gradient: Convolved, budget: int) -> Iterator[Block]:
    """Blocks from one convolution that has a group per sample."""
    repeats, groups, out = gradient.left.shape[1:4]
    channels = gradient.image.shape[2]
    nothing = [0] * len(gradient.kernel)
    for rows in sample_slices(len(gradient), max(prod(gradient.shape), gradient.image[0].numel()), budget):
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
    """Blocks, of one or two axes and one image per sample, from a few shifted copies of the images, not all windows.

    Only the horizontal shifts are copied, kernel-width times the image. In each of them, rows that are a vertical
    stride apart are put next to each other, so that the positions under one vertical tap are a contiguous view, and one
    batched product per vertical tap gives the gradient: blocks are (vertical taps, samples, elements).
    """
    (left, images), sliding = gradient.by_groups(), gradient.sliding()
    (height, width), (down, right) = sliding["kernel"], sliding["stride"]
    (gap_y, gap_x), (pad_y, pad_x) = sliding["dilation"], sliding["padding"]
    samples, groups, out, rows, columns = left.shape
    left = left.reshape(samples * groups, out, rows * columns)
    # Rows of the padded image that any window touches, rounded up to whole strides.
    used = -(-(down * (rows - 1) + gap_y * (height - 1) + 1) // down)
    below, beside = down * used - images.shape[3] - pad_y, right * columns
    inner = width * images.shape[2]
    elements, copied = groups * out * inner, groups * inner * down * used * columns
    whole = height * elements <= budget
    step = max(1, min(samples, budget // max(height * elements, copied)))
    taps = left.new_empty(height if whole else 1, step * groups, out, inner)
    shifted = left.new_empty(step, groups, width, images.shape[2], down, used, columns)
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


def add(parts: list[PerSample]) -> PerSample:
    """Adds contributions to one parameter, keeping the cheapest form that holds the sum.

    Args:
        parts: one or more contributions of equal shape.

    Returns:
        One gradient. Products of matrices are joined along their positions and stay products, uses of the rows of one
        table stay uses, and a table that is used both ways is `Tied`.
    """
    if len(parts) == 1:
        return parts[0]
    dense = [part.values for part in parts if isinstance(part, Dense)]
    if len(dense) == len(parts):
        return Dense(torch.stack(dense).sum(0))
    products = [part for part in parts if isinstance(part, Factored)]
    if len(products) > 1 and len({(part.left.shape[:3], part.right.shape[:3]) for part in products}) == 1:
        left, right = torch.cat([part.left for part in products], 3), torch.cat([part.right for part in products], 3)
        products = [Factored(left, right, products[0].shape)]
    tables = [part for part in parts if isinstance(part, TableRows)]
    if len(tables) > 1 and len({(part.height, part.values.shape[2]) for part in tables}) == 1:
        index, values = torch.cat([part.index for part in tables], 1), torch.cat([part.values for part in tables], 1)
        tables = [TableRows(index, values, tables[0].height, tables[0].shape)]
    others = [part for part in parts if not isinstance(part, Factored | TableRows)]
    kept: list[PerSample] = [*products, *tables]
    if len(products) == len(tables) == 1:
        (_, groups, height, _), width = products[0].left.shape, products[0].right.shape[2]
        if groups == 1 and (height, width) == (tables[0].height, tables[0].values.shape[2]):
            kept = [Tied(products[0], tables[0])]
    kept += others
    return kept[0] if len(kept) == 1 else Total(kept)


class Total(PerSample):
    """The sum of several contributions to one parameter, for example one per time step of a recurrent layer."""

    def __init__(self, parts: list[PerSample]) -> None:
        super().__init__(len(parts[0]), parts[0].shape, parts[0].device)
        self.parts = parts

    @override
    def dense(self, rows: slice) -> Tensor:
        total = self.parts[0].dense(rows).clone()
        for part in self.parts[1:]:
            total += part.dense(rows)
        return total

    @override
    def reshaped(self, shape: tuple[int, ...]) -> Total:
        return Total([part.reshaped(shape) for part in self.parts])


class Tied(PerSample):
    """Gradients of a matrix (V, D) from which a network takes rows and with which it multiplies: tied embeddings.

    Args:
        product: what the products add, one group: left (N, 1, V, S), right (N, 1, D, S).
        table: what the uses of rows add, T of each sample.
    """

    def __init__(self, product: Factored, table: TableRows) -> None:
        super().__init__(len(product), product.shape, product.device)
        self.product, self.table = product, table

    @override
    def blocks(self, budget: int) -> Iterator[Block]:
        """First the rows that a sample does not use, then the others."""
        for rows, part in self.parts(budget):
            for inner, block in part.blocks(budget):
                yield slice(rows.start + inner.start, rows.start + inner.stop), block

    def parts(self, budget: int) -> Iterator[tuple[slice, PerSample]]:
        """The gradient cut in two: the products alone, where no row was used, and T rows written out.

        So no element is a sum of two that are large and nearly cancel, and what is written out is as large as the uses.

        Args:
            budget: elements of factors that are copied at a time.

        Yields:
            Some samples and one part of their gradients.
        """
        height, positions = self.product.left.shape[2:]
        uses = self.table.index.shape[1]
        if 2 * uses >= height:
            for rows in sample_slices(len(self), prod(self.shape), budget):
                yield rows, Dense(self.dense(rows))
            return
        for rows in sample_slices(len(self), height * positions, budget):
            left, right = self.product.left[rows, 0], self.product.right[rows, 0]
            order, place = _used_last(self.table.index[rows], height)
            alone, used = order[:, :-uses], order[:, -uses:]
            yield rows, Factored(_picked(left, alone).unsqueeze(1), right.unsqueeze(1), (height - uses, right.shape[1]))
            written = _picked(left, used) @ right.transpose(1, 2)
            place = (place - (height - uses)).unsqueeze(2).expand(-1, -1, written.shape[2])
            yield rows, Dense(written.scatter_add_(1, place, self.table.values[rows]))

    @override
    def dense(self, rows: slice) -> Tensor:
        values = self.table.values[rows]
        table = self.product.dense(rows).reshape(len(values), -1, values.shape[2])
        table.scatter_add_(1, self.table.index[rows].unsqueeze(2).expand_as(values), values)
        return table.reshape(len(values), *self.shape)

    @override
    def reshaped(self, shape: tuple[int, ...]) -> Tied:
        return Tied(self.product.reshaped(shape), self.table.reshaped(shape))


def _used_last(index: Tensor, height: int) -> tuple[Tensor, Tensor]:
    """The rows of a table with those that a sample uses at the end, (n, V), and where they put each use, (n, T)."""
    used = torch.zeros(len(index), height, dtype=torch.uint8, device=index.device).scatter_(1, index, 1)
    order = used.sort(dim=1, stable=True).indices
    places = torch.arange(height, device=index.device).expand_as(order)
    return order, torch.empty_like(order).scatter_(1, order, places).gather(1, index)


def _picked(left: Tensor, rows: Tensor) -> Tensor:
    """The rows (n, R) of (n, V, S), laid out as these are."""
    if left.stride(1) != 1:
        return torch.stack([each.index_select(0, chosen) for each, chosen in zip(left, rows, strict=True)])
    lines = [each.index_select(1, chosen) for each, chosen in zip(left.transpose(1, 2), rows, strict=True)]
    return torch.stack(lines).transpose(1, 2)
