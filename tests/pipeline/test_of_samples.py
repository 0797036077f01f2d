"""`gradscore.features` against the feature table of a run folder, whatever the samples come in."""

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from trusted import built

import gradscore
from gradscore.data import collate
from gradscore.errors import ConfigError, CoupledSamplesError, DataError, ModelError
from gradscore.pipeline import open_datasets
from gradscore.store import RunFolder

SPLIT = "in_dist.test"


@pytest.fixture(scope="module")
def table(small_run: Path) -> pd.DataFrame:
    return RunFolder(small_run).read(SPLIT)


@pytest.fixture(scope="module")
def net(small_run: Path) -> nn.Module:
    return built(RunFolder(small_run).config.model)


@pytest.fixture(scope="module")
def samples(small_run: Path) -> tuple[Tensor, Tensor]:
    dataset = open_datasets(RunFolder(small_run).config)[SPLIT]
    batch = collate(list(dataset))
    return batch.inputs, batch.labels


class Stream(IterableDataset):
    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __iter__(self):
        return iter(zip(self.images, self.labels, strict=True))


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "pair of tensors": lambda x, y: (x, y),
    "pair of arrays": lambda x, y: (x.numpy(), y.numpy()),
    "float64 array and a list": lambda x, y: (x.numpy().astype(np.float64), y.tolist()),
    "big-endian arrays": lambda x, y: (x.numpy().astype(">f4"), y.numpy().astype(">i2")),
    "arrays that cannot be written": lambda x, y: (
        np.frombuffer(x.numpy().tobytes(), "f4").reshape(x.shape),
        y.numpy(),
    ),
    "wide floats and a series": lambda x, y: (
        x.numpy().astype(np.longdouble),
        pd.Series(y.numpy(), index=range(len(y), 0, -1)),
    ),
    "a negated view": lambda x, y: (torch._neg_view(-x), y),
    "data set": TensorDataset,
    "stream": Stream,
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7),
    "loader of a stream": lambda x, y: DataLoader(Stream(x, y), batch_size=32),
    "list of batches": lambda x, y: list(zip(x.split(9), y.split(9), strict=True)),
    "generator": lambda x, y: (pair for pair in zip(x.split(64), y.to(torch.int8).split(64), strict=True)),
}
SETTINGS = {"losses": ["uniform"], "statistics": ["max", "l1", "l2"], "penultimate": False, "batch_size": 50}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_features_are_those_of_the_run_folder_bit_for_bit(form, net, samples, table) -> None:
    found = gradscore.features(net, form(*samples), **SETTINGS)
    columns = [name for name in table.columns if "/" in name or name.startswith("logit_")]
    assert found[columns].to_numpy().tobytes() == table[columns].to_numpy().tobytes()
    pd.testing.assert_frame_equal(found[["label", "prediction", "correct"]], table[["label", "prediction", "correct"]])
    assert list(found.columns) == [name for name in table.columns if name != "split"]


UNLABELLED: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: x,
    "loader": lambda x: DataLoader(TensorDataset(x), batch_size=16),
    "loader of tensors": lambda x: DataLoader(list(x), batch_size=16),
    "list of batches": lambda x: list(x.split(20)),
}


@pytest.mark.parametrize("form", UNLABELLED.values(), ids=UNLABELLED)
def test_without_labels_nothing_is_right_or_wrong(form, net, samples, table) -> None:
    found = gradscore.features(net, form(samples[0]), **SETTINGS)
    assert (found["label"] == -1).all()
    assert found["correct"].isna().all()
    assert found["prediction"].tolist() == table["prediction"].tolist()


def test_raw_pixels_go_through_the_preprocessing(small_run, net, table) -> None:
    images = open_datasets(RunFolder(small_run).config)[SPLIT].source
    raw = np.stack([images.sample(place).transpose(2, 0, 1) for place in range(len(images.ids))])
    found = gradscore.features(net, raw, preprocessing={"mean": [0.5], "std": [0.5]}, **SETTINGS)
    assert found["content_hash"].tolist() == table["content_hash"].tolist()
    assert found.iloc[:, -6:].to_numpy().tobytes() == table.iloc[:, -6:].to_numpy().tobytes()


