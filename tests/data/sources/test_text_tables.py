"""Tables of text: fields that belong to no column are refused, and every other field is where it was written."""

import gzip
import math
from decimal import Decimal
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscore.data import open_source
from gradscore.data.sources.tables import read_text_table
from gradscore.errors import DataError

READ = {
    "plain": (b"a,label\n1,0\n2,1\n", {"a": [1, 2], "label": [0, 1]}),
    "a mark of UTF-8, and ends of lines of Windows": (b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n", {"a": [1], "b": [2]}),
    "spaces after commas": (b'a, b\n1, "x, y"\n', {"a": [1], "b": ["x, y"]}),
    "breaks and quotes in quotes": (b'a,b\n"x\ny ""z""",1\n', {"a": ['x\ny "z"'], "b": [1]}),
    "row numbers of pandas": (b",a,b\n0,5,6\n1,7,8\n", {"a": [5, 7], "b": [6, 8]}),
    "a comma at the end of every line": (b"a,b,\n5,6,\n7,8,\n", {"a": [5, 7], "b": [6, 8]}),
    "empty fields": (b"a,b,c\n1,x,\n,,\n", {"a": [1, None], "b": ["x", None], "c": [None, None]}),
    "words for none beside numbers": (b"a\nNA\n1.5\n null\nN/A\n+2\n", {"a": [None, 1.5, None, None, 2]}),
    "words for none beside truth values": (b"a\ntrue\nNone\nFALSE\n", {"a": [True, None, False]}),
    "words for none among names": (b"a,b\nNA,1\nnull,2\n,3\n", {"a": ["NA", "null", None], "b": [1, 2, 3]}),
    "no row": (b"a,b\n", {"a": [], "b": []}),
}


@pytest.mark.parametrize(("content", "columns"), READ.values(), ids=READ)
def test_fields_are_in_the_column_of_their_name(tmp_path: Path, content: bytes, columns: dict) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    assert read_text_table(tmp_path / "t.csv").to_pydict() == columns


def test_tabs_and_gzip(tmp_path: Path) -> None:
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(b"a\tb\n1,5\t2\n"))
    assert read_text_table(tmp_path / "t.tsv.gz").to_pydict() == {"a": ["1,5"], "b": [2]}


REFUSED = {
    "a field more in every row": (b"a,b,label\n9,1,2,0\n8,3,4,1\n", "fields in line 2: 4, in the first line: 3"),
    "a comma at the end of rows alone": (
        b"a,b\n1,2,\n3,4,\n",
        "fields in line 2: 3, in the first line: 2; write a name",
    ),
    "texts with commas that are not quoted": (b"text\nyes, it is\n", "fields in line 2: 2.* quote texts"),
    "a hundred thousand fields": (
        b"a,b\n" + b"1," * 100_000 + b"1\n",
        "fields in line 2: 100001, in the first line: 2",
    ),
    "a hundred thousand columns": (
        b",".join(b"c%d" % place for place in range(100_000)) + b"\n",
        "it has 100000 columns, and at most 32768 are read; .* .npz",
    ),
    "one name twice": (b"a,a\n1,2\n", "two columns are called 'a'"),
    "a column without a name": (b"a,,b\n1,2,3\n", "column 2 of 3 has no name in the first line"),
    "semicolons": (b"a;b\n1;2\n", "its first line is one name, 'a;b'; columns are parted by commas in .csv"),
    "a quote that does not end": (b'a,b\n1,2\n"x,3\n4,5\n', "line 3 cannot be read: a quote that does not end"),
    "another encoding": ("a,b\nx,1\nné,2\n".encode("latin-1"), "line 3 is no UTF-8"),
    "nothing": (b"\n", "it is empty"),
}


@pytest.mark.parametrize(("content", "says"), REFUSED.values(), ids=REFUSED)
def test_tables_of_which_nobody_can_tell_the_columns(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    begin = perf_counter()
    with pytest.raises(DataError, match=f"t.csv cannot be read: .*{says}"):
        open_source(f"csv:{tmp_path}/t.csv")
    assert perf_counter() - begin < 5


@pytest.mark.parametrize("options", [{}, {"columns": ["a", "b"]}, {"arguments": {"inputs": ["a", "b"]}}])
def test_a_table_of_names_of_columns_alone(tmp_path: Path, options: dict) -> None:
    (tmp_path / "t.csv").write_text("a,b,label\n")
    with pytest.raises(DataError, match=r"t\.csv has no rows, only the names of columns"):
        open_source(f"csv:{tmp_path}/t.csv", **{"arguments": {}, **options})


def test_thousands_of_columns(tmp_path: Path) -> None:
    values = np.arange(30_000).reshape(3, 10_000) / 8
    pd.DataFrame(values, columns=[f"c{place}" for place in range(10_000)]).to_csv(tmp_path / "t.csv", index=False)
    begin = perf_counter()
    source = open_source(f"csv:{tmp_path}/t.csv")
    found = [source.sample(place) for place in (0, 1, 2)]
    assert perf_counter() - begin < 15
    assert np.array_equal(found, values.astype(np.float32))


LABELS = {
    "names": (["NA", "cat", None, ""], [0, 1, -1, -1], ["NA", "cat"]),
    "numbers": ([0.0, 2.0, None, math.nan], [0, 2, -1, -1], None),
}


@pytest.mark.parametrize(("given", "labels", "names"), LABELS.values(), ids=LABELS)
def test_labels_of_parquet(tmp_path: Path, given: list, labels: list[int], names: list[str] | None) -> None:
    pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "label": given}).to_parquet(tmp_path / "t.parquet")
    source = open_source(f"parquet:{tmp_path}/t.parquet")
    assert source.labels.tolist() == labels
    assert (source.class_names and list(source.class_names)) == names


