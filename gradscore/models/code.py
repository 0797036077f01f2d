"""The code of others: whether it may run, which it is, and running it.

`ask_for_code` is the one place that asks, and goes by the innermost block of `trusting_code` around it. A configuration
is its user's own; a bundle or a run folder may be someone else's, and running what it names is running what its maker
chose. So all code is read and hashed before any of it runs: a Python file together with the files beside it that it
imports, which are found by reading. What was hashed is what runs, whatever lies beside it, and a file can import
nothing else from its folder.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ModelError
from ..object_storage import is_copy
from ..system import sha256

TRUST_VARIABLE = "GRADSCORE_TRUST_CODE"
"""Environment variable that allows code when set to 1."""

_INSTALLED = ("site-packages", "dist-packages")

_TURN = threading.RLock()
"""Names of modules belong to the whole process: one thread at a time imports files of models and those beside them."""


@dataclass(frozen=True, kw_only=True)
class CodeOrigin:
    """A bundle or run folder that names code: nothing may run but what it was made with.

    Attributes:
        name: its path.
        hashes: SHA-256 of the code that it was made with, by source; None for code without a file.
        folders: the code must lie below one of them; None where the user named it.
        advice: how a user names the code.
    """

    name: str
    hashes: Mapping[str, str | None]
    folders: tuple[Path, ...] | None
    advice: str


@dataclass(frozen=True)
class _Trust:
    allowed: bool = False
    origin: CodeOrigin | None = None
    tell: Callable[[str], None] | None = None


_TRUST: ContextVar[_Trust] = ContextVar("gradscore_code", default=_Trust())  # noqa: B039 - nothing changes in it


@contextmanager
def trusting_code(
    allowed: bool = True, *, origin: CodeOrigin | None = None, tell: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Says, until the block ends and in this thread alone, which code of others may run.

    What is not given stays as it is around the block.

    Args:
        allowed: the user trusts the code: that of `python:` sources and of programs.
        origin: the bundle or run folder that names the code; without one it is the user's own configuration.
        tell: called before code runs that an origin names, with its source, what it will be called with, and its hash.
    """
    around = _TRUST.get()
    before = _TRUST.set(_Trust(allowed or around.allowed, origin or around.origin, tell or around.tell))
    try:
        yield
    finally:
        _TRUST.reset(before)


def is_code_trusted() -> bool:
    """Whether the user allows code of others here, be it by the environment."""
    return _TRUST.get().allowed or os.environ.get(TRUST_VARIABLE) == "1"


def ask_for_code(
    source: str,
    where: str,
    digest: Callable[[], str | None],
    *,
    setting: str,
    arguments: Mapping[str, Any] | None = None,
    suffix: str = ".py",
) -> None:
    """Makes sure that code may run, and tells that it will.

    Args:
        source: what names it.
        where: its file or module.
        digest: reads it and returns its SHA-256; None for a module without a file.
        setting: that of the source, for messages.
        arguments: what it will be called with.
        suffix: of files of such code.

    Raises:
        ModelError: it is not trusted, lies elsewhere than code of the bundle or run folder may, or is not the code that
            this was made with.
    """
    trust = _TRUST.get()
    origin = trust.origin
    if origin is not None:
        _check_place(origin, where, suffix)
    if not is_code_trusted():
        raise ModelError(
            f"{setting} runs the code in {where}; if you trust it, add --trust-code or set {TRUST_VARIABLE}=1 (in "
            "Python trust_code=True)"
        )
    found = digest()
    if origin is None:
        return
    known = origin.hashes.get(source)
    if known is None or found != known:
        made, there = ("unknown" if each is None else f"{each[:12]}..." for each in (known, found))
        files = f"{where} with what it imports" if where.endswith(".py") else where
        raise ModelError(
            f"{origin.name} was made with code of SHA-256 {made}, {files} has {there}; nothing of it was run. To go "
            "on, get the code it was made with, or make it anew with the code that is there now"
        )
    if trust.tell is not None:
        called_with = json.dumps(dict(arguments or {}), default=repr)
        trust.tell(f"{source} with arguments {called_with}, SHA-256 of the code {found}")


