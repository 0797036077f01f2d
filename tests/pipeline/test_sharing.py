"""Batches that are computed in parts, in threads."""

import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gradscore.config import Config, FeaturesConfig
from gradscore.data import Augmentation
from gradscore.errors import ModelError
from gradscore.extractor import Extractor
from gradscore.extractor.forward import _team, at_once
from gradscore.pipeline import extract

THREADS = 2


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


class Net(nn.Sequential):
    """Large enough to be shared; notes who ran it, which no module shows."""

    def __init__(self, width=32, last=10):
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, last),
        )  # fmt: skip
        RAN.clear()

    def forward(self, images):
        RAN.append((threading.current_thread().name, len(images)))
        return super().forward(images)


RAN: list[tuple[str, int]] = []


class OneSize(Net):
    """Wants batches of 40, as a program that was exported for one size does; or few."""

    def forward(self, images):
        if 3 < len(images) != 40:
            raise ValueError("wanted 40 images")
        return super().forward(images)


class FailsLate(Net):
    def forward(self, images):
        found = super().forward(images)
        if len(images) > 3:
            raise ValueError("no")
        return found


class SecondHalfElsewhere(Net):
    """Takes another way for some images, so that parts have graphs that were not seen."""

    def forward(self, images):
        found = super().forward(images)
        return found.tanh() if images.mean() > 1 else found


class Noisy(Net):
    """Draws the same noise every time."""

    def forward(self, images):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return super().forward(images + torch.randn(3, 24, 24))


class Uncopied(Net):
    def __deepcopy__(self, memo):
        raise TypeError("no")


class Counting(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def hooked(model):
    model[0].register_forward_hook(lambda *_: None)
    return model


def given_augmentation():
    features = FeaturesConfig(augmentations=["python:flips:flip"])
    augmentations = [Augmentation("python:flips:flip", lambda each: each.flip(3))]
    model = Net().eval()
    with patch("gradscore.extractor.extractor.open_augmentations", return_value=augmentations):
        return Extractor(model, num_classes=10, features=features)


def images(samples, side=24):
    return torch.randn(samples, 3, side, side, generator=torch.Generator().manual_seed(0))


def live(model, **features):
    return Extractor(model.eval(), features=FeaturesConfig(**features), num_classes=10)


def sizes_in_threads():
    return sorted(size for name, size in RAN if name.startswith("gradscore"))


FEATURES = {
    "two losses": {},
    "penultimate features": {"penultimate": True},
    "augmentations": {"augmentations": ["mirror", "shift:2,0"]},
    "gradients of augmentations": {"augmentations": ["mirror"], "average_gradients": ["mirror"]},
    "labels": {"losses": ["label"]},
    "a gradient for every class": {"losses": ["expected"], "granularity": "model"},
}


@pytest.mark.parametrize("name", FEATURES)
def test_parts_are_what_they_are_alone(name):
    shared, alone = live(Net(), **FEATURES[name]), live(Net(), **FEATURES[name])
    batch, labels = images(40), torch.arange(40) % 10
    shared.prepare(batch[:3])
    alone.prepare(batch[:3])
    found = shared.values(batch, labels=labels)
    assert set(sizes_in_threads()) == {20}
    halves = [alone.values(batch[rows], labels=labels[rows]) for rows in (slice(20), slice(20, 40))]
    names = np.array(shared.names)
    meaningful = ~np.char.endswith(names, "/mean")  # those of the last layer are zero, and what is left is rounding
    np.testing.assert_allclose(found[:, meaningful], np.concatenate(halves)[:, meaningful], rtol=2e-5, atol=1e-7)


def test_the_same_bits_each_time():
    extractor = live(Net(), penultimate=True)
    first = extractor.values(images(40))
    np.testing.assert_array_equal(extractor.values(images(40)), first)
    np.testing.assert_array_equal(live(Net(), penultimate=True).values(images(40)), first)


NOT_SHARED = {
    "random numbers": lambda: (live(Noisy()), images(40)),
    "what cannot be copied": lambda: (live(Uncopied()), images(40)),
    "a hook": lambda: (live(hooked(Net())), images(40)),
    "an augmentation of a program's": lambda: (given_augmentation(), images(40)),
    "few samples": lambda: (live(Net()), images(31)),
    "small images": lambda: (live(Net(width=4)), images(40, side=6)),
}


@pytest.mark.parametrize("name", NOT_SHARED)
def test_batches_that_are_not_shared(name):
    extractor, batch = NOT_SHARED[name]()
    extractor.prepare(batch[:3])
    RAN.clear()
    extractor.values(batch)
    assert RAN
    assert not sizes_in_threads()


@pytest.mark.parametrize("limit", [{"threads": 1}, {"memory": 1000}], ids=str)
def test_not_with_one_thread_and_not_with_large_copies(limit, monkeypatch):
    torch.set_num_threads(limit.get("threads", THREADS))
    monkeypatch.setattr("gradscore.extractor.forward.MOST_MEMORY", limit.get("memory", 1 << 30))
    extractor = live(Net())
    extractor.values(images(40))
    assert not sizes_in_threads()


def test_networks_that_use_each_weight_once_are_not_shared():
    # Products beyond what a part needs, but weights would have to be read from memory for each part.
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 8000), nn.ReLU(), nn.Linear(8000, 10))
    slices = live(model)._sharing.slices(40, lambda worker: worker.model(images(2)))
    assert slices == [slice(0, 40)]


