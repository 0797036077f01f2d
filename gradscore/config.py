"""The settings of a run: what a configuration file may say, its defaults and its checks.

`load_config` reads a file, `dump_config` writes one; the YAML side of both (environment, overrides, messages) is in
`gradscore.config_source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from .config_fields import (
    AnchoredPath,
    Columns,
    DataSource,
    Device,
    ModelSource,
    Names,
    NotNegative,
    Positive,
    Protocol,
    Size,
    Slug,
    anchored,
    without_repeats,
)
from .config_source import explain, parse_settings, read_settings
from .errors import ConfigError
from .presets import with_preset


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Section):
    """The classifier: `torchvision:<name>` or `python:<file.py or module>:<factory>`, and its weights.

    `checkpoint` must be given; an explicit null means random weights.
    """

    source: ModelSource
    arguments: dict[str, Any] = {}
    checkpoint: AnchoredPath | None
    num_classes: Annotated[int, Field(ge=2)]
    declared_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None


class PreprocessingConfig(_Section):
    """What happens to an image before the model: resize, centre crop, channels, normalisation.

    `weights` names torchvision weights (`ResNet18_Weights.IMAGENET1K_V1`) whose own transforms are used instead.
    """

    resize: Size = None
    crop: Size = None
    channels: Literal[1, 3] | None = None
    mean: list[float] | None = None
    std: list[Annotated[float, Field(gt=0)]] | None = None
    weights: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std belong together: set both or neither")
        if self.mean is not None and self.std is not None and len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} values and std {len(self.std)}: give one per channel in both")
        others = [key for key in ("resize", "crop", "channels", "mean") if getattr(self, key) is not None]
        if self.weights is not None and others:
            raise ValueError(f"weights brings its own transforms: remove {', '.join(others)}, or weights")
        return self


class SelectConfig(_Section):
    """Which samples of a source: by class, then by content hash, then `start` to `stop`, then `count` at random."""

    classes: list[int] | None = None
    count: Positive | None = None
    start: NotNegative | None = None
    stop: NotNegative | None = None
    hash: tuple[float, float] | None = None
    seed: int = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.hash is not None and not 0 <= self.hash[0] < self.hash[1] <= 1:
            raise ValueError(f"hash must be an interval [low, high) with 0 <= low < high <= 1, got {list(self.hash)}")
        if self.stop is not None and self.stop <= (self.start or 0):
            raise ValueError(f"stop ({self.stop}) must be greater than start ({self.start or 0})")
        return self


class DatasetConfig(_Section):
    """A set of samples: where they come from, which of them, and how its labels map to the model's classes."""

    source: DataSource
    arguments: dict[str, Any] = {}
    select: SelectConfig = SelectConfig()
    label_map: dict[int, int] | None = None

    @field_validator("arguments")
    @classmethod
    def _anchor_root(cls, arguments: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        root = arguments.get("root")
        return {**arguments, "root": str(anchored(Path(root), info))} if isinstance(root, str) else arguments


class OodConfig(DatasetConfig):
    """A named set of out-of-distribution samples; an `auxiliary` one joins the fits and is left out of the headline."""

    name: Slug
    group: Slug | None = None
    auxiliary: bool = False

    @field_validator("source")
    @classmethod
    def _of_other_classes(cls, source: str) -> str:
        if source.startswith("corrupted:"):
            raise ValueError(f"{source} holds the classes of the model, so it is not OOD: name it in data.shifted")
        return source


class ShiftedConfig(DatasetConfig):
    """A named set of in-distribution classes under covariate shift, labelled; reported by itself, never fitted on.

    `corrupted:<kind>` makes one of the in-distribution test samples (`arguments: {severity: 3}`).
    """

    name: Slug


class InDistConfig(_Section):
    """The in-distribution samples to fit on, to report on, and to set thresholds with.

    Without `calibration`, thresholds are set with the `test` samples, which then say nothing about the thresholds.
    """

    fit: DatasetConfig
    test: DatasetConfig
    calibration: DatasetConfig | None = None


class DataConfig(_Section):
    """All sets of samples of a run."""

    in_dist: InDistConfig
    ood: list[OodConfig] = []
    shifted: list[ShiftedConfig] = []

    @field_validator("ood", "shifted")
    @classmethod
    def _distinct(cls, sets: list[Any]) -> list[Any]:
        without_repeats([entry.name for entry in sets])
        return sets


class FeaturesConfig(_Section):
    """Which features: losses x parameter groups x statistics.

    `parameters` are shell patterns on parameter names, or `@last` for the last layer; `granularity` pools their
    gradients per parameter, per module that owns them, or over the whole model. A `preset` (oberdiek, gradnorm, exgrad,
    lee_alregib) chooses what is not given here. `penultimate` stores the inputs of the last layer, or of the linear
    layer it names, for baselines; they are no inputs of meta models. `columns` adds features per sample that are no
    statistics of parameter gradients: output_gradient_norm, activation_rate, gradient_cosine.
    """

    preset: str | None = None
    losses: Names = ["pseudo_label", "uniform"]
    statistics: Names = ["max", "min", "mean", "std", "l1", "l2"]
    parameters: Names = ["*"]
    granularity: Literal["parameter", "module", "model"] = "parameter"
    columns: Columns = []
    penultimate: bool | str = False
    autocast: Literal["bf16", "fp16"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, settings: Any) -> Any:
        return with_preset(settings) if isinstance(settings, dict) else settings


class ExtractConfig(_Section):
    """How features are computed; only `batch_size` and `device` may move their last bits."""

    batch_size: Positive = 64
    workers: NotNegative = 0
    device: Device = "auto"
    on_error: Literal["fail", "skip"] = "fail"
    part_size: Positive = 1024
    seed: int = 0


class MetaConfig(_Section):
    """How the meta models are fitted; cross-validation tries each of the inverse regularisation `strengths`.

    `ood: combined` adds a one-class distance and the energy to the log-odds of models fitted on OOD samples.
    """

    ood: Literal["logistic", "combined"] = "logistic"
    cv_folds: Annotated[int, Field(ge=2)] = 5
    seed: int = 0
    strengths: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)] = [
        0.00001,
        0.0001,
        0.001,
        0.01,
        0.1,
        1.0,
    ]


