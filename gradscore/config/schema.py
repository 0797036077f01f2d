"""The settings of a run: what a configuration file may say, its defaults and its checks; reading, and wording errors.

The sections `model`, `preprocessing` and `data` belong to the packages they are about. `load_config` reads a file, with
overrides and environment variables; `dump_config` writes one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_serializer,
    model_validator,
)

from ..data import FILL_IN, DataConfig, PreprocessingConfig, check_augmentations
from ..errors import ConfigError
from ..losses import LOSSES
from ..models import TRANSFORMERS, CodeSource, ModelConfig, processor_files
from ..notices import called
from ..statistics import find_statistic
from ..system import (
    AnchoredPath,
    Device,
    Elsewhere,
    InFeatures,
    InModels,
    InReport,
    Names,
    NotNegative,
    Positive,
    Section,
    Seed,
    YesOrNo,
    anchored,
    as_address,
    closest,
    is_address,
    no_yes_or_no,
    without_repeats,
)

AnySection = TypeVar("AnySection", bound=Section)

Protocol = Literal["known", "leave_one_dataset_out", "auxiliary", "in_dist_only"]


AUTO = "auto"
"""Value of `features.penultimate` until the model is there."""

Augmentations = Annotated[list[CodeSource], AfterValidator(without_repeats)]


class FeaturesConfig(Section):
    """Which features: losses x parameter groups x statistics, and what is stored beside them."""

    losses: InFeatures[Annotated[list[str], AfterValidator(without_repeats)]] = ["pseudo_label", "uniform"]
    """Whose gradients ([all losses](evaluation.md#gradient-features)); `[]` for none."""
    statistics: InFeatures[Names] = ["max", "min", "mean", "std", "l1", "l2"]
    """What is kept of each gradient."""
    parameters: InFeatures[Names] = ["*"]
    """Patterns of parameter names (`layer4.*`), or `@last` for the last layer."""
    granularity: InFeatures[Literal["parameter", "module", "model"]] = "parameter"
    """What has statistics of its own: each parameter, each module that owns some, or the whole model."""
    penultimate: InFeatures[Annotated[bool | str, BeforeValidator(no_yes_or_no)]] = AUTO
    """Also store what enters the last layer, or the linear layer that is named. `auto`: what enters the linear layer
    that makes the logits; without one nothing is stored, and a bank is ignored."""
    augmentations: InFeatures[Augmentations] = []
    """Also look at the samples changed so ([all augmentations](evaluation.md#a-bank-and-augmentations))."""
    average_gradients: InFeatures[Augmentations] = []
    """Augmentations whose gradients are computed as well, at the cost of one more pass each: every statistic is the
    mean over the sample and these (geometric where they have one sign)."""
    autocast: InFeatures[Literal["bf16", "fp16"] | None] = None
    """Run the network in half precision."""

    @model_validator(mode="after")
    def _has_gradients(self) -> Self:
        if self.average_gradients and not self.losses:
            raise ValueError("features.average_gradients needs gradients, and features.losses is []; leave it out")
        return self

    @model_validator(mode="after")
    def _averages_augmentations(self) -> Self:
        unknown = [name for name in self.average_gradients if name not in self.augmentations]
        if unknown:
            raise ValueError(
                "features.average_gradients: wanted some of features.augmentations "
                f"({', '.join(self.augmentations) or 'none'}), got '{unknown[0]}'; add it there, too"
            )
        return self


class ExtractConfig(Section):
    """How features are computed; only `batch_size`, `device`, threads and processor may move their last bits."""

    batch_size: InFeatures[Positive] = 64
    """Samples at a time."""
    workers: Elsewhere[NotNegative] = 0
    """Processes that read samples; 0 reads in this one."""
    device: InFeatures[Device] = "auto"
    """`cpu`, `cuda`, or another device that PyTorch has; `auto` takes CUDA where there is one."""
    on_error: InFeatures[Literal["fail", "skip"]] = "fail"
    """Whether a sample that cannot be used ends the command, or is left out and listed."""
    part_size: InFeatures[Positive] = 1024
    """Samples in a file of the feature table."""
    seed: InFeatures[Seed] = 0
    """Of random weights and of random choices."""


Factors = Annotated[list[Annotated[float, Field(ge=1e-9, le=1e9)]], Field(min_length=1)]
"""Far beyond what any fit chooses, and far from where products of them leave float64."""


class MetaConfig(Section):
    """How the meta models are fitted."""

    cv_folds: InModels[Annotated[int, Field(ge=2)]] = 5
    """Folds of the cross-validation that chooses among `Cs` and `boosts`."""
    seed: InModels[Seed] = 0
    """Of the folds."""
    Cs: InModels[Factors] = [0.00001, 0.0001, 0.001, 0.01, 0.1]
    """Inverse penalties of gradients to choose from, as `C` of scikit-learn."""
    boosts: InModels[Factors] = [3.0, 10.0, 30.0, 100.0]
    """Factors of baselines to choose from, before they meet the same penalty."""


class EvaluateConfig(Section):
    """Which protocols are reported, and whether near-duplicates are looked for."""

    protocols: InReport[Annotated[list[Protocol], Field(min_length=1)]] = [
        "known",
        "leave_one_dataset_out",
        "auxiliary",
        "in_dist_only",
    ]
    """What OOD models are fitted and reported on ([in full](evaluation.md#protocols))."""
    near_duplicates: InReport[Literal["report", "ignore"]] = "report"
    """Whether near-duplicates in in_dist.fit of reported images are named, or not looked for."""


class Config(Section):
    """Everything a run needs."""

    model: ModelConfig
    """The network."""
    preprocessing: PreprocessingConfig = PreprocessingConfig()
    """What happens to a sample before the network sees it."""
    data: DataConfig
    """The sets of samples."""
    features: FeaturesConfig = FeaturesConfig()
    """What is computed of each sample."""
    extract: ExtractConfig = ExtractConfig()
    """How it is computed."""
    meta: MetaConfig = MetaConfig()
    """How meta models are fitted."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """What is reported."""
    run: Elsewhere[AnchoredPath]
    """The run folder that `extract` writes to, or its address in object storage; git ignores it by its `.gitignore`."""

    @field_serializer("run", when_used="json")
    def _called(self, run: Path) -> str:
        """A local copy is called by its address, so that settings are the same on every machine."""
        return called(as_address(run))

    @model_validator(mode="before")
    @classmethod
    def _with_processor(cls, settings: Any, info: ValidationInfo) -> Any:
        """What becomes of samples, a model of transformers says itself."""
        model = settings.get("model") if isinstance(settings, dict) else None
        kind, _, folder = str(model.get("source", "") if isinstance(model, dict) else "").partition(":")
        if kind != TRANSFORMERS or not processor_files(anchored(Path(folder), info)):
            return settings
        given = settings.get("preprocessing") or {}
        if not isinstance(given, dict) or set(given) - {"max_length"}:
            return settings
        return {**settings, "preprocessing": {**given, "processor": folder}}

    @model_validator(mode="after")
    def _bank_has_features(self) -> Self:
        if self.data.in_dist.bank is not None and self.features.penultimate is False:
            raise ValueError(
                "features.penultimate is false, and samples are compared with those of data.in_dist.bank by these "
                "features: remove features.penultimate, name the last layer there, or remove the bank"
            )
        return self


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
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if is_address(path):
            raise ConfigError(f"{as_address(path)}: a configuration is read from this machine; download it") from None
        raise ConfigError(f"{path}: no such configuration file; give the path of a YAML file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: wanted a configuration file, got a folder{_inside(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a configuration file: {error}") from None
    settings = _with_environment(_settings(text, where=str(path), overrides=overrides), where=str(path))
    unfilled = [
        f"{key}: still to be filled in ({value!r}), as the comment above it says" for key, value in _unfilled(settings)
    ]
    if unfilled:
        raise ConfigError(f"{path}: {'; '.join(unfilled)}")
    config = section(Config, settings, where=str(path), base=path.absolute().parent)
    try:
        check_features(config.features)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return config


def _unfilled(settings: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Dotted keys of what `gradscore init` marked, and the values there."""
    if isinstance(settings, str) and settings.rpartition(":")[2] == FILL_IN:
        yield ".".join(keys), settings
    elif isinstance(settings, dict | list):
        for key, value in settings.items() if isinstance(settings, dict) else enumerate(settings):
            yield from _unfilled(value, (*keys, str(key)))


def _inside(folder: Path) -> str:
    """Names the configuration that is in a folder, if one is."""
    found = next((file for file in (folder / "gradscore.yaml", folder / "config.yaml") if file.is_file()), None)
    return f"; did you mean {found}?" if found else "; give the path of a YAML file"


def parse_config(text: str, *, where: str, overrides: Sequence[str] = ()) -> Config:
    """Reads back what `dump_config` wrote: paths and `$` are taken as they stand; `where` names the text in errors."""
    return section(Config, _settings(text, where=where, overrides=overrides), where=where)


def section(kind: type[AnySection], settings: Mapping[str, Any], *, where: str, base: Path | None = None) -> AnySection:
    """Reads one section of settings, that of a program for one.

    Args:
        kind: of the section.
        settings: by name.
        where: names the section in messages.
        base: what relative paths are relative to; they stay as they are without.

    Raises:
        ConfigError: an unknown or unusable setting.
    """
    try:
        return kind.model_validate(dict(settings), context={"base": base})
    except ValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(_explained(error, kind))}") from None


def dump_config(config: Config) -> str:
    """The YAML of every setting, defaults included."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def as_flow(value: Any) -> str:
    """A value as YAML on one line."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...").strip()


