"""A run in shares against the same run in one process: values, manifest, interruption, and what is refused."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from distributed_runs import content, settings

from gradscore.config import Config, dump_config, parse_config
from gradscore.distributed import Share, extract_share, merge
from gradscore.errors import ConfigError, StoreError
from gradscore.models import trusting_code
from gradscore.pipeline import extract
from gradscore.store import RunFolder, RunWriter, verify_run

pytestmark = pytest.mark.slow

MAKE_SHARE = """
import sys
from pathlib import Path
from gradscore.config import load_config
from gradscore.distributed import Share, extract_share
from gradscore.models import trusting_code
with trusting_code():
    extract_share(load_config(Path(sys.argv[1])), Share.parsed(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def trusting() -> Iterator[None]:
    """The code of the models is the tests' own."""
    with trusting_code():
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return settings(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def local(config: Config) -> Path:
    return extract(config, out=config.run.parent / "local", trust_code=True).run


def in_shares(config: Config, out: Path, shares: Sequence[str]) -> list[Any]:
    return [extract_share(config, Share.parsed(name), out=out) for name in shares]


SHARES = {
    "one": ["0/1"],
    "in another order": ["2/3", "0/3", "1/3"],
    "more than there are shards": [f"{index}/12" for index in range(12)],
    "some twice, cut differently": ["0/2", "1/2", "1/3"],
}


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
def test_merged_shares_are_the_run_of_one_process(
    config: Config, local: Path, tmp_path: Path, shares: list[str]
) -> None:
    in_shares(config, tmp_path / "run", shares)
    assert not RunFolder(tmp_path / "run").manifest.finished
    summary = merge(tmp_path / "run")
    assert content(tmp_path / "run") == content(local)
    assert verify_run(tmp_path / "run").not_recorded == []
    assert [split.samples for split in summary.splits] == [30, 20, 48, 9]


@pytest.mark.parametrize("is_there", [False, True], ids=["lost", "damaged"])
def test_a_last_layer_is_written_anew_until_the_run_is_finished(config: Config, tmp_path: Path, is_there: bool) -> None:
    config = parse_config(dump_config(config), where="test", overrides=["features.penultimate=true"])
    in_shares(config, tmp_path / "run", ["0/1"])
    head = tmp_path / "run/head.safetensors"
    content = head.read_bytes()
    head.unlink()
    if is_there:
        head.write_bytes(content[:-1] + bytes([content[-1] ^ 64]))
    merge(tmp_path / "run")
    assert head.read_bytes() == content


def in_folders(tmp_path: Path, *configs: Config) -> Path:
    """A share of each configuration in a folder of its own, as on a machine of its own, copied into one folder."""
    for index, each in enumerate(configs):
        in_shares(each, tmp_path / str(index), [f"{index}/{len(configs)}"])
        shutil.copytree(tmp_path / str(index), tmp_path / "run", dirs_exist_ok=True)
    return tmp_path / "run"


def test_shares_copied_from_folders_of_their_own(config: Config, local: Path, tmp_path: Path) -> None:
    run = in_folders(tmp_path, config, config)
    merge(run)
    assert content(run) == content(local)


COPIED = {"other inputs": "extract.part_size=9", "other settings": "meta.seed=3"}


@pytest.mark.parametrize("setting", COPIED.values(), ids=COPIED)
def test_copied_shares_that_do_not_belong_together_are_refused(config: Config, tmp_path: Path, setting: str) -> None:
    run = in_folders(tmp_path, config, with_setting(config, setting))
    with pytest.raises(StoreError, match=r"share-0-of-2\.json: this share was made from other inputs"):
        merge(run)
    assert not RunFolder(run).manifest.finished


def test_processes_at_once_of_which_one_is_killed(config: Config, local: Path, tmp_path: Path) -> None:
    config = config.model_copy(update={"run": tmp_path / "run"})
    (tmp_path / "config.yaml").write_text(dump_config(config))
    command = [sys.executable, "-c", MAKE_SHARE, str(tmp_path / "config.yaml")]
    killed = subprocess.Popen([*command, "0/2"], env=os.environ | {"GRADSCORE_TEST_KILL_AT": "15"})
    other = subprocess.Popen([*command, "1/2"])
    assert (killed.wait(), other.wait()) == (-9, 0)
    with pytest.raises(StoreError, match=r"(is|are) missing"):
        merge(tmp_path / "run")
    again = extract_share(config, Share(0, 2))
    assert 0 < again.computed < 30 + 48
    merge(tmp_path / "run")
    assert content(tmp_path / "run") == content(local)


def test_a_finished_run_is_left_alone(config: Config, tmp_path: Path) -> None:
    in_shares(config, tmp_path / "run", ["0/1"])
    merge(tmp_path / "run")
    assert in_shares(config, tmp_path / "run", ["0/2"])[0].was_complete
    assert merge(tmp_path / "run").was_complete


def test_what_a_finished_run_lost_is_named(config: Config, local: Path, tmp_path: Path) -> None:
    shutil.copytree(local, tmp_path / "run")
    (tmp_path / "run/features/ood.noise/part-00000.parquet").unlink()
    with pytest.raises(
        StoreError, match=r"was finished, and features/ood\.noise/part-00000\.parquet went missing since"
    ):
        merge(tmp_path / "run")
    extract(config, out=tmp_path / "run", trust_code=True)
    assert content(tmp_path / "run") == content(local)


def lose(run: Path) -> None:
    (run / "features/ood.noise/part-00000.parquet").unlink()


def bring_another(run: Path) -> None:
    shutil.copy(run / "features/ood.noise/part-00000.parquet", run / "features/ood.noise/part-00001.parquet")


def replace(run: Path) -> None:
    shutil.copy(run / "features/in_dist.fit/part-00000.parquet", run / "features/in_dist.fit/part-00001.parquet")


def change_identity(run: Path) -> None:
    path = run / "partial/share-1-of-2.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"identity": "of another run"}))


def name_another_file(run: Path) -> None:
    path = run / "partial/share-1-of-2.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": {"features/../../mine.py": "ab"}}))