def test_not_where_the_caller_has_pytorch_do_things_in_another_way():
    extractor = live(Net())
    with Counting() as counting:
        extractor.values(images(40))
    assert counting.calls
    assert not sizes_in_threads()


def test_hooks_that_come_later_see_whole_batches():
    model, seen = Net(), []
    extractor = live(model)
    extractor.values(images(40))
    handle = model[0].register_forward_hook(lambda _module, _inputs, output: seen.append(len(output)))
    extractor.values(images(40))
    handle.remove()
    RAN.clear()
    extractor.values(images(40))
    assert seen == [40]
    assert sizes_in_threads() == [20, 20]


def test_weights_that_change_between_batches():
    model = Net()
    extractor = live(model)
    before = extractor.values(images(40))
    with torch.no_grad():
        model[0].weight.mul_(2)
    changed = extractor.values(images(40))
    torch.set_num_threads(1)
    whole = extractor.values(images(40))
    # Within rounding: parts have another size. A mean that is zero on paper is rounding alone.
    meaningful = ~np.char.endswith(np.array(extractor.names), "/mean")
    np.testing.assert_allclose(changed[:, meaningful], whole[:, meaningful], rtol=1e-4, atol=1e-6)
    assert np.abs(changed - before)[:, :10].max(axis=0).min() > 0.005