class EvaluateConfig(_Section):
    """Which protocols are reported, and what to do about images that are in two splits.

    `duplicates: remove` leaves them out of the fits and says so; `error` refuses.
    """

    protocols: Annotated[list[Protocol], Field(min_length=1)] = ["known", "leave_one_out", "in_dist_only"]
    seed: int = 0
    duplicates: Literal["remove", "error"] = "remove"


class Config(_Section):
    """Everything a run needs; `run` is the folder `extract` writes to unless told otherwise."""

    model: ModelConfig
    preprocessing: PreprocessingConfig = PreprocessingConfig()
    data: DataConfig
    features: FeaturesConfig = FeaturesConfig()
    extract: ExtractConfig = ExtractConfig()
    meta: MetaConfig = MetaConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    run: AnchoredPath


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Reads a configuration file.

    Args:
        path: a YAML file. Relative paths in it are relative to its folder; `${NAME}` and `${NAME:-default}` are taken
            from the environment.
        overrides: `key.path=value`, applied in order before anything else is looked at; values are YAML, list entries
            are named by position (`data.ood.0.count=100`).

    Returns:
        The settings, checked, with every default filled in and every path absolute.

    Raises:
        ConfigError: the file cannot be read, is not a YAML mapping, or holds an unknown, missing or unusable setting.
    """
    path = Path(path)
    settings = read_settings(path, overrides)
    return _validated(settings, where=str(path), base=path.absolute().parent)


def parse_config(text: str, *, where: str) -> Config:
    """Reads back what `dump_config` wrote: paths and `$` are taken as they stand; `where` names the text in errors."""
    return _validated(parse_settings(text, where=where), where=where, base=None)


def dump_config(config: Config) -> str:
    """The YAML of every setting, defaults included."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _validated(settings: dict[str, Any], *, where: str, base: Path | None) -> Config:
    try:
        return Config.model_validate(settings, context={"base": base})
    except ValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(explain(error, Config))}") from None
