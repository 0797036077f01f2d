"""The run folders of a detector: their settings, where they lie, and fits without what is reported."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..config import Config, ModelConfig, section
from ..data import CALIBRATION, GIVEN
from ..errors import ConfigError, EvaluationError, ModelError, StoreError
from ..evaluation import fit_run
from ..models import LIVE, Interface, build_model, trusting_code, weights_sha256
from ..store import RunFolder
from .sets import FitSets

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

    def config(self, run: Path, model: ModelConfig, sets: FitSets, *, device: str) -> Config:
        """The settings of a run that fits and reports nothing.

        Raises:
            ConfigError: an unknown or unusable setting, or name of a set.
        """
        in_dist = {"fit": _source("data"), "test": None, "calibration": _source("calibration")}
        in_dist |= {} if sets.bank is None else {"bank": _source("bank")}
        made = [{"name": kind, "source": f"synthetic:{kind}", "auxiliary": True} for kind in sets.auxiliary]
        ood = [{"name": name, **_source(name), "auxiliary": True} for name in sets.ood] + made
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


def with_test(
    config: Config, run: Path, *, ood: Collection[str], shifted: Collection[str], groups: Mapping[str, str]
) -> Config:
    """The settings of a run that reports as well, on sets of these names.

    Raises:
        ConfigError: an unusable name of a set, or one that is taken.
    """
    unknown = [name for name in groups if name not in ood]
    if unknown:
        raise ConfigError(f"groups: no OOD set '{unknown[0]}'; wanted names of {', '.join(ood) or 'none'}")
    settings = config.model_dump()
    settings["run"] = run
    settings["data"]["in_dist"]["test"] = _source("test")
    settings["data"]["ood"] += [{"name": name, **_source(name), "group": groups.get(name)} for name in ood]
    settings["data"]["shifted"] += [{"name": name, **_source(name)} for name in shifted]
    return section(Config, settings, where="evaluate")


def _source(name: str) -> dict[str, str]:
    """What the settings of a run say of samples that were given."""
    return {"source": f"{GIVEN}:{name}"}


def check_recipe(recipe: ModelConfig, model: nn.Module) -> None:
    """Builds a model by its recipe and compares the weights.

    Raises:
        ModelError: they do not fit, or it cannot be built.
    """
    with trusting_code():
        built = build_model(recipe)
    try:
        built.load_state_dict(model.state_dict())
        same = weights_sha256(built) == weights_sha256(model)
        reason = "its weights have other types"
    except RuntimeError as error:
        same, reason = False, str(error).splitlines()[-1].strip()
    if not same:
        raise ModelError(f"recipe {recipe.source!r} does not build this model: {reason}; correct it, or leave it out")


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


def fit_without_reported(run: RunFolder, fitted: RunFolder, *, progress: Callable[[str], None] | None) -> list[str]:
    """Fits the meta models of a run without the samples it reports; those fitted on the same samples before stay.

    Args:
        run: the run that reports.
        fitted: the run of the fit.
        progress: told the name of each model before it is fitted.

    Returns:
        What a reader should know first: that reported samples were among those that fit, if some were.

    Raises:
        EvaluationError: not a single model can be fitted.
        StoreError: a damaged run.
    """
    sources = [info.name for info in fitted.splits() if info.kind != CALIBRATION]
    contents = {content for name in sources for content in fitted.read(name, ["content_hash"])["content_hash"]}
    reported = [run.read(info.name, ["content_hash"])["content_hash"] for info in run.splits() if info.is_reported]
    shared = sum(int(each.isin(contents).sum()) for each in reported)
    samples = sum(map(len, reported))
    try:
        fit_run(run, progress=progress)
    except EvaluationError as error:
        if not shared:
            raise
        raise EvaluationError(
            f"evaluate: {shared} of {samples} reported samples were among those that fit, and nothing can be fitted "
            f"without them ({error}); give samples that fit() did not have"
        ) from None
    if not shared:
        return []
    were = "1 reported sample was" if shared == 1 else f"{shared} reported samples were"
    return [
        f"{were} among those that fit; the models of this report were fitted anew without them and are not those that "
        "score() uses"
    ]
