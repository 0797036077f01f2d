import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from distributed_runs import settings

from gradscore.distributed import RayOptions, extract_with_ray
from gradscore.distributed.ray_engine import Job, check_answers, make_for, opened
from gradscore.distributed.shares import Shard
from gradscore.errors import DistributedError, MissingExtraError, StoreError
from gradscore.models import trusting_code
from gradscore.pipeline import RunPlan
from gradscore.system import file_sha256


@pytest.fixture(autouse=True)
def trusting() -> Iterator[None]:
    """The code of the models is the tests' own."""
    with trusting_code():
        yield


def test_ray_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscore.distributed.ray_engine.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"--ray: the package ray is not installed"):
        extract_with_ray(settings(tmp_path), RayOptions())


UNREACHABLE = {"address": "127.0.0.1:{}", "client": "ray://127.0.0.1:{}", "in brackets": "[::1]:{}"}


@pytest.mark.parametrize("form", UNREACHABLE.values(), ids=UNREACHABLE)
def test_nothing_listens_at_the_address_of_a_cluster(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = form.format(free.getsockname()[1] if "127" in form else 9)
    with pytest.raises(DistributedError, match="no Ray cluster can be reached there"):
        check_answers(address)


def test_what_listens_is_left_to_ray() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        check_answers(f"127.0.0.1:{listening.getsockname()[1]}")
    check_answers("auto")


def test_a_worker_makes_the_shards_of_a_run(tmp_path: Path) -> None:
    with trusting_code():
        plan = RunPlan.of(settings(tmp_path))
        job = Job.of(plan)
    digest, _ = make_for(job, Shard("ood.noise", 0))
    assert digest == file_sha256(plan.config.run / "features/ood.noise/part-00000.parquet")


def test_a_worker_that_sees_other_code_is_refused(tmp_path: Path) -> None:
    with trusting_code():
        job = Job.of(RunPlan.of(settings(tmp_path)))
    with (tmp_path / "net.py").open("a") as code:
        code.write("\nOTHER = 1\n")
    with pytest.raises(StoreError, match="a worker sees other data, code, weights"):
        opened(job)


def test_workers_trust_code_where_the_caller_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command does, which says so once for all it calls."""
    jobs: list[Job] = []
    monkeypatch.setattr("gradscore.distributed.ray_engine.find_spec", lambda name: name)
    monkeypatch.setattr(
        "gradscore.distributed.ray_engine.complete_run",
        lambda _plan, make_shards, **_: jobs.append(make_shards.__self__._job),
    )
    extract_with_ray(settings(tmp_path), RayOptions())
    assert [job.trust_code for job in jobs] == [True]


def test_a_ray_of_its_own_joins_no_cluster_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray goes to RAY_ADDRESS where it is given no address, and starts one on this machine for `local`."""
    given: list[str | None] = []

    def init(*, address: str | None = None, **_: object) -> None:
        given.append(address)
        raise ConnectionError("enough")

    ray = ModuleType("ray")
    ray.__dict__.update(init=init, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("gradscore.distributed.ray_engine.find_spec", lambda name: name)
    with pytest.raises(DistributedError, match="--ray local: "):
        extract_with_ray(settings(tmp_path), RayOptions())
    assert given == ["local"]