class Convolutions(nn.Module):
    """For networks that keep something while they run, which two threads must not share."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.last = nn.Linear(32, 10)
        RAN.clear()

    def features(self, images):
        RAN.append((threading.current_thread().name, len(images)))
        return self.first(images).relu()

    def logits(self, features):
        return self.last(features.mean((2, 3)))


class SkipStack(Convolutions):
    def __init__(self):
        super().__init__()
        self.skips = []

    def forward(self, images):
        found = self.features(images)
        self.skips.append(found.detach())
        return self.logits(self.second(found).relu() + self.skips.pop())


class ExchangesData(Convolutions):
    """Puts its weights back afterwards, so that nothing is to be seen."""

    def forward(self, images):
        weight = self.second.weight.data
        self.second.weight.data = weight.sign() * weight.abs().mean()
        found = self.second(self.features(images)).relu()
        self.second.weight.data = weight
        return self.logits(found)


class NumpyScratch(Convolutions):
    def __init__(self):
        super().__init__()
        self.scratch = np.zeros((64, 32), dtype=np.float32)

    def forward(self, images):
        found = self.features(images)
        self.scratch[: len(images)] = found.detach().mean((2, 3)).numpy()
        found = self.second(found).relu()
        return self.logits(found) + self.last(torch.from_numpy(self.scratch[: len(images)].copy()))


class Slots:
    __slots__ = ("kept",)


class SlotState(Convolutions):
    def __init__(self):
        super().__init__()
        self.state = Slots()

    def forward(self, images):
        self.state.kept = self.features(images)
        found = self.second(self.state.kept).relu()
        gate = self.state.kept.detach().mean((1, 2, 3), keepdim=True)
        self.state.kept = None
        return self.logits(found * gate)


class HookInForward(Convolutions):
    def forward(self, images):
        seen = []
        handle = self.second.register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach()))
        found = self.second(self.features(images)).relu()
        handle.remove()
        return self.logits(found * seen[-1].sigmoid())


KEEPING = {each.__name__: each for each in (SkipStack, ExchangesData, NumpyScratch, SlotState, HookInForward)}


@pytest.mark.parametrize("name", KEEPING)
def test_networks_that_keep_something_while_they_run(name):
    model = KEEPING[name]()
    shared = live(model, statistics=["l2", "max"])
    batch = images(64)
    shared.prepare(batch[:3])
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = [(shared.values(batch), shared.forward_values(batch)) for _ in range(3)]
    assert set(sizes_in_threads()) == {32}
    torch.set_num_threads(1)
    alone = live(KEEPING[name](), statistics=["l2", "max"])
    alone.prepare(batch[:3])
    expected = alone.values(batch), alone.forward_values(batch)
    for each, wanted in zip(found, (expected,) * 3, strict=True):
        for mine, theirs in zip(each, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-7)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


SCALE = ContextVar("scale", default=1.0)


class InContext(Convolutions):
    def forward(self, images):
        return self.logits(self.second(self.features(images)).relu()) * SCALE.get()


def test_the_context_of_the_caller_holds_in_threads():
    token = SCALE.set(3.0)
    try:
        shared = live(InContext())
        shared.values(images(40))
        found = shared.values(images(40))
    finally:
        SCALE.reset(token)
    assert 20 in sizes_in_threads()
    logits = live(InContext()).forward_values(images(40))
    np.testing.assert_allclose(found[:, :10], 3 * logits, rtol=1e-6)


class FewTakeAnotherWay(Net):
    """Has another graph where a sample is bright, and outputs that show the size of a batch as rounding does."""

    def forward(self, images):
        found = super().forward(images) + 1e-4 * len(images)
        bright = (images.mean((1, 2, 3)) - 0.5).relu().unsqueeze(1)
        return found + bright * found.tanh() if bright.any() else found


def with_bright_samples(samples, *places):
    batch = images(samples)
    batch[list(places)] += 1
    return batch


NEW_GRAPHS = {
    "the first of all": (False, images(40)),
    "of both parts": (True, with_bright_samples(40, 3, 30)),
    "of the second part": (True, with_bright_samples(40, 30)),
    "none": (True, images(40)),
}


@pytest.mark.parametrize("name", NEW_GRAPHS)
def test_graphs_that_are_new_are_learnt_in_parts_of_the_same_size(name):
    prepared, batch = NEW_GRAPHS[name]
    shared, alone = live(FewTakeAnotherWay()), live(FewTakeAnotherWay())
    (shared.prepare if prepared else len)(images(3))
    RAN.clear()
    found = shared.values(batch)
    assert {size for _, size in RAN} - {2} == {20}
    np.testing.assert_array_equal(shared.values(batch), found)
    torch.set_num_threads(1)
    halves = [alone.values(batch[rows]) for rows in (slice(20), slice(20, 40))]
    meaningful = ~np.char.endswith(np.array(shared.names), "/mean")
    np.testing.assert_allclose(found[:, meaningful], np.concatenate(halves)[:, meaningful], rtol=2e-5, atol=1e-7)
    assert shared.engine.coverage == alone.engine.coverage
    assert shared.notices == alone.notices


@pytest.mark.parametrize(("network", "begun"), [(FewTakeAnotherWay, 1), (SecondHalfElsewhere, 2)])
def test_values_do_not_depend_on_the_batches_before(network, begun):
    batches = [images(40), with_bright_samples(40, *range(20, 40)), with_bright_samples(40, *range(40)), images(40)]
    whole, resumed = live(network()), live(network())
    whole.prepare(images(3))
    resumed.prepare(images(3))
    expected = [whole.values(batch) for batch in batches]
    for batch, wanted in zip(batches[begun:], expected[begun:], strict=True):
        np.testing.assert_array_equal(resumed.values(batch), wanted)


NET = """
from torch import nn