def check_features(features: FeaturesConfig) -> None:
    """Makes sure that the losses, statistics and augmentations exist.

    Raises:
        ConfigError: one does not.
    """
    for place, loss in enumerate(features.losses):
        LOSSES.find(loss, where=f"features.losses.{place}")
    check_augmentations(features.augmentations)
    several = [loss for loss in features.losses if LOSSES[loss].several]
    for place, name in enumerate(features.statistics):
        statistic = find_statistic(name, where=f"features.statistics.{place}")
        if several and statistic.degree != 1:
            raise ConfigError(
                f"features.statistics.{place}: '{name}' does not grow with the gradient, so it does not add up over "
                f"the gradients of loss '{several[0]}'; leave out one of the two"
            )


_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")

_WRITTEN = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+",
    "float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
"""What is no text without quotes, by kind: as in YAML 1.2, but that whole numbers begin with no zero."""


MOST_VALUES = 1_000_000
"""So many values a configuration may have; ten lines of aliases to aliases stand for billions."""


class _Loader(yaml.SafeLoader):
    """YAML where a key given twice is an error, and what may be a name stays one.

    Classes called no, 010, 12:30 or 2024-01-31 would be a truth value, 8, 750 and a day in YAML 1.1; in 1.2 the first,
    the third and the last are text.
    """

    def construct_document(self, node: yaml.Node) -> Any:
        """Refuses an alias inside what it names: values are made whole, and such a one never is."""
        self.deep_construct = True
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for position, key in enumerate(keys):
            if key in keys[:position]:
                mark = node.value[position][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", mark)
        return super().construct_mapping(node, deep)

    def construct_yes_or_no(self, node: yaml.ScalarNode) -> YesOrNo:
        """Text of which a setting may want to know that YAML 1.1 reads it otherwise."""
        return YesOrNo(node.value)


class _Dumper(yaml.SafeDumper):
    """YAML with quotes around each text that `_Loader`, or a reader of YAML 1.1, would take for something else."""


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("!yes_or_no", re.compile(r"(?i:yes|no|on|off)$"), None)
_Loader.add_constructor("!yes_or_no", _Loader.construct_yes_or_no)
for _kind, _pattern in _WRITTEN.items():
    for _kind_of_yaml in (_Loader, _Dumper):
        _kind_of_yaml.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})$"), None)


