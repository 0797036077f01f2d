"""A bank of samples that are reported is refused in words."""

from pathlib import Path

import numpy as np
import pytest
from run_inputs import INPUTS

from gradscore.config import Config
from gradscore.errors import EvaluationError
from gradscore.evaluation import fit_run
from gradscore.store import RunFolder, RunWriter, ShardRows

SIZE = 26
LOGITS = ["logit_0", "logit_1"]
SOURCE = {"source": "sklearn:digits"}


def write_run(folder: Path, *, copied: str, copies: int, into: str = "in_dist.bank") -> RunFolder:
    """A run whose bank, or split `into`, begins with `copies` samples of the split `copied`."""
    config = Config.model_validate(
        {
            "model": {"source": "torchvision:resnet18", "checkpoint": None, "num_classes": 2},
            "data": {
                "in_dist": dict.fromkeys(("fit", "test", "calibration", "bank"), SOURCE),
                "ood": [{**SOURCE, "name": "far"}],
            },
            "meta": {"cv_folds": 2, "Cs": [0.01]},
            "evaluate": {"near_duplicates": "ignore", "protocols": ["in_dist_only"]},
            "run": str(folder),
        }
    )
    with RunWriter.opened(folder, config=config, inputs=INPUTS) as writer:
        for info in RunFolder(folder).splits():
            is_bank = info.name == "in_dist.bank"
            names = LOGITS if is_bank else [*LOGITS, "uniform/fc.weight/l1"]
            origins = [copied if info.name == into and place < copies else info.name for place in range(SIZE)]
            labels = np.arange(SIZE) % 2
            rows = ShardRows(
                split=info.name,
                sample_ids=[str(place) for place in range(SIZE)],
                labels=labels,
                predictions=np.where(np.arange(SIZE) % 5 == 0, 1 - labels, labels),
                content_hashes=[f"{origin}-{place}" for place, origin in enumerate(origins)],
                names=names,
                values=np.random.default_rng(list(info.name.encode())).lognormal(size=(SIZE, len(names))),
                skipped=[],
            )
            writer.finish_split(info.name, [writer.write(info.name, 0, rows)], samples=1, seconds=1.0)
        writer.finish(feature_count=1, notices=[])
    return RunFolder(folder)


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


@pytest.mark.parametrize("into", ["in_dist.calibration", "in_dist.test"])
def test_nothing_but_samples_with_another_use_is_refused(tmp_path: Path, into: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        fit_run(write_run(tmp_path / "run", copied="in_dist.fit", copies=SIZE, into=into))
    assert str(caught.value).endswith(
        f"all {SIZE} samples of in_dist.fit are copies of samples that are reported or calibrate ({into}), which fit "
        "nothing; give others, and extract again"
    )