class Wide(nn.Sequential):
    \"\"\"Has another graph where a sample is bright, and outputs that show the size of a batch as rounding does.\"\"\"

    def forward(self, images):
        found = super().forward(images) + 1e-4 * len(images)
        bright = (images.mean((1, 2, 3)) - 0.38).relu().unsqueeze(1)
        return found + bright * found.tanh() if bright.any() else found


def wide():
    convolutions = [nn.Conv2d(1, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU()]
    return Wide(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
"""


def run_in(folder, *, until=None):
    """A run on two threads, interrupted after so many samples; its shards."""
    (folder.parent / "net.py").write_text(NET)

    def interrupt(_split, done, _total):
        if until is not None and done >= until:
            raise KeyboardInterrupt

    part = {"source": "sklearn:digits"}
    settings = {
        "model": {"source": f"python:{folder.parent}/net.py:wide", "checkpoint": None, "num_classes": 10},
        "data": {
            "auxiliary": [],
            "in_dist": {
                "fit": {**part, "select": {"stop": 240}},
                "test": {**part, "select": {"start": 240, "stop": 320}},
            },
        },
        "extract": {"batch_size": 40, "part_size": 40, "device": "cpu"},
        "run": folder,
    }
    with suppress(KeyboardInterrupt):
        extract(Config.model_validate(settings), trust_code=True, progress=interrupt)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


def test_a_run_that_goes_on_has_the_same_bytes(tmp_path):
    whole = run_in(tmp_path / "whole")
    stopped = run_in(tmp_path / "stopped", until=80)
    assert len(stopped) < len(whole)
    assert run_in(tmp_path / "stopped") == whole


def test_networks_for_batches_of_one_size():
    extractor = live(OneSize())
    extractor.prepare(images(3))
    for _ in range(2):
        RAN.clear()
        assert extractor.values(images(40)).shape[0] == 40
        assert [size for _, size in RAN] == [40]


def test_errors_are_those_of_the_whole_batch():
    extractor = live(FailsLate())
    extractor.prepare(images(3))
    RAN.clear()
    with pytest.raises(ModelError, match=r"cannot take images of shape \(3, 24, 24\): no"):
        extractor.values(images(40))
    assert RAN[-1] == ("MainThread", 40)


def test_threads_of_others_are_as_they_were():
    live(Net()).values(images(40))
    assert sizes_in_threads()
    assert torch.get_num_threads() == THREADS
    found = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [THREADS]


def test_each_part_has_its_share_of_threads():
    torch.set_num_threads(6)
    assert at_once([torch.get_num_threads] * 2) == [3, 3]
    torch.set_num_threads(2)
    assert at_once([torch.get_num_threads] * 2) == [1, 1]


def test_callers_take_turns():
    at_work, most = [], []

    def work():
        at_work.append(1)
        time.sleep(0.02)
        most.append(len(at_work))
        at_work.pop()

    callers = [threading.Thread(target=at_once, args=([work] * 2,)) for _ in range(3)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert len(most) == 6
    assert max(most) <= 2


def test_nothing_goes_on_after_an_error():
    ended = []

    def fail():
        raise ValueError("the first part")

    def work():
        time.sleep(0.2)
        ended.append(1)

    with pytest.raises(ValueError, match="the first part"):
        at_once([fail, work])
    assert ended == [1]
    assert at_once([lambda: 0, lambda: 1]) == [0, 1]  # and others may begin


def test_threads_that_cannot_be_started(monkeypatch):
    _team.cache_clear()
    start, started = threading.Thread.start, []

    def once(self):
        if self.name.startswith("gradscore") and started:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", once)
    assert live(Net()).values(images(40)).shape[0] == 40
    started[0].join(10)
    assert not started[0].is_alive()  # or the process would never end
    assert torch.get_num_threads() == THREADS
