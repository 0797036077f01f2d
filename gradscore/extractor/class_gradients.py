"""Mean gradients of the in-distribution samples of each predicted class, and the cosine with them.

Only directions count, so sums are kept: in float64, each class with a power of two of its own taken out, so that the
sums of samples the classifier is certain of neither underflow nor lose digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..errors import ConfigError, StoreError
from ..gradients import PerSample, Sink, sample_slices
from ..losses import LogitGradient
from ..store import MEAN_GRADIENTS, RunFolder
from ..system import write_bytes

MEMORY_LIMIT = 1 << 31
"""Bytes that the sums of all losses, classes and parameters may take: a quarter of the memory of a small machine."""

BUDGET = 1 << 20
"""Elements of gradients written out at a time: 4 MiB of float32, which the cache holds."""

_REPAIR = "delete the file and run the same command again"
_COUNTS = "counts"
_CONTENTS = "contents"
_EXPONENT = "exponent"


@dataclass(frozen=True)
class MeanGradients:
    """Sums of the gradients of samples by predicted class.

    Attributes:
        counts: (K,) int64, samples of each class.
        exponents: by loss (K,) int64; the sum of a class is `sums * 2**exponent`.
        sums: by loss and parameter (K, P) float64, largest magnitude of a class in [0.5, 1), or all zero.
        contents: (M,) int64, in ascending order: the content hashes of the samples as numbers, less 2^63.
    """

    counts: Tensor
    exponents: Mapping[str, Tensor]
    sums: Mapping[str, Mapping[str, Tensor]]
    contents: Tensor

    def to(self, device: torch.device) -> MeanGradients:
        """The same on another device."""
        return MeanGradients(
            self.counts.to(device),
            {loss: exponents.to(device) for loss, exponents in self.exponents.items()},
            {loss: {name: each.to(device) for name, each in sums.items()} for loss, sums in self.sums.items()},
            self.contents.to(device),
        )

    def copies_of(self, content_hashes: Sequence[str]) -> Tensor:
        """How many samples of the sums have the content of each of N samples: (N,) int64."""
        wanted = _as_numbers(content_hashes).to(self.contents.device)
        return torch.searchsorted(self.contents, wanted, right=True) - torch.searchsorted(self.contents, wanted)

    def are_of(self, content_hashes: Sequence[str]) -> bool:
        """Whether these are the sums of samples with these content hashes, in any order."""
        return torch.equal(self.contents.cpu(), _as_numbers(content_hashes).sort().values)

    def to_bytes(self) -> bytes:
        """As safetensors; the same sums give the same bytes."""
        tensors = {_COUNTS: self.counts.cpu()}
        if len(self.contents):  # some versions of safetensors write tensors without elements, and cannot read them
            tensors[_CONTENTS] = self.contents.cpu()
        for loss, exponents in self.exponents.items():
            tensors[f"{loss}/{_EXPONENT}"] = exponents.cpu()
            tensors |= {f"{loss}/sum/{name}": each.cpu().contiguous() for name, each in self.sums[loss].items()}
        return save(tensors)

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> MeanGradients:
        """Reads what `to_bytes` gave.

        Raises:
            StoreError: it is damaged; the message names `where`.
        """
        try:
            tensors = load(content)
            counts, contents = tensors.pop(_COUNTS), tensors.pop(_CONTENTS, torch.empty(0, dtype=torch.int64))
        except (SafetensorError, KeyError) as error:
            raise StoreError(f"{where}: the mean gradients cannot be read ({error}); restore the file") from None
        exponents: dict[str, Tensor] = {}
        sums: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            loss, kind, name = (*key.split("/", 2), "")[:3]
            if kind == _EXPONENT:
                exponents[loss] = tensor
            else:
                sums.setdefault(loss, {})[name] = tensor
        return cls(counts, exponents, sums, contents)

    def check(self, *, losses: Sequence[str], parameters: Mapping[str, Tensor], num_classes: int, where: str) -> None:
        """Makes sure that the sums are those of these losses, classes and parameters.

        Raises:
            StoreError: they are not; the message names `where`.
        """
        shapes = {name: (num_classes, parameter.numel()) for name, parameter in parameters.items()}
        wanted = dict.fromkeys(losses, shapes)
        found = {loss: {name: tuple(each.shape) for name, each in sums.items()} for loss, sums in self.sums.items()}
        if found != wanted or set(self.exponents) != set(losses) or self.counts.shape != (num_classes,):
            raise StoreError(
                f"{where}: these mean gradients belong to other losses, classes or parameters; restore the file, or "
                "extract into another folder"
            )


class ClassSums:
    """Adds up the gradients of batches by predicted class; a batch counts as a whole or not at all.

    The batches of a shard are added up first, then the shards in order: so that the sums are the same bit for bit
    whether one process looked at all shards or several at some each.

    Args:
        losses: their names.
        parameters: by name.
        num_classes: K.
        device: where the sums lie.
    """

    def __init__(
        self, *, losses: Sequence[str], parameters: Mapping[str, Tensor], num_classes: int, device: torch.device
    ) -> None:
        self._counts = torch.zeros(num_classes, dtype=torch.int64, device=device)
        self._pending: dict[tuple[str, str], Tensor] = {}
        self._shard: dict[tuple[str, str], Tensor] = {}
        self._sums = {
            loss: {
                name: torch.zeros(num_classes, parameter.numel(), dtype=torch.float64, device=device)
                for name, parameter in parameters.items()
            }
            for loss in losses
        }
        self._content_hashes: list[str] = []

    def taker(self, loss: str, scale: Tensor, predictions: Tensor) -> Sink:
        """A sink of `Engine.stream` that adds gradients times the `scale` (N,) of their samples to `pending`.

        What a sample has that is not finite is left out.
        """

        def take(name: str, rows: slice, gradient: PerSample) -> None:
            for part, values in _written_out(rows, gradient):
                values = values * scale[part, None]
                values[~values.isfinite().all(1)] = 0.0
                pending = self._pending.setdefault((loss, name), torch.zeros_like(self._sums[loss][name]))
                pending.index_add_(0, predictions[part], values)

        return take

    def commit(self, predictions: Tensor) -> None:
        """Takes in what is pending, all gradients of a batch of samples with these `predictions` (N,)."""
        self._counts += predictions.bincount(minlength=len(self._counts))
        for key, values in self._pending.items():
            self._shard[key] = self._shard[key] + values if key in self._shard else values
        self.drop()

    def drop(self) -> None:
        """Forgets what is pending: of a batch that did not come to its end."""
        self._pending = {}

    def note_contents(self, content_hashes: Sequence[str]) -> None:
        """Notes the content hashes of samples that were added."""
        self._content_hashes += content_hashes

    def end_shard(self) -> None:
        """Adds what came since the last shard ended."""
        for (loss, name), values in self._shard.items():
            self._sums[loss][name] += values
        self._shard = {}

    def to_bytes(self) -> bytes:
        """As safetensors, for `add`; the last shard must have ended."""
        tensors = {_COUNTS: self._counts.cpu(), _CONTENTS: _as_numbers(self._content_hashes)}
        for loss, sums in self._sums.items():
            tensors |= {f"{loss}/sum/{name}": each.cpu() for name, each in sums.items()}
        return save(tensors)

    def add(self, content: bytes, *, where: str) -> None:
        """Adds the sums of a shard, as `to_bytes` gives them.

        Raises:
            StoreError: they are damaged or of something else; the message names `where`.
        """
        try:
            tensors = load(content)
            counts, contents = tensors.pop(_COUNTS), tensors.pop(_CONTENTS)
        except (SafetensorError, KeyError) as error:
            raise StoreError(f"{where}: these sums of gradients cannot be read ({error}); {_REPAIR}") from None
        found = {f"{loss}/sum/{name}": each for loss, sums in self._sums.items() for name, each in sums.items()}
        if {key: each.shape for key, each in found.items()} != {key: each.shape for key, each in tensors.items()}:
            raise StoreError(f"{where}: these sums belong to other losses, classes or parameters; {_REPAIR}")
        for key, each in found.items():
            each += tensors[key].to(each.device)
        self._counts += counts.to(self._counts.device)
        self._content_hashes += [f"{number + (1 << 63):016x}" for number in contents.tolist()]

    def finished(self) -> MeanGradients:
        """The sums, which are used up."""
        self.end_shard()
        exponents = {}
        for loss, sums in self._sums.items():
            largest = torch.stack([each.abs().amax(1) for each in sums.values() if each.numel()]).amax(0)
            exponents[loss] = torch.frexp(largest).exponent.long()
            for each in sums.values():
                # In two steps, since half of the exponent is always a number that float64 holds.
                half = exponents[loss].div(2, rounding_mode="floor")
                each.copy_(torch.ldexp(torch.ldexp(each, -half[:, None]), (half - exponents[loss])[:, None]))
        contents = _as_numbers(self._content_hashes).sort().values.to(self._counts.device)
        return MeanGradients(self._counts, exponents, self._sums, contents)


class Cosines:
    """Cosines of the gradients of a batch with the sums of their predicted classes, group by group.

    Args:
        means: the sums, on the device of the gradients.
        loss: whose gradients these are.
        gradient: at the logits; the gradients of the parameters that come are those of its direction.
        predictions: (N,) int64.
        groups: parameter names by group.
        copies: (N,) int64, how often each sample is part of the sum it is compared with, and is taken out of it.
    """

    def __init__(
        self,
        means: MeanGradients,
        loss: str,
        gradient: LogitGradient,
        *,
        predictions: Tensor,
        groups: Mapping[str, Sequence[str]],
        copies: Tensor,
    ) -> None:
        self._sums, self._predictions, self._groups = means.sums[loss], predictions, groups
        self._share: Tensor | None = None
        self._empty = means.counts[predictions] <= copies
        if copies.any():
            # scale * 2**-exponent, with the exponent of the scale apart so that nothing overflows on the way.
            mantissa, exponent = torch.frexp(gradient.scale)
            self._share = torch.ldexp(mantissa * copies, exponent - means.exponents[loss][predictions])
        # For each group the product, and the squares of the gradient and of the sum.
        self._found = {name: torch.zeros(3, len(predictions), dtype=torch.float64, device=predictions.device)
                       for name in groups}  # fmt: skip
        self._owners: dict[str, list[str]] = {}
        for group, names in groups.items():
            for name in dict.fromkeys(names):
                self._owners.setdefault(name, []).append(group)

    def take(self, name: str, rows: slice, gradient: PerSample) -> None:
        """Takes the gradients of some samples; a sink of `Engine.stream`."""
        for part, values in _written_out(rows, gradient):
            sums = self._sums[name][self._predictions[part]]
            if self._share is not None:
                sums.addcmul_(values, self._share[part, None], value=-1)
            found = torch.stack([_products(values, sums), _products(values, values), _products(sums, sums)])
            for group in self._owners.get(name, ()):
                self._found[group][:, part] += found

    def finished(self) -> Tensor:
        """(N, groups) float64 in [-1, 1]; 0 where one of the two is zero or the class has no (other) sample."""
        columns = []
        for product, own, others in self._found.values():
            sizes = own.sqrt() * others.sqrt()
            cosine = torch.where(sizes == 0, 0.0, product / torch.where(sizes == 0, 1.0, sizes)).clamp(-1, 1)
            columns.append(cosine.masked_fill(self._empty, 0.0))
        return torch.stack(columns, dim=1)


def check_memory(*, losses: Sequence[str], parameters: Mapping[str, Tensor], num_classes: int) -> None:
    """Makes sure that the sums are not too large.

    Raises:
        ConfigError: they would take more than `MEMORY_LIMIT`.
    """
    elements = sum(parameter.numel() for parameter in parameters.values())
    needed = 8 * len(losses) * num_classes * elements
    if needed > MEMORY_LIMIT:
        raise ConfigError(
            f"features.columns: gradient_cosine would keep {needed / 1e9:.3g} GB of mean gradients ({len(losses)} "
            f"losses x {num_classes} classes x {elements} parameter entries, 8 bytes each), more than "
            f"{MEMORY_LIMIT / 1e9:.3g} GB; choose fewer of features.parameters ('@last' for the last layer), or leave "
            "it out"
        )


def write_means(run: Path, means: MeanGradients) -> str:
    """Writes mean gradients to a run folder and returns the SHA-256 of the file."""
    content = means.to_bytes()
    write_bytes(run / MEAN_GRADIENTS, content)
    return hashlib.sha256(content).hexdigest()


def read_means(run: Path, *, sha256: str | None) -> MeanGradients:
    """Reads the mean gradients of a run folder.

    Args:
        run: the folder.
        sha256: of the file, as in the manifest.

    Raises:
        StoreError: they are missing, damaged or were changed.
    """
    path = run / MEAN_GRADIENTS
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); run the same extract command again") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise StoreError(
            f"{path}: other mean gradients than those the feature tables were made with; restore the file, or extract "
            "into another folder"
        )
    return MeanGradients.from_bytes(content, where=str(path))


def run_means(run: RunFolder) -> MeanGradients | None:
    """The mean gradients of a run; None unless `features.columns` has `gradient_cosine`.

    Raises:
        StoreError: they are missing or were changed.
    """
    sha256 = run.manifest.mean_gradients_sha256
    return None if sha256 is None else read_means(run.path, sha256=sha256)


def _as_numbers(content_hashes: Sequence[str]) -> Tensor:
    return torch.tensor([int(digits, 16) - (1 << 63) for digits in content_hashes], dtype=torch.int64)


def _products(one: Tensor, other: Tensor) -> Tensor:
    """Scalar products (n,) of rows (n, P); ten times as fast as multiplying and adding up, with nothing in between."""
    return torch.bmm(one.unsqueeze(1), other.unsqueeze(2)).flatten()


def _written_out(rows: slice, gradient: PerSample) -> Iterator[tuple[slice, Tensor]]:
    """Gradients (n, P) in float64, a few samples at a time, and the places of those in the batch."""
    for part in sample_slices(len(gradient), prod(gradient.shape), BUDGET):
        values = gradient.dense(part).double().reshape(part.stop - part.start, -1)
        yield slice(rows.start + part.start, rows.start + part.stop), values
