import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from commands import cli
from typer.testing import CliRunner

from gradscore.errors import GradscoreError, StoreError
from gradscore_cli.main import app

COMMANDS = {"the program": [], "extract": ["extract"]}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_help_is_the_same_by_both_options_and_shows_an_example(command: list[str]) -> None:
    short, long = (cli(*command, option) for option in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert f": gradscore {' '.join(command)}" in long.stdout


def test_version() -> None:
    result = cli("--version")
    assert (result.exit_code, result.stdout) == (0, f"gradscore {version('gradscore')}\n")


LIGHT = {
    "help": ["--help"],
    "help of score": ["score", "--help"],
    "wrong usage": ["extract"],
}
HEAVY = ["torch", "numpy", "pandas", "sklearn", "PIL"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", LIGHT.values(), ids=LIGHT)
def test_help_waits_for_no_library(arguments: list[str]) -> None:
    code = f"""
import sys
from gradscore_cli.main import app
try:
    app({arguments!r})
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_shell_completion() -> None:
    environment = os.environ | {"_GRADSCORE_COMPLETE": "complete_bash", "COMP_WORDS": "gradscore ex", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "gradscore_cli"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["extract"], done.stderr


MODULES = ["gradscore", "gradscore_cli"]


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_python_dash_m(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", module, "--version"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("gradscore ")


ENDS = {
    "unusable input": (StoreError("what and where"), 2, "error: what and where\n"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "interrupted; run the same command again\n"),
    "no permission": (
        PermissionError(13, "Permission denied", "/data"),
        2,
        "error: /data: Permission denied; check the path, its permissions and the disk\n",
    ),
    "full disk": (
        OSError(28, "No space left on device"),
        2,
        "error: No space left on device; check the path, its permissions and the disk\n",
    ),
}


@pytest.mark.parametrize(("error", "code", "message"), ENDS.values(), ids=ENDS)
def test_errors_become_messages_and_exit_codes(error: GradscoreError, code: int, message: str) -> None:
    failing = typer.Typer(cls=app.info.cls)

    @failing.command("fail")
    def fail() -> None:
        raise error

    @failing.callback()
    def group() -> None:
        pass

    result = CliRunner().invoke(failing, ["fail"])
    assert (result.exit_code, result.stderr) == (code, message)


def test_a_bug_is_said_and_its_traceback_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def surprise(*_arguments: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("gradscore.store.RunFolder", surprise)
    result = cli("fit-meta", "run")
    (written,) = tmp_path.glob("gradscore-*.txt")
    assert result.exit_code == 70
    assert "internal error: ZeroDivisionError: by nothing\nthis is a bug" in result.stderr
    assert str(written) in result.stderr
    assert "Traceback" not in result.stderr
    assert "in surprise" in written.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["", "extract"], ids=lambda name: name or "all")
def test_a_reader_that_has_seen_enough_is_no_error(command: str) -> None:
    script = f"{sys.executable} -m gradscore_cli {command} --help | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_reader_that_is_gone_is_no_error() -> None:
    command = [sys.executable, "-m", "gradscore_cli", "docs"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("is_json", [True, False])
def test_a_command_without_a_reader_ends_with_its_own_code(small_run: Path, tmp_path: Path, is_json: bool) -> None:
    run = shutil.copytree(small_run, tmp_path / "run")
    (run / "evaluation" / "metrics.csv").write_text("damaged")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "gradscore_cli", "verify", str(run), *(["--json"] if is_json else [])]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, "Error" in done.stderr) == (2, False)


@pytest.mark.slow
def test_a_closed_standard_output_is_no_error() -> None:
    script = f"{sys.executable} -m gradscore_cli docs >&-"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_without_colours(small_run: Path) -> None:
    command = [sys.executable, "-m", "gradscore_cli", "verify", str(small_run)]
    plain = os.environ | {"NO_COLOR": "1", "FORCE_COLOR": "1"}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=True)
    assert "\x1b[3" not in done.stdout


INTERRUPTED_WHILE_LOADING = """
import sys
from importlib.abc import MetaPathFinder

class Interrupts(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "gradscore_cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from gradscore_cli.entry import main
main()
"""


@pytest.mark.slow
def test_interrupted_while_the_command_line_loads() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED_WHILE_LOADING], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "interrupted; run the same command again\n")
