"""A run made by Ray actors: each holds a model and writes shards into the run folder."""

from __future__ import annotations

import socket
import time
from collections import Counter as Count
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ..config import Config, placed
from ..data import FIT
from ..errors import DistributedError, GradscoreError, MissingExtraError, StoreError
from ..extractor import MeanGradients, read_means
from ..models import is_code_trusted, trusting_code
from ..pipeline import ExtractSummary, Maker, OnBatch, Progress, RunPlan, complete_run
from ..store import package_versions, read_manifest
from ..system import file_sha256
from .ledger import identity_of
from .work import Shard, add_up, make_shard, sum_shards

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
        address: of the Ray cluster, `auto` for that of this machine; None starts one on this machine.
        workers: how many hold a model; None for one per GPU, or per processor where there is none.
        gpus_per_worker: share of a GPU that each needs; None for one where the run computes on CUDA, else none.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None


@dataclass(frozen=True)
class Made:
    """What a worker says of a shard: the file lies in the run folder."""

    shard: Shard
    sha256: str
    notices: list[str]


class Worker:
    """Holds the model of a run and makes its shards; what runs in a Ray actor."""

    def __init__(self) -> None:
        """Does nothing yet: what goes wrong in `start` comes back as it is."""
        self._plan: RunPlan | None = None
        self._means: str | None = None

    def start(self, config: Config, *, identity: str, trust_code: bool) -> None:
        """Builds the model and opens the data, which must be those of the driver.

        Raises:
            StoreError: this machine sees other data, code or packages.
            GradscoreError: as `RunPlan.of` and `RunPlan.warm_up`.
        """
        with trusting_code(trust_code):
            plan = RunPlan.of(config)
        if identity_of(plan.inputs, package_versions()) != identity:
            raise StoreError(
                "a worker sees other data, code, weights, packages or another kind of device than the process that "
                "began the run; give all machines the same files and versions, and name the device (extract.device)"
            )
        plan.warm_up()
        self._plan = plan

    def make(self, shard: Shard, *, means_sha256: str | None) -> Made:
        """Makes one shard; tables are compared with the mean gradients in the run folder that have this SHA-256."""
        plan = self._plan
        if plan is None:
            raise StoreError("this worker has not started")
        if means_sha256 is not None and self._means != means_sha256:
            plan.extractor.compare_with(read_means(plan.config.run, sha256=means_sha256))
            self._means = means_sha256
        digest = make_shard(plan, shard, on_batch=lambda _split, _samples: None)
        return Made(shard, digest, plan.extractor.notices)


