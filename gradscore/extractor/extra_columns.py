"""Features beyond the statistics of parameter gradients: `features.columns`.

`output_gradient_norm` is the L2 norm of the gradient of a sample's loss with respect to the outputs of a layer,
`activation_rate` the share of the outputs of a layer's activation functions that are not zero, and `gradient_cosine`
the cosine of a sample's gradient with the mean gradient of the in-distribution fit samples of its predicted class.

Of the mean gradients only directions count, so sums are kept: in float64, each class with a power of two of its own
taken out, so that the sums of samples the classifier is certain of neither underflow nor lose digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.autograd.graph import Node

from ..columns import COSINE, FORWARD, NORM, RATE
from ..config import FeaturesConfig
from ..errors import ConfigError, ModelError, StoreError
from ..gradients import PerSample, Sink, Tap, sample_slices
from ..losses import LOSSES, LogitGradient, with_labels
from ..models import Call, LayerWatch, owners
from ..store import MEAN_GRADIENTS, RunFolder
from ..system import write_bytes

MEMORY_LIMIT = 1 << 31
"""Bytes that the sums of all losses, classes and parameters may take: a quarter of the memory of a small machine."""

BUDGET = 1 << 20
"""Elements of gradients written out at a time: 4 MiB of float32, which the cache holds."""


class ExtraColumns:
    """Computes the columns of `features.columns`, batch by batch.

    Args:
        model: the classifier.
        features: the settings; losses and columns.
        groups: parameter names by group.
        parameters: all parameters of the groups by name.
        num_classes: K.

    Attributes:
        means: mean gradients, for `gradient_cosine`; to be set before the first batch.

    Raises:
        ConfigError: `gradient_cosine` with a loss of several gradients or of given labels, or more mean gradients than
            memory.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        features: FeaturesConfig,
        groups: Mapping[str, Sequence[str]],
        parameters: Mapping[str, Tensor],
        num_classes: int,
    ) -> None:
        self.wanted, self.losses, self.groups = features.columns, features.losses, groups
        self.means: MeanGradients | None = None
        self._layers = owners(list(parameters)) if NORM in self.wanted else []
        self._watch = LayerWatch(model, layers=self._layers, activations=RATE in self.wanted)
        if COSINE in self.wanted:
            several = [loss for loss in self.losses if LOSSES[loss].several]
            if several:
                raise ConfigError(
                    f"features.columns: gradient_cosine: loss '{several[0]}' has a gradient for every class, whose sum "
                    "is zero; leave out one of the two"
                )
            given = with_labels(self.losses)
            if given:
                raise ConfigError(
                    f"features.columns: gradient_cosine: loss '{given[0]}' looks at given labels, and mean gradients "
                    "are those of predicted classes; leave out one of the two"
                )
            elements = sum(parameter.numel() for parameter in parameters.values())
            needed = 8 * len(self.losses) * num_classes * elements
            if needed > MEMORY_LIMIT:
                raise ConfigError(
                    f"features.columns: gradient_cosine would keep {needed / 1e9:.3g} GB of mean gradients "
                    f"({len(self.losses)} losses x {num_classes} classes x {elements} parameter entries, 8 bytes "
                    f"each), more than {MEMORY_LIMIT / 1e9:.3g} GB; choose fewer of features.parameters ('@last' for "
                    "the last layer), or leave it out"
                )

    @property
    def names(self) -> list[str]:
        """The names of the columns; `ModelError` before the first forward pass if they depend on it."""
        names: list[str] = []
        for column in self.wanted:
            if column == RATE:
                names += [f"{FORWARD}/{layer}/{RATE}" for layer in self._watch.activation_layers]
            else:
                rows = self._layers if column == NORM else list(self.groups)
                names += [f"{loss}/{row}/{column}" for loss in self.losses for row in rows]
        return names

    @property
    def notices(self) -> list[str]:
        """What has no figure, and why."""
        found = list(self._watch.notices)
        if self.means is not None and bool((self.means.counts == 0).any()):
            empty = (self.means.counts == 0).nonzero().flatten().tolist()
            shown = ", ".join(map(str, empty[:10])) + (f" and {len(empty) - 10} more" if len(empty) > 10 else "")
            found.append(f"gradient_cosine is 0 for predictions no sample of in_dist.fit has: class {shown}")
        return found

    def catch(self, forward: Callable[[], Tensor]) -> tuple[Tensor, list[Call]]:
        """Runs the model, looking at its layers if a column needs it; see `LayerWatch.catch`."""
        if NORM in self.wanted or RATE in self.wanted:
            return self._watch.catch(forward)
        return forward(), []

    def learn(self, outputs: Tensor, calls: Sequence[Call], direction: Tensor) -> None:
        """Finds out where the samples lie in the outputs of layers; see `LayerWatch.locate`."""
        self._watch.locate(calls, outputs, direction.to(outputs.dtype))

    def batch(self, outputs: Tensor, calls: Sequence[Call], *, copies: Tensor) -> BatchColumns:
        """What is found in one batch.

        Args:
            outputs: (N, K) with a graph.
            calls: of the forward pass.
            copies: (N,) int64, how many samples of the mean gradients each is a copy of; these are left out for it.

        Raises:
            ModelError: the mean gradients are missing.
        """
        if COSINE in self.wanted and self.means is None:
            raise ModelError("features.columns: gradient_cosine needs mean gradients, and there are none")
        rates = self._watch.active_shares(calls, len(outputs)) if RATE in self.wanted else {}
        norms = {
            loss: {
                layer: torch.zeros(len(outputs), dtype=torch.float64, device=outputs.device) for layer in self._layers
            }
            for loss in self.losses
        }
        return BatchColumns(self, self._watch, outputs.detach().double().argmax(1), rates, norms, copies=copies)