def _check_place(origin: CodeOrigin, where: str, suffix: str) -> None:
    """Refuses a module, and a file outside the folders or among installed packages, that the user did not name."""
    if origin.folders is None:
        return
    path = Path(where).resolve()
    homes = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    # Functions of Python and of installed packages do what an attacker may want.
    is_installed = any(map(path.is_relative_to, homes)) or not set(path.parts).isdisjoint(_INSTALLED)
    is_near = where.endswith(suffix) and any(path.is_relative_to(folder.resolve()) for folder in origin.folders)
    if is_installed or not is_near:
        # Beside the local copy of an object there is nothing that its user put there.
        allowed = dict.fromkeys(str(folder.resolve()) for folder in origin.folders if not is_copy(folder))
        below = f"below {' or '.join(allowed)} that belongs to no installed package"
        wrong = f": wanted a file {below if allowed else 'on this machine that you name'}"
    elif not path.is_file():
        is_there = is_copy(Path(where))
        wrong = f", which {'is in object storage, where no code is run from' if is_there else 'does not exist'}"
    else:
        return
    raise ModelError(
        f"{origin.name} wants to run {where!r}{wrong}; if you know that code and want it to run, name it yourself: "
        f"{origin.advice}"
    )


def load_function(name: str, arguments: Mapping[str, Any], *, setting: str = "model.source") -> Callable[..., object]:
    """Runs the code of a `python:` source and returns the function that is named.

    Args:
        name: `<file.py or module>:<function>`.
        arguments: what the function will be called with.
        setting: what names the code, for messages.

    Raises:
        ModelError: the code may not run, or fails.
    """
    where, _, function = name.rpartition(":")
    if not where or not function:
        raise ModelError(f"{setting} 'python:{name}': wanted python:<file.py or module>:<function>")
    files: list[_File] = []

    def digest() -> str | None:
        files[:] = _files_of(where)
        return _digest(files)

    ask_for_code(f"python:{name}", where, digest, setting=setting, arguments=arguments)
    package = f"gradscore_model_{sha256(where.encode())[:16]}"
    found = getattr(_imported(where, files, package), function, None)
    if not callable(found):
        raise ModelError(f"{where} has no function {function!r}")
    made: Callable[..., object] = found
    if len(files) < 2:
        return made

    @wraps(made)
    def run(*args: Any, **kwargs: Any) -> object:  # it may import files beside its own while it runs
        with _importing(files[1:], package):
            return made(*args, **kwargs)

    return run


def code_hash(where: str) -> str | None:
    """The hash of the code of a Python file or module, with the files beside it that it imports; None without a file.

    Nothing of it is run.
    """
    try:
        return _digest(_files_of(where))
    except ModelError:
        return None


@dataclass(frozen=True)
class _File:
    """A module.

    Attributes:
        name: relative to the folder of the file that was named.
        path: its file; a folder for a package without `__init__.py`.
        content: what is in it.
        is_package: whether there may be modules in it.
    """

    name: str
    path: Path
    content: bytes
    is_package: bool = False


def _files_of(where: str) -> list[_File]:
    """A Python file and those beside it that it imports, or that these import; or the file of a module alone.

    Raises:
        ModelError: the file is not there, or one cannot be read.
    """
    try:
        if not where.endswith(".py"):
            file = _file_of_module(where)
            return [] if file is None else [_File(where, file, file.read_bytes())]
        file = Path(where)
        if not file.is_file():
            raise ModelError(f"model source file {file} does not exist")
        main = _File(file.stem, file, file.read_bytes())
        found: dict[str, _File] = {}
        wanted = _imports(main.content, package=())
        while wanted:
            name, is_relative = wanted.pop()
            if not name or ".".join(name) in found or not (is_relative or _is_beside(file.parent, name[0])):
                continue
            sibling = _sibling(file.parent, name)
            if sibling is not None:
                found[sibling.name] = sibling
                wanted += _imports(sibling.content, package=name if sibling.is_package else name[:-1])
        return [main, *(found[name] for name in sorted(found))]
    except OSError as error:
        raise ModelError(
            f"model source {where}: {error.filename} cannot be read: {error.strerror}; check its permissions"
        ) from None


def _file_of_module(where: str) -> Path | None:
    """The file of a module; `find_spec` alone would import the packages around it."""
    parts = where.split(".")
    try:
        spec = importlib.util.find_spec(parts[0])
        for depth in range(2, len(parts) + 1):
            if spec is not None:
                spec = PathFinder.find_spec(".".join(parts[:depth]), spec.submodule_search_locations or [])
    except (ImportError, ValueError):
        return None
    file = None if spec is None or spec.origin is None else Path(spec.origin)
    return file if file is not None and file.is_file() else None