class OfFiles(Dataset):
    """Images as folders of torchvision give them."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[place, 0]), place % 3


def test_images_of_a_data_set_go_through_the_preprocessing(small_run, net) -> None:
    images = open_datasets(RunFolder(small_run).config)[SPLIT].source
    raw = np.stack([images.sample(place).transpose(2, 0, 1) for place in range(9)])
    settings = {"preprocessing": {"mean": [0.5], "std": [0.5]}, **SETTINGS}
    found = gradscore.features(net, OfFiles(raw), **settings)
    pd.testing.assert_frame_equal(found, gradscore.features(net, (raw, np.arange(9) % 3), **settings))
    uneven = list(OfFiles(raw))
    uneven[4] = uneven[4][0].resize((5, 4)), 1
    with pytest.raises(DataError, match=r"do not make a batch.*tensors of one shape \(of images by a transform\)"):
        gradscore.features(net, Subset(uneven, range(9)), **settings)


def test_shards_of_a_run_start_new_batches(net, samples) -> None:
    """300 samples in batches of 96 with shards of 1,024: the last batch has 12."""
    calls: list[int] = []
    handle = net.register_forward_hook(lambda _m, inputs, _o: calls.append(len(inputs[0])))
    gradscore.features(net, torch.cat([samples[0]] * 2), losses=["uniform"], statistics=["l2"], batch_size=96)
    handle.remove()
    assert [each for each in calls if each in (96, 12)][-4:] == [96, 96, 96, 12]


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])

PREPARED: dict[str, tuple[Any, dict[str, Any]]] = {
    "vectors": (X, {"mean": [1.0], "std": [2.0]}),
    "float images": (torch.rand(6, 1, 8, 8), {"resize": 4}),
    "keyword inputs": ([{"x": X}], {"mean": [1.0], "std": [2.0]}),
}


@pytest.mark.parametrize(("data", "preprocessing"), PREPARED.values(), ids=PREPARED)
def test_preprocessing_of_what_the_model_takes_as_it_is_is_refused(data, preprocessing) -> None:
    message = f"preprocessing.{next(iter(preprocessing))} is for raw pixels .*leave preprocessing out.*scorer.judge"
    with pytest.raises(DataError, match=message):
        gradscore.features(nn.Linear(4, 3).eval(), data, preprocessing=preprocessing, **SETTINGS)


def spent() -> Any:
    loader = iter([(X, Y)])
    list(loader)
    return loader


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (list, "data: wanted samples, got none"),
    "empty tensor": (lambda: X[:0], "got none"),
    "exhausted iterator": (spent, "an iterator can be read only once"),
    "a path": (lambda: "images/", "wanted a DataLoader, a Dataset, .* got str"),
    "a table": (lambda: pd.DataFrame(X.numpy()), r"got DataFrame; give .*\.to_numpy\(\), or a Dataset of its rows"),
    "a table and labels": (lambda: (pd.DataFrame(X.numpy()), Y), r"got DataFrame; give .*\.to_numpy\(\)"),
    "a column": (lambda: pd.DataFrame(X.numpy())[0], r"got Series; give .*\.to_numpy\(\)"),
    "single samples by name": (lambda: [{"x": X[0]}], r"inputs 'x'.*got one of shape \(4,\).*into a DataLoader"),
    "three things": (lambda: [(X, Y, Y)], "got 3 things in one"),
    "lists of samples": (lambda: ([*X], Y), r"got 6 things in one; .* or stack single samples to an array \(N, "),
    "PIL images": (
        lambda: [Image.new("L", (4, 4))],
        r"got Image; give pixels, np\.stack\(images\), and preprocessing=",
    ),
    "single samples": (lambda: [(X[0], 0)], r"got one of shape \(4,\).*put single samples into a DataLoader"),
    "float labels": (
        lambda: (X, Y.float()),
        r"wanted labels as whole numbers.*got float32; convert them, numbers by \.long",
    ),
    "boolean labels with an axis of one": (lambda: (X, Y[:, None] > 0), r"got bool; .* by labels\[:, 0\]\.long\(\)"),
    "one-hot truth values": (lambda: (X, torch.eye(3)[Y] > 0), r"got bool; convert them, one-hot rows by argmax\(1\)"),
    "one-hot floats": (lambda: (X, torch.eye(3)[Y]), r"convert them, one-hot rows by argmax\(1\)"),
    "floats with an axis of one": (lambda: (X, Y[:, None].float()), r"of one column by labels\[:, 0\]\.long\(\)"),
    "labels with an axis of one": (lambda: (X, Y[:, None]), r"got labels of shape \(6, 1\); give labels\[:, 0\]"),
    "labels in two entries": (lambda: {"x": X, "labels": Y, "label": Y}, "both 'labels' and 'label' are in a mapping"),
    "one-hot labels": (
        lambda: (X, torch.eye(3)[Y].long()),
        r"got labels of shape \(6, 3\); of one-hot rows, give labels\.argmax\(1\)",
    ),
    "named labels": (
        lambda: (X, ["a"] * 6),
        "wanted labels as whole numbers.* names by their places among the classes",
    ),
    "fewer labels": (lambda: (X, Y[:4]), r"one label for each of 6 samples, got labels of shape \(4,\)"),
    "one label for all": (lambda: (X, torch.tensor(1)), r"one label for each of 6 samples, got labels of shape \(\)"),
    "a class too many": (lambda: (X, Y + 1), "label 3 is none of the model's classes 0..2"),
    "a negative class": (lambda: (X, Y - 3), "label -3 is none"),
    "a class that numbers cannot hold": (
        lambda: (X, np.array([0, 1, 2, 0, 1, 2**64 - 1], np.uint64)),
        "label 18446744073709551615 is too large",
    ),
    "other shapes": (lambda: [X, X[:, :3]], r"sample 6 has shape \(3,\), those before it \(4,\)"),
    "other types": (lambda: [X, X.long()], r"sample 6 is of torch.int64, those before it of torch.float32"),
    "no values": (lambda: X.to("meta"), "device meta"),
    "sparse": (lambda: X.to_sparse(), "wanted dense real numbers"),
    "complex": (lambda: X.to(torch.complex64), "wanted dense real numbers"),
    "nested": (lambda: torch.nested.nested_tensor([X[0], X[1, :3]], layout=torch.jagged), "got a nested tensor"),
    "masked": (lambda: np.ma.masked_less(X.numpy(), 0), "some inputs are masked"),
    "masked labels": (lambda: (X, np.ma.masked_equal(Y.numpy(), 1)), "some labels are masked"),
    "words": (lambda: np.array([["a"]]), "got ndarray of <U1"),
    "pixels without preprocessing": (lambda: torch.zeros(2, 1, 2, 2, dtype=torch.uint8), "give preprocessing="),
    "samples of other shapes": (lambda: Uneven(), "do not make a batch"),
}


class Divided(nn.Linear):
    """Takes one number of each sample beside its vector."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return super().forward(x) / lengths[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_an_input_may_be_one_number_a_sample(dtype: torch.dtype) -> None:
    model, lengths = Divided(4, 3).eval(), torch.arange(1, 7).to(dtype)
    found = gradscore.features(model, {"x": X, "lengths": lengths}, statistics=["l2"], losses=["uniform"])
    wanted = model(X, lengths).detach().numpy()
    assert found[["logit_0", "logit_1", "logit_2"]].to_numpy() == pytest.approx(wanted, rel=1e-6)


