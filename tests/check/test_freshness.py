"""Is a run still of the model and the data that it was made from? Said without running any code of theirs."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from restored import restored
from safetensors.torch import load_file, save_file
from torch import nn

from gradscore import Detector
from gradscore.check.freshness import outdated
from gradscore.config import Config
from gradscore.models import sources
from gradscore.pipeline import extract
from gradscore.store import RunFolder


def images(path: Path, *, seed: int, label: int = 0) -> None:
    """An archive of twelve samples like digits, of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 17, (12, 8, 8), dtype=np.uint8)
    np.savez(path, images=pixels, labels=np.full(12, label))


def made_in(folder: Path, small_run: Path, ood: dict[str, object], test: dict[str, object]) -> Path:
    """A run of the small model with other data, in a folder with the model."""
    for name in ("net.py", "net.safetensors"):
        shutil.copy(small_run.parent / name, folder / name)
    settings = RunFolder(small_run).config.model_dump(mode="json")
    settings["model"] |= {"source": f"python:{folder}/net.py:net", "checkpoint": folder / "net.safetensors"}
    settings["data"]["ood"].append(ood)
    settings["data"]["in_dist"]["test"] |= test
    settings["run"] = folder / "run"
    extract(Config.model_validate(settings), trust_code=True)
    return folder


@pytest.fixture(scope="module")
def made(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, two archives of samples, and the run made of them."""
    folder = tmp_path_factory.mktemp("made")
    images(folder / "ood.npz", seed=0)
    images(folder / "test.npz", seed=1)
    ood = {"source": f"npz:{folder}/ood.npz", "name": "mine"}
    return made_in(folder, small_run, ood, {"source": f"npz:{folder}/test.npz", "select": {}})


@pytest.fixture
def kept(made: Path, tmp_path: Path) -> Iterator[Path]:
    """The same folder, put back as it was afterwards."""
    yield from restored(made, tmp_path)


def test_nothing_of_an_untouched_run_is_outdated(made) -> None:
    found = outdated(RunFolder(made / "run"))
    assert (found.changed, found.gone) == ([], [])
    (unseen,) = found.unseen
    assert unseen.startswith(f"what the code of python:{made}/net.py:net reads itself")


def test_a_run_elsewhere_is_compared_with_the_files_it_names(made, tmp_path) -> None:
    """A copy of a whole project has its own weights, which may be damaged: its run does not name them."""
    shutil.copytree(made, tmp_path / "copy")
    (tmp_path / "copy/net.safetensors").write_bytes(b"")
    found = outdated(RunFolder(tmp_path / "copy/run"))
    assert (found.changed, found.gone) == ([], [])
    said = f"copies of its model and data: this run was made in {made}/run, and the model and data that its"
    assert found.unseen[0].startswith(said)


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new))


def other_weights(folder: Path) -> None:
    weights = load_file(folder / "net.safetensors")
    save_file(weights | {"3.weight": weights["3.weight"].flip(0)}, folder / "net.safetensors")


CHANGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "other weights": (other_weights, "the file of the weights, .*net.safetensors, is another"),
    "other code": (edit("net.py", "return", "print()\n    return"), "model.code_sha256 was .*, is now "),
    "other samples of a name": (lambda folder: images(folder / "ood.npz", seed=5), "ood.mine: the samples .* changed"),
    "other labels": (
        lambda folder: images(folder / "test.npz", seed=1, label=3),
        "in_dist.test: the samples .* changed",
    ),
}


@pytest.mark.parametrize(("change", "message"), CHANGED.values(), ids=CHANGED)
def test_what_changed_is_named(kept, change, message: str) -> None:
    change(kept)
    found = outdated(RunFolder(kept / "run"))
    assert found.gone == []
    assert len(found.changed) == 1
    assert re.search(message, found.changed[0])


GONE = {
    "weights": ("net.safetensors", "the file of the weights, .*net.safetensors"),
    "code": ("net.py", "the files of model"),
    "samples": ("ood.npz", "its samples cannot be opened .*ood.npz"),
}


@pytest.mark.parametrize(("name", "message"), GONE.values(), ids=GONE)
def test_what_is_gone_is_named(kept, name: str, message: str) -> None:
    (kept / name).unlink()
    found = outdated(RunFolder(kept / "run"))
    assert found.changed == []
    assert len(found.gone) == 1
    assert re.search(message, found.gone[0])


def test_no_code_runs(kept, monkeypatch) -> None:
    """A marker that any run of the code would leave; its hash is another one all the same."""
    edit("net.py", "from torch", f"open({str(kept / 'ran')!r}, 'w').close()\nfrom torch")(kept)
    monkeypatch.setenv("GRADSCORE_TRUST_CODE", "1")
    assert outdated(RunFolder(kept / "run")).changed
    assert not (kept / "ran").exists()


def test_the_file_of_the_weights_is_hashed_once(made, monkeypatch) -> None:
    hashed, compute = [], sources.file_sha256
    monkeypatch.setattr(sources, "file_sha256", lambda path: hashed.append(path.name) or compute(path))
    outdated(RunFolder(made / "run"))
    assert hashed == ["net.safetensors"]


DATA = "def samples(count):\n    import numpy as np\n    return list(np.zeros((count, 8, 8, 1), dtype=np.uint8))\n"


@pytest.fixture(scope="module")
def of_code(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an OOD set that code makes."""
    folder = tmp_path_factory.mktemp("of_code")
    (folder / "data.py").write_text(DATA)
    ood = {"source": f"python:{folder}/data.py:samples", "arguments": {"count": 3}, "name": "code"}
    return made_in(folder, small_run, ood, {})


def test_data_that_code_makes_are_not_looked_at(of_code) -> None:
    found = outdated(RunFolder(of_code / "run"))
    assert (found.changed, found.gone) == ([], [])
    assert re.search("the samples of ood.code, which code, a program or an address gives", " ".join(found.unseen))


LABELLED = """
def labelled():
    import numpy as np
    return [(image, place % 3) for place, image in enumerate(np.zeros((12, 8, 8, 1), dtype=np.uint8))]
"""


def test_files_beside_labelled_data_that_code_makes_are_looked_at(small_run, tmp_path) -> None:
    (tmp_path / "data.py").write_text(LABELLED)
    images(tmp_path / "ood.npz", seed=0)
    ood = {"source": f"npz:{tmp_path}/ood.npz", "name": "mine"}
    made_in(tmp_path, small_run, ood, {"source": f"python:{tmp_path}/data.py:labelled", "select": {}})
    assert outdated(RunFolder(tmp_path / "run")).changed == []
    images(tmp_path / "ood.npz", seed=5)
    [changed] = outdated(RunFolder(tmp_path / "run")).changed
    assert re.search("ood.mine: the samples .* changed", changed)


def test_but_their_code_is(of_code) -> None:
    edit("data.py", "zeros", "ones")(of_code)
    [changed] = outdated(RunFolder(of_code / "run")).changed
    assert changed.startswith("ood.code: data.ood.code.code_sha256 was ")


def test_what_a_program_gave_is_not_looked_at() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    inputs, labels = torch.randn(90, 1, 2, 2), torch.arange(90) % 3
    with pytest.warns(UserWarning, match="accuracy is 0.27 on in_dist.fit.*, which is chance"):
        detector = Detector(model, alpha=0.5).fit(
            (inputs, labels), ood={"noise": torch.randn(60, 1, 2, 2) * 9}, auxiliary=[]
        )
    found = outdated(RunFolder(detector.run.path))
    assert (found.changed, found.gone) == ([], [])
    assert "the model, which a program gave" in found.unseen
