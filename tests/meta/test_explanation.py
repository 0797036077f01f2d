"""Contributions add up to the score, and drivers are the largest of them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gradscore.config.schema import MetaConfig
from gradscore.meta.combined import fit_combined_model
from gradscore.meta.explanation import Driver, contributions, drivers
from gradscore.meta.models import MetaModel, fit_distance_model
from gradscore.store.run_folder import RunFolder


@pytest.fixture(scope="module")
def frame(small_run: Path) -> pd.DataFrame:
    return RunFolder(small_run).read("in_dist.test").iloc[:40].reset_index(drop=True)


@pytest.fixture(scope="module", params=["logistic", "distance", "combined"])
def model(request: pytest.FixtureRequest, small_run: Path, frame: pd.DataFrame) -> MetaModel:
    fitted = {
        "logistic": lambda: MetaModel.load(small_run / "meta" / "ood" / "known" / "all"),
        "distance": lambda: fit_distance_model(frame),
        "combined": lambda: fit_combined_model(frame, np.arange(40) < 9, None, MetaConfig(cv_folds=2)),
    }
    return fitted[request.param]()


def test_contributions_add_up_to_the_score(model: MetaModel, frame: pd.DataFrame) -> None:
    intercept = model.arrays.get("intercept", np.zeros(1))[0]
    assert contributions(model, frame).sum(axis=1) + intercept == pytest.approx(model.decision(frame))


def test_drivers_are_the_largest_first(model: MetaModel, frame: pd.DataFrame) -> None:
    found = drivers(model, frame, k=3)
    wanted = -np.sort(-np.abs(contributions(model, frame)), axis=1)[:, :3]
    assert np.abs([[driver.contribution for driver in row] for row in found]) == pytest.approx(wanted)


TEXTS = {
    "a feature": (Driver("8.weight", "l2:l1", "uniform", 1.25), "8.weight l2:l1 of uniform +1.25"),
    "a score of the logits": (Driver("logits", "msp", None, -0.5), "logits msp -0.5"),
}


@pytest.mark.parametrize(("driver", "text"), TEXTS.values(), ids=TEXTS)
def test_text(driver: Driver, text: str) -> None:
    assert str(driver) == text
