"""Python files that import files beside them: which these are, and how they are imported.

They are found by reading, so that what will run is known, and hashed, before any of it does. The file can import
nothing else from its folder.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from ..system import forget, loaded, sha256

TURN = threading.RLock()
"""Names of modules belong to the whole process: one thread at a time imports files of models and their siblings."""


@dataclass(frozen=True)
class Sibling:
    """A module beside a file.

    Attributes:
        path: its file; a folder for a package without `__init__.py`.
        content: what is in it.
        is_package: whether there may be modules in it.
    """

    path: Path
    content: bytes
    is_package: bool


def siblings_of(file: Path, content: bytes) -> dict[str, Sibling]:
    """The modules beside a Python file that it imports, or that these import, by name relative to its folder.

    Args:
        file: the file.
        content: what is in it.

    Raises:
        OSError: one of them cannot be read.
    """
    found: dict[str, Sibling] = {}
    wanted = _imported(content, package=())
    while wanted:
        name, is_relative = wanted.pop()
        if not name or ".".join(name) in found:
            continue
        if not is_relative and not _belongs(file.parent, name[0]):
            continue
        sibling = _sibling(file.parent.joinpath(*name))
        if sibling is None:
            continue
        found[".".join(name)] = sibling
        wanted += _imported(sibling.content, package=name if sibling.is_package else name[:-1])
    return dict(sorted(found.items()))


def joint_sha256(content: bytes, siblings: dict[str, Sibling]) -> str:
    """The hash of a file and of its siblings; that of the file alone where it has none."""
    if not siblings:
        return sha256(content)
    lines = [f"{name} {sha256(each.content)}\n" for name, each in siblings.items()]
    return sha256("".join([f"{sha256(content)}\n", *lines]).encode())


@contextmanager
def importing(siblings: dict[str, Sibling], package: str) -> Iterator[None]:
    """Lets siblings be imported, by their names and as modules of `package`; other modules of these names step aside.

    Args:
        siblings: of `siblings_of`.
        package: the name of the package that the file belongs to for relative imports.
    """
    if not siblings:
        yield
        return
    roots = {name.partition(".")[0] for name in siblings}
    with TURN:
        aside = {name: module for name in loaded(roots) if (module := sys.modules.pop(name, None)) is not None}
        finder = _Finder(siblings, package)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            forget(roots)
            sys.modules.update(aside)


class _Finder(MetaPathFinder, Loader):
    """Imports siblings from what was read."""

    def __init__(self, siblings: dict[str, Sibling], package: str) -> None:
        self._siblings, self._package = siblings, package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        sibling = self._siblings.get(fullname.removeprefix(f"{self._package}."))
        if sibling is None:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(sibling.path), is_package=sibling.is_package)

    def exec_module(self, module: ModuleType) -> None:
        sibling = self._siblings[module.__name__.removeprefix(f"{self._package}.")]
        module.__file__ = str(sibling.path)
        exec(compile(sibling.content, str(sibling.path), "exec", dont_inherit=True), module.__dict__)


def _imported(content: bytes, *, package: tuple[str, ...]) -> list[tuple[tuple[str, ...], bool]]:
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


def _belongs(folder: Path, root: str) -> bool:
    """Whether an absolute import means a file beside: those of Python come first, folders without a module last."""
    if root in sys.stdlib_module_names:
        return False
    if (folder / f"{root}.py").is_file() or (folder / root / "__init__.py").is_file():
        return True
    return (folder / root).is_dir() and not _is_installed(root)


def _is_installed(root: str) -> bool:
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _sibling(path: Path) -> Sibling | None:
    module, package = path.with_name(f"{path.name}.py"), path / "__init__.py"
    if package.is_file():
        return Sibling(package, package.read_bytes(), True)
    if module.is_file():
        return Sibling(module, module.read_bytes(), False)
    return Sibling(path, b"", True) if path.is_dir() else None