BOOLEAN = {"a tensor": Y > 0, "an array": Y.numpy() > 0, "a list": [each > 0 for each in Y.tolist()]}


@pytest.mark.parametrize("labels", BOOLEAN.values(), ids=BOOLEAN)
def test_truth_values_are_labels_0_and_1(labels: Any) -> None:
    found = gradscore.features(nn.Linear(4, 2).eval(), (X, labels), **SETTINGS)
    assert found["label"].tolist() == [0, 1, 1, 0, 1, 1]


def test_inputs_by_name_may_have_labels_beside_them() -> None:
    model, inputs = Divided(4, 3).eval(), {"x": X, "lengths": torch.ones(6)}
    named = [{**inputs, name: Y} for name in ("label", "labels", "class", "target", "targets", "y")]
    found = [gradscore.features(model, data, statistics=["l2"]) for data in ((inputs, Y), *named)]
    assert found[0]["label"].tolist() == Y.tolist()
    for each in found[1:]:
        pd.testing.assert_frame_equal(each, found[0])


def test_one_number_of_a_sample_that_is_none_is_refused() -> None:
    lengths = torch.tensor([1.0, 2.0, 3.0, torch.nan, 1.0, 2.0])
    with pytest.raises(DataError, match="sample 3 holds numbers that are not finite"):
        gradscore.Detector(Divided(4, 3).eval()).fit({"x": X, "lengths": lengths, "labels": Y})


