"""`gradscore demo`: how it ends, and, slow, all of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from commands import cli
from help_examples import EXAMPLES


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: cli("demo", *arguments)


def test_a_folder_that_is_there(demo: Callable[..., Result]) -> None:
    Path("demo").mkdir()
    found = demo()
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == "error: demo: it is there already; name a folder that is not, or remove it\n"


PLACES = {"an address": "s3://bucket/demo", "a dash in front": "-x"}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_place_that_later_commands_could_not_name(demo: Callable[..., Result], place: str) -> None:
    found = demo("--", place)
    assert (found.exit_code, found.stdout, list(Path().iterdir())) == (2, "", [])
    assert found.stderr.startswith(f"error: {place}: ")


def test_an_interrupt_leaves_nothing(demo: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_folder: Path) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("gradscore.demo.train", interrupted)
    found = demo()
    assert (found.exit_code, list(Path().iterdir())) == (130, [])
    assert found.stderr == "interrupted; demo was removed again; the same command starts anew\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder that the demo was run in, and what it said."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, cli("demo")


@pytest.mark.slow
def test_it_ends_with_what_to_use_and_what_to_type_next(whole: tuple[Path, Result]) -> None:
    folder, found = whole
    assert found.exit_code == 0, found.output
    *sentences, following = found.stdout.rpartition("not scored\n")[2].strip().splitlines()
    assert [line.split()[0] for line in sentences[:3]] == ["Chosen:", "With", "demo/scorer.gradscore:"]
    assert following.endswith("gradscore init FOLDER")
    assert (folder / "demo" / "run" / "evaluation" / "report.html").is_file()


@pytest.mark.slow
def test_there_is_something_to_decide(whole: tuple[Path, Result]) -> None:
    """Several hundred samples of each kind that scores are to find."""
    records = json.loads((whole[0] / "demo" / "run" / "evaluation" / "metrics.json").read_text())
    found = {each["dataset"]: each["n_positive"] for each in records if each["metric"] == "auroc"}
    assert min(found["in_dist.test"], found["bags_and_boots"], found["digits"]) >= 200


@pytest.fixture(scope="module")
def smaller(whole: tuple[Path, Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of that folder with thirty images of each kind, so that what computes a run anew does it soon."""
    folder = tmp_path_factory.mktemp("smaller")
    shutil.copytree(whole[0] / "demo", folder / "demo")
    for kind in (folder / "demo" / "images").glob("*/*/"):
        for image in sorted(kind.glob("*.png"))[30:]:
            image.unlink()
    return folder


ANEW = {"extract", "merge", "check", "compare"}
"""Commands whose examples compute a run anew."""


@pytest.mark.slow
@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_of_help_work_after_it(
    whole: tuple[Path, Result], smaller: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(smaller if command in ANEW else whole[0])
    ended = [cli(*words[1:]) for words in EXAMPLES[command]]
    assert [each.exit_code for each in ended] == [0] * len(ended), [each.output for each in ended]
