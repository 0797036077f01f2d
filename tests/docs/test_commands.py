"""The manual says of commands what `--help` says, and every command in the documentation can be typed as it stands."""

import json
import re
import subprocess
import sys
import tomllib

import pytest
import typer
from commands import cli
from manual_pages import PAGES, ROOT, blocks_of, commands_in, manual_tables
from packaging.requirements import Requirement

from gradscore_cli.main import app

GROUP = typer.main.get_command(app)
SECTION = re.compile(r"^## gradscore (.*?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
SECTIONS = dict(SECTION.findall(manual_tables().commands_in_full()))

SHELL = {
    "check.md": {"git"},  # run by test_check_page.py
    "service.md": {"curl"},  # test_service.py asks the same without it: not every machine has it
    "tutorial-images.md": {"sed"},  # run by test_tutorials.py
}
"""By page, other programs that its commands call, and what runs them."""

STARTED = "serve.py"
"""A script that a page has its reader write, started by test_service.py."""

TYPED = [
    (page, words) for page in PAGES for block in blocks_of(page, "sh", "bash") for words in commands_in(block.text)
]


def of_program(name: str, *, but: str = "") -> dict[str, list[str]]:
    """What is given to a program, by the line that calls it."""
    return {" ".join(words): words[1:] for _, words in TYPED if words[0] == name and words[1] != but}


GRADSCORE, SCRIPTS = of_program("gradscore"), of_program("python", but=STARTED)
REQUIREMENTS = {line: given[-1] for line, given in of_program("pip").items()}
INLINE = re.compile(
    r"(?<!`)`(?:[A-Z_]+=\S+ )?((?:gradscore (?=[a-z-])|make |python (?=benchmarks|data_scripts))[^`\n]+)`"
)
SAID = sorted({found for path in PAGES.values() for found in INLINE.findall(path.read_text())})
"""Commands in running text; they may lack arguments."""

TARGETS = sorted({words.split()[1] for words in [*SAID, *of_program("make")] if words.startswith("make ")})

PARSE = """
import argparse, json, runpy, sys
from pathlib import Path


class Parsed(BaseException):
    pass


def parse(parser, *given, **named):
    parse_args(parser, *given, **named)
    raise Parsed


def ended(words):
    sys.argv = words
    sys.path[0] = str(Path(words[0]).parent)
    try:
        runpy.run_path(words[0], run_name="__main__")
    except Parsed:
        return "parsed"
    except SystemExit as end:
        return f"refused: {end.code}"
    return "ran"


parse_args, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, parse
print(json.dumps({line: ended(words) for line, words in json.loads(sys.argv[1]).items()}))
"""
"""Starts scripts, and stops each when its own parser has accepted its options."""


def options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


def listed(group) -> list[str]:
    """The names of all commands, those of groups below them included."""
    names = [
        [f"{name} {below}" for below in command.commands] if hasattr(command, "commands") else [name]
        for name, command in group.commands.items()
    ]
    return [each for some in names for each in some]


def test_every_command_has_a_section() -> None:
    assert list(SECTIONS) == listed(GROUP)


@pytest.mark.parametrize("name", SECTIONS)
def test_section_has_the_options_of_help(name: str) -> None:
    said = cli(*name.split(), "--help", COLUMNS="200", NO_COLOR="1").stdout
    panel = "\n".join(re.findall(r"^│ +(?:\* +)?(--.*?)(?:  .*)?$", said, re.MULTILINE))
    rows = "\n".join(re.findall(r"^\| `(.*?)` \|", SECTIONS[name], re.MULTILINE))
    assert options(rows) == options(panel) - {"--help"}


@pytest.mark.parametrize("given", GRADSCORE.values(), ids=GRADSCORE)
def test_command_in_the_documentation_can_be_typed(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Options and arguments are those that the command has; the files need not be there."""
    monkeypatch.setattr("gradscore_cli.options._is_address", lambda _: False)  # nor the bucket
    assert parsed(GROUP, given).params


def parsed(group, words: list[str]):
    """The context of a command with its arguments, not run."""
    command = group.commands[words[0]]
    if hasattr(command, "commands"):
        return parsed(command, words[1:])
    return command.make_context(words[0], list(words[1:]), resilient_parsing=False)


@pytest.mark.slow
def test_scripts_take_the_options_of_the_documentation() -> None:
    program = [sys.executable, "-c", PARSE, json.dumps(SCRIPTS)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(SCRIPTS, "parsed"), done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_target_is_in_the_makefile(target: str) -> None:
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("requirement", REQUIREMENTS.values(), ids=REQUIREMENTS)
def test_installed_is_this_package(requirement: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheel = re.fullmatch(r"(\w+)-([\d.]+)-py3-none-any\.whl(.*)", requirement)
    named = Requirement(f"{wheel[1]}{wheel[3]}=={wheel[2]}" if wheel else requirement)
    assert named.name == settings["name"]
    assert named.extras <= settings["optional-dependencies"].keys()


def test_other_programs_are_those_that_tests_run() -> None:
    known = {"gradscore", "python", "make", "pip"}
    others = {page: {words[0] for at, words in TYPED if at == page} - known for page in PAGES}
    assert {page: names for page, names in others.items() if names} == SHELL


def description(line: str) -> str:
    """What has all options of a command, script or target; an error if there is none."""
    program, name, *_ = line.split()
    if name.startswith("--"):
        return " ".join(option for parameter in GROUP.params for option in parameter.opts)
    if program == "gradscore":
        return SECTIONS[next(each for each in listed(GROUP) if line.startswith(f"gradscore {each}"))]
    if program == "make":
        return re.search(rf"^{name}:.*", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
    return (ROOT / name).read_text()


def test_commands_in_running_text_are_there() -> None:
    assert [line for line in SAID if not options(line) <= options(description(line))] == []
