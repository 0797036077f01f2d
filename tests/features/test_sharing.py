"""Batches that are computed in parts, in threads."""

import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

from gradscore.config.schema import FeaturesConfig
from gradscore.errors import ModelError
from gradscore.features import LiveModel
from gradscore.features.sharing import at_once
from gradscore.models import look_at_forward

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


class KeepsFeatures(Net):
    def forward(self, images):
        self.features = images
        return super().forward(images)


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


def images(samples, side=24):
    return torch.randn(samples, 3, side, side, generator=torch.Generator().manual_seed(0))


def live(model, **features):
    return LiveModel.of(model.eval(), features=FeaturesConfig(**features), num_classes=10).extractor


def sizes_in_threads():
    return sorted(size for name, size in RAN if name.startswith("gradscore"))


FEATURES = {
    "two losses": {},
    "penultimate features": {"penultimate": True},
    "views": {"views": ["mirror", "shift:2,0"]},
    "gradients of views": {"views": ["mirror"], "average_gradients": ["mirror"]},
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
    "a network that keeps features": lambda: (live(KeepsFeatures()), images(40)),
    "few samples": lambda: (live(Net()), images(31)),
    "small images": lambda: (live(Net(width=4)), images(40, side=6)),
    "layers that are watched": lambda: (live(Net(), columns=["output_gradient_norm"]), images(40)),
    "activations that are watched": lambda: (live(Net(), columns=["activation_rate"]), images(40)),
}


@pytest.mark.parametrize("name", NOT_SHARED)
def test_batches_that_are_not_shared(name):
    extractor, batch = NOT_SHARED[name]()
    extractor.prepare(batch[:3])
    RAN.clear()
    extractor.values(batch)
    assert RAN
    assert not sizes_in_threads()


def test_not_with_one_thread():
    torch.set_num_threads(1)
    extractor = live(Net())
    extractor.values(images(40))
    assert not sizes_in_threads()


def test_networks_that_use_each_weight_once_are_not_shared():
    # Products beyond what a part needs, but weights would have to be read from memory for each part.
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 2000), nn.ReLU(), nn.Linear(2000, 10))
    extractor = live(model)
    whole = look_at_forward(model, lambda: model(images(2)))
    assert whole.products * 20 > 4e6 * whole.layers
    assert extractor._sharing_of(images(2)).slices(40) == [slice(0, 40)]


def test_graphs_that_are_new_are_learnt_from_all_samples():
    batch = images(40)
    shared, alone = live(Net()), live(Net())
    torch.set_num_threads(1)
    expected = alone.values(batch)
    torch.set_num_threads(THREADS)
    found = shared.values(batch)  # without `prepare`: the first graph of all
    assert sorted(RAN)[-1][1] == 20
    assert shared.engine.coverage == alone.engine.coverage
    assert shared.notices == alone.notices
    np.testing.assert_array_equal(found, expected)
    RAN.clear()
    shared.values(batch)
    assert sizes_in_threads() == [20, 20]


def test_parts_that_take_another_way():
    batch = images(40)
    batch[20:] += 3
    shared = live(SecondHalfElsewhere())
    shared.prepare(batch[:3])
    found = shared.values(batch)
    torch.set_num_threads(1)
    np.testing.assert_allclose(found, live(SecondHalfElsewhere()).values(batch), rtol=1e-3, atol=1e-6)


def test_networks_for_batches_of_one_size():
    extractor = live(OneSize())
    extractor.prepare(images(3))
    RAN.clear()
    assert extractor.values(images(40)).shape[0] == 40
    RAN.clear()
    extractor.values(images(40))
    assert [size for _, size in RAN] == [40]  # the parts are not tried again


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
    parts = [slice(0, 1), slice(1, 2)]
    torch.set_num_threads(6)
    assert at_once(lambda part: (part.start, torch.get_num_threads()), parts) == [(0, 3), (1, 3)]
    torch.set_num_threads(2)
    assert at_once(lambda part: (part.start, torch.get_num_threads()), parts) == [(0, 1), (1, 1)]


def test_parts_within_parts_are_done_one_after_the_other():
    parts = [slice(0, 1), slice(1, 2)]

    def outer(part):
        return at_once(lambda inner: (part.start, inner.start, threading.current_thread().name), parts)

    found = at_once(outer, parts)
    assert [[entry[:2] for entry in each] for each in found] == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    assert {len({name for *_, name in each}) for each in found} == {1}


def test_nothing_goes_on_after_an_error():
    ended = []

    def work(part):
        if part.start == 0:
            raise ValueError("the first part")
        time.sleep(0.2)
        ended.append(part.start)

    with pytest.raises(ValueError, match="the first part"):
        at_once(work, [slice(0, 1), slice(1, 2)])
    assert ended == [1]
    assert at_once(lambda part: part.start, [slice(0, 1), slice(1, 2)]) == [0, 1]  # and others may begin
