"""A run whose shards are made by the tasks of a Ray cluster, which write them into the run folder."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ..config import Config, dump_config, parse_config
from ..errors import DistributedError, GradscoreError, MissingExtraError, StoreError
from ..models import is_code_trusted
from ..pipeline import ExtractSummary, OnBatch, Progress, RunPlan, complete_run
from ..system import file_sha256
from .shares import Shard, identity_of, make_shard

ATTEMPTS = 3
"""How many workers may be lost over one shard before the run ends."""

_FRUITLESS = 600.0
"""Seconds without any worker after which the run ends."""

_ANSWERING = 5.0
"""Seconds in which the machine of a cluster has to take a connection, which Ray itself waits for much longer."""

_OBJECT_STORE = 100_000_000
"""Bytes of shared memory of a Ray that is started here: nothing large passes through it."""


@dataclass(frozen=True)
class RayOptions:
    """Where a run is computed.

    Attributes:
        address: of the Ray cluster, `auto` for that of this machine; `local` starts one on this machine.
        workers: how many shards are made at once; None for one per GPU, or per processor where there is none.
        gpus_per_worker: share of a GPU that each needs; None for one where the run computes on CUDA, else none.
    """

    address: str = "local"
    workers: int | None = None
    gpus_per_worker: float | None = None


def extract_with_ray(
    config: Config,
    options: RayOptions,
    *,
    out: Path | None = None,
    progress: Progress | None = None,
) -> ExtractSummary:
    """Computes the feature tables of a run as `gradscore.pipeline.extract` does, by workers of a Ray cluster.

    Workers write into the run folder, which all machines must see; checksums and notices alone come back. The shard of
    a worker that is lost goes to another. A driver that was stopped goes on when it is started again.

    Args:
        config: the settings.
        options: where it is computed.
        out: the run folder, instead of `config.run`.
        progress: called after every shard.

    Returns:
        A summary of the run.

    Raises:
        MissingExtraError: Ray is not installed.
        DistributedError: there is no such cluster, no worker could start, or a shard was lost again and again.
        GradscoreError: as `gradscore.pipeline.extract`.
    """
    if find_spec("ray") is None:
        raise MissingExtraError(
            "--ray: the package ray is not installed; run `pip install 'gradscore[ray]'` and the same command again"
        )
    plan = RunPlan.of(config, out=out)
    with closing(_Workers(plan, Job.of(plan), options)) as workers:
        return complete_run(
            plan,
            make_shards=workers.make_shards,
            notices=workers.notices,
            progress=progress,
        )


@dataclass(frozen=True)
class Job:
    """What a worker has to know of a run: its folder, its settings as text, and the identity of its inputs."""

    run: Path
    config: str
    identity: str
    trust_code: bool

    @classmethod
    def of(cls, plan: RunPlan) -> Job:
        """That of a run; its workers trust code where the caller does."""
        return cls(plan.config.run, dump_config(plan.config), identity_of(plan), is_code_trusted())


@lru_cache(maxsize=1)
def opened(job: Job) -> RunPlan:
    """Builds the model and opens the data of a job, once in each process.

    Raises:
        StoreError: this machine sees other data, code or packages.
        GradscoreError: as `RunPlan.of` and `RunPlan.warm_up`.
    """
    config = parse_config(job.config, where="the settings of the driver")
    plan = RunPlan.of(config, out=job.run, trust_code=job.trust_code)
    if identity_of(plan) != job.identity:
        raise StoreError(
            "a worker sees other data, code, weights, packages or another kind of device than the process that "
            "began the run; give all machines the same files and versions, and name the device (extract.device)"
        )
    plan.warm_up()
    return plan


def make_for(job: Job, shard: Shard) -> tuple[str, list[str]]:
    """Makes one shard, as the task of a worker; returns the SHA-256 of its file and notices."""
    plan = opened(job)
    return make_shard(plan, shard, on_batch=lambda _split, _samples: None), plan.extractor.notices


class _Workers:
    """Hands out shards as tasks of Ray, which starts and replaces the processes that make them."""

    def __init__(self, plan: RunPlan, job: Job, options: RayOptions) -> None:
        self._plan, self._job, self._options = plan, job, options
        self._ray: ModuleType | None = None  # nothing starts before it is needed
        self._is_own = False
        self._running: dict[Any, Shard] = {}
        self.notices: list[str] = []

    def make_shards(self, split: str, numbers: Sequence[int], on_batch: OnBatch) -> None:
        """Has shards of a split made."""
        self._make([Shard(split, number) for number in numbers], on_batch)

    def close(self) -> None:
        """Ends what still runs after an error, and Ray if it was started here."""
        if self._ray is not None:
            for reference in self._running:
                self._ray.cancel(reference, force=True)
            if self._is_own:
                self._ray.shutdown()

    def _make(self, shards: Sequence[Shard], on_batch: OnBatch) -> None:
        if not shards:
            return
        if self._ray is None:
            self._start()
        ray, waiting = self._ray, deque(shards)
        assert ray is not None
        while waiting or self._running:
            while waiting and len(self._running) < self._count:
                shard = waiting.popleft()
                self._running[self._task.remote(self._job, shard)] = shard
            for reference in ray.wait([*self._running], num_returns=1)[0]:
                shard = self._running.pop(reference)
                self._check(self._result(reference, f"over {shard.file}"), self._plan.config.run / shard.file)
                on_batch(shard.split, shard.samples(self._plan))

    def _start(self) -> None:
        import ray  # slow to import, and only needed here

        address = self._options.address
        if not ray.is_initialized():
            own: dict[str, Any] = {}
            if address == "local":
                own = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
            else:
                check_answers(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise _unreachable(address, error) from None
            self._is_own = True
        self._ray = ray
        gpus = self._options.gpus_per_worker
        if gpus is None:
            gpus = 1.0 if self._plan.extractor.device.type == "cuda" else 0.0
        # Processes are used again (max_calls), those with a GPU too, so that each builds the model once.
        options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": ATTEMPTS - 1, "max_calls": 0}
        first = ray.remote(**options)(_is_there).remote()
        if not ray.wait([first], timeout=_FRUITLESS)[0]:
            raise DistributedError(
                f"Ray: no worker could start in {_FRUITLESS:.0f} seconds; wait until the cluster has a free CPU "
                "(and what --gpus-per-worker asks for), then run the same command again"
            )
        self._result(first, "before they made any shard")
        there = ray.cluster_resources()
        self._count = self._options.workers or max(int(there.get("GPU", 0) / gpus if gpus else there.get("CPU", 1)), 1)
        self._task = ray.remote(**options)(make_for)

    def _result(self, reference: Any, where: str) -> Any:
        ray = self._ray
        assert ray is not None
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, GradscoreError) else error) from None
        except ray.exceptions.RayError as error:
            raise DistributedError(
                f"Ray: {ATTEMPTS} workers were lost {where} ({_first_line(error)}); out of memory? Run the same "
                "command again, with fewer workers (--num-workers) if it happens again"
            ) from None

    def _check(self, made: tuple[str, list[str]], path: Path) -> None:
        sha256, notices = made
        if not path.is_file():
            raise StoreError(
                f"{path}: a worker wrote it, and it is not here; give a run folder (for a run in object storage, "
                "GRADSCORE_CACHE) on a file system that all machines share"
            )
        if file_sha256(path) != sha256:
            raise StoreError(f"{path}: not what its worker wrote; delete it and run the same command again")
        self.notices += [notice for notice in notices if notice not in self.notices]


def _is_there() -> None:
    """A task that asks whether there are processes for tasks."""


def check_answers(address: str) -> None:
    """Makes sure that something listens at the address of a cluster; what has no port, such as `auto`, Ray looks for.

    Raises:
        DistributedError: nothing does.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERING).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise _unreachable(address, error) from None


def _unreachable(address: str, error: Exception) -> DistributedError:
    return DistributedError(
        f"--ray {address}: no Ray cluster can be reached there ({_first_line(error)}); start one (ray start "
        "--head), or give --ray local for one on this machine"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