def test_texts_and_names_of_samples_may_be_such_words(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,text,label\nNA,null,0\nNone,N/A,1\n")
    source = open_source(f"csv:{tmp_path}/t.csv")
    assert list(source.ids) == ["NA", "None"]
    assert [source.sample(0), source.sample(1)] == ["null", "N/A"]


IDS = {
    "leading zeros": ["00007", "7"],
    "whole numbers": ["7", "12"],
    "exponents": ["12e5", "3e2"],
    "versions": ["1.10", "1.1"],
    "long": ["12345678901234567890123", "12345678901234567890124"],
    "truth values": ["True", "false"],
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_names_of_samples_are_text_as_it_is_written(tmp_path: Path, ids: list[str]) -> None:
    rows = "".join(f"{name},{place},1\n" for place, name in enumerate(ids))
    (tmp_path / "t.csv").write_text(f"id,a,label\n{rows}")
    (tmp_path / "u.csv").write_text(f"sample,a,label\n{rows}")
    assert list(open_source(f"csv:{tmp_path}/t.csv").ids) == ids
    assert list(open_source(f"csv:{tmp_path}/u.csv", arguments={"ids": "sample"}).ids) == ids


def test_a_column_called_id_may_hold_numbers_of_the_samples(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,a\n007,1\n8,2\n")
    for arguments in ({"ids": None}, {"inputs": ["id", "a"]}):
        assert open_source(f"csv:{tmp_path}/t.csv", arguments=arguments).sample(0).tolist() == [7, 1]


NUMBERED = {
    "numbers": ("2,0,1", [2, 0, 1], None),
    "of two digits": ("02,00,01", [2, 0, 1], None),
    "as pandas writes them beside nothing": ("2.0,0.0,", [2, 0, -1], None),
    "truth values": ("True,False,true", [1, 0, 1], ["False", "True"]),
    "names that begin with digits": ("01a,1b,01a", [0, 1, 0], ["01a", "1b"]),
    "nothing": (",,", [-1, -1, -1], None),
    "a class that is called as nothing is": ("NA,cat,,NA", [0, 1, -1, 0], ["NA", "cat"]),
    "a word for nothing beside numbers": ("2,NA,,0", [2, -1, -1, 0], None),
}


@pytest.mark.parametrize(("given", "labels", "names"), NUMBERED.values(), ids=NUMBERED)
def test_labels_are_numbers_or_names(tmp_path: Path, given: str, labels: list[int], names: list | None) -> None:
    rows = "".join(f"{place},{label}\n" for place, label in enumerate(given.split(",")))
    (tmp_path / "t.csv").write_text(f"a,label\n{rows}")
    source = open_source(f"csv:{tmp_path}/t.csv")
    assert (source.labels.tolist(), source.class_names and list(source.class_names)) == (labels, names)


def test_two_labels_that_become_one_number_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label\n1,01\n2,1\n")
    with pytest.raises(DataError, match="labels '01' and '1' are one number; write them alike, or as names"):
        open_source(f"csv:{tmp_path}/t.csv")


def test_a_row_without_a_name_is_refused_where_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,a\nx,1\n,2\n")
    with pytest.raises(DataError, match="row 1 has a missing value in column 'id', which names the samples"):
        open_source(f"csv:{tmp_path}/t.csv")


TEXTS = {"-": r"'-' in row 1", "twelve": "'twelve' in row 1"}


@pytest.mark.parametrize(("text", "said"), TEXTS.items())
def test_a_value_that_is_no_number_is_named_where_numbers_are_wanted(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_text(f"a,b\n1,2\n3,{text}\n")
    with pytest.raises(DataError, match=f"column 'b' holds {said}, wanted numbers, as in the samples to fit on"):
        open_source(f"csv:{tmp_path / 't.csv'}", {}, columns=["a", "b"])


def test_decimals_are_numbers(tmp_path: Path) -> None:
    """As tables of databases have them."""
    values = [Decimal("1.25"), Decimal("-3.5"), None]
    pq.write_table(pa.table({"a": values, "b": [1.0, 2.0, 3.0]}), tmp_path / "t.parquet")
    source = open_source(f"parquet:{tmp_path / 't.parquet'}", {}, columns=["a", "b"])
    np.testing.assert_array_equal(np.stack([source.sample(place) for place in (0, 1)]), [[1.25, 1], [-3.5, 2]])
