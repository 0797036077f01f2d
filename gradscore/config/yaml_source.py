"""From a YAML file to plain settings (environment, overrides), and from validation errors to messages."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from ..data import FILL_IN
from ..errors import ConfigError
from ..system import closest

_MOST_VALUES = 1_000_000
"""Far more than any configuration has; a few lines of nested aliases can stand for more than memory holds."""

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


class _Loader(yaml.SafeLoader):
    """YAML where a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for position, key in enumerate(keys):
            if key in keys[:position]:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_settings(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a YAML file with `key.path=value` overrides and environment variables put in.

    Raises:
        ConfigError: the file is missing, unreadable or not a YAML mapping; an override or variable is unusable.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file; give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a configuration file: {error}") from None
    settings = parse_settings(text, where=str(path), overrides=overrides)
    result: dict[str, Any] = _with_environment(settings, where=str(path))
    return result


def parse_settings(text: str, *, where: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The mapping a YAML text holds, with `key.path=value` overrides put in; `where` names it in errors."""
    settings = _parse_yaml(text, where=where)
    if not isinstance(settings, dict):
        found = "nothing" if settings is None else f"a {type(settings).__name__}"
        raise ConfigError(f"{where}: wanted a YAML mapping of settings (model:, data:, ...), got {found}")
    for override in overrides:
        _override(settings, override)
    return settings


def explain(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One message per unusable setting: its dotted path, what was wanted and what was found; unknown keys first."""
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
    if FILL_IN in (problem["input"] if isinstance(problem["input"], list) else [problem["input"]]):
        return f"still to be filled in ('{FILL_IN}'), as the comment beside it says"
    message = str(problem["msg"]).replace("Input should be ", "wanted ")
    return f"{message}, got {problem['input']!r}"


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
        value = yaml.load(text, _Loader)  # _Loader is a SafeLoader: plain values only
        size = _size(value, {})
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply, or an alias (*) stands inside what it names") from None
    if size > _MOST_VALUES:
        raise ConfigError(f"{where}: its aliases (*) make {size} values of it, wanted {_MOST_VALUES} at most")
    return value


def _size(value: Any, known: dict[int, int]) -> int:
    """How many values there are when every alias is written out."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        entries = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(entry, known) for entry in entries)
    return known[id(value)]


def _override(settings: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"override '{override}': wanted key.path=value, for example extract.batch_size=32")
    target: Any = settings
    for depth, key in enumerate(keys[:-1]):
        target = _entry(target, key, where=f"override '{override}'", path=keys[: depth + 1])
    value = _parse_yaml(text, where=f"override '{override}'")
    if isinstance(target, list):
        target[_position(target, keys[-1], where=f"override '{override}'", path=keys)] = value
    else:
        target[keys[-1]] = value


def _entry(target: Any, key: str, *, where: str, path: list[str]) -> Any:
    if isinstance(target, list):
        found = target[_position(target, key, where=where, path=path)]
    else:
        if target.get(key) is None:
            target[key] = {}
        found = target[key]
    if not isinstance(found, dict | list):
        raise ConfigError(f"{where}: {'.'.join(path)} is {found!r}, not a section; it has no settings inside")
    return found


def _position(target: list[Any], key: str, *, where: str, path: list[str]) -> int:
    if not key.isdecimal() or int(key) >= len(target):
        raise ConfigError(
            f"{where}: {'.'.join(path)} wanted a position 0 to {len(target) - 1} in the list, got '{key}'"
        )
    return int(key)


def _with_environment(value: Any, *, where: str, path: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _with_environment(entry, where=where, path=f"{path}.{key}") for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_environment(entry, where=where, path=f"{path}.{place}") for place, entry in enumerate(value)]
    if not isinstance(value, str):
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