def _settings(text: str, *, where: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The mapping a YAML text holds, with `key.path=value` overrides put in; `where` names it in errors."""
    settings = _parse_yaml(text, where=where)
    if not isinstance(settings, dict):
        found = "nothing" if settings is None else f"a {type(settings).__name__}"
        raise ConfigError(f"{where}: wanted a YAML mapping of settings (model:, data:, ...), got {found}")
    for override in overrides:
        _override(settings, override)
    return settings


def _explained(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Messages, one per unusable setting: its dotted path, what was wanted and what was found; unknown keys first."""
    messages: dict[str, str] = {}
    for problem in sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden"):
        keys, section = _locate(problem["loc"], root)
        messages.setdefault(".".join(keys), _describe(dict(problem), section))
    return [f"{path}: {message}" if path else message for path, message in messages.items()]


def _describe(problem: dict[str, Any], section: type[BaseModel]) -> str:
    if problem["type"] == "extra_forbidden":
        return f"unknown key; {closest(str(problem['loc'][-1]), section.model_fields)}"
    if problem["type"] == "missing":
        return "missing; this setting has no default"
    if problem["type"] == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "model_type":
        return f"wanted a section of settings, got {problem['input']!r}"
    kind = str(problem["type"]).partition("_")[0]
    message = _KINDS.get(kind) or str(problem["msg"]).replace("Input should be ", "wanted ")
    return f"{message}, got {problem['input']!r}"


_KINDS = {"int": "wanted a whole number", "float": "wanted a number", "bool": "wanted true or false"}
"""What is said of values of another type, by the first part of the name of pydantic's error."""


def _locate(location: tuple[int | str, ...], root: type[BaseModel]) -> tuple[list[str], type[BaseModel]]:
    """The keys of a location, without pydantic's names for members of unions, and the section of the last one."""
    keys: list[str] = []
    section = root
    nested: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, str):
            if nested is None:
                break
            section = nested
            field = section.model_fields.get(part)
            nested = None if field is None else _section_of(field.annotation)
        keys.append(str(part))
    return keys, section


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_section_of, get_args(annotation)) if found is not None), None)


