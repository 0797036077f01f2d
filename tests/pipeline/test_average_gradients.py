"""Statistics of gradients averaged over augmentations of a sample, against two extractions averaged by NumPy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from gradscore.config import FeaturesConfig
from gradscore.extractor import Extractor
from gradscore.store import RunFolder

STATISTICS = ["l1", "min", "mean", "max"]


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(108, 4)
    return torch.nn.Sequential(*layers).eval()


def extractor(**features: object) -> Extractor:
    settings = FeaturesConfig.model_validate(
        {"losses": ["uniform", "pseudo_label"], "statistics": STATISTICS, **features}
    )
    return Extractor(net(), num_classes=4, features=settings)


def statistics(found: Extractor, images: torch.Tensor) -> np.ndarray:
    values = found.values(images)
    return values[:, [found.names.index(name) for name in found.feature_names]]


IMAGES = torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(1))
LOOKS = {
    "mirror": (["mirror"], [IMAGES, IMAGES.flip(3)]),
    "two augmentations": (
        ["mirror", "shift:1,0"],
        [IMAGES, IMAGES.flip(3), torch.cat([IMAGES[..., 1:2], IMAGES[..., :-1]], 3)],
    ),
}


@pytest.mark.parametrize(("augmentations", "looks"), LOOKS.values(), ids=LOOKS)
def test_statistics_are_means_over_the_looks(augmentations: list[str], looks: list[torch.Tensor]) -> None:
    found = extractor(augmentations=augmentations, average_gradients=augmentations)
    plain = extractor()
    # Meta models look at logarithms of all of these statistics.
    each = np.stack([statistics(plain, look) for look in looks])
    same_sign = (np.sign(each) == np.sign(each[0])).all(axis=0)
    with np.errstate(divide="ignore"):
        geometric = np.sign(each[0]) * np.exp(np.log(np.abs(each)).mean(axis=0))
    wanted = np.where(same_sign, geometric, each.mean(axis=0))
    np.testing.assert_allclose(statistics(found, IMAGES), wanted, rtol=1e-5, atol=1e-12)


def test_only_the_named_augmentations_count() -> None:
    augmentations = ["mirror", "shift:1,0"]
    one, both = (
        extractor(augmentations=augmentations, average_gradients=["mirror"]),
        extractor(augmentations=["mirror"], average_gradients=["mirror"]),
    )
    np.testing.assert_array_equal(statistics(one, IMAGES), statistics(both, IMAGES))


def test_logits_are_those_of_the_sample() -> None:
    found = extractor(augmentations=["mirror"], average_gradients=["mirror"])
    np.testing.assert_allclose(found.values(IMAGES)[:, :4], net()(IMAGES).detach(), rtol=1e-6, atol=1e-6)


def test_an_augmentation_that_is_not_looked_at_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"wanted some of features.augmentations \(mirror\), got 'shift:1,0'"):
        FeaturesConfig(augmentations=["mirror"], average_gradients=["shift:1,0"])


def test_a_bundle_scores_with_the_same_average(make_run, tmp_path: Path) -> None:
    from gradscore.deployment import Scorer, make_bundle, write_bundle
    from gradscore.pipeline import open_datasets

    run = RunFolder(make_run(features={"augmentations": ["mirror"], "average_gradients": ["mirror"]}, evaluate=False))
    path = tmp_path / "x.gradscore"
    write_bundle(path, make_bundle(run, alpha=0.1, with_weights=True, trust_code=True))
    dataset = open_datasets(run.config, only=["in_dist.test"])["in_dist.test"]
    images = torch.stack([dataset[place].inputs for place in range(20)])
    scorer = Scorer.load(path, trust_code=True, model_source=run.config.model.source)
    scores = scorer(images)["score_wrong"]
    model = scorer.bundle.detectors["wrong"].model
    np.testing.assert_allclose(scores, model.decision(run.read("in_dist.test").iloc[:20]), rtol=1e-4, atol=1e-6)
