"""Data, weights and bundles in object storage against the same files in a local folder."""

import io
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from commands import cli
from PIL import Image
from storage_server import Bucket
from torch import nn
from trusted import built

from gradscore.data import SampleSource, open_source
from gradscore.errors import DataError, ObjectStorageError
from gradscore.models import ModelConfig
from gradscore.object_storage import fetched, uploading
from gradscore.store import changing

pytestmark = pytest.mark.slow

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
NUMBERS = pd.DataFrame({"a": [0.5, 1.5, -2.0], "b": [1.0, 0.0, 3.0], "label": [0, 1, 1]})


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, images=PIXELS, labels=np.arange(6))
    return file.getvalue()


def parquet() -> bytes:
    file = io.BytesIO()
    NUMBERS.to_parquet(file)
    return file.getvalue()


PHOTOS = {f"photos/{kind}/{place}.png": png(PIXELS[place]) for place, kind in enumerate(["cat", "dog", "cat"])}
LIST = "path,label\nphotos/cat/0.png,cat\nphotos/dog/1.png,dog\n"

DATA: dict[str, tuple[str, Mapping[str, bytes]]] = {
    "npz": ("npz:{}/d.npz", {"d.npz": npz()}),
    "folder": ("folder:{}/photos", PHOTOS),
    "csv": ("csv:{}/d.csv", {"d.csv": NUMBERS.to_csv(index=False).encode()}),
    "Parquet in a folder": ("hf:{}/h", {"h/data/train-0.parquet": parquet(), "h/README.md": b"#"}),
    "a table of paths": ("csv:{}/d.csv", {"d.csv": LIST.encode(), **PHOTOS}),
}


def both(bucket: Bucket, folder: Path, files: Mapping[str, bytes]) -> tuple[str, str]:
    """Puts files into a bucket and into a folder; returns where they are."""
    for name, content in files.items():
        bucket.put(f"some/data/{name}", content)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return bucket.address("some/data"), str(folder)


def content(source: SampleSource) -> tuple[object, ...]:
    labels = None if source.labels is None else source.labels.tolist()
    samples = [str(np.asarray(source.sample(place)).tolist()) for place in range(len(source.ids))]
    return list(source.ids), labels, getattr(source, "class_names", None), samples, source.content()


@pytest.mark.parametrize(("source", "files"), DATA.values(), ids=DATA)
def test_data_are_those_of_local_files(source: str, files: Mapping[str, bytes], bucket: Bucket, tmp_path: Path) -> None:
    there, here = both(bucket, tmp_path / "here", files)
    arguments = {"root": there} if any(name == "d.csv" and b"path" in files[name] for name in files) else {}
    local = {"root": here} if arguments else {}
    assert content(open_source(source.format(there), arguments)) == content(open_source(source.format(here), local))


def test_images_beside_a_table_are_fetched_alone(bucket: Bucket, tmp_path: Path) -> None:
    there, _ = both(bucket, tmp_path, {"d.csv": LIST.encode(), "other.txt": b"", **PHOTOS})
    source = open_source(f"csv:{there}/d.csv", {"root": f"{there}/photos"})
    assert source.labels is not None
    assert source.labels.tolist() == [0, 1]
    assert np.asarray(source.sample(0)).shape == PIXELS[0].shape
    assert list((tmp_path / "cache").rglob("other.txt")) == []


def test_paths_in_a_table_need_a_root(bucket: Bucket, tmp_path: Path) -> None:
    there, _ = both(bucket, tmp_path, {"d.csv": LIST.encode(), **PHOTOS})
    with pytest.raises(DataError, match=f"arguments: {{root: {there}}}"):
        open_source(f"csv:{there}/d.csv")


def reads(bucket: Bucket, call: Callable[[], object]) -> list[str]:
    """The objects that a call downloads."""
    found: list[str] = []

    def answer(method: str, path: str) -> None:
        if method == "GET" and path.count("/") > 1:
            found.append(path.rpartition("/")[2])

    with bucket.server.answering(answer):
        call()
    return sorted(found)


