"""The run folders of a detector: their settings, and where they lie."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..config import Config, ModelConfig, section
from ..errors import ConfigError, StoreError
from ..models import LIVE, Interface
from .fit_data import FitData, TestData, source

PROTOCOLS = ["auxiliary", "in_dist_only"]
"""What is fitted unless other protocols are asked for: the models that a detector decides with."""


class Settings:
    """What a detector is asked for, in the words of configurations.

    Args:
        recipe: section `model` without checkpoint and classes: how commands build the model; None if they cannot.
        interface: how to talk to the model.
        sections: `preprocessing`, `features`, `extract`, `meta` and `evaluate`, as far as they are given.
    """

    def __init__(
        self,
        recipe: str | Mapping[str, Any] | None,
        interface: Interface,
        sections: Mapping[str, Mapping[str, Any] | None],
    ) -> None:
        self._interface = interface
        self.recipe = {"source": recipe} if isinstance(recipe, str) else recipe
        self._sections = {name: dict(given) for name, given in sections.items() if given is not None}
        evaluate = self._sections.setdefault("evaluate", {})
        evaluate.setdefault("protocols", PROTOCOLS)

    def model(self, kind: str, num_classes: int) -> ModelConfig:
        """The section `model`."""
        given = {"source": f"{LIVE}:{kind}"} if self.recipe is None else dict(self.recipe)
        ours = {
            "checkpoint": None,
            "num_classes": num_classes,
            "output": self._interface.output,
            "one_logit": self._interface.one_logit,
        }
        return section(ModelConfig, {**given, **ours}, where="recipe")

    def config(self, run: Path, model: ModelConfig, data: FitData, *, device: str) -> Config:
        """The settings of a run that fits and reports nothing.

        Raises:
            ConfigError: an unknown or unusable setting, or name of a set.
        """
        in_dist = {"fit": source("data"), "test": None, "calibration": source("calibration")}
        in_dist |= {} if data.bank is None else {"bank": source("bank")}
        made = [{"name": kind, "source": f"synthetic:{kind}", "auxiliary": True} for kind in data.auxiliary]
        ood = [{"name": name, **source(name), "auxiliary": True} for name in data.ood] + made
        extract = {**self._sections.get("extract", {}), "device": device}
        return section(
            Config,
            {
                **self._sections,
                "extract": extract,
                "model": model,
                "data": {"in_dist": in_dist, "ood": ood},
                "run": run,
            },
            where="Detector",
        )


def with_test(config: Config, run: Path, data: TestData, groups: Mapping[str, str]) -> Config:
    """The settings of a run that reports as well.

    Raises:
        ConfigError: an unusable name of a set, or one that is taken.
    """
    unknown = [name for name in groups if name not in data.ood]
    if unknown:
        raise ConfigError(f"groups: no OOD set '{unknown[0]}'; wanted names of {', '.join(data.ood) or 'none'}")
    settings = config.model_dump()
    settings["run"] = run
    settings["data"]["in_dist"]["test"] = source("test")
    settings["data"]["ood"] += [{"name": name, **source(name), "group": groups.get(name)} for name in data.ood]
    settings["data"]["shifted"] += [{"name": name, **source(name)} for name in data.shifted]
    return section(Config, settings, where="evaluate")


class Folder:
    """A folder for a run: the one that is given, or a temporary one, which goes when nobody holds this any more.

    Raises:
        StoreError: there is something in the folder that is given.
    """

    def __init__(self, path: str | Path | None) -> None:
        """Finds a place; the folder itself is made by who writes to it."""
        if path is not None:
            self.path = Path(path).absolute()
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise StoreError(f"{self.path}: wanted an empty or new folder for a run, and there is something in it")
            return
        temporary = tempfile.mkdtemp(prefix="gradscore-")
        self.path = Path(temporary) / "run"
        weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)

    def copy_of(self, run: Path, *, without: Iterable[str] = ()) -> None:
        """Copies a run here; feature tables, which nobody changes, are shared where the file system can."""
        shutil.copytree(
            run, self.path, copy_function=_shared, ignore=shutil.ignore_patterns(*without), dirs_exist_ok=True
        )


def _shared(file: str, target: str) -> str:
    if Path(file).suffix == ".parquet":
        try:
            os.link(file, target)
            return target
        except OSError:
            pass
    return str(shutil.copy2(file, target))
