"""Rows that a run folder kept are of the samples and of the model that are there, whatever its manifest can tell."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gradscore.config import Config
from gradscore.errors import StoreError
from gradscore.pipeline import extract
from gradscore.store import RunFolder

DATA = """
from pathlib import Path

import numpy as np


def load():
    return list(np.load(Path(__file__).with_name("mine.npy")))
"""
READS_A_FILE = """
from pathlib import Path


def scaled():
    model = net()
    scale = float(Path(__file__).with_name("scale.txt").read_text())
    model.register_forward_hook(lambda _model, _inputs, output: output * scale)
    return model
"""


def images(folder: Path, *, seed: int, start: int = 0) -> None:
    """Those of twelve uncompressed images from `start` on, whose files have one size whatever is on them."""
    folder.mkdir(exist_ok=True)
    for place, pixels in enumerate(np.random.default_rng(seed).integers(0, 256, (12, 8, 8), dtype=np.uint8)):
        if place >= start:
            Image.fromarray(pixels).save(folder / f"{place:02}.bmp")


@pytest.fixture
def config(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A run that was extracted, of a network and data that read files of their own; of images one is read whole."""
    monkeypatch.setattr("gradscore.data.sources.raw_samples.READ_WHOLE", 1)
    shutil.copy(small_run.parent / "net.safetensors", tmp_path)
    (tmp_path / "net.py").write_text((small_run.parent / "net.py").read_text() + READS_A_FILE)
    (tmp_path / "scale.txt").write_text("1.0")
    (tmp_path / "data.py").write_text(DATA)
    np.save(tmp_path / "mine.npy", np.zeros((12, 8, 8, 1), dtype=np.uint8))
    images(tmp_path / "images", seed=0)
    settings = RunFolder(small_run).config.model_dump(mode="json")
    settings["model"] |= {"source": f"python:{tmp_path}/net.py:scaled", "checkpoint": tmp_path / "net.safetensors"}
    settings["data"]["ood"] += [
        {"name": "files", "source": f"folder:{tmp_path}/images"},
        {"name": "code", "source": f"python:{tmp_path}/data.py:load"},
    ]
    settings["run"] = tmp_path / "run"
    made = Config.model_validate(settings)
    extract(made, trust_code=True)
    return made


def test_an_untouched_run_is_kept(config: Config) -> None:
    assert extract(config, trust_code=True, check_kept=True).was_complete


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "images of the same size, but for the first": (
        lambda folder: images(folder / "images", seed=1, start=1),
        "ood.files, .*01.bmp: another content than when it was computed; .*--out",
    ),
    "what code of data reads": (
        lambda folder: np.save(folder / "mine.npy", np.ones((12, 8, 8, 1), dtype=np.uint8)),
        "ood.code, .*: another content",
    ),
    "what code of the network reads": (
        lambda folder: (folder / "scale.txt").write_text("-1.0"),
        "the network says something else of these samples",
    ),
}


@pytest.mark.parametrize("all_of_them", [False, True], ids=["a few", "all"])
@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_what_no_hash_tells_is_seen(config: Config, tmp_path: Path, change, message: str, all_of_them: bool) -> None:
    change(tmp_path)
    with pytest.raises(StoreError, match=message):
        extract(config, trust_code=True, check_kept=all_of_them)


def test_one_sample_that_changed_is_seen_where_all_are_read(config: Config, tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 7, dtype=np.uint8)).save(tmp_path / "images/02.bmp")
    assert extract(config, trust_code=True).was_complete
    with pytest.raises(StoreError, match=r"02\.bmp: another content"):
        extract(config, trust_code=True, check_kept=True)


@pytest.mark.parametrize("all_of_them", [False, True], ids=["a few", "all"])
def test_a_sample_that_can_no_longer_be_read_is_seen(config: Config, tmp_path: Path, all_of_them: bool) -> None:
    """Though samples that cannot be used are left out."""
    image = tmp_path / "images/03.bmp"
    image.write_bytes(bytes(image.stat().st_size))
    skipping = config.model_copy(update={"extract": config.extract.model_copy(update={"on_error": "skip"})})
    with pytest.raises(StoreError, match=r"03\.bmp: cannot be used any more"):
        extract(skipping, trust_code=True, check_kept=all_of_them)
