"""Samples as a program has them: loaders, data sets, tensors and iterables; and batches for a loss of its own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL.Image import Image
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, default_collate

from ..errors import ConfigError, DataError, reason
from ..system import NESTED, Inputs, described, each_input, rows_of, sample_count
from .preprocessing import Preprocessing
from .samples import Batch, Samples, content_hash, signature_of
from .sources.raw_samples import LABEL_NAMES, UNLABELLED, Values, as_pixels, channels_last

SAMPLES_AT_A_TIME = 256
"""Samples that are taken at a time of what comes in one piece or one by one."""

FORMS = (
    "a DataLoader, a Dataset, a tensor or array of samples (N, ...), a pair of these and labels (N,), or an iterable "
    "of batches, each of them a tensor, a pair, or a mapping of keyword arguments as collators of transformers make it"
)
"""Forms in which samples may be given, for messages."""

TABLES = (pd.DataFrame, pd.Series)
"""What no network takes, although it can be iterated over: that gives the names of its columns, or its values."""


def samples_of(
    data: Any,
    *,
    name: str,
    dtype: torch.dtype,
    labelled: bool = True,
    preprocess: Preprocessing | None = None,
    split: str = "",
) -> Samples:
    """Samples that a program gives; they are called by their positions.

    Args:
        data: one of `FORMS`.
        name: what to call them in messages: the argument they were given as.
        dtype: floating inputs are converted to it: that of the parameters of the model.
        labelled: whether labels count; they are all -1 otherwise.
        preprocess: makes model inputs of raw pixels (N, C, H, W) uint8, and of PIL images that a Dataset gives;
            without, such inputs are refused, and with its settings all others are.
        split: what their batches belong to.

    Returns:
        Samples whose inputs are as the model takes them, on the CPU or the device they came on. Reading them raises
        `DataError` where `data` is none of `FORMS`, holds no sample, or something in it cannot be used.
    """
    reader = _Reader(data, name, dtype, labelled, preprocess, split)
    return Samples(name, _count(data), lambda: _as_loaded(data, name, reader.batches()))


def refuse_shuffled(data: Any) -> None:
    """Refuses a DataLoader that draws its samples at random, where results name samples by their positions.

    Raises:
        ConfigError: it is one.
    """
    if isinstance(data, DataLoader) and (_draws(data.sampler) or _draws(data.batch_sampler)):
        raise ConfigError(
            "data: a DataLoader that draws samples at random, so that positions in the result say nothing of those in "
            "its data set; use shuffle=False and no random sampler"
        )


def _draws(sampler: Any) -> bool:
    """Whether a sampler draws at random, by what such samplers have, or takes what another one draws."""
    inner = getattr(sampler, "sampler", None)
    draws = hasattr(sampler, "generator") or getattr(sampler, "shuffle", False) is True
    return draws or (inner is not None and _draws(inner))


def _count(data: Any) -> int | None:
    """Number of samples, where that is known without reading them."""
    if isinstance(data, DataLoader):
        sizes = _sizes(data)
        return None if sizes is None else sum(sizes)
    first = data[0] if _is_pair(data) else data
    return _length(first) if isinstance(first, Tensor | np.ndarray | Dataset) else None


def _sizes(loader: Any) -> list[int] | None:
    """Batch sizes of a loader, where they are known."""
    batches = getattr(loader, "batch_sampler", None)
    if isinstance(batches, list):
        return list(map(len, batches))
    if type(batches) is not BatchSampler or isinstance(loader.dataset, IterableDataset):
        return None
    count, size = _length(batches.sampler), batches.batch_size
    if count is None:
        return None
    full, rest = divmod(count, size)
    return [size] * full + [rest] * (rest > 0 and not batches.drop_last)


def _as_loaded(data: Any, name: str, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches, where those of a loader have all samples that it takes from its data set, and have them once.

    Raises:
        DataError: its `collate_fn` leaves samples out, which shifts the positions of all others, or each of its workers
            gives the same samples.
    """
    if not isinstance(data, DataLoader):
        yield from batches
        return
    wanted = iter(_sizes(data) or ())
    alike = data.num_workers if isinstance(data.dataset, IterableDataset) and data.num_workers > 1 else 0
    first: list[str] = []
    number = -1
    for number, batch in enumerate(batches):
        _check_size(name, number, next(wanted, 0), batch.places)
        if number < alike:  # the workers take turns
            hashes = _content_hashes(batch.inputs, batch.places)
            first = first or hashes
            alike = alike if hashes == first else 0
            if number == alike - 1:
                raise DataError(
                    f"{name}: each of the {alike} workers of this loader gives the same samples; share them out in the "
                    "data set, by torch.utils.data.get_worker_info(), or use num_workers=1"
                )
        yield batch
    _check_size(name, number + 1, next(wanted, 0), 0)


