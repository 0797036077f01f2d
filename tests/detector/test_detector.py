"""A detector beside the commands: the same samples through both give the same numbers to the last digit."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from commands import printed
from net_configs import digits, net_config
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trusted import built

import gradscore
from gradscore.config import Config, dump_config
from gradscore.data.sources.synthetic import AUTO_OF_IMAGES
from gradscore.deployment import read_bundle
from gradscore.errors import EvaluationError
from gradscore.evaluation.protocols import first_half
from gradscore.meta import ScoreChoice
from gradscore.pipeline import open_datasets
from gradscore.store import RunFolder

SETTINGS: dict[str, dict[str, Any]] = {
    "preprocessing": {"mean": [0.5], "std": [0.5]},
    "features": {"statistics": ["max", "l2"], "losses": ["uniform"]},
    "extract": {"batch_size": 50},
    "meta": {"Cs": [0.01], "boosts": [10.0], "cv_folds": 2},
    "evaluate": {"protocols": ["auxiliary", "in_dist_only"], "near_duplicates": "ignore"},
}
PIXELS = np.round(load_digits().images * (255 / 16)).astype(np.uint8)[:, None]
LABELS = load_digits().target.astype(np.int64)


@dataclass
class ByCommands:
    """What the commands made: the run folder with its bundle beside it, and the model."""

    run: Path
    bundle: Path
    config: Config
    model: nn.Module

    def raw(self, split: str) -> np.ndarray:
        """The raw pixels (N, C, H, W) of a split."""
        images = open_datasets(self.config)[split].source
        return np.stack([images.sample(place).transpose(2, 0, 1) for place in range(len(images.ids))])

    def inputs(self, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The model inputs and labels of a split."""
        samples = list(open_datasets(self.config)[split])
        return torch.stack([each.inputs for each in samples]), torch.tensor([each.label for each in samples])

    def scored(self, images: np.ndarray, folder: Path) -> pd.DataFrame:
        """What `gradscore score` says of raw pixels (N, 1, H, W)."""
        np.savez(folder / "images.npz", images=images[:, 0])
        printed("score", self.bundle, folder / "images.npz", "--out", folder / "scores.parquet", "--batch-size", 50)
        return pd.read_parquet(folder / "scores.parquet")


