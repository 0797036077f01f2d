"""Writes the parts of the documentation that say what there is, from the code that has it: `make docs-tables`.

A page marks the place: `<!-- table: losses -->`, what is written here, `<!-- end -->`. The tables are those of the
registries, without entries of other packages; the packages are in the order of the import-linter contracts.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
import yaml

from gradscore.baselines import BASELINES
from gradscore.config import Config
from gradscore.data import AUGMENTATIONS, SOURCES
from gradscore.inspect import QUANTITIES
from gradscore.losses import LOSSES
from gradscore.models import MODEL_SOURCES
from gradscore.statistics import STATISTICS
from gradscore.system import Influence, Section, first_line, influence_of
from gradscore_cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
LIBRARY = "gradscore"

LOOKS_AT = {
    "logits": "logits",
    "penultimate": "penultimate features",
    "neighbours": "neighbours in the bank",
    "augmentations": "augmentations",
    "features of augmentations": "augmentations",
}

MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def losses() -> str:
    """The losses by name."""
    found = {name: LOSSES[name] for name in LOSSES.built_in}
    return entries(
        (name, phrase(loss.summary), "one backward pass for each class" if loss.several else "", loss.source)
        for name, loss in found.items()
    )


def statistics() -> str:
    """The statistics by name."""
    found = {name: STATISTICS[name] for name in STATISTICS.built_in}
    return entries((name, statistic.summary) for name, statistic in found.items())


def sources() -> str:
    """The data sources as they are written."""
    found = [SOURCES[name] for name in SOURCES.built_in]
    return entries(
        (kind.form, kind.summary, f"arguments: {', '.join(kind.arguments)}" if kind.arguments else "") for kind in found
    )


def model_sources() -> str:
    """The model sources as they are written."""
    found = [MODEL_SOURCES[name] for name in MODEL_SOURCES.built_in]
    return entries((kind.form, kind.summary, "brings its weights" if kind.brings_weights else "") for kind in found)


def augmentations() -> str:
    """The augmentations as they are written."""
    found = [AUGMENTATIONS[name] for name in AUGMENTATIONS.built_in]
    return entries((kind.form, kind.summary) for kind in found)


def scores() -> str:
    """The baselines by what they look at, and those that are no inputs of meta models, or nothing else."""
    found = {name: BASELINES[name] for name in BASELINES.built_in}
    lists = [
        f"Of {what}:\n\n"
        + entries(
            (name, phrase(score.summary), score.source)
            for name, score in found.items()
            if LOOKS_AT[score.needs] == what
        )
        for what in dict.fromkeys(LOOKS_AT.values())
    ]
    others = ", ".join(f"`{name}`" for name, score in found.items() if not score.is_input)
    alone = ", ".join(f"`{name}`" for name, score in found.items() if not score.is_compared)
    return "\n\n".join(
        [*lists, f"No inputs of meta models are {others}. Inputs alone, which no table compares, are {alone}."]
    )


def quantities() -> str:
    """The quantities of `gradscore inspect` by name."""
    found = {name: type(QUANTITIES[name]()) for name in QUANTITIES.built_in}
    return "\n".join(f"- `{name}` (`{kind.__name__}`): {phrase(first_line(kind))}" for name, kind in found.items())


CHANGES = {
    Influence.FEATURES: "features",
    Influence.MODELS: "meta models",
    Influence.REPORT: "report",
    Influence.ELSEWHERE: "",
}


def settings() -> str:
    """Every key of a configuration, section by section."""
    places: dict[type[Section], list[str]] = {}
    gather(Config, "", places)
    return "\n\n".join(part for section, paths in places.items() for part in section_list(section, paths, places))


def gather(section: type[Section], path: str, places: dict[type[Section], list[str]]) -> None:
    """Where each section stands, in the order of the file."""
    places.setdefault(section, []).append(path)
    for name, field in section.model_fields.items():
        entry = "[]" if get_origin(field.annotation) is list else ""
        for each in sections_in(field.annotation):
            gather(each, f"{path}.{name}{entry}".lstrip("."), places)


def section_list(
    section: type[Section], paths: Sequence[str], places: Mapping[type[Section], Sequence[str]]
) -> tuple[str, ...]:
    """The heading of a section, where the settings stand that it shares with another, and the others."""
    shared = next((kind for kind in section.__mro__[1:] if kind in places), None)
    names = [name for name in section.model_fields if shared is None or name not in shared.model_fields]
    lines = []
    for name in names:
        field = section.model_fields[name]
        found = sections_in(field.annotation)
        if section is Config and found:
            continue  # has a heading of its own
        kind = ("list of sections" if get_origin(field.annotation) is list else "section") if found else None
        default = "required" if field.is_required() else as_default(field.get_default())
        changes = CHANGES[influence_of(section, name) or Influence.ELSEWHERE]
        typed = (kind or words(field.annotation)).removesuffix(" or null" if default == "`null`" else "")
        about = "; ".join(filter(None, [" ".join([typed, *bounds(field.metadata)]), default, changes]))
        lines.append(f"- `{name}` ({about}): {' '.join((field.description or '').split())}")
    title = ", ".join(f"`{path}`" for path in paths if path) or "The whole"
    return f"## {title}", *([f"All of `{places[shared][0]}`, and"] if shared else []), "\n".join(lines)


def sections_in(annotation: Any) -> list[type[Section]]:
    """The sections that a type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [found for part in get_args(annotation) for found in sections_in(part)]


