"""A bank and augmentations of the samples, from a configuration to the feature tables."""

from pathlib import Path
from typing import Any

import net_configs
import numpy as np
import pytest
import torch
from net_configs import digits, net_config
from torch import nn
from trusted import built

from gradscore.columns import (
    META_COLUMNS,
    augmentation_column,
    augmentations_of,
    feature_columns,
    logit_columns,
    penultimate_columns,
)
from gradscore.config import Config
from gradscore.errors import ConfigError, DataError, ModelError
from gradscore.pipeline import NO_BANK, extract, open_datasets
from gradscore.store import RunFolder

NET = f"""{net_configs.NET}

def convolutional():
    return nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())


class Sorted(nn.Sequential):
    def forward(self, images):
        order = images.mean((1, 2, 3)).argsort()
        return super().forward(images[order])[order.argsort()]


def in_another_order():
    return Sorted(*net())


class SortedFromTheFourth(nn.Sequential):
    # The first three digits are brighter than some later ones, and tie.
    def forward(self, images):
        order = (images.mean((1, 2, 3)) > 0.28).int().argsort(stable=True)
        return super().forward(images[order])[order.argsort()]


def in_another_order_later():
    return SortedFromTheFourth(*net())
"""
AUGMENTATIONS_CODE = """
def halved(images):
    return images / 2


def double(images):
    return images.double()


def infinite(images):
    return images / 0


def noisy(images):
    return images + 0.02 * images.new_empty(images.shape).normal_()


def averaged(images):
    return 0.9 * images + 0.1 * images.mean(0)


def reversed_batch(images):
    return images.flip(0)


def blurred(images):
    from torch.nn.functional import conv2d

    return conv2d(images, images.new_full((1, 1, 3, 3), 1 / 9), padding=1)
"""
SOURCE = {"source": "sklearn:digits"}
BANK = {**SOURCE, "select": {"start": 100, "count": 13, "stop": 200}}
AUGMENTATIONS = ["mirror", "shift:1,0", "shift:0,-2"]


def make_config(
    folder: Path, *, features: dict | None = None, bank: dict | None = None, net: str = "net", **changes: Any
) -> Config:
    (folder / "augmentations.py").write_text(AUGMENTATIONS_CODE)
    return net_config(
        folder,
        NET,
        net,
        in_dist={"fit": digits(0, 9), "test": digits(30, 37), "bank": bank},
        ood=[digits(50, 55, name="other")],
        features={"statistics": ["max", "l2"], **(features or {})},
        **{"extract": {"batch_size": 4, "part_size": 6}, **changes},
    )


def tables(config: Config) -> RunFolder:
    extract(config, trust_code=True)
    return RunFolder(config.run)


def raw_images(config: Config, split: str) -> np.ndarray:
    """(N, H, W), as the model takes them without preprocessing."""
    images = open_datasets(config)[split].source
    return np.stack([images.sample(place)[..., 0] for place in range(len(images.ids))]).astype(np.float32) / 255