def _digest(files: Sequence[_File]) -> str | None:
    """The hash of a file and of those beside it; that of the file alone where it has none."""
    if len(files) < 2:
        return sha256(files[0].content) if files else None
    main, *others = files
    lines = [f"{sha256(main.content)}\n", *(f"{each.name} {sha256(each.content)}\n" for each in others)]
    return sha256("".join(lines).encode())


def _imports(content: bytes, *, package: tuple[str, ...]) -> list[tuple[tuple[str, ...], bool]]:
    """Every name that may be a module, with the packages around it, and whether it is certainly beside the file."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # importing it says so, with its place
        return []
    found: list[tuple[tuple[str, ...], bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(tuple(each.name.split(".")), False) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level > 1 else package
            module = (*(base if node.level else ()), *(node.module.split(".") if node.module else ()))
            found += [((*module, each.name), node.level > 0) for each in node.names] + [(module, node.level > 0)]
    return [(name[:depth], is_relative) for name, is_relative in found for depth in range(1, len(name) + 1)]


def _is_beside(folder: Path, root: str) -> bool:
    """Whether an absolute import means a file beside: those of Python come first, folders without a module last."""
    if root in sys.stdlib_module_names:
        return False
    if (folder / f"{root}.py").is_file() or (folder / root / "__init__.py").is_file():
        return True
    spec = importlib.util.find_spec(root) if (folder / root).is_dir() else None
    return (folder / root).is_dir() and (spec is None or spec.origin is None)


def _sibling(folder: Path, parts: tuple[str, ...]) -> _File | None:
    path, name = folder.joinpath(*parts), ".".join(parts)
    module, package = path.with_name(f"{path.name}.py"), path / "__init__.py"
    if package.is_file():
        return _File(name, package, package.read_bytes(), is_package=True)
    if module.is_file():
        return _File(name, module, module.read_bytes())
    return _File(name, path, b"", is_package=True) if path.is_dir() else None


def _imported(where: str, files: Sequence[_File], package: str) -> ModuleType:
    """The module, which is run."""
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        main, *beside = files
        name = f"{package}.{main.name}"
        module = ModuleType(name)
        module.__file__, module.__package__ = where, package
        with _TURN:
            _unloaded({package})  # what an earlier run of the same file imported, which may have changed since
            around = ModuleType(package)
            around.__path__ = []
            sys.modules[package] = around  # for relative imports
            sys.modules[name] = module  # classes defined there can be pickled for worker processes
            with _importing(beside, package):
                exec(compile(main.content, where, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:  # sys.exit there must not end the program as if all was well
        raise ModelError(f"importing the model source {where} failed: {type(error).__name__}: {error}") from error
    return module


@contextmanager
def _importing(files: Sequence[_File], package: str) -> Iterator[None]:
    """Lets files be imported, by their names and as modules of `package`; other modules of these names step aside."""
    if not files:
        yield
        return
    roots = {each.name.partition(".")[0] for each in files}
    with _TURN:
        aside = _unloaded(roots)
        finder = _Finder({each.name: each for each in files}, package)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            _unloaded(roots)
            sys.modules.update(aside)


def _unloaded(packages: Collection[str]) -> dict[str, ModuleType]:
    """Has packages loaded anew when they are imported next; returns their modules, as far as they were loaded."""
    # Another thread may import something meanwhile: the copy of the names is made at once.
    names = [name for name in list(sys.modules) if name.partition(".")[0] in packages]
    return {name: module for name in names if (module := sys.modules.pop(name, None)) is not None}


class _Finder(MetaPathFinder, Loader):
    """Imports files from what was read, so that what was hashed is what runs."""

    def __init__(self, files: Mapping[str, _File], package: str) -> None:
        self._files, self._package = files, package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        file = self._files.get(fullname.removeprefix(f"{self._package}."))
        if file is None:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(file.path), is_package=file.is_package)

    def exec_module(self, module: ModuleType) -> None:
        file = self._files[module.__name__.removeprefix(f"{self._package}.")]
        module.__file__ = str(file.path)
        exec(compile(file.content, str(file.path), "exec", dont_inherit=True), module.__dict__)