class Uneven(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> Tensor:
        return torch.zeros(place + 1)


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_used_is_refused_in_words(make, message) -> None:
    with pytest.raises(DataError, match=message):
        gradscore.features(nn.Linear(4, 3).eval(), make(), statistics=["l2"])


def test_a_table_is_no_batches_for_a_loss() -> None:
    table, model = pd.DataFrame(X.numpy()), nn.Linear(4, 3).eval()
    with pytest.raises(DataError, match="got DataFrame; give"):
        gradscore.features(model, table, losses=lambda model, batch: model(batch).sum(1))


MODELS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a function": (lambda: lambda x: x, ModelError, "model: wanted a torch.nn.Module, got function"),
    "in training mode": (lambda: nn.Linear(4, 3), ModelError, r"call model.eval\(\)"),
    "an exported program": (
        lambda: torch.export.export(nn.Linear(4, 3).eval(), (X,)).module(),
        ModelError,
        r"stays in the mode that it was exported in, .*: each.training = False",
    ),
    "frozen": (lambda: nn.Linear(4, 3).eval().requires_grad_(False), ModelError, "requires_grad_"),
    "of other inputs": (lambda: nn.Linear(5, 3).eval(), ModelError, r"cannot take inputs of shape \(4,\)"),
    "of one output": (lambda: nn.Linear(4, 1).eval(), ModelError, "wanted logits"),
    "without parameters": (lambda: nn.Flatten().eval(), ModelError, "no parameters"),
    "coupled": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval(),
        CoupledSamplesError,
        "batch",
    ),
    "no weights yet": (lambda: nn.Linear(4, 3, device="meta").eval(), ModelError, "weight: on the device 'meta'"),
}


@pytest.mark.parametrize(("make", "error", "message"), MODELS.values(), ids=MODELS)
def test_models_that_cannot_be_scored_are_refused_in_words(make, error, message) -> None:
    with pytest.raises(error, match=message):
        gradscore.features(make(), X, statistics=["l2"])


def test_an_exported_program_gives_the_features_of_its_network() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).eval()
    program = torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    for each in program.modules():
        each.training = False
    found, wanted = (gradscore.features(each, X, statistics=["l2"]) for each in (program, model))
    assert found["uniform/weight/l2"].to_numpy() == pytest.approx(wanted["uniform/weight/l2"].to_numpy(), rel=1e-6)


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"features: loses: unknown key.*losses"):
        gradscore.features(nn.Linear(4, 3).eval(), X, loses=["uniform"])


def distributed(data: Any, *, shuffle: bool) -> DistributedSampler:
    return DistributedSampler(data, num_replicas=2, rank=0, shuffle=shuffle)


