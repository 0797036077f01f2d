"""Files are written whole, folders have one writer, and JSON that others wrote gives a value or a ValueError."""

import csv
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import pandas as pd
import pytest
from pydantic import BaseModel, TypeAdapter

from gradscore.errors import OutputError, StoreError
from gradscore.system import (
    check_target,
    file_sha256,
    followed,
    held,
    only_writer,
    parse_document,
    parse_json,
    replacing,
    write_csv,
    write_text,
)

HOLD = """
import sys, time
from pathlib import Path
from torch.utils.data import DataLoader
from gradscore.system import only_writer

class Slow:
    def __len__(self):
        return 2
    def __getitem__(self, place):
        print("working", flush=True)
        time.sleep(20)

with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    next(iter(DataLoader(Slow(), num_workers=1)))
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that holds the folder while its worker loads."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert [process.stdout.readline() for _ in range(2)] == ["held\n", "working\n"]
    yield process
    process.kill()
    process.wait()
    process.stdout.close()  # the worker, which lives on for a while, has the other end


def hold(folder: Path) -> None:
    with only_writer(folder):
        pass


def test_holding_a_folder_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.tmp").write_text("")
    with held(tmp_path):
        assert (tmp_path / "mine.tmp").exists()
        with pytest.raises(StoreError, match="another process is writing to this folder"):
            hold(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("holder")
def test_another_process_cannot_hold_the_same_folder_and_nothing_goes_away(tmp_path: Path) -> None:
    leftover = tmp_path / ".manifest.json.4194304999-1-0.tmp"
    leftover.write_text("{")
    with pytest.raises(StoreError, match="another process is writing to this folder; wait for it or stop it"):
        hold(tmp_path)
    assert leftover.exists()


@pytest.mark.slow
def test_a_killed_holder_does_not_block_though_its_worker_lives_on(tmp_path: Path, holder) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    began = time.monotonic()
    hold(tmp_path)
    assert time.monotonic() - began < 1


@pytest.mark.slow
def test_what_a_running_process_writes_without_the_lock_stays(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom gradscore.system import replacing\n"
        "with replacing(Path(sys.argv[1])) as there:\n"
        "    there.write_text('half'); print('half', flush=True); sys.stdin.read(); there.write_text('whole')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "bundle")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "half\n"
    hold(tmp_path)
    process.communicate("go on")
    assert process.returncode == 0
    assert (tmp_path / "bundle").read_text() == "whole"


def test_what_another_machine_writes_stays_for_a_day(tmp_path: Path) -> None:
    now, old = (tmp_path / f".part-0.parquet.another-{HOST}@{number}-1-0.tmp" for number in (1, 2))
    now.write_text("half")
    old.write_text("half")
    os.utime(old, (0, 0))
    hold(tmp_path)
    assert list(tmp_path.iterdir()) == [now]


HOST = re.sub(r"[^A-Za-z0-9_-]", "_", socket.gethostname())

LEFT = {
    "of a process that is gone": f".manifest.json.{HOST}@4194304999-1-0.tmp",
    "of an earlier process with the same id": f".manifest.json.{HOST}@{os.getpid()}-1-0.tmp",
    "of an earlier version": "manifest.json.tmp",
}


@pytest.mark.parametrize("name", LEFT.values(), ids=LEFT)
def test_what_killed_writers_left_goes_away(tmp_path: Path, name: str) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / name).write_text("{")
    hold(tmp_path)
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_file_is_replaced_or_left(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a") as there:
        there.write_text(str(1 / 0))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}


def test_a_file_takes_the_place_of_a_link(tmp_path: Path) -> None:
    """As in a run folder of links to another one, which keeps its files."""
    (tmp_path / "other").write_text("old")
    (tmp_path / "link").symlink_to("other")
    write_text(tmp_path / "link", "new")
    assert [(tmp_path / name).read_text() for name in ("link", "other")] == ["new", "old"]


def test_what_a_user_names_goes_where_links_lead(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("deep/file")
    (tmp_path / "round").symlink_to("round")
    write_text(followed(tmp_path / "link"), "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "deep" / "file").read_text() == "new"
    write_text(followed(tmp_path / "round"), "new")
    assert (tmp_path / "round").read_text() == "new"
    for refused in (tmp_path, Path("s3://bucket/key"), Path("/dev/null")):
        assert followed(refused) == refused


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """As root, a file would take the place of a device such as /dev/null for the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="got a device or a pipe"), replacing(pipe) as temporary:
        temporary.write_text("x")
    assert pipe.is_fifo()
    with pytest.raises(OutputError, match="got a device or a pipe"):
        check_target(pipe)


def test_file_hash(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert file_sha256(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()


def test_values() -> None:
    assert parse_json(b'{"a": [1, 2.5, null, "\\u00e4"]}') == {"a": [1, 2.5, None, "ä"]}


BAD = {
    "no JSON": ("{", "Expecting"),
    "no text": (b"\xff\xfe\xff", "decode"),
    "half a pair": ('{"a": "\\ud800"}', "surrogates not allowed"),
    "nested too deeply": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_what_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


class Document(BaseModel):
    """A file that says which kind and version it is."""

    format: Literal["a document"]
    version: Literal[2]
    name: str = ""


DOCUMENTS = {
    "no JSON": ("{", "no JSON: Expecting property name"),
    "no object": ("[]", "Input should be an object"),
    "no format": ('{"version": 2}', "format: Field required"),
    "an earlier version": ('{"format": "a document", "version": 1}', "version: Input should be 2, got 1"),
    "a long value": (f'{{"format": "{"x" * 100}", "version": 2}}', "format: Input should be 'a document'"),
    "half a pair of surrogates": ('{"format": "a document", "version": 2, "name": "\\ud800"}', "no JSON: .*surrogates"),
}


@pytest.mark.parametrize(("text", "message"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_documents_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(StoreError, match=rf"^x: damaged, or of another version \({message}[^,]*\); copy it$"):
        parse_document(text.encode(), TypeAdapter(Document), where="x", error=StoreError, advice="copy it")


def test_a_document() -> None:
    text = b'{"format": "a document", "version": 2, "name": "\xc3\xa4"}'
    found = parse_document(text, TypeAdapter(Document), where="x", error=StoreError, advice="copy it")
    assert found == Document(format="a document", version=2, name="\u00e4")


CELLS = {
    "formula": ("=1+1", "'=1+1"),
    "formula with plus": ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
    "formula with minus": ("-2+3", "'-2+3"),
    "function": ("@SUM(A1)", "'@SUM(A1)"),
    "after a tab": ("\t=1", "'\t=1"),
    "after a return": ("\r=1", "'\r=1"),
    "path": ("cats/1=2.png", "cats/1=2.png"),
    "number as text": ("-5", "-5"),
    "number": (-5.5, "-5.5"),
    "nothing": ("", ""),
    "missing": (None, ""),
}


@pytest.mark.parametrize(("given", "wanted"), CELLS.values(), ids=CELLS)
def test_texts_in_csv_files_are_texts_in_spreadsheets(tmp_path: Path, given: object, wanted: str) -> None:
    table = pd.DataFrame({"cell": [given], "other": ["a"]}).astype({"cell": object})
    write_csv(table, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["cell", "other"], [wanted, "a"]]
    assert table["cell"].tolist() == [given]
