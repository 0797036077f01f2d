"""Packages as `pip` leaves them: a module, and metadata with entry points."""

from collections.abc import Mapping
from pathlib import Path


def write_package(folder: Path, name: str, code: str, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """Installs a package of one module into a folder, which is to be put on the path.

    Args:
        folder: where it goes.
        name: of the package and of its module.
        code: of the module.
        entry_points: objects of the module by entry point, by group.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(code)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = [
        f"[{group}]\n" + "".join(f"{entry} = {name}:{target}\n" for entry, target in points.items())
        for group, points in entry_points.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(sections))
    return folder
