"""The fixture `gradscore_check` in a test suite of somebody else."""

import json
from pathlib import Path

import pytest

from gradscore.deployment.guard.baseline import Policy, make_baseline, write_baseline
from gradscore.errors import BaselineError
from gradscore.store.run_folder import RunFolder
from gradscore_cli.pytest_plugin import Checker


@pytest.fixture
def baseline(small_run: Path, tmp_path: Path) -> Path:
    path = tmp_path / "baseline.json"
    write_baseline(path, make_baseline(RunFolder(small_run), Policy(accuracy=0.1, auroc=0.2, detection=0.4)))
    return path


def test_is_there_without_an_import(gradscore_check) -> None:
    assert isinstance(gradscore_check, Checker)


def test_passes(gradscore_check, small_run, baseline) -> None:
    assert gradscore_check(small_run, baseline).status == "pass"


def spoil(baseline: Path) -> None:
    text = baseline.read_text()
    start = text.index('"correct": "') + len('"correct": "')
    stop = text.index('"', start)
    baseline.write_text(text[:start] + "1" * (stop - start - 2) + "00" + text[stop:])


def test_a_regression_fails_the_test(gradscore_check, small_run, baseline) -> None:
    spoil(baseline)
    with pytest.raises(pytest.fail.Exception, match=r"accuracy of the classifier: .* a drop of more than 0\.1"):
        gradscore_check(small_run, baseline)


INCONCLUSIVE = {"accuracy": 0.0, "false_alarm": 0.0, "detection": 0.0}


def test_inconclusive_fails_unless_allowed(gradscore_check, small_run, baseline) -> None:
    content = json.loads(baseline.read_text())
    content["model"]["weights_sha256"] = "of another model"  # what did not change passes with any margin
    baseline.write_text(json.dumps(content))
    with pytest.raises(pytest.fail.Exception, match="cannot tell"):
        gradscore_check(small_run, baseline, margins=INCONCLUSIVE)
    report = gradscore_check(small_run, baseline, margins=INCONCLUSIVE, allow_inconclusive=True)
    assert report.status == "inconclusive"


def test_a_configuration_is_run(gradscore_check, make_run, baseline) -> None:
    """The run that is there is of other weights; the configuration is run in its place."""
    run = make_run(steps=0, evaluate=False)
    with pytest.raises(pytest.fail.Exception, match="accuracy of the classifier"):
        gradscore_check(run / "config.yaml", baseline, trust_code=True)


def test_paths_are_needed(gradscore_check) -> None:
    with pytest.raises(pytest.UsageError, match="gradscore_check: no baseline; give --gradscore-baseline"):
        gradscore_check()


def test_unusable_input_is_an_error(gradscore_check, small_run, tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="there is no baseline"):
        gradscore_check(small_run, tmp_path / "nothing.json")