class Drawn(Sampler[int]):
    """As LengthGroupedSampler of transformers is: its own class, with random numbers of its own."""

    def __init__(self, data: Any) -> None:
        self.count, self.generator = len(data), torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.count, generator=self.generator).tolist())


SHUFFLED = {
    "shuffle": lambda data: DataLoader(data, batch_size=2, shuffle=True),
    "a random part": lambda data: DataLoader(data, batch_size=2, sampler=SubsetRandomSampler([0, 2, 4])),
    "by weights": lambda data: DataLoader(data, batch_size=2, sampler=WeightedRandomSampler([1.0] * 6, 6)),
    "in batches": lambda data: DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 2, drop_last=False)),
    "for processes": lambda data: DataLoader(data, sampler=distributed(data, shuffle=True)),
    "for processes, in batches": lambda data: DataLoader(
        data, batch_sampler=BatchSampler(distributed(data, shuffle=True), 2, drop_last=False)
    ),
    "by a class of one's own": lambda data: DataLoader(data, sampler=Drawn(data)),
}


@pytest.mark.parametrize("loader", SHUFFLED.values(), ids=SHUFFLED)
def test_a_loader_that_shuffles_is_refused(loader: Callable[[Any], Any]) -> None:
    """Positions in the result would be taken for those in the data set."""
    data = loader(TensorDataset(X, Y))
    with pytest.raises(ConfigError, match=r"a DataLoader that draws samples at random.*shuffle=False"):
        gradscore.features(nn.Linear(4, 3).eval(), data)
    with pytest.raises(ConfigError):
        gradscore.features(nn.Linear(4, 3).eval(), data, losses=lambda model, batch: model(batch[0]).sum(1))


IN_ORDER = {
    "of a part": lambda data: DataLoader(data, batch_size=2, sampler=[4, 0, 2]),
    "in batches": lambda data: DataLoader(data, batch_sampler=[[4, 0], [2]]),
    "for processes": lambda data: DataLoader(data, sampler=distributed(data, shuffle=False)),
    "without the last batch": lambda data: DataLoader(data, batch_size=4, drop_last=True),
    "one sample made of two": lambda data: DataLoader(
        data, batch_size=2, collate_fn=lambda two: default_collate(two * 2)
    ),
}


@pytest.mark.parametrize("loader", IN_ORDER.values(), ids=IN_ORDER)
def test_samplers_that_draw_nothing_give_the_order(loader: Callable[[Any], Any]) -> None:
    data = loader(TensorDataset(X, Y))
    model = nn.Linear(4, 3).eval()
    found = gradscore.features(model, data, statistics=["l2"])
    drawn = torch.cat([inputs for inputs, _ in data])
    torch.testing.assert_close(torch.tensor(found.filter(like="logit_").to_numpy()).float(), model(drawn).detach())


def leaving_out(*places: int) -> Callable[[list[Any]], Any]:
    """A collate_fn as people have it for what cannot be read."""
    return lambda samples: default_collate([each for each in samples if each[0][0] not in X[list(places), 0]])


LEAVING_OUT = {
    "from the first batch": (leaving_out(0), "batch 0 of the loader was to have 4 samples and has 3"),
    "from the last batch": (leaving_out(5), "batch 1 of the loader was to have 2 samples and has 1"),
    "a whole batch": (
        lambda samples: (X[:0], Y[:0]) if len(samples) < 4 else default_collate(samples),
        "batch 1 of the loader was to have 2 samples and has 0",
    ),
}


@pytest.mark.parametrize(("collate", "message"), LEAVING_OUT.values(), ids=LEAVING_OUT)
def test_a_loader_that_leaves_samples_out_is_refused(collate: Callable[[list[Any]], Any], message: str) -> None:
    """All samples behind them would have the positions of others."""
    data = DataLoader(TensorDataset(X, Y), batch_size=4, collate_fn=collate)
    with pytest.raises(DataError, match=f"{message}.*Subset"):
        gradscore.features(nn.Linear(4, 3).eval(), data)


