import multiprocessing
import os
import signal
import time

import pytest
import torch
from torch.utils.data import get_worker_info

from gradscore.data import BadSample, Batch, collate, load_batches, naming_lost_workers
from gradscore.errors import DataError


class Killing:
    """Kills the worker that loads a sample; outside of workers, samples cannot be loaded."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, _place: int) -> object:
        if get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("no worker")


class Harmless(Killing):
    def __getitem__(self, place: int) -> BadSample:
        return BadSample(str(place), "not looked at")


class Refused(Killing):
    def __getitem__(self, place: int) -> object:
        raise ConnectionRefusedError(f"no server for sample {place}")


@naming_lost_workers()
def kill_worker() -> None:
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    time.sleep(60)


def load(workers: int, dataset: Killing | None = None) -> list:
    found = load_batches(dataset or Killing(), split="here", batch_size=3, workers=workers, on_error="skip")
    return list(found)


def test_a_killed_worker_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"a worker that loads samples was lost .*fewer workers"):
        load(workers=1)


def test_other_errors_of_samples_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="no worker"):
        load(workers=0)


def test_a_worker_that_is_killed_while_its_batches_are_used() -> None:
    batches = load_batches(Harmless(), split="here", batch_size=3, workers=1, on_error="skip")
    next(batches)
    with pytest.raises(DataError, match=r"a worker that loads samples was lost .*fewer workers"):
        kill_worker()


@pytest.mark.parametrize("error", [ConnectionResetError, ConnectionRefusedError, EOFError])
def test_a_worker_that_is_killed_while_it_hands_over_a_batch(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def loader(*_arguments: object, **_options: object):
        yield collate([BadSample("a", "not looked at")])
        raise error

    monkeypatch.setattr("gradscore.data.samples.DataLoader", loader)
    with pytest.raises(DataError, match=f"was lost \\({error.__name__} while it handed over a batch"):
        load(workers=1)


@pytest.mark.parametrize("workers", [0, 1])
def test_connections_that_samples_need_are_no_lost_workers(workers: int) -> None:
    with pytest.raises(ConnectionRefusedError, match="no server for sample 0"):
        load(workers, Refused())


def test_where_one_tensor_is_wanted_keyword_inputs_are_told_another_way() -> None:
    inputs = {"ids": torch.zeros(1, 3), "mask": torch.ones(1, 3)}
    batch = Batch(ids=["a"], inputs=inputs, labels=torch.tensor([0]), content_hashes=["0"])
    with pytest.raises(
        DataError, match=r"keyword inputs \(ids, mask\), .*; an Inspector of gradscore\.inspect watches"
    ):
        _ = batch.tensor
