"""A bundle with shifted copies, and what its scorer says of samples."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from gradscore.deployment import Bundle, Scorer, make_bundle, read_bundle, write_bundle
from gradscore.store import RunFolder

DIGITS = np.round(load_digits().images * (255 / 16)).astype(np.uint8)


@pytest.fixture(scope="session")
def watching_file(small_run: Path) -> Path:
    """A bundle of `small_run` with a few shifted copies; not to be changed."""
    path = small_run.parent / "watching.gradscore"
    made = make_bundle(RunFolder(small_run), alpha=0.1, with_weights=True, trust_code=True, shifted_copies=10)
    write_bundle(path, made)
    return path


@pytest.fixture(scope="session")
def bundle(watching_file: Path) -> Bundle:
    return read_bundle(watching_file)


@pytest.fixture(scope="session")
def scored(watching_file: Path) -> pd.DataFrame:
    """400 digits that nothing was fitted on, as the monitor takes them."""
    return Scorer.load(watching_file, trust_code=True)(DIGITS[420:820, None], watch=True)


@pytest.fixture(scope="session")
def table(scored: pd.DataFrame) -> Callable[..., pd.DataFrame]:
    """So many samples drawn from the scored ones, by seed; `worse` is added to the scores."""

    def make(count: int, *, seed: int = 0, worse: float = 0.0) -> pd.DataFrame:
        places = np.random.default_rng(seed).integers(0, len(scored), count)
        drawn = scored.iloc[places].reset_index(drop=True)
        return drawn.assign(score_wrong=drawn["score_wrong"] + worse)

    return make
