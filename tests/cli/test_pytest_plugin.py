"""The fixture `gradscore_check` in a test suite of somebody else."""

import json
from pathlib import Path

import pytest

from gradscore.check import Policy, make_expected, write_expected
from gradscore.errors import ExpectedFiguresError
from gradscore.store import RunFolder
from gradscore_cli.pytest_plugin import Checker


@pytest.fixture
def expected(small_run: Path, tmp_path: Path) -> Path:
    path = tmp_path / "expected.json"
    write_expected(path, make_expected(RunFolder(small_run), Policy(accuracy=0.1, auroc=0.2, detection=0.4)))
    return path


def test_is_there_without_an_import(gradscore_check) -> None:
    assert isinstance(gradscore_check, Checker)


def test_passes(gradscore_check, small_run, expected) -> None:
    assert gradscore_check(small_run, expected).status == "pass"


def spoil(expected: Path) -> None:
    text = expected.read_text()
    start = text.index('"correct": "') + len('"correct": "')
    stop = text.index('"', start)
    expected.write_text(text[:start] + "1" * (stop - start - 2) + "00" + text[stop:])


def test_a_regression_fails_the_test(gradscore_check, small_run, expected) -> None:
    spoil(expected)
    with pytest.raises(pytest.fail.Exception, match=r"accuracy of the classifier: .* a drop of more than 0\.1"):
        gradscore_check(small_run, expected)


INCONCLUSIVE = {"accuracy": 0.0, "false_alarm": 0.0, "detection": 0.0}


def test_inconclusive_fails_unless_allowed(gradscore_check, small_run, expected) -> None:
    content = json.loads(expected.read_text())
    content["model"]["weights_sha256"] = "of another model"  # what did not change passes with any margin
    expected.write_text(json.dumps(content))
    with pytest.raises(pytest.fail.Exception, match="cannot tell"):
        gradscore_check(small_run, expected, margins=INCONCLUSIVE)
    report = gradscore_check(small_run, expected, margins=INCONCLUSIVE, allow_inconclusive=True)
    assert report.status == "inconclusive"


def test_a_configuration_is_run(gradscore_check, make_run, expected) -> None:
    """The run that is there is of other weights; the configuration is run in its place."""
    run = make_run(steps=0, evaluate=False)
    with pytest.raises(pytest.fail.Exception, match="accuracy of the classifier"):
        gradscore_check(run / "config.yaml", expected, trust_code=True)


def test_paths_are_needed(gradscore_check) -> None:
    with pytest.raises(pytest.UsageError, match="gradscore_check: no expected; give --gradscore-expected"):
        gradscore_check()


def test_unusable_input_is_an_error(gradscore_check, small_run, tmp_path: Path) -> None:
    with pytest.raises(ExpectedFiguresError, match="there are no expected figures"):
        gradscore_check(small_run, tmp_path / "nothing.json")
