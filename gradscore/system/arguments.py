"""Arguments of what programs call: of the kinds that the annotations name, or an error that says which is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from reprlib import Repr
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor, nn

from ..errors import ConfigError, DataError, ModelError
from .tensors import NESTED, is_number, is_whole

Called = TypeVar("Called", bound=Callable[..., Any])

WORDS: dict[object, str] = {
    str: "text",
    Path: "a path",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    NoneType: "None",
    Callable: "one function",
    nn.Module: "a torch.nn.Module",
}
"""Words for kinds of arguments in messages; others are called by their names."""

NUMBERS = {int, float, NoneType}
"""Names in an annotation where a number is wanted, and maybe none."""

_LONGEST = 60
"""So many characters of an argument are shown."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 2 * _LONGEST


def checked(function: Called) -> Called:
    """Refuses arguments of other kinds than a function's annotations name, before it is called.

    It looks into lists and at the keys and values of mappings. What is nothing but a number is left to the function,
    which knows its range.

    Raises:
        ConfigError: from the function that it makes, where an argument is of another kind.
        ModelError: where a model is wanted.
        DataError: where it is a nested tensor, or a list or mapping of such.

    Example:
        >>> @checked
        ... def area(width: float, *, unit: str | None = None) -> float:
        ...     return width * width
        >>> area(2)
        4
        >>> area(2, unit=["m"])
        Traceback (most recent call last):
            ...
        gradscore.errors.ConfigError: area: unit: wanted text or None, got ['m'] (list)
    """
    return checked_but()(function)


def checked_but(*left: str) -> Callable[[Called], Called]:
    """Checks as `checked`, but for arguments of these names, unless they are nested tensors."""
    return lambda function: _checked(function, left)


def _checked(function: Called, left: Collection[str]) -> Called:
    name = function.__qualname__.removesuffix(".__init__").removesuffix(".__call__")
    parameters = signature(function)

    # Annotations may name what is not there yet when the function is defined.
    @cache
    def kinds() -> dict[str, Any]:
        hints = get_type_hints(function)
        variable = (each.name for each in parameters.parameters.values() if each.kind == each.VAR_KEYWORD)
        return {argument: kind for argument, kind in hints.items() if argument not in {"return", *variable}}

    @wraps(function)
    def call(*positional: Any, **named: Any) -> Any:
        try:
            given = parameters.bind(*positional, **named).arguments
        except TypeError:  # Python says best what is missing or too much
            return function(*positional, **named)
        for argument, kind in kinds().items():
            if _is_nested(given.get(argument)):
                raise DataError(f"{name}: {argument}: {NESTED}")
            is_number = set(get_args(kind) or [kind]) <= NUMBERS
            if argument in given and argument not in left and not is_number and not _fits(given[argument], kind):
                error = ModelError if kind is nn.Module else ConfigError
                raise error(f"{name}: {argument}: wanted {_words(kind)}, got {_shown(given[argument])}")
        return function(*positional, **named)

    return cast(Called, call)


def _is_nested(value: object) -> bool:
    """Whether an argument is a nested tensor, or a list or mapping of such."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    return any(isinstance(each, Tensor) and each.is_nested for each in parts)


def _fits(value: object, kind: Any) -> bool:
    """Whether an argument is of an annotated kind."""
    of, inside = get_origin(kind) or kind, get_args(kind)
    if of in (Any, object) or isinstance(of, TypeVar):
        return True
    if of in (Union, UnionType):
        return any(_fits(value, each) for each in inside)
    if of is Literal:
        return isinstance(value, str) and value in inside
    if of is bool:
        return isinstance(value, bool | np.bool_)
    if of is int:
        return is_whole(value)
    if of is float:
        return is_number(value)
    if of is Path:
        return isinstance(value, os.PathLike)
    if of is Callable:
        return callable(value)
    if isinstance(of, type) and issubclass(of, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(each, wanted) for entry in value.items() for each, wanted in zip(entry, inside, strict=True)
        )
    if of is Sequence:  # arrays and series are some, too; sets have no order
        if not isinstance(value, Collection) or isinstance(value, Mapping | set | frozenset | bytes):
            return False
        if inside[0] in (Any, object):
            return getattr(value, "ndim", 1) > 0
        return getattr(value, "ndim", 1) > 0 and all(_fits(each, inside[0]) for each in value)
    return isinstance(value, of)


def _words(kind: Any) -> str:
    """A kind in words, with its alternatives."""
    of, inside = get_origin(kind) or kind, get_args(kind)
    if of in (Union, UnionType):
        *first, last = dict.fromkeys(map(_words, inside))
        return f"{', '.join(first)} or {last}" if first else last
    if of is Literal:
        return f"one of {', '.join(inside)}"
    if of is Sequence:
        return f"a list of {_words(inside[0])}"
    if isinstance(of, type) and issubclass(of, Mapping):
        return "a dict with names as keys" if inside[0] is str else "a dict"
    return WORDS.get(of) or f"a {of.__name__}"


def _shown(value: object) -> str:
    """Text of what was given: itself where it is short, and its kind."""
    kind = value.__name__ if isinstance(value, type) else type(value).__name__
    if not isinstance(value, str | bytes | int | float | list | tuple | dict | set | NoneType):
        return kind
    text = " ".join(_SHORT.repr(value).split())  # in one line, and made of the first few entries alone
    return f"{text if len(text) <= _LONGEST else text[:_LONGEST] + '...'} ({kind})" if value is not None else text
