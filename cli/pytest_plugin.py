"""A fixture for pytest: `def test_model(gradscore_check): gradscore_check()`.

Configuration and expected come from the call, the command line (`--gradscore-config`, `--gradscore-expected`) or the
settings `gradscore_config` and `gradscore_expected`; relative paths are relative to pytest's root folder.

It is not in the package `gradscore`, whose import takes a second that every pytest session would wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gradscore.check import CheckReport

_SETTINGS = {
    "config": "the configuration that gradscore_check runs, or a run folder",
    "expected": "the expected figures it is compared with",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options and settings."""
    group = parser.getgroup("gradscore")
    for name, text in _SETTINGS.items():
        group.addoption(f"--gradscore-{name}", metavar="PATH", help=text)
        parser.addini(f"gradscore_{name}", text)


@dataclass(frozen=True)
class Checker:
    """What the fixture gives; call it."""

    config: pytest.Config

    def __call__(
        self,
        config: str | Path | None = None,
        expected: str | Path | None = None,
        *,
        margins: Mapping[str, float] | None = None,
        trust_code: bool = False,
        allow_inconclusive: bool = False,
    ) -> CheckReport:
        """Extracts what is missing, evaluates, and fails the test if the outcome does not pass.

        Args:
            config: the configuration; or a run folder, which must be of its model and data as they are now.
            expected: the expected figures.
            margins: margins other than those of the expected figures, by name.
            trust_code: allow a `python:` model, data and augmentations of the configuration, whose code is run.
            allow_inconclusive: accept that the samples cannot tell.

        Returns:
            The report.

        Raises:
            GradscoreError: input that cannot be used.
        """
        # These import PyTorch, which pytest need not wait for.
        import typer
        from typer.core import TyperCommand

        from gradscore.check import Policy, check_run, read_expected
        from gradscore.models import trusting_code
        from gradscore.store import RunFolder

        from .output import Output
        from .run import completed

        known = read_expected(self._place("expected", expected))
        policy = Policy.model_validate({**known.policy.model_dump(), **(margins or {})})
        place = self._place("config", config)
        if place.is_dir():
            report = check_run(RunFolder(place), known, policy=policy)
        else:
            output = Output(as_json=False, quiet=True)
            context = typer.Context(TyperCommand("check"))
            with context, trusting_code(trust_code):
                summary, _, _ = completed(context, output, place, [], check_kept=True)
                report = check_run(RunFolder(summary.run), known, policy=policy, sources="extracted")
        if report.status == "fail" or (report.status == "inconclusive" and not allow_inconclusive):
            pytest.fail("\n".join([report.summary, *report.problems]), pytrace=False)
        return report

    def _place(self, name: str, given: str | Path | None) -> Path:
        found = given or self.config.getoption(f"gradscore_{name}") or self.config.getini(f"gradscore_{name}")
        if not found:
            raise pytest.UsageError(
                f"gradscore_check: no {name}; give --gradscore-{name}, set gradscore_{name}, or pass it to the call"
            )
        return self.config.rootpath / str(found)


@pytest.fixture
def gradscore_check(request: pytest.FixtureRequest) -> Checker:
    """Compares a model with expected figures: `gradscore_check()`, or `gradscore_check(config, expected)`."""
    return Checker(request.config)
