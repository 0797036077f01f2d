"""Settings: kinds of values, what each of them influences, and registries of what a setting may name.

A registry is a table that a reader takes in at a glance; each package that people add to has one. Programs add to it by
`add`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)

from ..errors import ConfigError
from .files import address_problem, as_address, is_address

NAMES_SHOWN = 8
"""At most so many names are listed in a message."""

LISTED = 40
"""At most so many where one of them is wanted."""


def closest(name: str, valid: Iterable[str]) -> str:
    """A hint for a mistyped name: the most similar valid one, or the first `LISTED` of them where none is similar."""
    names = list(valid)
    similar = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{similar[0]}'?" if similar else f"valid: {some(names, shown=LISTED)}"


def some(names: Sequence[str], shown: int = NAMES_SHOWN) -> str:
    """The first few names and how many more there are, or "none"; one that begins or ends with a blank in quotes.

    Example:
        >>> some(["a", " b", "c"], shown=2)
        "a, ' b' and 1 more"
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    visible = [name if name and name == name.strip() else repr(name) for name in names[:shown]]
    return ", ".join(visible) + more if names else "none"


class YesOrNo(str):
    """Text that YAML 1.1 takes for a truth value, such as `no`, written without quotes."""


def no_yes_or_no(value: Any) -> Any:
    """Refuses `YesOrNo` in a setting that takes text and truth values, where nothing says which is meant.

    Raises:
        ValueError: there is one.
    """
    if isinstance(value, YesOrNo):
        raise ValueError(f"{value} may be a truth value or text; write true or false, or quotes around text")
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        no_yes_or_no(entry)
    return value


Arguments = Annotated[dict[str, Any], BeforeValidator(no_yes_or_no)]
"""Arguments of a function of somebody's, by name."""


class Section(BaseModel):
    """A section of settings: no unknown keys, and nothing changes after it was checked.

    The text below a setting is its description, which docs/configuration.md shows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses `true` where a number is wanted, which Python would take for 1."""
        found = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, bool)]
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        if found and not {bool, Any} & kinds:
            quotes = "; write quotes around a name that looks like this" if str in kinds else ""
            raise ValueError(f"wanted no truth value, got {str(found[0]).lower()}{quotes}")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """The types of an annotation, with those inside it."""
    return {annotation}.union(*map(_kinds, get_args(annotation)))


def anchored(path: Path, info: ValidationInfo) -> Path:
    """`path` made absolute against the folder of the configuration file, where the validation names one.

    An address in object storage stays as it is.
    """
    base = (info.context or {}).get("base")
    return path if base is None or is_address(path) else (base / path.expanduser()).resolve()


def as_written(given: Any) -> Any:
    """A text that names a place, if it is not an address with a mistake in it.

    Raises:
        ValueError: it is one.
    """
    if isinstance(given, str) and (problem := address_problem(given)):
        raise ValueError(problem)
    return given


def without_repeats(values: list[str]) -> list[str]:
    """`values`, none of which may be named twice."""
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"named more than once: {', '.join(repeated)}")
    return values


Slug = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(without_repeats)]
AnchoredPath = Annotated[
    Path,
    BeforeValidator(as_written),
    AfterValidator(anchored),
    PlainSerializer(as_address, return_type=str, when_used="json"),
]


class Influence(Enum):
    """Results that come out otherwise when a setting changes."""

    FEATURES = "the values of feature tables"
    MODELS = "the meta models fitted on feature tables"
    REPORT = "what is reported, and of which sets"
    ELSEWHERE = "none of these: where things lie, and how fast they go"


Value = TypeVar("Value")

InFeatures = Annotated[Value, Influence.FEATURES]
"""A setting that is part of the identity of a run."""

InModels = Annotated[Value, Influence.MODELS]
"""A setting that is part of the identity of a meta model, beside the samples and features it is fitted on."""

InReport = Annotated[Value, Influence.REPORT]
"""A setting that may change without anything having to be computed anew, but says what a run is for."""

Elsewhere = Annotated[Value, Influence.ELSEWHERE]
"""A setting that changes nothing in a run, or that shows in something else: a hash. It may differ between machines."""


def influence_of(section: type[Section], name: str) -> Influence | None:
    """Influence that a setting is declared to have; None if it is not declared."""
    return next((entry for entry in section.model_fields[name].metadata if isinstance(entry, Influence)), None)


def settings_of(section: Section, *influences: Influence) -> dict[str, Any]:
    """The settings of a section that influence something, as plain JSON values.

    Those of sections in it are among them, in a list of sections by their places.
    """
    kind, plain, nested = type(section), set[str](), {}
    for name in kind.model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            nested[name] = settings_of(value, *influences)
        elif isinstance(value, list) and value and isinstance(value[0], Section):
            nested[name] = {str(place): settings_of(each, *influences) for place, each in enumerate(value)}
        elif influence_of(kind, name) in influences:
            plain.add(name)
    return section.model_dump(mode="json", include=plain) | {name: found for name, found in nested.items() if found}


Entry = TypeVar("Entry")

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""Names of columns are joined by slashes and colons, lists on the command line by commas."""


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Entries by name, which has letters, digits and `_.-`.

    Args:
        kind: what an entry is, for messages: "loss".
        built_in: the entries by name, in the order in which they are listed.
        wanted: what every entry has to be; anything with this class, or any callable for None.
        reserved: names that mean something else where the entries are used.

    Attributes:
        built_in: the names of the entries that were there from the start.

    Example:
        >>> fruits = Registry("fruit", {"apple": 1.0}, wanted=float)
        >>> fruits.add("pear", 2.0)
        >>> list(fruits), fruits.find("pear", where="basket")
        (['apple', 'pear'], 2.0)
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, Entry],
        *,
        wanted: type[Entry] | None = None,
        reserved: Collection[str] = (),
    ) -> None:
        self.kind, self.reserved = kind, frozenset(reserved)
        self.built_in = tuple(built_in)
        self._wanted = wanted
        self._entries = dict(built_in)

    def add(self, name: str, entry: Entry) -> None:
        """Adds an entry for this process.

        Raises:
            ConfigError: the name is taken or unusable, or the entry is something else than wanted.
        """
        problem = "there is one of this name already" if name in self else self._problem(name)
        if problem:
            raise ConfigError(f"{self.kind} '{name}': {problem}; choose another name")
        if not (callable(entry) if self._wanted is None else isinstance(entry, self._wanted)):
            wanted = "something to call" if self._wanted is None else f"a {self._wanted.__name__}"
            raise ConfigError(f"{self.kind} '{name}': wanted {wanted}, got {type(entry).__name__}")
        self._entries[name] = entry

    def find(self, name: str, *, where: str) -> Entry:
        """The entry called `name`.

        Args:
            name: of the entry.
            where: what asks for it, for the message.

        Raises:
            ConfigError: there is none.
        """
        if name not in self:
            raise ConfigError(f"{where}: no {self.kind} '{name}'; {closest(name, self)}")
        return self[name]

    def __getitem__(self, name: str) -> Entry:
        """The entry called `name`; `KeyError` if there is none."""
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        """The names: built-in entries first, then those that were added."""
        return iter(self._entries)

    def __len__(self) -> int:
        """The number of entries."""
        return len(self._entries)

    def _problem(self, name: str) -> str:
        """Reason why a name cannot be used, if any."""
        if name in self.reserved:
            return "this name means something else already"
        return "" if _NAME.fullmatch(name) else "wanted a name of letters, digits and _.-"


def first_line(described: object) -> str:
    """The first line of a docstring: what something is."""
    return (getdoc(described) or "").partition("\n")[0]
