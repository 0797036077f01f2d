"""The loop that samples go through: batches of any sizes come out as the same ones."""

import pytest
import torch

from gradscore.data import BadSample, Batch
from gradscore.pipeline import cut


def stream(sizes: list[int], *, bad: tuple[int, ...] = (), split: str = "a") -> list[Batch]:
    """Batches of so many samples, called by their places; those in `bad` cannot be used."""
    batches, start = [], 0
    for size in sizes:
        places = range(start, start + size)
        good = [place for place in places if place not in bad]
        lost = [BadSample(str(place), "broken", place - start) for place in places if place in bad]
        values = torch.tensor(good, dtype=torch.float32).reshape(len(good), 1)
        batches.append(
            Batch(
                list(map(str, good)),
                values,
                torch.tensor(good, dtype=torch.int64),
                ["0"] * len(good),
                lost,
                split=split,
            )
        )
        start += size
    return batches


SIZES = {"one by one": [1] * 11, "all at once": [11], "as they are cut": [4, 3, 4], "others": [2, 6, 3]}
BAD = {"all can be used": (), "some cannot": (0, 3, 8), "most cannot": tuple(range(10))}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_batches_are_the_same_however_samples_come(sizes: list[int], bad: tuple[int, ...]) -> None:
    found = list(cut(stream(sizes, bad=bad), batch_size=4, shard_size=7))
    assert [(each.shard, each.is_first, each.is_last) for each in found] == [
        (0, True, False),
        (0, False, True),
        (1, True, False),
    ]
    wanted = [[place for place in places if place not in bad] for places in (range(4), range(4, 7), range(7, 11))]
    assert [list(map(int, each.batch.ids)) for each in found] == wanted
    assert [each.batch.labels.tolist() for each in found] == wanted
    assert [each.batch.tensor.flatten().tolist() for each in found] == wanted
    starts = (0, 4, 7)
    lost = [start + gone.place for start, each in zip(starts, found, strict=True) for gone in each.batch.bad]
    assert lost == sorted(bad)


def test_splits_may_come_mixed() -> None:
    mixed = [batch for pair in zip(stream([3, 3]), stream([3, 3], split="b"), strict=True) for batch in pair]
    found = [(each.batch.split, each.batch.ids) for each in cut(mixed, batch_size=4, shard_size=10)]
    assert found == [("a", list("0123")), ("b", list("0123")), ("a", ["4", "5"]), ("b", ["4", "5"])]


def test_shards_have_the_numbers_that_are_asked_for() -> None:
    found = cut(stream([6]), batch_size=2, shard_size=2, shards=[0, 3, 7])
    assert [each.shard for each in found] == [0, 3, 7]