def outputs_of(config: Config, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and inputs of the last layer in float64, one layer after the other."""
    model: nn.Module = built(config.model).double()
    with torch.no_grad():
        features = model[:3](torch.from_numpy(images)[:, None].double())
        return model[3](features).numpy(), features.numpy()


TRUTH = {
    "mirror": lambda images: images[:, :, ::-1].copy(),
    "shift:1,0": lambda images: np.pad(images, ((0, 0), (0, 0), (1, 0)), mode="reflect")[:, :, :-1],
    "shift:0,-2": lambda images: np.pad(images, ((0, 0), (0, 2), (0, 0)), mode="reflect")[:, 2:],
    "python:augmentations.py:halved": lambda images: images / 2,
}


@pytest.mark.parametrize("split", ["in_dist.fit", "ood.other"])
@pytest.mark.parametrize(("augmentation", "truth"), TRUTH.items(), ids=TRUTH)
def test_augmentation_columns_equal_what_the_model_makes_of_images_changed_by_numpy(
    tmp_path, augmentation, truth, split
):
    config = make_config(
        tmp_path, features={"augmentations": [*AUGMENTATIONS, f"python:{tmp_path}/augmentations.py:halved"]}
    )
    frame = tables(config).read(split)
    logits, penultimate = outputs_of(config, truth(raw_images(config, split)))
    np.testing.assert_allclose(frame[logit_columns(frame, augmentation=augmentation)], logits, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        frame[penultimate_columns(frame, augmentation=augmentation)], penultimate, rtol=1e-4, atol=1e-6
    )


def test_columns_of_a_table_with_augmentations(tmp_path):
    frame = tables(make_config(tmp_path, features={"augmentations": ["mirror"]})).read("in_dist.test")
    forward = [*(f"logit_{place}" for place in range(10)), *(f"penultimate_{place}" for place in range(27))]
    features = feature_columns(frame)
    assert list(frame) == [
        *META_COLUMNS,
        *forward,
        *(augmentation_column("mirror", name) for name in forward),
        *features,
    ]
    assert {name.split("/")[0] for name in features} == {"pseudo_label", "uniform"}
    assert augmentations_of(frame) == ["mirror"]
    assert logit_columns(frame) == forward[:10]


def test_augmentations_and_a_bank_leave_the_other_columns_as_they_are(tmp_path):
    plain = tables(make_config(tmp_path)).read("in_dist.fit")
    config = make_config(tmp_path, features={"augmentations": AUGMENTATIONS}, bank=BANK).model_copy(
        update={"run": tmp_path / "other"}
    )
    assert tables(config).read("in_dist.fit", columns=list(plain)).equals(plain)


def test_augmentations_without_penultimate_features(tmp_path):
    frame = tables(make_config(tmp_path, features={"augmentations": ["mirror"], "penultimate": False})).read(
        "in_dist.fit"
    )
    assert len(logit_columns(frame, augmentation="mirror")) == 10
    assert penultimate_columns(frame, augmentation="mirror") == penultimate_columns(frame) == []


def test_the_table_of_a_bank(tmp_path):
    config = make_config(tmp_path, bank=BANK, features={"augmentations": AUGMENTATIONS})
    frame = tables(config).read("in_dist.bank")
    assert list(frame) == [*META_COLUMNS, *logit_columns(frame), *penultimate_columns(frame)]
    samples = list(open_datasets(config)["in_dist.bank"])
    assert frame["sample_id"].tolist() == [sample.id for sample in samples]
    assert frame["content_hash"].tolist() == [sample.content_hash for sample in samples]
    assert frame["label"].tolist() == [sample.label for sample in samples]
    assert len(frame) == 13
    logits, penultimate = outputs_of(config, raw_images(config, "in_dist.bank"))
    np.testing.assert_allclose(frame[logit_columns(frame)], logits, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(frame[penultimate_columns(frame)], penultimate, rtol=1e-4, atol=1e-6)
    assert frame["prediction"].tolist() == logits.argmax(1).tolist()
    assert frame["correct"].tolist() == (logits.argmax(1) == frame["label"]).tolist()


def test_a_bank_is_looked_at_forward_only(tmp_path):
    """Samples in the bank have the values that they have elsewhere, to the last bit."""
    run = tables(make_config(tmp_path, bank={**SOURCE, "select": {"start": 30, "stop": 37}}))
    bank = run.read("in_dist.bank").drop(columns="split")
    assert run.read("in_dist.test", columns=list(bank)).equals(bank)


def test_a_bank_does_not_count_in_the_accuracy(tmp_path):
    summary = extract(make_config(tmp_path, bank=BANK), trust_code=True)
    run = RunFolder(summary.run)
    labelled = [run.read(split)["correct"] for split in ("in_dist.fit", "in_dist.test")]
    assert summary.accuracy == pytest.approx(np.concatenate(labelled).mean())


OTHER_BANKS = {"another bank": {**BANK, "select": {"stop": 13}}, "no bank": None}


@pytest.mark.parametrize("bank", OTHER_BANKS.values(), ids=OTHER_BANKS)
def test_another_bank_leaves_the_other_tables_as_they_are(tmp_path, bank):
    features = {"augmentations": ["mirror"]}
    extract(make_config(tmp_path, features=features, bank=BANK), trust_code=True)
    before = RunFolder(tmp_path / "run").table_sha256("in_dist.fit")
    found = extract(make_config(tmp_path, features=features, bank=bank), trust_code=True)
    assert {split.name for split in found.splits if split.computed} <= {"in_dist.bank"}
    assert RunFolder(tmp_path / "run").table_sha256("in_dist.fit") == before
    assert len(found.changes) == 1


@pytest.mark.parametrize("net", ["convolutional", "in_another_order", "in_another_order_later"])
def test_a_bank_without_a_linear_layer_is_left_out(tmp_path, net):
    config = make_config(tmp_path, bank=BANK, net=net)
    found = extract(config, trust_code=True)
    assert [(each, each.level) for each in found.notices if "bank" in each] == [(NO_BANK, "caution")]
    run = RunFolder(config.run)
    assert (run.config.data.in_dist.bank, run.config.features.penultimate) == (None, False)
    assert "in_dist.bank" not in {info.name for info in run.splits()}
    assert extract(config, trust_code=True).was_complete


def test_a_linear_layer_that_is_asked_for_is_wanted(tmp_path):
    config = make_config(tmp_path, bank=BANK, net="convolutional", features={"penultimate": True})
    message = r"features\.penultimate: wanted the linear layer that makes the logits, got '0'"
    with pytest.raises(ConfigError, match=message):
        extract(config, trust_code=True)
    assert not config.run.exists()


BAD_AUGMENTATIONS = {
    "double": (DataError, "must return floats of the type and shape it is given, torch.float32 .*; got torch.float64"),
    "infinite": (ModelError, "gives no finite logits for any of the first 3 samples"),
    "noisy": (ModelError, "gives other values each time; it must not use random numbers"),
    "averaged": (ModelError, "gives a sample other values in another batch; it must treat each sample by itself"),
    "reversed_batch": (ModelError, "gives a sample other values in another batch; it must treat each"),
}


@pytest.mark.parametrize(
    ("name", "error", "message"), [(name, *bad) for name, bad in BAD_AUGMENTATIONS.items()], ids=BAD_AUGMENTATIONS
)
def test_an_augmentation_that_is_none_stops_before_there_is_a_run(tmp_path, name, error, message):
    config = make_config(tmp_path, features={"augmentations": ["mirror", f"python:{tmp_path}/augmentations.py:{name}"]})
    with pytest.raises(error, match=rf"features\.augmentations: 'python:augmentations\.py:{name}' {message}"):
        extract(config, trust_code=True)
    assert not config.run.exists()


def test_an_augmentation_that_differs_with_the_batch_by_rounding_is_taken(tmp_path):
    augmentations = [f"python:{tmp_path}/augmentations.py:blurred", "crop:1"]
    frame = tables(make_config(tmp_path, features={"augmentations": augmentations})).read("in_dist.test")
    assert augmentations_of(frame) == ["python:augmentations.py:blurred", "crop:1"]


def test_weights_that_are_not_finite_stop_before_there_is_a_run(tmp_path):
    config = make_config(tmp_path)
    model = built(config.model)
    weights = model.state_dict() | {"3.bias": torch.full((10,), torch.nan)}
    torch.save(weights, tmp_path / "net.pt")
    config = make_config(tmp_path).model_copy(
        update={"model": config.model.model_copy(update={"checkpoint": tmp_path / "net.pt"})}
    )
    with pytest.raises(ModelError, match=r"the model gives no finite logits .*: 3\.bias is not finite; check"):
        extract(config, trust_code=True)
    assert not config.run.exists()
