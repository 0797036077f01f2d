"""The folder of the demo."""

import hashlib
import importlib.util
import lzma
from collections import Counter
from pathlib import Path

import pytest

from gradscore.config import load_config
from gradscore.demo import example, project, train
from gradscore.errors import ModelError

ROOT = Path(__file__).parents[2]
SOURCE = Path("/usr/share/datasets/fashion-mnist")
COUNTS = {"train": 2000, "fit": 600, "calibration": 600, "test": 2000, "unknown": 800}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "demo"
    with project(folder):
        pass
    return folder


def images(folder: Path, part: str) -> list[Path]:
    return sorted((folder / "images" / part).glob("*/*.png"))


@pytest.mark.parametrize("part", COUNTS)
def test_images(made: Path, part: str) -> None:
    assert len(images(made, part)) == COUNTS[part]


def test_no_image_is_in_two_parts(made: Path) -> None:
    digests = {(part, hashlib.sha256(path.read_bytes()).digest()) for part in COUNTS for path in images(made, part)}
    assert set(Counter(digest for _, digest in digests).values()) == {1}


def test_unknown_kinds_are_unknown(made: Path) -> None:
    kinds = {part: {path.parent.name for path in images(made, part)} for part in COUNTS}
    known = kinds.pop("train")
    assert len(known) == 8
    assert kinds == {**dict.fromkeys(("fit", "calibration", "test"), known), "unknown": {"bag", "ankle_boot"}}


def test_configuration_uses_every_part_once(made: Path) -> None:
    config = load_config(made / "gradscore.yaml")
    named = config.model_dump_json()
    assert [named.count(f'{made / "images" / part}"') for part in COUNTS] == [1] * len(COUNTS)


DECISIONS = {
    "most are accepted": (["accept", "accept", "reject", "reject"], "2 of 4 unknown images are rejected (50 %)", 2),
    "all are accepted": (["accept"] * 4, "0 of 4 unknown images are rejected (0 %)", 0),
}


@pytest.mark.parametrize(("decisions", "share", "place"), DECISIONS.values(), ids=DECISIONS)
def test_the_example_is_the_first_that_is_rejected(made: Path, decisions: list[str], share: str, place: int) -> None:
    unknown = images(made, "unknown")[: len(decisions)]
    lines = [f"{path},{decision}" for path, decision in zip(unknown, decisions, strict=True)]
    (made / "unknown.csv").write_text("\n".join(["sample_id,decision", *lines]))
    found = example(made)
    assert found.what.startswith(share)
    known, shown = (Path(word) for word in found.words if word.endswith(".png"))
    assert (known.is_file(), known.parent.parent.name, shown) == (True, "test", unknown[place])


@pytest.mark.parametrize("end", [KeyboardInterrupt, ModelError])
def test_nothing_is_left_of_what_was_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    """Whatever is in it: a folder stands for the images, which take seconds."""
    monkeypatch.setattr(
        "gradscore.demo.demo_folder._fill", lambda folder: (folder / "images" / "train").mkdir(parents=True)
    )
    with pytest.raises(end), project(tmp_path / "demo"):
        raise end
    assert list(tmp_path.iterdir()) == []


def test_code_that_does_not_train_is_named(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("raise ValueError('of no use')")
    with pytest.raises(ModelError, match="of no use"):
        train(tmp_path)


@pytest.mark.skipif(not SOURCE.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_images_are_those_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ROOT / "data_scripts" / "demo_images.py"
    monkeypatch.syspath_prepend(str(script.parent))
    spec = importlib.util.spec_from_file_location("demo_images", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.lzma, "compress", lambda content, **_: content)  # which takes seconds, and says no more
    assert module.packed(SOURCE) == lzma.decompress((ROOT / "gradscore" / "demo" / "images.xz").read_bytes())
