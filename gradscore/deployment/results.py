"""Results of scoring in files: one table of all samples, or a folder with a table for each file of samples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..data import UserFile, refuse_inputs
from ..errors import DataError, OutputError
from ..system import file_sha256, replacing, write_csv

FORMATS = (".parquet", ".csv", ".jsonl")

NOTE = b"gradscore.score"
"""What the note of a table of results is called in its Parquet file."""


Writer = Callable[[pd.DataFrame], None]
"""Appends the rows of a table."""


@contextmanager
def table_writer(path: Path, columns: Sequence[str], *, note: str | None = None) -> Iterator[Writer]:
    """Writes tables to a `.parquet`, `.csv` or `.jsonl` file, which is there when the block ends well.

    Args:
        path: the file; its suffix says the format.
        columns: names of the columns, as `Scorer.columns` gives them.
        note: what a Parquet file says of itself.

    Yields:
        What takes the tables.

    Raises:
        DataError: another suffix.
    """
    if path.suffix not in FORMATS:
        raise DataError(f"{path}: wanted a file that ends in {', '.join(FORMATS)}, got {path.suffix or 'no ending'}")
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            schema = pa.schema(
                [(name, _kind(name)) for name in columns], None if note is None else {NOTE: note.encode()}
            )
            with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
                yield lambda table: writer.write_table(
                    pa.Table.from_pandas(table[list(columns)], schema=schema, preserve_index=False)
                )
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                yield partial(_write_csv if path.suffix == ".csv" else _write_lines, file)


def _write_csv(file: IO[str], table: pd.DataFrame) -> None:
    write_csv(table, file, header=file.tell() == 0, float_format="%.17g")


def _write_lines(file: IO[str], table: pd.DataFrame) -> None:
    plain = table.astype(object).where(table.notna(), None)
    file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in plain.to_dict("records"))


def _kind(name: str) -> pa.DataType:
    if name == "prediction":
        return pa.int64()
    return pa.float64() if is_number(name) else pa.string()


def is_number(name: str) -> bool:
    """Whether a column of results holds figures."""
    return name.startswith(("probability_", "score_", "p_value_"))


class ResultFolder:
    """Where the results of files of samples go: to Parquet files that are called as the files are.

    A table says what it was made of. One that is there already and would be the same is kept; one of an earlier bundle,
    file or setting is written anew; anything else is refused.
    """

    def __init__(
        self,
        folder: Path,
        files: Sequence[UserFile],
        *,
        columns: Sequence[str],
        settings: Mapping[str, object],
        searched: Sequence[Path] = (),
    ) -> None:
        """Takes a folder, which need not be there, and all files whose results go into it.

        Args:
            folder: where the tables lie.
            files: of samples.
            columns: of the tables.
            settings: plain values that results depend on, with the hash of the bundle among them.
            searched: folders in which the files were found.

        Raises:
            DataError: images, or sources of several files, which have no file of their own to be called by.
            OutputError: two files would have one table, a table would replace a file of samples or of somebody
                else's, or the tables would be taken for samples the next time.
        """
        self._columns = list(columns)
        self._settings = dict(settings)
        self._places: dict[str, tuple[Path, Path]] = {}
        for place in searched:
            if folder.resolve().is_relative_to(place.resolve()):
                raise OutputError(
                    f"--out {folder}: it is in {place}, where samples are looked for; give a folder outside of it"
                )
        for file in files:
            if file.file is None or file.place is None:
                raise DataError(
                    f"--out {folder}: a folder gets one table for each file of samples (.npz, .csv, .tsv, .parquet, "
                    f".tar), and {file.name} is something else; give a file that ends in .parquet, .csv or .jsonl"
                )
            target = folder / file.place.with_suffix(".parquet")
            others = [source for source, known in self._places.values() if known == target]
            if others:
                raise OutputError(
                    f"--out {folder}: {others[0]} and {file.file} would both have their results in {target}; score "
                    "them into two folders, or into one file"
                )
            if target.exists() and _note_of(target) is None:
                raise OutputError(
                    f"{target} is there already and was not written by gradscore score; give another folder to --out"
                )
            refuse_inputs(target, files)
            self._places[file.name] = file.file, target

    def kept(self, file: UserFile) -> Counter[str] | None:
        """How often each decision is in the table of a file that need not be made again; None where it has to be."""
        source, target = self._places[file.name]
        if not target.exists() or _note_of(target) != self._note(source):
            return None
        decisions = pc.value_counts(pq.read_table(target, columns=["decision"])["decision"]).to_pylist()
        return Counter({str(each["values"]): int(each["counts"]) for each in decisions})

    @contextmanager
    def writer(self, file: UserFile) -> Iterator[Writer]:
        """Takes the tables of one file; its results are there when the block ends well."""
        source, target = self._places[file.name]
        with table_writer(target, self._columns, note=self._note(source)) as write:
            yield write

    def _note(self, source: Path) -> str:
        try:
            digest = file_sha256(source)
        except OSError as error:
            raise DataError(f"{source}: cannot be read: {error.strerror}; check its permissions") from error
        return json.dumps({**self._settings, "samples_sha256": digest, "columns": self._columns})


def _note_of(path: Path) -> str | None:
    """What a table says of itself; None of a file that is no table of results."""
    try:
        found: bytes | None = (pq.read_schema(path).metadata or {}).get(NOTE)
        return None if found is None else found.decode()
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return None