def _check_size(name: str, number: int, wanted: int, got: int) -> None:
    if got < wanted:
        raise DataError(
            f"{name}: batch {number} of the loader was to have {wanted} samples and has {got}, so that positions in "
            "the result say nothing of those in its data set; leave samples out by torch.utils.data.Subset, not in "
            "collate_fn, or give list(loader) to have what is left numbered"
        )


@dataclass(frozen=True)
class _Reader:
    """Reads samples; see `samples_of`."""

    data: Any
    name: str
    dtype: torch.dtype
    labelled: bool
    preprocess: Preprocessing | None
    split: str

    def batches(self) -> Iterator[Batch]:
        count, before = 0, None
        for inputs, labels in self._pairs():
            if before is not None and form_of(inputs) != form_of(before):
                if isinstance(inputs, Tensor) and isinstance(before, Tensor) and inputs.shape[1:] == before.shape[1:]:
                    raise DataError(
                        f"{self.name}: sample {count} is of {inputs.dtype}, those before it of {before.dtype}; all "
                        "samples of a set need one type"
                    )
                raise DataError(
                    f"{self.name}: sample {count} has shape {described(inputs)}, those before it {described(before)}; "
                    "all samples of a set need one shape: resize, crop or pad them"
                )
            before = inputs
            yield self._batch(inputs, labels, start=count)
            count += sample_count(inputs)
        if not count:
            is_spent = isinstance(self.data, Iterator)
            spent = " (an iterator can be read only once: give a list or a DataLoader)" if is_spent else ""
            raise DataError(f"{self.name}: wanted samples, got none{spent}")

    def _batch(self, inputs: Inputs, labels: Tensor | None, *, start: int) -> Batch:
        size = sample_count(inputs)
        names = [str(place) for place in range(start, start + size)]
        known = torch.full((size,), UNLABELLED, device="cpu") if labels is None else labels
        if not isinstance(inputs, Tensor) or inputs.dtype != torch.uint8 or inputs.dim() != 4:
            settings = [] if self.preprocess is None else self.preprocess.changes
            if settings:  # which commands, which read the same samples from files, would apply
                raise DataError(
                    f"{self.name}: preprocessing.{settings[0]} is for raw pixels (N, C, H, W) uint8, got samples of "
                    f"shape {described(inputs)}, which the model takes as they are; give raw pixels, or leave "
                    "preprocessing out. A loaded detector preprocesses as its bundle does; use "
                    "detector.scorer.judge(batch) for preprocessed samples"
                )
            converted = each_input(inputs, lambda each: each.to(self.dtype) if each.is_floating_point() else each)
            return Batch(names, converted, known, _hashes(inputs), split=self.split)
        if self.preprocess is None:
            raise DataError(
                f"{self.name}: these are raw pixels (uint8), and it is not said how the model takes them; give "
                "preprocessing={...} (channels, resize, mean, std), or floats as the model takes them"
            )
        pixels = np.ascontiguousarray(channels_last(inputs.cpu().numpy(), torch_first=True))
        return Batch(
            names,
            torch.stack([self.preprocess(each) for each in pixels]).to(self.dtype),
            known,
            list(map(content_hash, pixels)),
            signatures=list(map(signature_of, pixels)),
            raw=torch.from_numpy(pixels).permute(0, 3, 1, 2),
            split=self.split,
        )

    def _pairs(self) -> Iterator[tuple[Inputs, Tensor | None]]:
        """Inputs (n, ...) and labels (n,) or None, batch by batch, checked."""
        for entry in self._entries():
            inputs, labels = self._parted(entry)
            found = inputs_of(inputs, name=self.name)
            size = sample_count(found)
            if size:
                yield found, None if labels is None or not self.labelled else self._labels(labels, size)

    def _entries(self) -> Iterator[Any]:
        """Batches as they come, a pair or inputs alone each."""
        data = self.data
        if isinstance(data, DataLoader):
            return iter(data)
        if isinstance(data, Tensor | np.ndarray):
            return self._sliced(data, None)
        if _is_pair(data):
            return self._sliced(*data)
        if isinstance(data, IterableDataset):
            return self._collated(iter(data))
        if isinstance(data, Dataset):
            size = _length(data)
            if size is None:
                raise DataError(f"{self.name}: a Dataset without a length cannot be read; wrap it in a DataLoader")
            return self._collated(self._each(data, size))
        if isinstance(data, Mapping):
            return self._sliced(*self._parted(data))
        if isinstance(data, (str, bytes, *TABLES)) or not isinstance(data, Iterable):
            raise DataError(f"{self.name}: wanted {FORMS}, got {_described(data)}")
        return iter(data)

    def _each(self, data: Any, size: int) -> Iterator[Any]:
        for place in range(size):
            try:
                yield data[place]
            except IndexError as error:
                raise DataError(
                    f"{self.name}: the data set says that it has {size:,} samples, and gives none at {place:,} "
                    f"({reason(error)}); correct its __len__"
                ) from error

    def _sliced(self, inputs: Any, labels: Any) -> Iterator[Any]:
        found = inputs_of(inputs, name=self.name)
        size = sample_count(found)
        labels = labels if labels is None or isinstance(labels, Tensor) else np.asanyarray(labels)
        if labels is not None and labels.shape[:1] != (size,):
            shape = tuple(labels.shape)
            raise DataError(f"{self.name}: wanted one label for each of {size} samples, got labels of shape {shape}")
        for start in range(0, size, SAMPLES_AT_A_TIME):
            part = slice(start, start + SAMPLES_AT_A_TIME)
            yield rows_of(found, part), None if labels is None else labels[part]

    def _collated(self, samples: Iterator[Any]) -> Iterator[Any]:
        while chunk := list(islice(samples, SAMPLES_AT_A_TIME)):
            try:
                yield default_collate(chunk if self.preprocess is None else list(map(_with_pixels, chunk)))
            except (TypeError, RuntimeError, ValueError) as error:
                raise DataError(
                    f"{self.name}: its samples do not make a batch: {reason(error)}; let the data set give tensors of "
                    "one shape (of images by a transform), or wrap it in a DataLoader with a collate_fn of yours"
                ) from None

    def _parted(self, entry: Any) -> tuple[Any, Any]:
        """Inputs and labels of a batch, None without."""
        if isinstance(entry, Mapping):
            label = next((name for name in LABEL_NAMES if name in entry), None)
            if {"label", "labels"} <= entry.keys():
                raise DataError(f"{self.name}: both 'labels' and 'label' are in a mapping; take one of them out")
            inputs = {name: value for name, value in entry.items() if name != label}
            return inputs, None if label is None else entry[label]
        if not isinstance(entry, tuple | list):
            return entry, None
        if len(entry) == 1:
            return entry[0], None
        if len(entry) != 2:
            raise DataError(
                f"{self.name}: wanted batches of inputs, or of inputs and labels, got {len(entry)} things in one; let "
                "the loader give the first two alone, or stack single samples to an array (N, ...)"
            )
        return entry[0], entry[1]

    def _labels(self, labels: Any, size: int) -> Tensor:
        refuse_masked(labels, what=f"{self.name}: some labels")
        found = np.asarray(labels.detach().cpu()) if isinstance(labels, Tensor) else np.asarray(labels)
        if found.dtype.kind not in "iu" and not (found.dtype.kind == "b" and found.ndim == 1):
            how = "names by their places among the classes" if found.dtype.kind not in "fb" else "numbers by .long()"
            if found.ndim > 1:
                how = "one-hot rows by argmax(1)"
            if found.shape == (size, 1):  # whose argmax is 0 everywhere
                how = "of one column by labels[:, 0].long()"
            raise DataError(
                f"{self.name}: wanted labels as whole numbers, one class for each sample (int64), got {found.dtype}; "
                f"convert them, {how}"
            )
        if found.shape != (size,):
            how = "an iterable gives batches: put single samples into a DataLoader"
            if found.ndim == 2 and found.shape[0] == size:
                how = "give labels[:, 0]" if found.shape[1] == 1 else "of one-hot rows, give labels.argmax(1)"
            raise DataError(
                f"{self.name}: wanted one label for each of {size} samples, got labels of shape {found.shape}; {how}"
            )
        if found.dtype == np.uint64 and found.max() > np.iinfo(np.int64).max:  # would be negative
            raise DataError(f"{self.name}: label {found.max()} is too large for a class; -1 stands for no label")
        return torch.from_numpy(found.astype(np.int64))


