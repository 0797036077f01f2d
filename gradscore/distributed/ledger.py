"""What each process that shares the work on a run has written: one file per process, so that none waits for another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..config import Config
from ..errors import StoreError
from ..printable import printable
from ..store import PARTIAL, differences
from ..system import Influence, parse_json, settings_of, sha256, some, write_text

_ADVICE = "delete it and run that share again"


@dataclass
class Ledger:
    """What one process has written.

    Attributes:
        index: which share of the work it has.
        count: how many shares there are.
        identity: of the inputs of the run, see `identity_of`.
        files: the SHA-256 of each file by its path relative to the run folder.
        notices: what the reader of the values should know.
        means_sha256: of the mean gradients that its tables were made with.
        settings: what the run is for, see `settings_said`.
    """

    index: int
    count: int
    identity: str
    files: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    means_sha256: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the share, as `--shard` takes it."""
        return f"{self.index}/{self.count}"

    def path(self, run: Path) -> Path:
        """Where it lies in a run folder."""
        return run / PARTIAL / f"share-{self.index}-of-{self.count}.json"

    def write(self, run: Path) -> None:
        """Writes it in one step."""
        write_text(self.path(run), json.dumps(asdict(self), indent=2) + "\n")


def identity_of(inputs: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """A SHA-256 of everything that influences a value of a run."""
    return sha256(json.dumps([inputs, versions], sort_keys=True).encode())


def settings_said(config: Config) -> dict[str, Any]:
    """The settings that influence no value of a run but what comes of it: how it is fitted and reported.

    All shares have to agree on them, because one `config.yaml` says them for the run.
    """
    return settings_of(config, Influence.MODELS, Influence.REPORT)


def check_settings(where: Path, *, run: Mapping[str, Any], share: Mapping[str, Any]) -> None:
    """Makes sure that a share has the settings of the run, see `settings_said`.

    Raises:
        StoreError: they differ; the message names `where` and both values.
    """
    if found := differences(run, share):
        raise StoreError(
            f"{where}: a share with other settings than the run: {some(found)}; give all shares the settings that the "
            "run was begun with, or another folder (--out). A merged run takes others of meta and evaluate "
            "(gradscore fit-meta --set)"
        )


def read_ledgers(run: Path, *, identity: str, settings: Mapping[str, Any]) -> list[Ledger]:
    """What the processes that work on a run have written so far.

    Raises:
        StoreError: a file is damaged, or comes from a run with other inputs or settings.
    """
    found = []
    for path in sorted((run / PARTIAL).glob("share-*.json")):
        try:
            text = path.read_text(encoding="utf-8")
            ledger = Ledger(**parse_json(text))  # refuses names that pydantic leaves out
            _types().validate_json(text, strict=True)
            fits = path == ledger.path(run)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise StoreError(f"{path}: damaged ({printable(place)}: {first['msg']}); {_ADVICE}") from None
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"{path}: damaged ({error}); {_ADVICE}") from None
        if not fits or ledger.identity != identity:
            raise StoreError(
                f"{path}: this share belongs to another run: it was made from other inputs or by other versions of "
                "packages; delete it and run the share again with the inputs of this run"
            )
        check_settings(path, run=settings, share=ledger.settings)
        found.append(ledger)
    return found


@cache
def _types() -> TypeAdapter[Ledger]:
    return TypeAdapter(Ledger)


def recorded(ledgers: list[Ledger]) -> dict[str, set[tuple[str, str]]]:
    """By file, the SHA-256 that was recorded and the share that did so."""
    found: dict[str, set[tuple[str, str]]] = {}
    for ledger in ledgers:
        for name, digest in ledger.files.items():
            found.setdefault(name, set()).add((digest, ledger.name))
    return found