def test_what_is_there_is_not_downloaded_again(bucket: Bucket, tmp_path: Path) -> None:
    there, _ = both(bucket, tmp_path, PHOTOS)
    assert reads(bucket, lambda: fetched(f"{there}/photos")) == ["0.png", "1.png", "2.png"]
    assert reads(bucket, lambda: fetched(f"{there}/photos")) == []
    bucket.put("some/data/photos/dog/1.png", png(PIXELS[5]))
    bucket.put("some/data/photos/dog/9.png", png(PIXELS[4]))
    bucket.delete("some/data/photos/cat/0.png")
    assert reads(bucket, lambda: fetched(f"{there}/photos")) == ["1.png", "9.png"]
    copy = fetched(f"{there}/photos")
    found = {path.relative_to(copy).as_posix(): path.read_bytes() for path in copy.rglob("*.png")}
    assert found == {
        name.removeprefix("some/data/photos/"): bucket.get(name) for name in bucket.keys("some/data/photos")
    }


def test_a_damaged_copy_is_downloaded_again(bucket: Bucket, tmp_path: Path) -> None:
    there, _ = both(bucket, tmp_path, {"d.npz": npz()})
    fetched(f"{there}/d.npz").write_bytes(b"half of it")
    assert fetched(f"{there}/d.npz").read_bytes() == npz()


PATTERNS = {
    "**": ("d/**/*.npz", ["d/a.npz", "d/b.npz", "d/e/c.npz"]),
    "letters": ("d/[!b-z].npz", ["d/a.npz"]),
}


@pytest.mark.parametrize(("pattern", "wanted"), PATTERNS.values(), ids=PATTERNS)
def test_patterns_name_what_they_name_locally(pattern: str, wanted: list[str], bucket: Bucket, tmp_path: Path) -> None:
    files = dict.fromkeys(["d/a.npz", "d/b.npz", "d/e/c.npz", "d/a.txt"], npz())
    there, here = both(bucket, tmp_path / "here", files)
    copies = Path(str(fetched(f"{there}/{pattern}")).removesuffix(pattern))
    assert sorted(path.relative_to(here).as_posix() for path in Path(here).glob(pattern)) == wanted
    assert sorted(path.relative_to(copies).as_posix() for path in copies.rglob("*.npz")) == wanted