def _with_pixels(sample: Any) -> Any:
    """A sample of a data set, whose image is pixels (H, W, C) where it was one of PIL."""
    if isinstance(sample, tuple | list) and sample:
        return [_with_pixels(sample[0]), *sample[1:]]
    return np.array(as_pixels(sample)) if isinstance(sample, Image) else sample


def inputs_of(inputs: Any, *, name: str, least: int = 2) -> Inputs:
    """A batch that a program gives, a tensor or keyword arguments of the model, checked.

    Args:
        inputs: a tensor or array of numbers, or a mapping of these by name, of as many samples each.
        name: what to call it in messages.
        least: axes that each has at least. One number a sample is an input where another one shows how many samples
            there are.

    Raises:
        DataError: something else.
    """
    if not isinstance(inputs, Mapping):
        return dense_tensor(inputs, name=name, least=least)
    if not inputs:
        raise DataError(f"{name}: wanted inputs, got a mapping without any")
    least = 1 if any(getattr(value, "ndim", 0) > 1 for value in inputs.values()) else least
    found = {
        str(key): dense_tensor(value, name=name, argument=f" '{key}'", least=least) for key, value in inputs.items()
    }
    sizes = {key: len(value) for key, value in found.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(f"{name}: wanted as many samples in every input, got {sizes}")
    return found


def dense_tensor(inputs: Any, *, name: str, argument: str = "", least: int) -> Tensor:
    """A tensor or array of numbers as a tensor without a graph.

    Args:
        inputs: as a program gives them.
        name: what to call them in messages.
        argument: which of several they are, with a space before it.
        least: axes that they have at least.

    Raises:
        DataError: no numbers, or none that lie in memory one by one: masked, nested, sparse, complex or quantised.
    """
    refuse_masked(inputs, what=f"{name}: some inputs{argument}")
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "fiub":
        inputs = tensor_of(inputs)
    if not isinstance(inputs, Tensor):
        advice = "; give pixels, np.stack(images), and preprocessing={...}" if isinstance(inputs, Image) else ""
        raise DataError(
            f"{name}: wanted inputs{argument} as a tensor or an array of numbers, got {_described(inputs)}{advice}"
        )
    if inputs.is_nested:
        raise DataError(f"{name}: wanted dense real numbers{argument}, {NESTED}")
    if inputs.layout != torch.strided or inputs.is_complex() or inputs.is_quantized:
        advice = "" if inputs.layout == torch.strided else "; give its to_dense()"
        got = f"a tensor of {inputs.layout}, {inputs.dtype}{advice}"
        raise DataError(f"{name}: wanted dense real numbers{argument}, got {got}")
    if inputs.device.type == "meta":
        raise DataError(f"{name}: these tensors lie on device meta, where they hold no values; load them")
    if inputs.dim() < least:
        advice = "; an iterable gives batches: put single samples into a DataLoader" if least > 1 else ""
        raise DataError(
            f"{name}: wanted a batch of inputs{argument}, (N, ...), got one of shape {tuple(inputs.shape)}{advice}"
        )
    return tensor_of(inputs)


def tensor_of(values: Tensor | Values) -> Tensor:
    """Numbers as a tensor without a graph that NumPy can read: byte order and width of floats are those of PyTorch."""
    if isinstance(values, Tensor):
        return values.detach().resolve_neg()
    kind = np.dtype(np.float64) if values.dtype == np.longdouble else values.dtype.newbyteorder("=")
    return torch.from_numpy(np.require(values, kind, ["C", "W", "E"]))  # a copy of what is read-only


def refuse_masked(values: Any, *, what: str) -> None:
    """Refuses an array of `numpy.ma` with masked values, whose numbers below the mask would be taken.

    Raises:
        DataError: it is one.
    """
    if np.ma.is_masked(values):
        raise DataError(f"{what} are masked, which models do not know; fill them (labels with -1)")


def check_classes(batch: Batch, num_classes: int, *, name: str) -> None:
    """Makes sure that labels are classes 0 to K - 1 of the model, or -1.

    Raises:
        DataError: one is something else; the message names the samples by `name`.
    """
    outside = batch.labels[(batch.labels < UNLABELLED) | (batch.labels >= num_classes)]
    if len(outside):
        raise DataError(
            f"{name}: label {int(outside[0])} is none of the model's classes 0..{num_classes - 1} (-1 stands for no "
            "label); map the labels to classes of the model"
        )


def form_of(inputs: Inputs) -> Any:
    """Form that all samples must share: the shape, or that of axes of whole numbers, since texts differ."""
    if isinstance(inputs, Tensor):
        return tuple(inputs.shape[1:]) if inputs.is_floating_point() or inputs.dtype == torch.uint8 else inputs.dim()
    lengths_differ = any(not each.is_floating_point() for each in inputs.values())
    return {name: each.dim() if lengths_differ else tuple(each.shape[1:]) for name, each in inputs.items()}


def _hashes(inputs: Inputs) -> list[str]:
    """`content_hash` of each sample as it came, which is that of the same sample in a file."""
    if isinstance(inputs, Tensor):
        return [content_hash(sample) for sample in _array(inputs)]
    arrays = {name: _array(each) for name, each in inputs.items()}
    return [content_hash({name: each[place] for name, each in arrays.items()}) for place in range(sample_count(inputs))]


def _array(inputs: Tensor) -> Values:
    """Inputs as an array; of types that NumPy has not, the bytes."""
    whole = inputs.cpu().contiguous()
    return (whole.view(torch.uint8) if whole.dtype == torch.bfloat16 else whole).numpy()


def _is_pair(data: Any) -> bool:
    """Whether these are inputs and labels in one piece each, not two batches."""
    return (
        isinstance(data, tuple)
        and len(data) == 2
        and isinstance(data[0], Tensor | np.ndarray | Mapping)
        and (data[1] is None or isinstance(data[1], Sequence) or hasattr(data[1], "__array__"))
    )


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None


def _described(data: Any) -> str:
    kind = type(data).__name__
    if isinstance(data, TABLES):
        return f"{kind}; give the numbers of some columns, table[columns].to_numpy(), or a Dataset of its rows"
    return f"{kind} of {data.dtype}" if isinstance(data, np.ndarray | Tensor) else kind


def whole_batches(data: Any, *, hashed: bool = True) -> Samples:
    """Batches that are left as they are, for a loss that calls the model itself.

    Args:
        data: an iterable of batches, each a tensor, or a container that holds some, samples along the first axis of
            the first. Names of samples are their numbers, labels are -1.
        hashed: whether anybody asks for hashes of their contents, which need a copy from an accelerator; else empty.

    Raises:
        ConfigError: a DataLoader that shuffles.
    """
    refuse_shuffled(data)

    def read() -> Iterator[Batch]:
        if isinstance(data, (Tensor, Mapping, np.ndarray, str, *TABLES)) or not isinstance(data, Iterable):
            raise DataError(
                f"data: wanted batches for the loss to be called with (a DataLoader, a list), got "
                f"{type(data).__name__}; give [batch] for a single one"
            )
        done = 0
        for inputs in data:
            samples = count_samples(inputs)
            names = [str(place) for place in range(done, done + samples)]
            hashes = _content_hashes(inputs, samples) if hashed else [""] * samples
            yield Batch(names, inputs, torch.full((samples,), UNLABELLED, device="cpu"), hashes)
            done += samples
        if not done:
            raise DataError(
                "data: wanted batches, got none (an iterator can be read only once: give a list or a DataLoader)"
            )

    return Samples("data", None, lambda: _as_loaded(data, "data", read()))


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch in order.

    Raises:
        DataError: a packed sequence, whose first axis is not that of samples.
    """
    if isinstance(batch, Tensor):
        yield batch
        return
    if isinstance(batch, PackedSequence):
        raise DataError(
            "data: wanted tensors with samples along the first axis, got a PackedSequence; give padded texts and their "
            "lengths, and pack them in the loss"
        )
    for each in _held(batch).values():
        yield from tensors_in(each)


def with_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a batch with every tensor changed, once each where several places share it.

    Containers keep their types; what is no container stays the same object.
    """
    changed: dict[int, Tensor] = {}

    def renewed(given: Any) -> Any:
        if isinstance(given, Tensor):
            if id(given) not in changed:
                changed[id(given)] = change(given)
            return changed[id(given)]
        entries = _held(given)
        return _filled(given, {name: renewed(each) for name, each in entries.items()}) if entries else given

    return renewed(batch)


def holds_others(batch: Any, samples: int) -> bool:
    """Whether a batch holds something for each sample that is no tensor, such as texts: these stay in their places."""
    if isinstance(batch, np.ndarray):
        return batch.ndim > 0 and len(batch) == samples
    held = _held(batch)
    each = isinstance(batch, list | tuple) and len(batch) == samples
    return any(holds_others(part, samples) or (each and not isinstance(part, Tensor)) for part in held.values())


def _held(batch: Any) -> dict[Any, Any]:
    """Entries of a container by key, position or name; nothing for what is none."""
    if isinstance(batch, Mapping):
        return dict(batch.items())
    if isinstance(batch, list | tuple):
        return dict(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {}


def _filled(given: Any, entries: dict[Any, Any]) -> Any:
    """A container like one that is there, with other entries.

    Raises:
        DataError: its class does not allow it.
    """
    if isinstance(given, tuple):
        if all(entries[place] is each for place, each in enumerate(given)):
            return given
        return type(given)(*entries.values()) if hasattr(given, "_fields") else tuple(entries.values())
    if isinstance(given, Mapping) and not isinstance(given, MutableMapping):
        return entries
    try:
        found = copy.copy(given)
        for name, value in entries.items():
            if isinstance(given, MutableMapping | list):
                found[name] = value
            else:
                object.__setattr__(found, name, value)
    except Exception as error:  # the class is anyone's and may raise anything
        raise DataError(
            f"data: a {type(given).__name__} cannot be given other tensors ({type(error).__name__}: {error}); give "
            "batches as dictionaries, lists or tuples of tensors"
        ) from error
    return found


def count_samples(batch: Any) -> int:
    """The number of samples of a batch.

    Raises:
        DataError: it has none.
    """
    first = next(tensors_in(batch), None)
    samples = len(first) if first is not None and first.dim() else 0
    if not samples:
        got = type(batch).__name__ if first is None else f"shape {tuple(first.shape)}"
        raise DataError(f"data: wanted batches that are or hold tensors (N, ...) of one sample or more, got {got}")
    return samples


def _content_hashes(batch: Any, samples: int) -> list[str]:
    """Hashes of the samples of a batch: of their rows of all tensors, and of tensors that they share."""
    rows = []
    for tensor in tensors_in(batch):
        known = tensor.detach().cpu()
        array = np.atleast_1d((known.float() if known.dtype == torch.bfloat16 else known).numpy())
        rows.append(array if len(array) == samples else np.broadcast_to(array, (samples, *array.shape)))
    return [content_hash({str(place): each[sample] for place, each in enumerate(rows)}) for sample in range(samples)]