def as_default(value: Any) -> str:
    """A default as it is written in YAML."""
    if isinstance(value, Section):
        return ""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")
    return f"`{text}`"


def commands_in_full() -> str:
    """Every command with what it says of itself and its options, for the manual."""
    return "\n\n".join(part for name, command in commands_below("gradscore") for part in command_section(name, command))


def commands_below(name: str, group: Any = None) -> list[tuple[str, Any]]:
    """The commands of a group of commands, and of the groups in it, by what is typed."""
    found = typer.main.get_command(app) if group is None else group
    if not hasattr(found, "commands"):
        return [(name, found)]
    return [each for key, below in found.commands.items() for each in commands_below(f"{name} {key}", below)]


def command_section(name: str, command: Any) -> tuple[str, str, str, str]:
    """The heading, the usage, the description and the table of a command."""
    context = typer.Context(command, info_name=name)
    usage = f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```"
    text = command.help.replace("\\[", "[")  # Rich takes brackets for markup
    said = re.sub(r"^(Example|After gradscore demo|Then): (.*)$", r"\1: `\2`", text, flags=re.MULTILINE)
    records = [found for each in command.get_params(context) if (found := each.get_help_record(context)) is not None]
    rows = [(f"`{form}`", meaning.replace("  [", " [")) for form, meaning in records if form != "--help"]
    return f"## {name}", usage, said.replace("<", "&lt;"), table(("argument or option", "meaning"), rows)


PLAIN = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    NoneType: "null",
    Path: "path",
    Any: "any",
}
HUGE = 1e9
"""Limits from here on are there for no reader, but for arithmetic."""
LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def words(annotation: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return " ".join([words(parts[0]), *bounds(parts[1:])])
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(words, parts)))
    if origin is list:
        return "list of " + re.sub(r"^(text|integer|number)\b", r"\1s", words(parts[0]))
    if origin is tuple:
        return f"[{', '.join(map(words, parts))}]"
    if origin is dict:
        return f"mapping of {words(parts[0])} to {words(parts[1])}"
    return PLAIN[annotation]


def bounds(constraints: Iterable[Any]) -> list[str]:
    """What bounds a number: at most one phrase."""
    found = [limit for each in constraints for limit in limits(each)]
    return [" and ".join(found)] if found else []


def limits(constraint: Any) -> list[str]:
    """The limits of one constraint."""
    inner = getattr(constraint, "metadata", ())
    found = [(sign, getattr(constraint, name)) for name, sign in LIMITS.items() if hasattr(constraint, name)]
    own = [f"{sign} {value:g}" for sign, value in found if abs(value) < HUGE]
    return own + [limit for each in inner for limit in limits(each)]


def packages() -> str:
    """The packages from top to bottom, each with the first line of what it says of itself."""
    settings = TOOLS["importlinter"]
    forbidden = [each for each in settings["contracts"] if each.get("source_modules") == [LIBRARY]]
    above = [name for each in forbidden for name in each["forbidden_modules"] if name in settings["root_packages"]]
    (rows,) = (each["layers"] for each in settings["contracts"] if each.get("containers") == [LIBRARY])
    layers = [above, *(re.split(r" [|:] ", row) for row in rows)]
    lines = [[f"- `{name}`: {about(name)}" for name in layer] for layer in layers]
    rows = [
        row if len(row) == 1 else ["- independent of each other:", *(f"    {line}" for line in row)] for row in lines
    ]
    return "\n".join(line for row in rows for line in row)


def about(name: str) -> str:
    """The first line of the docstring of a package, or of what lies beside the library."""
    folders = TOOLS["setuptools"]["package-dir"]
    place = ROOT / folders.get(name, f"{folders[LIBRARY]}/{name}")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    said = ast.get_docstring(ast.parse(file.read_text())) or ""
    return said.partition("\n")[0].rstrip(".").replace("`", "")


def entries(rows: Iterable[Sequence[str]]) -> str:
    """A Markdown list of what is called so, what it is, and what else there is to say of it."""
    return "\n".join(f"- `{name}`: {'; '.join(filter(None, about))}" for name, *about in rows)


def phrase(sentence: str) -> str:
    """A sentence as it stands in a table."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    cells = [headings, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    first, *others = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([first, "|" + "---|" * len(headings), *others])


PARTS: Mapping[str, Callable[[], str]] = {
    "losses": losses,
    "statistics": statistics,
    "sources": sources,
    "model-sources": model_sources,
    "augmentations": augmentations,
    "scores": scores,
    "quantities": quantities,
    "packages": packages,
    "settings": settings,
}
"""What a page may ask for, and what makes it."""


def filled(page: str) -> str:
    """The text of a page with all parts as they are now; `KeyError` for one that nothing makes."""
    return MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n\n{found[3]}", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text()))
