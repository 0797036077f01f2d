"""Addresses in object storage where commands take paths: local copies stand in for them until a command ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gradscore.errors import ConfigError

if TYPE_CHECKING:
    from gradscore.store import WorkingCopy


def run_at_hand(context: typer.Context, given: Any) -> Any:
    """The run folder that a command works in, for a run at an address; several of them, and anything else as it is."""
    if isinstance(given, list | tuple):
        return [run_at_hand(context, each) for each in given]
    found = opened(context, given, must_exist=True)
    return given if found is None else found.path


def file_at_hand(_context: typer.Context, given: Path | None) -> Path | None:
    """The file that a command reads; the local copy of one at an address."""
    if given is None or not _is_address(given):
        return given
    from gradscore.objects import fetched  # slow to import

    return fetched(given)


def output_at_hand(context: typer.Context, given: Path | None) -> Path | None:
    """Where a command writes; what it writes for an address is uploaded when the command ends."""
    if given is None or not _is_address(given):
        return given
    from gradscore.objects import uploading  # slow to import
    from gradscore.store import refuse_run_objects

    refuse_run_objects(given, option="--out")
    return context.with_resource(uploading(given))


def opened(context: typer.Context, given: Path | None, *, must_exist: bool) -> WorkingCopy | None:
    """The working copy of a run at an address, which lasts until the command ends; None for a path."""
    if given is None or not _is_address(given):
        return None
    from gradscore.store import working_copy  # imports PyTorch, which help need not wait for

    return context.with_resource(working_copy(given, must_exist=must_exist))


def check_addresses(arguments: Sequence[str]) -> None:
    """Refuses addresses with a mistake in them, among arguments as they are written: paths made of them lose it.

    Raises:
        ConfigError: there is one.
    """
    values = [each.partition("=")[2] if each.startswith("--") else each for each in arguments]
    if not any(":" in value for value in values):
        return
    from gradscore.system import address_problem  # slow to import

    for value in values:
        if problem := address_problem(value):
            raise ConfigError(problem)


def named(text: str) -> str:
    """A text in which local copies are called by their addresses."""
    objects = sys.modules.get("gradscore.objects")  # slow to import, and there is no copy without it
    return text if objects is None else str(objects.called(text))


def _is_address(given: Path) -> bool:
    from gradscore.system import is_address  # slow to import

    return is_address(given)