def test_a_checkpoint_is_fetched(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(3, 2)\n")
    weights = nn.Linear(3, 2).state_dict()
    file = io.BytesIO()
    torch.save(weights, file)
    settings = {"source": f"python:{tmp_path}/net.py:net", "num_classes": 2}
    config = ModelConfig.model_validate({**settings, "checkpoint": bucket.put("weights/net.pt", file.getvalue())})
    assert torch.equal(built(config).state_dict()["weight"], weights["weight"])
    assert config.model_dump(mode="json")["checkpoint"] == bucket.address("weights/net.pt")


def test_scores_of_files_at_addresses(bucket: Bucket, small_bundle: Path, tmp_path: Path) -> None:
    digits = np.random.default_rng(0).integers(0, 17, (4, 8, 8), dtype=np.uint8) * 15
    file = io.BytesIO()
    np.savez(file, images=digits)
    there, here = both(bucket, tmp_path / "here", {"d/a.npz": file.getvalue(), "d/b.npz": file.getvalue()})
    scorer = bucket.put("scorer.gradscore", small_bundle.read_bytes())
    tables = []
    for bundle, samples in ((scorer, there), (str(small_bundle), here)):
        out = tmp_path / f"{len(tables)}.csv"
        where = ["--model", f"python:{small_bundle.parent}/net.py:net"]
        command = ["score", bundle, f"{samples}/d/*.npz", "--out", str(out), "--trust-code", *where]
        result = cli(*command)
        assert result.exit_code == 0, result.stderr
        tables.append(pd.read_csv(out))
    ours, theirs = tables
    assert ours["sample_id"].tolist() == [name.replace(here, there) for name in theirs["sample_id"]]
    assert ours["file"].tolist() == [name.replace(here, there) for name in theirs["file"]]
    pd.testing.assert_frame_equal(ours.drop(columns=["sample_id", "file"]), theirs.drop(columns=["sample_id", "file"]))


def test_weights_beside_a_bundle_are_fetched(bucket: Bucket, small_run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((3, 8, 8), dtype=np.uint8))
    folder = shutil.copytree(small_run.parent, tmp_path / "made")
    bundle, code = folder / "x.gradscore", ["--trust-code", "--model", f"python:{folder}/net.py:net"]
    with changing(folder / "run", ["config.yaml"]):
        config = folder / "run" / "config.yaml"
        config.write_text(config.read_text().replace(str(small_run.parent), str(folder)))
    made = cli("bundle", folder / "run", "--out", bundle, *code)
    assert made.exit_code == 0, made.stderr
    bucket.put("in/net.safetensors", (folder / "net.safetensors").read_bytes())
    address = bucket.put("in/x.gradscore", bundle.read_bytes())
    (folder / "net.safetensors").unlink()
    result = cli("score", address, tmp_path / "a.npz", *code)
    assert result.exit_code == 0, result.stderr


def test_results_are_uploaded(bucket: Bucket, small_bundle: Path) -> None:
    file = io.BytesIO()
    np.savez(file, images=np.zeros((3, 8, 8), dtype=np.uint8))
    for name in ("a", "b"):
        bucket.put(f"data/{name}.npz", file.getvalue())
    command = ["score", str(small_bundle), bucket.address("data"), "--trust-code"]
    result = cli(*command, "--out", bucket.address("results/all.csv"))
    assert result.exit_code == 0, result.stderr
    assert f"results: {bucket.address('results/all.csv')}\n" in result.stdout
    assert bucket.keys("results") == ["results/all.csv"]
    table = pd.read_csv(io.BytesIO(bucket.get("results/all.csv")))
    names = [f"{bucket.address('data')}/{name}.npz[{place}]" for name in ("a", "b") for place in range(3)]
    assert table["sample_id"].tolist() == names


def test_keys_that_lead_out_of_the_cache_are_refused(bucket: Bucket) -> None:
    bucket.put("data/a/../../../escaped.npz", b"no")
    with pytest.raises(ObjectStorageError, match="can be no path of a local copy"):
        fetched(bucket.address("data"))


def test_a_file_right_below_a_bucket(bucket: Bucket) -> None:
    with uploading(bucket.address("top.txt")) as path:
        path.write_text("content")
    assert bucket.get("top.txt") == b"content"
    assert fetched(bucket.address("top.txt")).read_bytes() == b"content"


def written_in_part(address: str) -> None:
    with uploading(address) as folder:
        (folder / "first").write_text("whole")
        raise DataError("the second cannot be read")


def test_what_was_made_before_an_error_is_uploaded(bucket: Bucket) -> None:
    with pytest.raises(DataError, match="the second"):
        written_in_part(bucket.address("out"))
    assert bucket.keys() == ["out/first"]


def test_a_bundle_replaces_no_foreign_object(bucket: Bucket, small_run: Path) -> None:
    address = bucket.put("weights/model.pt", b"weights")
    result = cli("bundle", small_run, "--out", address, "--trust-code")
    assert result.exit_code == 2
    assert f"{address}: this file is there already and is no bundle" in result.stderr
    assert bucket.get("weights/model.pt") == b"weights"


def test_results_among_the_objects_of_a_run_are_refused(bucket: Bucket, small_bundle: Path, tmp_path: Path) -> None:
    bucket.put("runs/a/manifest.json", b"{}")
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 8, 8), dtype=np.uint8))
    out = bucket.address("runs/a/evaluation/scores.parquet")
    arguments = ["score", str(small_bundle), str(tmp_path / "a.npz"), "--out", out, "--trust-code"]
    result = cli(*arguments)
    assert result.exit_code == 2
    assert f"this is part of the run {bucket.address('runs/a')}" in result.stderr
    assert bucket.keys("runs/a") == ["runs/a/manifest.json"]
