"""A run by Ray actors against the same run in one process: values and manifest, lost workers, nodes and drivers.

Not collected by default, since it needs the extra `ray` (227 MB) and starts clusters: `make ray-test`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_runs import content, settings

from gradscore.config import Config, dump_config
from gradscore.distributed import RayOptions, extract_with_ray
from gradscore.errors import DataError
from gradscore.models import trusting_code
from gradscore.pipeline import extract
from gradscore.store import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, which come and go with its versions

KILLED_DRIVER = """
import os, signal, sys
from pathlib import Path
from gradscore.config import load_config
from gradscore.distributed import RayOptions, extract_with_ray
from gradscore.models import trusting_code

def end_midway(split, done, total):
    if split == "in_dist.bank":
        os.kill(os.getpid(), signal.SIGKILL)

with trusting_code():
    options = RayOptions(address=sys.argv[2], workers=1)
    extract_with_ray(load_config(Path(sys.argv[1])), options, progress=end_midway)
"""


@pytest.fixture(autouse=True)
def trusting() -> Iterator[None]:
    """The code of the models is the tests' own."""
    with trusting_code():
        yield


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As many threads as Ray gives a worker with one processor: sums are the same only then."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray of its own on this machine, with one node of three processors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        from ray.cluster_utils import Cluster

        small = {"object_store_memory": 80_000_000, "include_dashboard": False}
        found = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, **small})
        yield found
        found.shutdown()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return settings(tmp_path_factory.mktemp("ray"))


@pytest.fixture(scope="module")
def local(config: Config) -> Path:
    return extract(config, out=config.run.parent / "local", trust_code=True).run


def kill_one(config: Config) -> None:
    (config.run.parent / "kill-one").touch()


def leave_all(config: Config) -> None:
    pass


CASES: dict[str, tuple[int, Callable[[Config], None]]] = {
    "one worker": (1, leave_all),
    "two workers, one killed midway": (2, kill_one),
    "three workers": (3, leave_all),
}


@pytest.mark.parametrize(("workers", "disturb"), CASES.values(), ids=CASES)
def test_the_run_is_that_of_one_process(
    cluster: Any, config: Config, local: Path, tmp_path: Path, workers: int, disturb: Callable[[Config], None]
) -> None:
    disturb(config)
    options = RayOptions(address=cluster.address, workers=workers)
    summary = extract_with_ray(config, options, out=tmp_path / "run")
    assert content(tmp_path / "run") == content(local)
    assert [split.samples for split in summary.splits] == [30, 20, 48, 9]
    assert not (config.run.parent / "kill-one").exists()


def test_a_node_is_removed_during_the_run(cluster: Any, config: Config, local: Path, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=3, object_store_memory=80_000_000)
    nodes = [node]

    def remove(split: str, _done: int, _total: int) -> None:
        _ = [cluster.remove_node(each) for each in nodes if split == "in_dist.test"]
        del nodes[: split == "in_dist.test"]

    options = RayOptions(address=cluster.address, workers=4)
    extract_with_ray(config, options, out=tmp_path / "run", progress=remove)
    assert nodes == []
    assert content(tmp_path / "run") == content(local)


def test_a_killed_driver_goes_on(cluster: Any, config: Config, local: Path, tmp_path: Path) -> None:
    config = config.model_copy(update={"run": tmp_path / "run"})
    (tmp_path / "config.yaml").write_text(dump_config(config))
    command = [sys.executable, "-c", KILLED_DRIVER, str(tmp_path / "config.yaml"), cluster.address]
    assert subprocess.run(command, env=os.environ, check=False).returncode == -9
    assert not RunFolder(tmp_path / "run").manifest.finished
    options = RayOptions(address=cluster.address, workers=1)
    summary = extract_with_ray(config, options)
    assert [split.computed for split in summary.splits[:2]] == [0, 0]
    assert content(tmp_path / "run") == content(local)
    assert extract_with_ray(config, options).was_complete


def test_what_goes_wrong_at_a_worker_comes_back_as_it_is(cluster: Any, tmp_path: Path) -> None:
    config = settings(tmp_path)
    images = tmp_path / "images" / "0"
    images.mkdir(parents=True)
    (images / "a.png").write_bytes(b"no image")
    source = {"source": f"folder:{tmp_path}/images", "name": "broken"}
    given = config.model_dump(mode="json")
    broken = Config.model_validate(given | {"data": given["data"] | {"ood": [source]}})
    with pytest.raises(DataError, match=r"split ood.broken, sample .*a\.png"):
        extract_with_ray(broken, RayOptions(address=cluster.address, workers=1))
