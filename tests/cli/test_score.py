"""`gradscore bundle` and `gradscore score` against the library reference."""

import csv
import io
import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import Result
from commands import cli
from PIL import Image
from sklearn.datasets import load_digits

from gradscore.data import open_user_samples
from gradscore.deployment import read_bundle, write_bundle
from gradscore.deployment.results import table_writer
from gradscore.deployment.scorer import Scorer
from gradscore.system import file_sha256

DIGITS = np.round(load_digits().images[420:500] * (255 / 16)).astype(np.uint8)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in a folder, with a broken file and one of another size among them, and as .npz."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "images").mkdir()
    for place in range(6):
        Image.fromarray(DIGITS[place]).save(folder / "images" / f"{place}.png")
    (folder / "images" / "2b.png").write_bytes(b"broken")
    Image.fromarray(np.zeros((9, 9), dtype=np.uint8)).save(folder / "images" / "4b.png")
    np.savez(folder / "digits.npz", images=DIGITS)
    return folder


def score(bundle: Path, *arguments: object) -> Result:
    return cli("score", bundle, *arguments, "--trust-code")


READERS = {
    "parquet": pd.read_parquet,
    "csv": lambda path: pd.read_csv(path, keep_default_na=False, engine="python"),
}


@pytest.mark.parametrize("suffix", READERS)
def test_the_command_gives_what_the_library_gives(small_bundle, samples, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"scores.{suffix}"
    result = score(small_bundle, samples / "digits.npz", "--out", out, "--batch-size", 80, "--explain")
    wanted = Scorer.load(small_bundle, trust_code=True)(torch.from_numpy(DIGITS[:, None]), explain=5)
    found = READERS[suffix](out)
    assert result.exit_code == 0
    assert list(found.columns) == [*wanted.columns, "file"]
    assert {name: found[name].tolist() for name in wanted.columns[1:]} == {
        name: wanted[name].tolist() for name in wanted.columns[1:]
    }
    assert set(found["file"]) == {str(samples / "digits.npz")}


def test_samples_that_cannot_be_scored_keep_their_place(small_bundle, samples, tmp_path: Path) -> None:
    result = score(small_bundle, samples / "images", "--out", tmp_path / "x.parquet", "--batch-size", 3)
    found = pd.read_parquet(tmp_path / "x.parquet")
    assert [Path(name).stem for name in found["sample_id"]] == ["0", "1", "2", "2b", "3", "4", "4b", "5"]
    assert found["decision"].eq("error").tolist() == [False, False, False, True, False, False, True, False]
    assert "cannot be decoded" in found["error"][3]
    assert "size (1, 9, 9) after preprocessing, the model was run on (1, 8, 8)" in found["error"][6]
    assert found["prediction"].isna().sum() == 2
    assert "2 not scored" in result.stdout
    assert "not scored: 2; the first:" in result.stderr
    assert result.stdout.splitlines()[-1] == f"results: {tmp_path}/x.parquet (2 of 8 samples not scored: column error)"
    assert result.exit_code == 0


def test_an_error_of_all_is_shown_once(small_bundle, tmp_path: Path) -> None:
    np.savez(tmp_path / "large.npz", images=np.zeros((130, 9, 9), np.uint8))
    result = score(small_bundle, tmp_path / "large.npz")
    assert result.exit_code == 2
    assert result.stdout.count("large.npz[") == 1
    assert "has size (1, 9, 9) after preprocessing" in result.stdout
    assert "(and others likewise)" in result.stdout
    assert "not scored: 130; the first" in result.stderr


@pytest.mark.parametrize("out", [[], ["--out", "x.csv"]], ids=["shown", "a table"])
def test_a_file_with_samples_of_another_shape_is_named(small_bundle, tmp_path, monkeypatch, out: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("flat.npz", images=DIGITS.reshape(len(DIGITS), -1).astype(np.float32))
    np.savez("fine.npz", images=DIGITS)
    result = score(small_bundle, "fine.npz", "flat.npz", *out)
    assert result.exit_code == 2
    assert "flat.npz: samples: wanted shape (N, C, H, W), got (64, 64)" in result.stderr


@pytest.fixture
def odd_name(tmp_path: Path) -> Path:
    """A folder with an image whose name is not UTF-8, and another image."""
    (tmp_path / "images").mkdir()
    Image.fromarray(DIGITS[0]).save(tmp_path / "images/1.png")
    (tmp_path / "images/1.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/images/\xff0.png"))
    Image.fromarray(DIGITS[1]).save(tmp_path / "images/1.png")
    return tmp_path / "images"


@pytest.mark.parametrize("suffix", READERS)
def test_names_that_are_not_utf_8_are_written_escaped(small_bundle, odd_name, tmp_path: Path, suffix: str) -> None:
    result = score(small_bundle, odd_name, "--out", tmp_path / f"x.{suffix}")
    assert result.exit_code == 0, result.stderr
    found = READERS[suffix](tmp_path / f"x.{suffix}")
    assert [Path(name).name for name in found["sample_id"]] == ["1.png", "\\udcff0.png"]
    assert found["file"].tolist() == found["sample_id"].tolist()
    assert (found["decision"] == "error").tolist() == [False, False]


def test_one_image_prints_a_card(small_bundle, samples) -> None:
    result = score(small_bundle, samples / "images" / "0.png", "--explain")
    assert result.exit_code == 0
    scorer = Scorer.load(small_bundle, trust_code=True)
    (row,) = scorer(str(samples / "images" / "0.png")).to_dict("records")
    limit = scorer.bundle.detectors["ood"].threshold.alpha
    assert 0 < limit <= 0.1
    assert [line.split()[0] for line in result.stdout.splitlines()[1:3]] == ["decision", "prediction"]
    for name, title in {"wrong": "P(wrong)", "ood": "P(OOD)"}.items():
        (line,) = (each for each in result.stdout.splitlines() if each.strip().startswith(title))
        assert line.split(maxsplit=1)[1].strip() == (
            f"{row[f'probability_{name}']:.3f}   p-value {row[f'p_value_{name}']:.2g} (rejected up to {limit:.2g})"
        )
    assert "OOD score, largest contributions: " in result.stdout
    assert len(result.stdout.splitlines()) <= 20


def test_accepted_samples_that_are_probably_wrong_are_counted(small_bundle, samples, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    lines = score(small_bundle, samples / "digits.npz", "--out", out, "--alpha", 0.03).stdout
    table = pd.read_parquet(out)
    accepted = table[table["decision"] == "accept"]
    doubtful = (accepted["probability_wrong"] > 0.5).sum()
    assert doubtful > 0
    assert f"\n{doubtful} of {len(accepted)} accepted are doubtful, P(wrong) above 0.5; a larger --alpha" in lines
    shown = score(small_bundle, samples / "digits.npz", "--alpha", 0.03).stdout.splitlines()
    assert sum(line.startswith("accept") and line.endswith("  doubtful") for line in shown) == doubtful
    assert "accepted are" not in score(small_bundle, samples / "digits.npz", "--out", out, "--alpha", 0.6).stdout


def test_many_print_a_line_each(small_bundle, samples) -> None:
    result = score(small_bundle, samples / "images", "--explain")
    assert sum(line.startswith(("accept", "reject", "error")) for line in result.stdout.splitlines()) == 8


@pytest.fixture
def named_bundle(small_bundle: Path) -> Path:
    """A bundle whose classes have names, beside the code of its model."""
    path = small_bundle.with_name("named.gradscore")
    write_bundle(path, replace(read_bundle(small_bundle), class_names=[f"digit {place}" for place in range(10)]))
    return path


def test_predictions_are_shown_by_name(named_bundle: Path, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    assert score(named_bundle, samples / "images", "--out", out).exit_code == 0
    table = pd.read_parquet(out)
    assert list(table.columns)[:3] == ["sample_id", "prediction", "prediction_name"]
    scored = table[table["error"] == ""]
    assert scored["prediction_name"].tolist() == [f"digit {int(place)}" for place in scored["prediction"]]
    first = scored["prediction_name"].iloc[0]
    assert re.search(rf"prediction +{first} *\n", score(named_bundle, samples / "images" / "0.png").stdout)
    assert f"0.png  {first}  P(wrong)" in score(named_bundle, samples / "images").stdout


CODES = {
    "fine": (["digits.npz", "--alpha", "0.2"], 0),
    "a broken sample fails if asked": (["images/2b.png", "images/0.png", "--fail-on-reject"], 1),
    "nothing could be scored": (["images/2b.png"], 2),
    "an unknown format": (["digits.npz", "--out", "x.xlsx"], 2),
    "a folder": (["digits.npz", "--out", "results"], 2),
    "an alpha too small": (["digits.npz", "--alpha", "0.0001"], 2),
    "another bundle": (["digits.npz", "--sha256", "abc"], 2),
}


@pytest.mark.parametrize(("arguments", "code"), CODES.values(), ids=CODES)
def test_exit_codes(small_bundle, samples, monkeypatch, arguments: list[str], code: int) -> None:
    monkeypatch.chdir(samples)
    result = score(small_bundle, *arguments)
    assert result.exit_code == code
    assert "Traceback" not in result.output


def test_rows_are_streamed(small_bundle, samples) -> None:
    scorer = Scorer.load(small_bundle, trust_code=True)
    (source,) = open_user_samples([str(samples / "digits.npz")])
    taken: list[str] = []
    stream = scorer.stream((taken.append(image.id) or image for image in source), batch_size=16)
    assert len(next(stream)) == 16
    assert len(taken) == 16


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A folder `data` with the digits in two archives and a Parquet file, and nothing else."""
    (tmp_path / "data" / "deep").mkdir(parents=True)
    np.savez(tmp_path / "data" / "a.npz", images=DIGITS[:30])
    np.savez(tmp_path / "data" / "b.npz", images=DIGITS[30:50])
    encoded = []
    for pixels in DIGITS[50:]:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "png")
        encoded.append(stream.getvalue())
    pq.write_table(pa.table({"image": encoded}), tmp_path / "data" / "deep" / "c.parquet")
    return tmp_path


PARTS = {"a": slice(0, 30), "b": slice(30, 50), "deep/c": slice(50, 80)}
MANY = {
    "a folder": ["data"],
    "patterns": ["data/*.npz", "data/**/*.parquet"],
}


@pytest.fixture(scope="module")
def apart(small_bundle) -> pd.DataFrame:
    """The results of the library, for the samples of each file by itself."""
    scorer = Scorer.load(small_bundle, trust_code=True)
    tables = [scorer(torch.from_numpy(DIGITS[part, None])) for part in PARTS.values()]
    return pd.concat(tables, ignore_index=True).drop(columns="sample_id")


@pytest.mark.parametrize("names", MANY.values(), ids=MANY)
def test_many_files_into_one_table(small_bundle, many, apart, monkeypatch, names: list[str]) -> None:
    monkeypatch.chdir(many)
    result = score(small_bundle, *names, "--out", "x.parquet")
    found = pd.read_parquet(many / "x.parquet")
    assert result.exit_code == 0
    assert [*found["file"]] == ["data/a.npz"] * 30 + ["data/b.npz"] * 20 + ["data/deep/c.parquet"] * 30
    assert found["sample_id"][31] == "data/b.npz[1]"
    pd.testing.assert_frame_equal(found[apart.columns], apart, check_dtype=False)


@pytest.mark.parametrize("again", ["data/*.npz", "npz:data/a.npz"])
def test_a_file_is_not_scored_twice(small_bundle, many, monkeypatch, again: str) -> None:
    monkeypatch.chdir(many)
    result = score(small_bundle, "data/a.npz", again)
    assert result.exit_code == 2
    assert "data/a.npz: named twice" in result.stderr


@pytest.mark.parametrize("with_ids", ["--ids", None])
def test_a_column_names_the_samples(small_bundle, many, monkeypatch, with_ids: str | None) -> None:
    monkeypatch.chdir(many)
    name = "order" if with_ids else "id"  # one that is looked for, or one that nobody could guess
    images = pq.read_table("data/deep/c.parquet").slice(0, 3)
    pq.write_table(images.append_column(name, [["a", "b", "7"]]), "named.parquet")
    (many / "png").mkdir()
    for place, entry in enumerate(images["image"].to_pylist()):
        (many / "png" / f"{place}.png").write_bytes(entry)
    Path("named.csv").write_text(f"path,{name}\npng/0.png,a\npng/1.png,b\npng/2.png,007\n")
    options = [with_ids, name] if with_ids else []
    result = score(small_bundle, "named.parquet", "named.csv", *options, "--out", "x.csv")
    assert result.exit_code == 0
    names = ["named.parquet[a]", "named.parquet[b]", "named.parquet[7]", "named.csv[a]", "named.csv[b]"]
    assert [*pd.read_csv("x.csv")["sample_id"]] == [*names, "named.csv[007]"]


@pytest.mark.parametrize(("names", "said"), [(["a", None, "7"], "missing value"), (["a", "b", "a"], "'a' twice")])
def test_a_column_that_names_no_samples_is_left_out_by_an_empty_name(
    small_bundle, many, monkeypatch, names: list[str | None], said: str
) -> None:
    monkeypatch.chdir(many)
    images = pq.read_table("data/deep/c.parquet").slice(0, 3)
    pq.write_table(images.append_column("id", [names]), "named.parquet")
    for place, entry in enumerate(images["image"].to_pylist()):
        Path(f"{place}.png").write_bytes(entry)
    lines = [f"{place}.png,{name or ''}\n" for place, name in enumerate(names)]
    Path("named.csv").write_text("path,id\n" + "".join(lines))
    for file in ("named.parquet", "named.csv"):
        refused = score(small_bundle, file)
        assert refused.exit_code == 2
        assert said in refused.stderr
        assert "--ids ''" in refused.stderr
        taken = score(small_bundle, file, "--ids", "", "--out", "x.csv")
        assert taken.exit_code == 0
        assert [*pd.read_csv("x.csv")["sample_id"]] == [f"{file}[{row}]" for row in range(3)]


def test_names_that_no_table_has(small_bundle, many, monkeypatch) -> None:
    monkeypatch.chdir(many)
    result = score(small_bundle, "data/deep/c.parquet", "--ids", "order")
    assert result.exit_code == 2
    assert "no column 'order'" in result.stderr
    assert score(small_bundle, "data/a.npz", "--ids", "order").exit_code == 2


def test_a_bad_file_is_named_and_no_table_is_left(small_bundle, many, monkeypatch) -> None:
    monkeypatch.chdir(many)
    (many / "data" / "b.npz").write_bytes((many / "data" / "b.npz").read_bytes()[:400])
    result = score(small_bundle, "data", "--out", "x.parquet")
    assert result.exit_code == 2
    assert "data/b.npz" in result.stderr.partition("error: ")[2]
    assert [path.name for path in many.iterdir()] == ["data"]


OVER_SAMPLES = {
    "one of two": (["more.npz", "table.csv", "--column", "image"], "table.csv"),
    "by its kind": (["csv:table.csv", "--column", "image"], "table.csv"),
    "through a link": (["link.csv", "--column", "image"], "table.csv"),
    "results of earlier": (["results/a.parquet", "--column", "image"], "results/a.parquet"),
}


@pytest.mark.parametrize(("names", "out"), OVER_SAMPLES.values(), ids=OVER_SAMPLES)
def test_no_results_are_written_over_samples(small_bundle, tmp_path, monkeypatch, names: list[str], out: str) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(DIGITS[0]).save("0.png")
    np.savez("more.npz", images=DIGITS[:2])
    Path("table.csv").write_text("image,mine\n0.png,1\n")
    Path("link.csv").symlink_to("table.csv")
    (tmp_path / "deep").mkdir()
    with table_writer(Path("results/a.parquet"), ["image"]) as write:
        write(pd.DataFrame({"image": ["../0.png"]}))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = score(small_bundle, *names, "--root", ".", "--out", out)
    assert (result.exit_code, "this is one of the inputs" in " ".join(result.stderr.split())) == (2, True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_no_results_are_written_over_the_bundle(small_bundle, samples, tmp_path) -> None:
    bundle = Path(shutil.copy(small_bundle, tmp_path / "mine.csv"))
    before = bundle.read_bytes()
    result = score(bundle, samples / "images", "--out", bundle)
    assert (result.exit_code, "this is one of the inputs" in " ".join(result.stderr.split())) == (2, True)
    assert bundle.read_bytes() == before


@pytest.mark.parametrize("is_there", [True, False], ids=["a file", "dangling"])
def test_results_go_where_a_link_leads(small_bundle, samples, tmp_path, is_there: bool) -> None:
    (tmp_path / "deep").mkdir()
    target, link = tmp_path / "deep" / "table.csv", tmp_path / "link.csv"
    if is_there:
        target.write_text("old")
    link.symlink_to("deep/table.csv")
    assert score(small_bundle, samples / "images", "--out", link).exit_code == 0
    assert link.is_symlink()
    assert target.read_text() == link.read_text()
    assert "sample_id" in target.read_text().splitlines()[0]


ENDS = {"both": "a\r\nb", "quote": 'a"\rb', "formula": "\r=1"}


@pytest.mark.parametrize("name", ENDS.values(), ids=ENDS)
def test_names_with_ends_of_lines_stay_in_their_row_of_csv(tmp_path: Path, name: str) -> None:
    with table_writer(tmp_path / "x.csv", ["sample_id", "score_a", "prediction"]) as write:
        for names in (["plain", name], ["last"]):
            write(pd.DataFrame({"sample_id": names, "score_a": 0.1 + 0.2, "prediction": 3}))
    with (tmp_path / "x.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    kept = {"\r=1": "'\r=1"}.get(name, name)
    assert rows == [
        ["sample_id", "score_a", "prediction"],
        *[[each, f"{0.1 + 0.2:.17g}", "3"] for each in ("plain", kept, "last")],
    ]
    assert pd.read_csv(tmp_path / "x.csv")["sample_id"].tolist() == ["plain", kept, "last"]


@pytest.mark.parametrize(("following", "option"), {"score": [], "monitor": ["--monitor"]}.items())
def test_bundle_says_what_it_made(small_run, tmp_path: Path, monkeypatch, following: str, option: list[str]) -> None:
    monkeypatch.setattr("gradscore.deployment.COPIES", 5)
    arguments = [str(small_run), "--out", str(tmp_path / "x.gradscore"), "--alpha", "0.1", "--trust-code", *option]
    result = cli("bundle", *arguments)
    assert result.exit_code == 0
    assert "false alarms: correctly predicted in-distribution samples rejected, on average" in result.stdout
    assert "sha256: " in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last == f"Next: gradscore {following} {shlex.quote(str(tmp_path / 'x.gradscore'))} SAMPLES --trust-code"
    assert (tmp_path / "x.gradscore").is_file()


@pytest.mark.parametrize("target", ["run/model.safetensors", "empty"])
def test_bundle_replaces_no_file_that_is_no_bundle(small_run, tmp_path: Path, monkeypatch, target: str) -> None:
    shutil.copytree(small_run, tmp_path / "run")
    (tmp_path / "run/model.safetensors").write_text("mine")
    (tmp_path / "empty").touch()
    before = (tmp_path / target).read_bytes()
    monkeypatch.setattr("gradscore.deployment.make_bundle", None)
    arguments = [str(tmp_path / "run"), "--out", str(tmp_path / target), "--trust-code"]
    result = cli("bundle", *arguments)
    assert result.exit_code == 2
    assert "is there already and is no bundle; give another path" in result.stderr.replace("\n", " ")
    assert (tmp_path / target).read_bytes() == before


def test_bundle_replaces_a_damaged_bundle(small_bundle, tmp_path: Path) -> None:
    path = tmp_path / "scorer.gradscore"
    path.write_bytes(small_bundle.read_bytes()[:-1000])
    assert write_bundle(path, read_bundle(small_bundle)) == file_sha256(path)