REFUSED = {
    "a shard is missing": (lose, "1 shard is missing: features/ood.noise/part-00000.parquet"),
    "a share is missing": (
        lambda run: (run / "partial/share-1-of-2.json").unlink(),
        "in no share's record; restore the record in {run}/partial (nothing there is of share 1/2), or remove",
    ),
    "a shard too many": (bring_another, "features/ood.noise/part-00001.parquet: in no share's record"),
    "a shard of something else": (replace, "in_dist.fit/part-00001.parquet: not what --share 1/2 wrote"),
    "a share of another run": (change_identity, "share-1-of-2.json: this share was made from other inputs"),
    "a damaged share": (lambda run: (run / "partial/share-1-of-2.json").write_text("{"), "2.json: damaged (Invalid"),
    "a file that is no shard": (name_another_file, "share-1-of-2.json: damaged (files.features/../../mine.py.[key]: "),
}


@pytest.mark.parametrize(("damage", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_belong_together_is_refused(config: Config, tmp_path: Path, damage: Any, message: str) -> None:
    in_shares(config, tmp_path / "run", ["0/2", "1/2"])
    damage(tmp_path / "run")
    with pytest.raises(StoreError, match=re.escape(message.replace("{run}", str(tmp_path / "run")))):
        merge(tmp_path / "run")
    assert not RunFolder(tmp_path / "run").manifest.finished


def test_shares_of_other_inputs_are_refused(config: Config, tmp_path: Path) -> None:
    in_shares(config, tmp_path / "run", ["0/2"])
    other = config.model_copy(update={"extract": config.extract.model_copy(update={"part_size": 9})})
    with pytest.raises(StoreError, match=r"extract.part_size was 18, is now 9"):
        in_shares(other, tmp_path / "run", ["1/2"])


OTHER_SETTINGS = {
    "a seed of fits": ("meta.seed=3", "meta.seed was 0, is now 3"),
    "what near duplicates do": ("evaluate.near_duplicates=ignore", 'near_duplicates was "report", is now "ignore"'),
    "an auxiliary set": ("data.ood.0.auxiliary=true", "data.ood.0.auxiliary was false, is now true"),
}


def test_settings_left_to_gradscore_are_the_same_in_every_share(config: Config, tmp_path: Path) -> None:
    automatic = parse_config(
        dump_config(config), where="test", overrides=["data.auxiliary=auto", "features.penultimate=auto"]
    )
    whole = extract(automatic, out=tmp_path / "whole", trust_code=True).run
    in_shares(automatic, tmp_path / "run", ["0/2", "1/2"])
    merge(tmp_path / "run")
    assert RunFolder(whole).config.features.penultimate is True
    assert content(tmp_path / "run") == content(whole)


def with_setting(config: Config, setting: str) -> Config:
    return parse_config(dump_config(config), where="test", overrides=[setting])


@pytest.mark.parametrize(("setting", "difference"), OTHER_SETTINGS.values(), ids=OTHER_SETTINGS)
def test_a_share_with_other_settings_is_refused(config: Config, tmp_path: Path, setting: str, difference: str) -> None:
    in_shares(config, tmp_path / "run", ["0/2"])
    before = content(tmp_path / "run")
    with pytest.raises(StoreError, match=rf"run: .*{re.escape(difference)}.*give all shares the settings"):
        in_shares(with_setting(config, setting), tmp_path / "run", ["1/2"])
    assert content(tmp_path / "run") == before


def test_a_share_says_its_settings_itself(config: Config, tmp_path: Path) -> None:
    """Where another `config.yaml` took the place of its own, as at an address, the settings of a share are known."""
    in_shares(config, tmp_path / "run", ["0/2", "1/2"])
    (tmp_path / "run/config.yaml").write_text(dump_config(with_setting(config, "meta.seed=3")))
    with pytest.raises(StoreError, match=r"share-0-of-2\.json: this share was made from other inputs"):
        merge(tmp_path / "run")


def test_where_things_lie_and_how_fast_they_go_may_differ(config: Config, local: Path, tmp_path: Path) -> None:
    harmless = ["extract.workers=1", "model.prefix=net.", "run=x"]
    in_shares(config, tmp_path / "run", ["0/2"])
    in_shares(parse_config(dump_config(config), where="test", overrides=harmless), tmp_path / "run", ["1/2"])
    merge(tmp_path / "run")
    assert content(tmp_path / "run") == content(local)


def test_a_share_of_a_finished_run_with_other_settings_is_refused(config: Config, local: Path) -> None:
    with pytest.raises(StoreError, match=r"meta\.seed was 0, is now 3"):
        in_shares(with_setting(config, "meta.seed=3"), local, ["0/2"])


@pytest.mark.parametrize(
    "step", ["gradscore.store.manifest.Manifest.write", "gradscore.store.run_folder.shutil.rmtree"]
)
def test_a_merge_that_is_killed_at_its_end(
    config: Config, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Either what shares say is still there, or the run is finished; the same command ends well after both."""
    in_shares(config, tmp_path / "run", ["0/2", "1/2"])
    killed = RunWriter.finish

    def finish(writer: RunWriter, **entries: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(step, Mock(side_effect=KeyboardInterrupt))
            killed(writer, **entries)

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "finish", finish)
        with pytest.raises(KeyboardInterrupt):
            merge(tmp_path / "run")
    merge(tmp_path / "run")
    assert content(tmp_path / "run") == content(local)


NO_SHARES = {
    "one too many": "4/4",
    "no number": "a/b",
    "none": "0/0",
    "too many": "0/1000000000000",
}


@pytest.mark.parametrize("text", NO_SHARES.values(), ids=NO_SHARES)
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--share {text}: wanted i/n with i from 0 to n - 1"):
        Share.parsed(text)