class BatchColumns:
    """The columns of one batch; made by `ExtraColumns.batch`."""

    def __init__(
        self,
        columns: ExtraColumns,
        watch: LayerWatch,
        predictions: Tensor,
        rates: Mapping[str, Tensor],
        norms: dict[str, dict[str, Tensor]],
        *,
        copies: Tensor,
    ) -> None:
        self._columns, self._watch, self._predictions = columns, watch, predictions
        self._rates, self._norms, self._copies = rates, norms, copies
        self._norms_of_pass: dict[str, Tensor] = {}
        self._cosines: dict[str, Cosines] = {}

    def listeners(
        self, loss: str, gradient: LogitGradient, calls: Sequence[Call]
    ) -> tuple[list[Sink], dict[Node, Tap]]:
        """What looks on in the backward pass of a gradient at the logits, for `reduce_gradients`."""
        self._norms_of_pass = {layer: torch.zeros_like(norms) for layer, norms in self._norms[loss].items()}
        taps = self._watch.norm_taps(calls, self._norms_of_pass) if self._norms_of_pass else {}
        means = self._columns.means
        if means is None:
            return [], taps
        groups = self._columns.groups
        cosines = Cosines(means, loss, gradient, predictions=self._predictions, groups=groups, copies=self._copies)
        self._cosines[loss] = cosines
        return [cosines.take], taps

    def passed(self, loss: str, gradient: LogitGradient) -> None:
        """The backward pass is over."""
        for layer, norms in self._norms_of_pass.items():
            self._norms[loss][layer] += norms * gradient.scale

    def values(self) -> Tensor:
        """(N, columns) float64 on the device of the outputs, in the order of `ExtraColumns.names`."""
        parts: list[Tensor] = []
        for column in self._columns.wanted:
            if column == RATE:
                parts += self._rates.values()
            elif column == NORM:
                parts += [norm for norms in self._norms.values() for norm in norms.values()]
            else:
                parts += [part for loss in self._columns.losses for part in self._cosines[loss].finished().unbind(1)]
        return torch.stack([part.to(self._predictions.device) for part in parts], dim=1)


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
        tensors = {"counts": self.counts.cpu()}
        if len(self.contents):  # some versions of safetensors write tensors without elements, and cannot read them
            tensors["contents"] = self.contents.cpu()
        for loss, exponents in self.exponents.items():
            tensors[f"{loss}/exponent"] = exponents.cpu()
            tensors |= {f"{loss}/sum/{name}": each.cpu().contiguous() for name, each in self.sums[loss].items()}
        return save(tensors)

    @classmethod
    def from_bytes(cls, content: bytes) -> MeanGradients:
        """Reads what `to_bytes` gave."""
        tensors = load(content)
        counts, contents = tensors.pop("counts"), tensors.pop("contents", torch.empty(0, dtype=torch.int64))
        exponents: dict[str, Tensor] = {}
        sums: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            loss, kind, name = (*key.split("/", 2), "")[:3]
            if kind == "exponent":
                exponents[loss] = tensor
            else:
                sums.setdefault(loss, {})[name] = tensor
        return cls(counts, exponents, sums, contents)


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
        tensors = {"counts": self._counts.cpu(), "contents": _as_numbers(self._content_hashes)}
        for loss, sums in self._sums.items():
            tensors |= {f"{loss}/sum/{name}": each.cpu() for name, each in sums.items()}
        return save(tensors)

    def add(self, content: bytes) -> None:
        """Adds the sums of a shard, as `to_bytes` gives them."""
        tensors = load(content)
        self._counts += tensors["counts"].to(self._counts.device)
        self._content_hashes += [f"{number + (1 << 63):016x}" for number in tensors["contents"].tolist()]
        for loss, sums in self._sums.items():
            for name, each in sums.items():
                each += tensors[f"{loss}/sum/{name}"].to(each.device)

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
    return MeanGradients.from_bytes(content)


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