def extract_with_ray(
    config: Config,
    options: RayOptions,
    *,
    out: Path | None = None,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> ExtractSummary:
    """Computes the feature tables of a run as `gradscore.pipeline.extract` does, by workers of a Ray cluster.

    Workers write into the run folder, which all machines must see; names, checksums and notices alone come back. The
    shard of a worker that is lost goes to another. A driver that was stopped goes on when it is started again.

    Args:
        config: the settings.
        options: where it is computed.
        out: the run folder, instead of `config.run`.
        trust_code: allow a `python:` model and augmentations, whose code is run.
        progress: told after every shard.

    Returns:
        A summary of the run.

    Raises:
        MissingExtraError: Ray is not installed.
        DistributedError: there is no such cluster, no worker could start, or a shard was lost again and again.
        GradscoreError: as `gradscore.pipeline.extract`.
    """
    ray = _import_ray()
    config = placed(config, out)
    with trusting_code(trust_code):
        plan = RunPlan.of(config)
        with closing(_RayMaker(ray, plan, options)) as maker:
            return complete_run(plan, maker, progress=progress)


class _RayMaker(Maker):
    """Has shards made by Ray actors. Nothing starts before it is needed."""

    def __init__(self, ray: ModuleType, plan: RunPlan, options: RayOptions) -> None:
        self._ray, self._plan, self._options = ray, plan, options
        self._pool: _Pool | None = None
        self._own = False
        self.notices: list[str] = []

    def mean_gradients(self, plan: RunPlan, *, on_batch: OnBatch) -> MeanGradients:
        missing = [shard for shard in sum_shards(plan) if not (plan.config.run / shard.file).is_file()]
        for made in self._made(missing, means_sha256=None):
            on_batch(FIT, plan.samples_of(FIT, [made.shard.number]))
        return add_up(plan)

    def shards(self, plan: RunPlan, split: str, numbers: Sequence[int], *, on_batch: OnBatch) -> None:
        shards = [Shard(split, number) for number in numbers]
        means = read_manifest(plan.config.run).get("mean_gradients_sha256")
        for made in self._made(shards, means_sha256=means):
            on_batch(split, plan.samples_of(split, [made.shard.number]))

    def close(self) -> None:
        """Lets go of the workers, and of Ray if it was started here."""
        if self._pool is not None:
            self._pool.close()
        if self._own:
            self._ray.shutdown()

    def _made(self, shards: Sequence[Shard], *, means_sha256: str | None) -> Iterator[Made]:
        if self._pool is None and shards:
            self._pool = self._started()
        for made in () if self._pool is None else self._pool.made(shards, means_sha256=means_sha256):
            _check_is_here(self._plan.config.run / made.shard.file, made.sha256)
            self.notices += [notice for notice in made.notices if notice not in self.notices]
            yield made

    def _started(self) -> _Pool:
        ray, options = self._ray, self._options
        if not ray.is_initialized():
            if options.address is not None:
                check_answers(options.address)
            own = {} if options.address else {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
            try:
                ray.init(address=options.address, log_to_driver=False, logging_level="ERROR", **own)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise DistributedError(
                    f"--address {options.address}: no Ray cluster can be reached there ({_first_line(error)}); start "
                    "one (ray start --head), or leave out --address for one on this machine"
                ) from None
            self._own = True
        gpus = options.gpus_per_worker
        if gpus is None:
            gpus = 1.0 if self._plan.extractor.device.type == "cuda" else 0.0
        there = ray.cluster_resources()
        count = options.workers or int(there.get("GPU", 0) / gpus if gpus else there.get("CPU", 1))
        actor = ray.remote(Worker).options(num_cpus=1, num_gpus=gpus)
        identity, trusted = identity_of(self._plan.inputs, package_versions()), is_code_trusted()

        def begin() -> tuple[Any, Any]:
            worker = actor.remote()
            return worker, worker.start.remote(self._plan.config, identity=identity, trust_code=trusted)

        return _Pool(ray, begin, count=max(count, 1))


class _Pool:
    """The workers of a run, each with one shard at a time; a lost one is replaced, and its shard goes to another."""

    def __init__(self, ray: ModuleType, begin: Callable[[], tuple[Any, Any]], *, count: int) -> None:
        self._ray, self._begin, self._count = ray, begin, count
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Shard]] = {}
        self._lost: Count[Shard] = Count()

    def made(self, shards: Sequence[Shard], *, means_sha256: str | None) -> Iterator[Made]:
        """Has shards made, and gives each when it is there."""
        waiting, alive = deque(shards), time.monotonic()
        while waiting or self._busy:
            self._replace()
            while waiting and self._idle:
                worker, shard = self._idle.pop(), waiting.popleft()
                self._busy[worker.make.remote(shard, means_sha256=means_sha256)] = worker, shard
            done, _ = self._ray.wait([*self._starting, *self._busy], num_returns=1, timeout=1.0)
            if self._idle or self._busy:
                alive = time.monotonic()
            elif not done and time.monotonic() - alive > _FRUITLESS:
                raise DistributedError(
                    f"Ray: no worker could start in {_FRUITLESS:.0f} seconds; wait until the cluster has a free CPU "
                    "(and what --gpus-per-worker asks for), then run the same command again"
                )
            for reference in done:
                yield from self._ended(reference, waiting)

    def close(self) -> None:
        """Ends all workers."""
        for worker in [*self._starting.values(), *self._idle, *(worker for worker, _ in self._busy.values())]:
            self._ray.kill(worker)

    def _replace(self) -> None:
        for _ in range(self._count - len(self._starting) - len(self._idle) - len(self._busy)):
            worker, started = self._begin()
            self._starting[started] = worker

    def _ended(self, reference: Any, waiting: deque[Shard]) -> Iterator[Made]:
        """Takes in what a worker has done, or that it is lost."""
        errors = self._ray.exceptions
        worker, shard = self._busy.pop(reference, None) or (self._starting.pop(reference), None)
        try:
            found = self._ray.get(reference)
        except errors.RayTaskError as error:
            self._ray.kill(worker)
            raise (error.cause if isinstance(error.cause, GradscoreError) else error) from None
        except errors.RayError as error:
            self._ray.kill(worker)
            self._note_loss(shard, error)
            if shard is not None:
                waiting.appendleft(shard)
            return
        self._idle.append(worker)
        if shard is not None:
            yield found

    def _note_loss(self, shard: Shard | None, error: Exception) -> None:
        where = Shard("", 0) if shard is None else shard
        self._lost[where] += 1
        if self._lost[where] >= ATTEMPTS * (1 if shard else self._count):
            what = "before they made any shard" if shard is None else f"over {shard.file}"
            raise DistributedError(
                f"Ray: {self._lost[where]} workers were lost {what} ({_first_line(error)}); out of memory? Run the "
                "same command again, with fewer workers (--num-workers) if it happens again"
            )


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
        raise DistributedError(
            f"--address {address}: no Ray cluster can be reached there ({_first_line(error)}); start one (ray start "
            "--head), or leave out --address for one on this machine"
        ) from None


def _check_is_here(path: Path, sha256: str) -> None:
    if not path.is_file():
        raise StoreError(
            f"{path}: a worker wrote it, and it is not here; give a run folder (for a run in object storage, "
            "GRADSCORE_CACHE) on a file system that all machines share"
        )
    if file_sha256(path) != sha256:
        raise StoreError(f"{path}: not what its worker wrote; delete it and run the same command again")


def _import_ray() -> ModuleType:
    if find_spec("ray") is None:
        raise MissingExtraError(
            "--engine ray: the package ray is not installed; run `pip install 'gradscore[ray]'` and the same command "
            "again"
        )
    import ray  # slow to import, and only needed here

    module: ModuleType = ray
    return module


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
