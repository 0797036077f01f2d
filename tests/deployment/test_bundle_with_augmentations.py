"""A bundle of a run with augmentations: its scorer looks at the same augmentations."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from trusted import built

from gradscore.columns import META_COLUMNS, augmentations_of
from gradscore.data import collate
from gradscore.deployment import make_bundle, read_bundle, write_bundle
from gradscore.deployment.bundle_file import Bundle
from gradscore.deployment.scorer import Scorer
from gradscore.errors import BundleError, ModelError
from gradscore.extractor import Extractor
from gradscore.models import trusting_code
from gradscore.pipeline import open_datasets
from gradscore.store import RunFolder
from gradscore.system import file_sha256

CODE = "def halved(images):\n    return images / 2\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run) -> RunFolder:
    """A run with a bank and augmentations, one of them the user's."""
    folder = tmp_path_factory.mktemp("augmentations")
    (folder / "augmentations.py").write_text(CODE)
    augmentations = ["shift:1,0", f"python:{folder}/augmentations.py:halved"]
    run = make_run(features={"augmentations": augmentations}, bank={"start": 600, "stop": 700}, evaluate=False)
    return RunFolder(run)


@pytest.fixture(scope="module")
def bundle(run) -> Path:
    path = run.path.parent.parent / "augmentations.gradscore"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)  # the code of a run lies beside it or below the working directory
        write_bundle(path, make_bundle(run, alpha=0.1, with_weights=True, trust_code=True))
    return path


@pytest.fixture(scope="module")
def images(run) -> torch.Tensor:
    return collate(list(open_datasets(run.config, only=["in_dist.test"])["in_dist.test"])[:50]).inputs


def model_of(bundle: Bundle) -> nn.Module:
    model = built(bundle.model)
    model.load_state_dict(bundle.weights)
    return model


def test_the_extractor_of_a_bundle_gives_all_columns_of_the_run(run, bundle, images):
    found = read_bundle(bundle)
    classes = found.model.classes
    with trusting_code():
        extractor = Extractor(model_of(found), features=found.features, num_classes=classes)
    extractor.prepare(images[:3])
    frame = run.read("in_dist.test").head(50)
    assert augmentations_of(found.columns) == ["shift:1,0", "python:augmentations.py:halved"]
    assert found.columns == [name for name in frame.columns if name not in META_COLUMNS] == extractor.names
    np.testing.assert_allclose(extractor.values(images), frame[found.columns], rtol=1e-6, atol=1e-9)


def test_augmentations_of_a_bundle_need_trust(bundle, monkeypatch):
    found = read_bundle(bundle)
    model = model_of(found)
    monkeypatch.delenv("GRADSCORE_TRUST_CODE", raising=False)
    with pytest.raises(ModelError, match=r"features.augmentations.1 runs the code in"):
        Scorer(found, model)


@pytest.fixture
def moved(run, bundle, tmp_path) -> Path:
    """The bundle with the code of its model and augmentations, moved together."""
    top = run.path.parent.parent
    for path in (bundle, user_code(run.config.features.augmentations[1]), run.path.parent / "net.py"):
        place = tmp_path / path.relative_to(top)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return tmp_path / bundle.relative_to(top)


def user_code(augmentation: str) -> Path:
    return Path(augmentation.removeprefix("python:").rpartition(":")[0])


def test_a_bundle_moves_with_the_code_of_its_augmentations(moved, tmp_path):
    assert user_code(read_bundle(moved).features.augmentations[1]).is_relative_to(tmp_path)
    Scorer.load(moved, trust_code=True)


def test_code_of_a_augmentation_that_changed_is_not_run(moved):
    code = user_code(read_bundle(moved).features.augmentations[1])
    code.write_text(f"open({str(moved) + '.ran'!r}, 'w')\n{CODE}")
    with pytest.raises(
        ModelError,
        match=r"was made with code of SHA-256 .*augmentations\.py with what it imports has .*; nothing of it was run",
    ):
        Scorer.load(moved, trust_code=True)
    assert not moved.with_name(moved.name + ".ran").exists()


def test_code_of_a_augmentation_elsewhere_is_not_run(moved, tmp_path):
    inner = tmp_path / "inner" / moved.name
    inner.parent.mkdir()
    write_bundle(inner, read_bundle(moved))
    with pytest.raises(ModelError, match=r"wanted a file below .*name it yourself"):
        Scorer.load(inner, trust_code=True, model_source=read_bundle(moved).model.source)


def test_code_of_a_augmentation_is_shown_before_it_runs(moved):
    told = []
    with trusting_code(tell=told.append):
        Scorer.load(moved)
    assert [re.search(r"(\w+\.py:\w+) with arguments", code)[1] for code in told] == [
        "net.py:net",
        "augmentations.py:halved",
    ]


def test_an_augmentation_that_answers_otherwise_is_found_out(moved):
    """As where a package that it calls has changed."""
    found = read_bundle(moved)
    code = user_code(found.features.augmentations[1])
    code.write_text(CODE.replace("/ 2", "/ 3"))
    changed = replace(found, augmentation_code_sha256={"python:augmentations.py:halved": file_sha256(code)})
    wanted = r"self-test: logits of augmentation 'python:augmentations\.py:halved' differ"
    with trusting_code(), pytest.raises(BundleError, match=wanted):
        Scorer(changed, model_of(found))
