"""The code of `python:` models: which it is, and whether it may run.

A configuration is its user's own. A bundle or a run folder may be someone else's, and running what it names is running
what its maker chose: `NamedCode` says where such code may lie and which hash it must have, before any of it runs.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ModelError
from ..objects import is_copy
from ..system import forget
from .siblings import TURN, Sibling, importing, joint_sha256, siblings_of

TRUST_VARIABLE = "GRADSCORE_TRUST_CODE"
"""Environment variable that allows `python:` models when set to 1."""

_INSTALLED = ("site-packages", "dist-packages")
_ADVICE = "get the file it was made with, or make it anew with the code that is there now"


@dataclass(frozen=True, kw_only=True)
class ModelCode:
    """Code that is about to run.

    Attributes:
        source: `python:<file.py or module>:<factory>`.
        arguments: what the factory is called with; none for an augmentation, which is called with samples.
        sha256: hash of the file; None for a module without one.
    """

    source: str
    arguments: Mapping[str, Any]
    sha256: str | None

    def __str__(self) -> str:
        """All of it on one line."""
        arguments = json.dumps(dict(self.arguments), default=repr)
        return f"{self.source} with arguments {arguments}, SHA-256 of the code {self.sha256 or 'unknown'}"


TellCode = Callable[[ModelCode], None]
"""Called before the code of a `python:` model runs."""


@dataclass(frozen=True, kw_only=True)
class NamedCode:
    """What a bundle or a run folder says of the code of its model.

    Attributes:
        by: the file or folder, for messages.
        sha256: of the code, as it says.
        folders: the code must lie below one of them; None if the user named the code.
        advice: how a user names the code.
    """

    by: str
    sha256: str | None
    folders: tuple[Path, ...] | None
    advice: str

    def check_place(self, where: str, *, suffix: str = ".py") -> None:
        """Refuses a module, and a file outside the folders or among installed packages, that the user did not name.

        Args:
            where: the file or module.
            suffix: of such files.

        Raises:
            ModelError: the code lies elsewhere, or is not there.
        """
        if self.folders is None:
            return
        path = Path(where).resolve()
        near = where.endswith(suffix) and any(path.is_relative_to(folder.resolve()) for folder in self.folders)
        wrong = ""
        if not near or _is_installed(path):
            # Beside the local copy of an object there is nothing that its user put there.
            allowed = dict.fromkeys(str(folder.resolve()) for folder in self.folders if not is_copy(folder))
            below = f"below {' or '.join(allowed)} that belongs to no installed package"
            wrong = f": wanted a file {below if allowed else 'on this machine that you name'}"
        elif not path.is_file():
            is_there = is_copy(Path(where))
            wrong = f", which {'is in object storage, where no code is run from' if is_there else 'does not exist'}"
        if wrong:
            raise ModelError(
                f"{self.by} wants to run {where!r}{wrong}; if you know that code and want it to run, name it yourself: "
                f"{self.advice}"
            )

    def check_hash(self, where: str, found: str | None) -> None:
        """Refuses other code than the file was made with.

        Raises:
            ModelError: the hashes differ, or there is none.
        """
        if self.sha256 is None or found != self.sha256:
            raise ModelError(
                f"{self.by} was made with code of SHA-256 {_short(self.sha256)}, {where} has {_short(found)}; "
                f"nothing of it was run. To go on, {_ADVICE}"
            )


@dataclass(frozen=True, kw_only=True)
class RunCode:
    """What a run folder says of the code that its configuration names; nothing of that of a user's own configuration.

    Attributes:
        model: of the code of its model.
        data: of the code of `python:` data, by the names of the splits.
        tell: called before the code of the model runs.
    """

    model: NamedCode | None = None
    data: Mapping[str, NamedCode] | None = None
    tell: TellCode | None = None


USERS_OWN = RunCode()
"""Of a configuration that is from no run folder."""


def load_function(
    name: str,
    arguments: Mapping[str, Any],
    *,
    trust_code: bool,
    named: NamedCode | None = None,
    tell: TellCode | None = None,
    setting: str = "model.source",
) -> Callable[..., object]:
    """Runs the code of a `python:` model or augmentation and returns the function that is named.

    Args:
        name: `<file.py or module>:<function>`.
        arguments: what the function will be called with, for `tell`.
        trust_code: allow it.
        named: what the bundle or run folder that names the code says of it; None for the user's own configuration.
        tell: called before anything runs.
        setting: what names the code, for messages.

    Raises:
        ModelError: the code is not trusted, not what it should be, or fails.
    """
    where, _, function = name.rpartition(":")
    if not where or not function:
        raise ModelError(f"{setting} 'python:{name}': wanted python:<file.py or module>:<function>")
    check_trust(f"python:{name}", where, trust_code=trust_code, named=named, setting=setting)
    file = _file_of(where)
    content = None if file is None else _content(file)
    beside = {} if file is None or content is None else _siblings(file, content, where)
    found = None if content is None else joint_sha256(content, beside)
    if named is not None:
        named.check_hash(where, found)
    if tell is not None:
        tell(ModelCode(source=f"python:{name}", arguments=arguments, sha256=found))
    module = _run(where, content, beside)
    named_function = getattr(module, function, None)
    if not callable(named_function):
        raise ModelError(f"{where} has no function {function!r}")
    return _with_imports(named_function, beside, _package(where)) if beside else named_function


def check_trust(
    source: str,
    where: str,
    *,
    trust_code: bool,
    named: NamedCode | None,
    suffix: str = ".py",
    setting: str = "model.source",
) -> None:
    """Makes sure that the code of a source may run.

    Args:
        source: what is asked for.
        where: its file or module.
        trust_code: allow it.
        named: what the bundle or run folder that names the code says of it; None for the user's own configuration.
        suffix: of files of such code.
        setting: what names the code, for messages.

    Raises:
        ModelError: it may not.
    """
    if named is not None:
        named.check_place(where, suffix=suffix)
    if not (trust_code or os.environ.get(TRUST_VARIABLE) == "1"):
        raise ModelError(
            f"{setting} '{source}' runs the code in {where}; if you trust it, say so with --trust-code or "
            f"{TRUST_VARIABLE}=1, in Python with trust_code=True, as in Scorer.load(..., trust_code=True)"
        )


def code_hash(where: str) -> str | None:
    """The hash of the code of a Python file or module, with the files beside it that it imports; None without a file.

    Nothing of it is run.

    Args:
        where: the file or module.
    """
    file = _file_of(where)
    if file is None or not file.is_file():
        return None
    content = _content(file)
    return joint_sha256(content, _siblings(file, content, where))


def code_syntax_hash(where: str) -> str | None:
    """As `code_hash`, of the syntax trees of the files; None where one is no Python."""
    file = _file_of(where)
    if file is None or not file.is_file():
        return None
    content = _content(file)
    try:
        beside = {
            name: replace(each, content=_syntax(each.content)) for name, each in _siblings(file, content, where).items()
        }
        return joint_sha256(_syntax(content), beside)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _syntax(content: bytes) -> bytes:
    return ast.dump(ast.parse(content)).encode()


def _file_of(where: str) -> Path | None:
    """A Python file itself, or that of a module; `find_spec` alone would import the packages around it."""
    if where.endswith(".py"):
        return Path(where)
    first, *inner = where.split(".")
    try:
        spec = importlib.util.find_spec(first)
        for depth, _ in enumerate(inner, start=2):
            if spec is not None:
                spec = PathFinder.find_spec(".".join(where.split(".")[:depth]), spec.submodule_search_locations or [])
    except (ImportError, ValueError):
        return None
    file = None if spec is None or spec.origin is None else Path(spec.origin)
    return file if file is not None and file.is_file() else None


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise ModelError(f"model source file {file} does not exist")
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelError(f"model source file {file} cannot be read: {error.strerror}; check its permissions") from None


def _siblings(file: Path, content: bytes, where: str) -> dict[str, Sibling]:
    """The files beside a file that it imports; none for a module, which has a package of its own."""
    if not where.endswith(".py"):
        return {}
    try:
        return siblings_of(file, content)
    except OSError as error:
        raise ModelError(f"{error.filename}, which {where} imports, cannot be read: {error.strerror}") from None


def _package(where: str) -> str:
    return f"gradscore_model_{hashlib.sha256(where.encode()).hexdigest()[:16]}"


def _run(where: str, content: bytes | None, beside: dict[str, Sibling]) -> ModuleType:
    try:
        if not where.endswith(".py") or content is None:
            return importlib.import_module(where)
        package = _package(where)
        name = f"{package}.{Path(where).stem}"
        spec = importlib.util.spec_from_file_location(name, where)
        if spec is None:
            raise ModelError(f"model source file {where} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        with TURN:
            forget({package})  # what an earlier run of the same file imported, which may have changed since
            around = ModuleType(package)
            around.__path__ = []
            sys.modules[package] = around  # for relative imports
            sys.modules[name] = module  # classes defined there can be pickled for worker processes
            with importing(beside, package):
                # What was hashed is what runs: the loader of the module would read the file again, or compiled code
                # beside it.
                exec(compile(content, where, "exec", dont_inherit=True), module.__dict__)
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # sys.exit there must not end the program as if all was well
        raise ModelError(f"importing the model source {where} failed: {type(error).__name__}: {error}") from error
    return module


def _with_imports(function: Callable[..., Any], beside: dict[str, Sibling], package: str) -> Callable[..., object]:
    """A function that may import files beside its own while it runs."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> object:
        with importing(beside, package):
            return function(*args, **kwargs)

    return run


def _is_installed(path: Path) -> bool:
    """Whether a file belongs to Python or to an installed package, whose functions do what an attacker may want."""
    homes = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.is_relative_to(home) for home in homes) or not set(path.parts).isdisjoint(_INSTALLED)


def _short(digest: str | None) -> str:
    return "unknown" if digest is None else f"{digest[:12]}..."
