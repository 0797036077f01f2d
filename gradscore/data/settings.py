"""What may be asked of data: the sections `preprocessing` and `data` of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from ..system import (
    AnchoredPath,
    Elsewhere,
    InFeatures,
    NotNegative,
    Positive,
    Section,
    Slug,
    anchored,
    without_repeats,
)
from .sources import SOURCES


def anchored_source(source: str, info: ValidationInfo) -> str:
    """A data source with the path of a file or folder made absolute."""
    kind, _, rest = source.partition(":")
    if kind not in SOURCES or not rest:
        return source
    file, _, function = rest.rpartition(":")
    if SOURCES[kind].is_code and file.endswith(".py"):
        return f"{kind}:{anchored(Path(file), info)}:{function}"
    return f"{kind}:{anchored(Path(rest), info)}" if SOURCES[kind].is_path else source


def _names_or_file(names: list[str] | Path | None, info: ValidationInfo) -> list[str] | Path | None:
    return anchored(names, info) if isinstance(names, Path) else names


def _size(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError:
        raise ValueError(f"wanted a positive number of pixels, [height, width] or null, got {value!r}") from None


Size = Annotated[Positive | tuple[Positive, Positive] | None, WrapValidator(_size)]
ClassNameList = Annotated[list[str] | Path | None, AfterValidator(_names_or_file)]
DataSource = Annotated[str, AfterValidator(anchored_source)]


class PreprocessingConfig(Section):
    """What happens to an image before the model: resize, centre crop, channels, normalisation.

    `weights` names torchvision weights (`ResNet18_Weights.IMAGENET1K_V1`) whose own transforms are used instead.
    `processor` names a folder of transformers whose processor or tokenizer is used instead; a model of such a folder
    brings its own unless anything else is set. `max_length` cuts and fills its texts (in tokens) and waves.
    """

    resize: InFeatures[Size] = None
    crop: InFeatures[Size] = None
    channels: InFeatures[Literal[1, 3] | None] = None
    mean: InFeatures[list[float] | None] = None
    std: InFeatures[list[Annotated[float, Field(gt=0)]] | None] = None
    weights: InFeatures[str | None] = None
    processor: Elsewhere[AnchoredPath | None] = None
    max_length: InFeatures[Positive | None] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std belong together: set both or neither")
        if self.mean is not None and self.std is not None and len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} values and std {len(self.std)}: give one per channel in both")
        others = [key for key in ("resize", "crop", "channels", "mean") if getattr(self, key) is not None]
        if self.weights is not None and others:
            raise ValueError(f"weights brings its own transforms: remove {', '.join(others)}, or weights")
        others += [] if self.weights is None else ["weights"]
        if self.processor is not None and others:
            raise ValueError(f"processor says what becomes of samples: remove {', '.join(others)}, or processor")
        if self.max_length is not None and self.processor is None:
            raise ValueError("max_length is for the processor of a model of transformers: set processor, or remove it")
        return self


class SelectConfig(Section):
    """Which samples of a source: by class, then by content hash, then `start` to `stop`, then `count` at random."""

    classes: InFeatures[list[int | str] | None] = None
    count: InFeatures[Positive | None] = None
    start: InFeatures[NotNegative | None] = None
    stop: InFeatures[NotNegative | None] = None
    hash: InFeatures[tuple[float, float] | None] = None
    seed: InFeatures[int] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.hash is not None and not 0 <= self.hash[0] < self.hash[1] <= 1:
            raise ValueError(f"hash must be an interval [low, high) with 0 <= low < high <= 1, got {list(self.hash)}")
        if self.stop is not None and self.stop <= (self.start or 0):
            raise ValueError(f"stop ({self.stop}) must be greater than start ({self.start or 0})")
        return self


class DatasetConfig(Section):
    """A set of samples: where they come from, which of them, and how its labels map to the model's classes.

    Labels and classes are numbers, or names where there are any.
    """

    source: InFeatures[DataSource]
    arguments: InFeatures[dict[str, Any]] = {}
    select: SelectConfig = SelectConfig()
    label_map: InFeatures[dict[int | str, int | str] | None] = None

    @field_validator("arguments")
    @classmethod
    def _anchor_root(cls, arguments: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        root = arguments.get("root")
        return {**arguments, "root": str(anchored(Path(root), info))} if isinstance(root, str) else arguments


class OodConfig(DatasetConfig):
    """A named set of out-of-distribution samples; an `auxiliary` one joins the fits and is left out of the headline."""

    name: Elsewhere[Slug]
    group: Elsewhere[Slug | None] = None
    auxiliary: Elsewhere[bool] = False

    @field_validator("source")
    @classmethod
    def _of_other_classes(cls, source: str) -> str:
        kind = source.partition(":")[0]
        if kind in SOURCES and SOURCES[kind].same_classes:
            raise ValueError(f"{source} holds the classes of the model, so it is not OOD: name it in data.shifted")
        return source


class ShiftedConfig(DatasetConfig):
    """A named set of in-distribution classes under covariate shift, labelled; reported by itself, never fitted on.

    `corrupted:<kind>` makes one of the in-distribution test samples (`arguments: {severity: 3}`).
    """

    name: Elsewhere[Slug]


class InDistConfig(Section):
    """The in-distribution samples to fit on, to report on, to set thresholds with, and to compare others with.

    Without `calibration`, thresholds are set with the `test` samples, which then say nothing about the thresholds.
    `test` must be given; an explicit null means that nothing is reported: such a run is fitted and bundled alone.
    `bank` holds samples such as those that trained the classifier: only their logits and penultimate features are
    stored, and nothing is fitted or reported on them.
    """

    fit: DatasetConfig
    test: DatasetConfig | None
    calibration: DatasetConfig | None = None
    bank: DatasetConfig | None = None


class DataConfig(Section):
    """All sets of samples of a run.

    `class_names` are the classes of the model in the order of its outputs: a list, or a file with one name on each line
    (in JSON a list). Labels of data whose classes have names (folders, text) are found by name among them.
    """

    in_dist: InDistConfig
    class_names: Elsewhere[ClassNameList] = None
    ood: list[OodConfig] = []
    shifted: list[ShiftedConfig] = []

    @field_validator("ood", "shifted")
    @classmethod
    def _distinct(cls, sets: list[Any]) -> list[Any]:
        without_repeats([entry.name for entry in sets])
        return sets

    @model_validator(mode="after")
    def _reported_beside_test(self) -> Self:
        reported = [entry.name for entry in self.ood if not entry.auxiliary] + [entry.name for entry in self.shifted]
        if self.in_dist.test is None and reported:
            raise ValueError(
                f"in_dist.test is null, so nothing is reported, and {reported[0]} would be: give in_dist.test, or mark "
                "OOD sets as auxiliary and remove shifted ones"
            )
        return self
