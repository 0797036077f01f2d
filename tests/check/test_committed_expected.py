"""The expected figures of the digits model in this repository is of the settings and the code that are here."""

from pathlib import Path

import pytest

from gradscore.check.expected import HASH_DIGITS, ExpectedFigures, read_expected
from gradscore.config import load_config
from gradscore.models import trusting_code
from gradscore.pipeline import RunPlan

CONFIGS = Path(__file__).parents[2] / "configs"
ANEW = "outdated: make configs/digits_expected.json anew, as configs/digits.yaml says"


@pytest.fixture(scope="module")
def expected() -> ExpectedFigures:
    return read_expected(CONFIGS / "digits_expected.json")


@pytest.fixture(scope="module")
def plan() -> RunPlan:
    """Of the configuration as it is, with random weights: those of the expected figures depend on the processor."""
    config = load_config(CONFIGS / "digits.yaml", ["model.checkpoint=null", "extract.device=cpu"])
    with trusting_code():
        return RunPlan.of(config)


def test_its_model_is_that_of_the_configuration(expected, plan) -> None:
    model = {**plan.inputs.model.model_dump(), "preprocessing": plan.inputs.preprocessing}
    now = expected.model_copy(update={"model": model})
    assert now.changed_from(expected) == ["weights_sha256"], ANEW


def test_its_samples_are_those_of_the_configuration(expected, plan) -> None:
    test = plan.datasets["in_dist.test"]
    known = expected.splits["in_dist.test"].content_hash
    assert set(known) == {test[place].content_hash[:HASH_DIGITS] for place in range(len(test))}, ANEW
    assert set(expected.splits) == {"in_dist.test", "ood.digits_8_and_9", "ood.noise"}, ANEW


def test_its_features_are_those_of_the_configuration(expected, plan) -> None:
    logits = [f"logit_{place}" for place in range(plan.config.model.classes)]
    assert [*expected.probe.columns] == [*logits, *plan.extractor.feature_names], ANEW