def _parse_yaml(text: str, *, where: str) -> Any:
    try:
        found = yaml.load(text, _Loader)  # _Loader is a SafeLoader: plain values only
    except (yaml.YAMLError, ValueError, OverflowError, KeyError, AttributeError) as error:  # of tags: !!bool maybe
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply") from None
    if (count := _values_in(found, {})) > MOST_VALUES:
        raise ConfigError(f"{where}: its aliases stand for {count:.2g} values, wanted {MOST_VALUES:,} at most")
    return found


def _values_in(found: Any, counts: dict[int, int]) -> int:
    """How many values there are where what several aliases stand for counts each time."""
    parts = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    if id(found) not in counts:
        counts[id(found)] = 1 + sum(_values_in(each, counts) for each in parts)
    return counts[id(found)]


def _override(settings: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys, where = path.strip().split("."), f"override '{override}'"
    if not equals or not all(keys):
        raise ConfigError(f"{where}: wanted key.path=value, for example extract.batch_size=32")
    target: Any = settings
    for depth, key in enumerate(keys, 1):
        here = ".".join(keys[:depth])
        place: int | str = key
        if isinstance(target, list):
            if not key.isdecimal() or int(key) >= len(target):
                raise ConfigError(f"{where}: {here} wanted a position 0 to {len(target) - 1} in the list, got '{key}'")
            place = int(key)
        if depth == len(keys):
            target[place] = _parse_yaml(text, where=where)
            return
        if isinstance(target, dict) and target.get(place) is None:
            target[place] = {}
        target = target[place]
        if not isinstance(target, dict | list):
            raise ConfigError(f"{where}: {here} is {target!r}, not a section; it has no settings inside")


def _with_environment(value: Any, *, where: str, path: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _with_environment(entry, where=where, path=f"{path}.{key}") for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_environment(entry, where=where, path=f"{path}.{place}") for place, entry in enumerate(value)]
    if not isinstance(value, str) or isinstance(value, YesOrNo):
        return value

    def variable(match: re.Match[str]) -> str:
        found = os.environ.get(match["name"], match["default"])
        if found is None:
            raise ConfigError(
                f"{where}: {path[1:]}: environment variable {match['name']} is not set; "
                f"set it, or write ${{{match['name']}:-default}}"
            )
        return found

    return _VARIABLE.sub(variable, value)