@pytest.fixture(scope="module")
def by_commands(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> ByCommands:
    folder = tmp_path_factory.mktemp("commands")
    shutil.copy(small_run.parent / "net.safetensors", folder)
    made = [{"name": kind, "source": f"synthetic:{kind}", "auxiliary": True} for kind in AUTO_OF_IMAGES]
    noise = {"name": "noise", "source": "synthetic:gaussian_noise", "select": {"stop": 80}, "auxiliary": True}
    in_dist = {
        "fit": digits(0, 150),
        "test": digits(150, 300),
        "calibration": digits(300, 420),
        "bank": digits(500, 600),
    }
    ood = [noise, *made, {"name": "shapes", "source": "synthetic:shapes"}]
    code = (small_run.parent / "net.py").read_text()
    model = {"checkpoint": folder / "net.safetensors"}
    config = net_config(folder, code, model=model, data={"in_dist": in_dist, "ood": ood}, **SETTINGS)
    (folder / "gradscore.yaml").write_text(dump_config(config))
    printed("extract", folder / "gradscore.yaml")
    printed("fit-meta", folder / "run")
    printed("evaluate", folder / "run")
    printed("bundle", folder / "run", "--out", folder / "digits.gradscore", "--with-weights")
    model = built(config.model)
    return ByCommands(folder / "run", folder / "digits.gradscore", config, model)


@pytest.fixture(scope="module")
def detector(by_commands: ByCommands) -> gradscore.Detector:
    return fitted_on(by_commands)


def fitted_on(by_commands: ByCommands, **ood: np.ndarray) -> gradscore.Detector:
    """Of raw pixels in one piece, and these sets beside noise."""
    return gradscore.Detector(by_commands.model, recipe=by_commands.config.model.source, **SETTINGS).fit(
        (PIXELS[:150], LABELS[:150]),
        bank=(PIXELS[500:600], LABELS[500:600]),
        calibration=(PIXELS[300:420], LABELS[300:420]),
        ood={"noise": by_commands.raw("ood.noise"), **ood},
    )


@pytest.fixture(scope="module")
def report(detector: gradscore.Detector, by_commands: ByCommands) -> gradscore.Report:
    return detector.evaluate((PIXELS[150:300], LABELS[150:300]), ood={"shapes": by_commands.raw("ood.shapes")})


def values(frame: pd.DataFrame) -> bytes:
    return frame.select_dtypes("float").to_numpy().tobytes()


def test_thresholds_are_those_of_the_bundle_command(detector, by_commands) -> None:
    wanted = read_bundle(by_commands.bundle).detectors
    assert {name: each.threshold for name, each in detector.bundle.detectors.items()} == {
        name: each.threshold for name, each in wanted.items()
    }


def test_the_answer_is_that_of_the_command_line_with_the_same_protocols(report, by_commands) -> None:
    wanted = json.loads(printed("evaluate", by_commands.run, "--json"))["answer"]
    assert [*report.evaluation.answer.sentences] == wanted["sentences"]


def test_half_of_a_set_given_to_fit_chooses_as_the_protocols_of_the_command_line_do(by_commands, tmp_path) -> None:
    """`known` fits half of each reported set by content, chooses by it, and reports the rest."""
    run = shutil.copytree(by_commands.run, tmp_path / "run")
    printed("fit-meta", run, "--set", "evaluate.protocols=[known,leave_one_dataset_out,auxiliary,in_dist_only]")
    by_default = json.loads(printed("evaluate", run, "--json"))
    shapes, contents = by_commands.raw("ood.shapes"), RunFolder(run).read("ood.shapes", ["content_hash"])
    fits = first_half(contents["content_hash"])
    report = fitted_on(by_commands, shapes=shapes[fits]).evaluate(
        (PIXELS[150:300], LABELS[150:300]), ood={"new_shapes": shapes[~fits]}
    )
    answer = report.evaluation.answer
    assert [asdict(each) for each in answer.uses] == by_default["answer"]["uses"]
    wanted, found = (
        ScoreChoice.of_notes(json.loads((path / "model.json").read_text())["notes"]).judged
        for path in (run / "meta/ood/known/all", report.run.meta_path / "ood/auxiliary/all")
    )
    of_models = {"meta", "score_lr"}  # their penalties are chosen by auxiliary sets, which `shapes` joins
    assert {name: found[name] for name in found.keys() - of_models} == {
        name: wanted[name] for name in wanted.keys() - of_models
    }


def test_a_report_says_that_its_sets_took_no_part_in_the_choice(report, detector) -> None:
    told = "the OOD sets of this report took no part in choosing the score; on the command line half of each does"
    assert [each for each in report.notices if each.startswith(told)]
    without = detector.evaluate((PIXELS[150:300], LABELS[150:300]))
    assert not [each for each in without.notices if "took no part" in each]


def test_without_an_ood_model_it_is_said_why(by_commands) -> None:
    """Of the sets of `fit` none is reported, which is what `known` asks for."""
    settings = SETTINGS | {"evaluate": {"protocols": ["known"], "near_duplicates": "ignore"}}
    fitted = gradscore.Detector(by_commands.model, **settings).fit(
        (PIXELS[:150], LABELS[:150]), ood={"shapes": by_commands.raw("ood.shapes")}
    )
    assert any("no OOD set to report on" in each for each in fitted.notices)


def test_preprocessed_samples_from_loaders_give_the_same_scores(by_commands, tmp_path) -> None:
    """The content is another, and so are names; everything that is computed is the same."""

    def loader(split: str) -> DataLoader:
        return DataLoader(TensorDataset(*by_commands.inputs(split)), batch_size=33)

    settings = {name: given for name, given in SETTINGS.items() if name != "preprocessing"}
    sets = {name: loader(f"ood.{name}") for name in ("noise", *AUTO_OF_IMAGES)}
    fitted = gradscore.Detector(by_commands.model, **settings).fit(
        loader("in_dist.fit"),
        bank=loader("in_dist.bank"),
        calibration=loader("in_dist.calibration"),
        ood=sets,
        auxiliary=(),
    )
    wanted = by_commands.scored(PIXELS[150:300], tmp_path)
    assert values(fitted.score(loader("in_dist.test"))) == values(wanted)


def test_a_saved_detector_is_a_bundle_for_the_score_command(detector, by_commands, tmp_path) -> None:
    path, source = detector.save(tmp_path / "saved.gradscore"), by_commands.config.model.source
    np.savez(tmp_path / "images.npz", images=PIXELS[150:200, 0])
    out = tmp_path / "scores.parquet"
    printed("score", path, tmp_path / "images.npz", "--out", out, "--model", source, "--batch-size", 50)
    assert values(pd.read_parquet(out)) == values(detector.score(PIXELS[150:200]))


def test_another_score_is_saved_as_the_bundle_command_saves_it(detector, by_commands, tmp_path) -> None:
    out = tmp_path / "wanted.gradscore"
    printed("bundle", by_commands.run, "--out", out, "--score", "ood=energy", "--with-weights")
    own = detector.bundle
    saved = detector.save(tmp_path / "saved.gradscore", scores="ood=energy")
    found, wanted = (read_bundle(path).detectors for path in (saved, out))
    assert {name: (each.model.name, each.threshold) for name, each in found.items()} == {
        name: (each.model.name, each.threshold) for name, each in wanted.items()
    }
    assert (found["ood"].model.name, detector.bundle) == ("energy", own)


def test_a_loaded_detector_keeps_its_scores(by_commands, tmp_path) -> None:
    loaded = gradscore.Detector.load(by_commands.bundle, model=by_commands.model)
    with pytest.raises(EvaluationError, match=r"loaded"):
        loaded.save(tmp_path / "a.gradscore", scores="energy")


def test_bundles_of_the_bundle_command_can_be_loaded(by_commands, detector) -> None:
    loaded = gradscore.Detector.load(by_commands.bundle, model=by_commands.model)
    found = loaded.score(PIXELS[150:200])
    pd.testing.assert_frame_equal(found, detector.score(PIXELS[150:200]), rtol=1e-9)
