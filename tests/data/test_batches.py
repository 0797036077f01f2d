import os
import signal

import pytest
from torch.utils.data import get_worker_info

from gradscore.data import load_batches, plan_batches
from gradscore.errors import DataError


class Killing:
    """Kills the worker that loads a sample; outside of workers, samples cannot be loaded."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, _place: int) -> object:
        if get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("no worker")


def load(workers: int) -> list:
    planned = plan_batches(6, shards=[0], shard_size=6, batch_size=3)
    return list(load_batches(Killing(), planned, workers=workers))


def test_a_killed_worker_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"a worker that loads samples was lost .*fewer workers"):
        load(workers=1)


def test_other_errors_of_samples_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="no worker"):
        load(workers=0)