class Streamed(torch.utils.data.IterableDataset):
    def __init__(self, *, shared_out: bool) -> None:
        self.shared_out = shared_out

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        rows = range(worker.id, 6, 2) if self.shared_out else range(6)
        return iter([(X[row], Y[row]) for row in rows])


def test_workers_that_give_the_same_samples_are_refused() -> None:
    model = nn.Linear(4, 3).eval()
    data = DataLoader(Streamed(shared_out=False), batch_size=3, num_workers=2)
    with pytest.raises(DataError, match=r"each of the 2 workers .* the same samples.*get_worker_info"):
        gradscore.features(model, data)
    with pytest.raises(DataError, match="each of the 2 workers"):
        gradscore.features(model, data, losses=lambda model, batch: model(batch[0]).sum(1))
    assert len(gradscore.features(model, DataLoader(Streamed(shared_out=True), batch_size=3, num_workers=2))) == 6


WITHOUT_GRADIENTS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
DOORS = {
    "features": lambda model, data: gradscore.features(model, data),
    "a loss of one's own": lambda model, data: gradscore.features(model, [data], losses=lambda net, x: net(x).sum(1)),
    "project": lambda model, data: pd.DataFrame(gradscore.project(model, data).values),
    "check_model": lambda model, data: pd.DataFrame(gradscore.check_model(model, data).remarks),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("mode", WITHOUT_GRADIENTS.values(), ids=WITHOUT_GRADIENTS)
def test_gradients_are_computed_where_the_caller_has_switched_them_off(mode, door) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    wanted = door(model, X)
    with mode():
        found = door(model, X)
        assert not torch.is_grad_enabled()
    pd.testing.assert_frame_equal(found, wanted)


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    gradscore.features(
        nn.Linear(4, 3).eval(), X, batch_size=4, progress=lambda _what, done, all_: told.append((done, all_))
    )
    assert told == [(4, 6), (6, 6)]


def test_values_that_are_not_finite_are_warned_of() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).eval()
    with torch.no_grad():
        model[1].weight.mul_(1e30)
    inputs = X.clone()
    inputs[2:] *= 1e20
    with pytest.warns(gradscore.GradientWarning, match="4 of 6 samples have values .* not finite, .* sample 2, "):
        table = gradscore.features(model, inputs, losses="uniform", statistics="l2")
    finite = np.isfinite(table.select_dtypes("floating").to_numpy()).all(axis=1)
    assert finite.tolist() == [True, True, False, False, False, False]


class Cut(nn.Module):
    """A network whose first part is computed without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.first(inputs)
        return self.last(hidden)


def flat(logits: Tensor) -> Tensor:
    return (0 * logits).sum(dim=1)


SILENT = {
    "a part under no_grad": (Cut, "uniform", ["first.weight: .* no_grad", "first.bias: .* no_grad"]),
    "a loss that is constant": (lambda: nn.Linear(4, 3), flat, ["loss flat: .* another loss"]),
    "neither": (lambda: nn.Linear(4, 3), "uniform", []),
}


@pytest.mark.parametrize(("network", "loss", "messages"), SILENT.values(), ids=SILENT)
def test_gradients_that_are_all_zero_are_warned_of(network: Any, loss: Any, messages: list[str]) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gradscore.features(network().eval(), X, losses=loss, statistics=["l2", "max"])
    said = [str(each.message) for each in told if each.category is gradscore.GradientWarning]
    assert [bool(re.search(each, line)) for each, line in zip(messages, said, strict=True)] == [True] * len(messages)


def test_one_name_stands_for_a_list() -> None:
    model = nn.Linear(4, 3).eval()
    found = gradscore.features(model, X, losses="uniform", statistics="l2")
    pd.testing.assert_frame_equal(found, gradscore.features(model, X, losses=["uniform"], statistics=["l2"]))
