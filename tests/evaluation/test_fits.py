"""A bank of samples that are reported is refused in words."""

import re
from pathlib import Path

import numpy as np
import pytest
from written_runs import rows_of, written_run

from gradscore.baselines import FittedBaselines
from gradscore.errors import EvaluationError
from gradscore.evaluation import evaluate_run, fit_run
from gradscore.store import RunFolder, ShardRows

SIZE = 26
LOGITS = ["logit_0", "logit_1"]


def write_run(
    folder: Path, *, copied: str, copies: int, into: str = "in_dist.bank", lost: tuple[str, int, float] | None = None
) -> RunFolder:
    """A run whose bank, or split `into`, begins with `copies` samples of the split `copied`."""

    def rows(split: str) -> ShardRows:
        names = LOGITS if split == "in_dist.bank" else [*LOGITS, "uniform/fc.weight/l1"]
        origins = [copied if split == into and place < copies else split for place in range(SIZE)]
        labels = np.arange(SIZE) % 2
        values = np.random.default_rng(list(split.encode())).lognormal(size=(SIZE, len(names)))
        if lost is not None and lost[0] == split:
            values[lost[1], 1] = lost[2]
        return rows_of(
            split,
            names,
            values,
            labels=labels,
            predictions=np.where(np.arange(SIZE) % 5 == 0, 1 - labels, labels),
            content_hashes=[f"{origin}-{place}" for place, origin in enumerate(origins)],
        )

    return written_run(
        folder,
        rows,
        in_dist=("fit", "test", "calibration", "bank"),
        ood=[{"name": "far"}],
        meta={"cv_folds": 2, "Cs": [0.01]},
        evaluate={"near_duplicates": "ignore", "protocols": ["in_dist_only"]},
    )


REFUSED = {
    "all are test samples": ("in_dist.test", SIZE, f"all {SIZE} samples are copies"),
    "all calibrate": ("in_dist.calibration", SIZE, f"all {SIZE} samples are copies"),
    "all but one": ("in_dist.test", SIZE - 1, f"{SIZE - 1} of {SIZE} samples are copies"),
}


@pytest.mark.parametrize(("copied", "copies", "number"), REFUSED.values(), ids=REFUSED)
def test_a_bank_of_copies_is_refused(tmp_path: Path, copied: str, copies: int, number: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        fit_run(write_run(tmp_path / "run", copied=copied, copies=copies))
    assert str(caught.value).endswith(
        f"data.in_dist.bank: {number} of samples that are reported or calibrate ({copied}); give others"
    )


def test_a_bank_with_some_copies_does_without_them(tmp_path: Path) -> None:
    report = fit_run(write_run(tmp_path / "run", copied="in_dist.test", copies=SIZE - 2))
    assert any(f"{SIZE - 2} samples are both in in_dist.test and in in_dist.bank" in line for line in report.notices)


def test_baselines_of_the_samples_that_fit_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the scale of inputs, for the models, and for the choice of a score: neighbours in a bank take their time."""
    seen: list[int] = []
    scores = FittedBaselines.scores
    monkeypatch.setattr(FittedBaselines, "scores", lambda self, of: (seen.append(len(of)), scores(self, of))[1])
    fit_run(write_run(tmp_path / "run", copied="in_dist.test", copies=0))
    assert seen.count(SIZE) == 1


def test_an_augmentation_that_costs_accuracy_is_left_out(tmp_path: Path) -> None:
    labels = np.arange(SIZE) % 2

    def rows(split: str) -> ShardRows:
        logits = np.eye(2)[labels] + np.random.default_rng(list(split.encode())).uniform(0.0, 0.5, (SIZE, 2))
        names = [f"{start}{name}" for start in ("", "augmentation/mirror/", "augmentation/invert/") for name in LOGITS]
        values = np.hstack([logits, logits + 0.1, -logits, logits[:, :1]])
        given = labels if split == "in_dist.fit" else np.where(np.arange(SIZE) % 5 == 0, 1 - labels, labels)
        return rows_of(split, [*names, "uniform/fc.weight/l1"], values, labels=given, predictions=labels)

    run = written_run(
        tmp_path / "run",
        rows,
        ood=[{"name": "far"}],
        features={"augmentations": ["mirror", "invert"]},
        meta={"cv_folds": 2, "Cs": [0.01]},
        evaluate={"near_duplicates": "ignore", "protocols": ["in_dist_only"]},
    )
    (notice,) = [line for line in fit_run(run).notices if line.startswith("augmentation ")]
    assert notice.startswith(
        "augmentation 'invert' is left out: with it the accuracy on in_dist.fit is 0.000, without 1."
    )


@pytest.mark.parametrize("into", ["in_dist.calibration", "in_dist.test"])
def test_nothing_but_samples_with_another_use_is_refused(tmp_path: Path, into: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        fit_run(write_run(tmp_path / "run", copied="in_dist.fit", copies=SIZE, into=into))
    assert str(caught.value).endswith(
        f"all {SIZE} samples of in_dist.fit are copies of samples that are reported or calibrate ({into}), which fit "
        "nothing; give others, and extract again"
    )


@pytest.mark.parametrize("split", ["in_dist.fit", "in_dist.bank", "in_dist.test"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sample_whose_outputs_are_not_finite_is_named(tmp_path: Path, split: str, value: float) -> None:
    run = write_run(tmp_path / "run", copied="in_dist.fit", copies=0, lost=(split, 7, value))

    def fit_and_report() -> None:
        fit_run(run)
        evaluate_run(run)

    with pytest.raises(EvaluationError, match=rf": split {re.escape(split)}, sample 7: logit_1 is not finite"):
        fit_and_report()


def test_a_run_with_nothing_to_report_says_what_can_be_done(tmp_path: Path) -> None:
    """No prediction is wrong and no set is OOD, but its meta model can decide."""

    def rows(split: str) -> ShardRows:
        values = np.random.default_rng(list(split.encode())).lognormal(size=(SIZE, 3))
        labels = np.arange(SIZE) % 2
        names = [*LOGITS, "uniform/fc.weight/l1"]
        return rows_of(split, names, values, labels=labels, predictions=labels)

    run = written_run(tmp_path / "run", rows, meta={"cv_folds": 2, "Cs": [0.01]})
    fit_run(run)
    with pytest.raises(EvaluationError, match=r"nothing to report: .* in data\.ood .*`gradscore bundle .*run` decides"):
        evaluate_run(run)
