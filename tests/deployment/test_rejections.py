"""What a bundle says that it rejects, against its decisions on those very samples."""

import json
import math
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from commands import cli
from scipy.stats import betabinom

from gradscore.data import collate
from gradscore.deployment import Scorer, make_bundle, read_bundle
from gradscore.deployment.bundle_file import RIGHT, WRONG, Rejections
from gradscore.evaluation.answer import percent
from gradscore.notices import Notice, notes, urgent
from gradscore.pipeline import open_datasets
from gradscore.store import RunFolder


def rejected(bundle: Path, run: Path, split: str) -> np.ndarray:
    """Whether each sample is rejected, scored anew from its pixels."""
    dataset = open_datasets(RunFolder(run).config, only=[split])[split]
    samples = collate([dataset[place] for place in range(len(dataset))])
    return Scorer.load(bundle, trust_code=True)(samples.inputs)["decision"].eq("reject").to_numpy()


def test_rejections_are_those_of_the_scorer(small_run: Path, small_bundle: Path) -> None:
    run = RunFolder(small_run)
    of_test, of_noise = (rejected(small_bundle, small_run, split) for split in ("in_dist.test", "ood.noise"))
    right = run.read("in_dist.test")["correct"].to_numpy(dtype=bool)
    hashes = run.read("ood.noise")["content_hash"]
    other_half = np.array([sha256(f"0:{each}".encode()).digest()[0] % 2 == 1 for each in hashes])
    assert 0 < other_half.sum() < len(other_half)
    assert read_bundle(small_bundle).rejections == [
        Rejections(what="noise", group=None, rejected=of_noise[other_half].sum(), samples=other_half.sum()),
        Rejections(what="wrong predictions", group=None, rejected=of_test[~right].sum(), samples=(~right).sum()),
        Rejections(what="correct predictions", group=None, rejected=of_test[right].sum(), samples=right.sum()),
    ]


def test_good_samples_that_set_the_thresholds_measure_nothing(make_run) -> None:
    bundle = make_bundle(RunFolder(make_run(calibration=False, evaluate=False)), alpha=0.1, trust_code=True)
    assert [each.what for each in bundle.rejections] == ["noise", "wrong predictions"]


def together_of(document: str) -> list[float]:
    """The bound of what both detectors reject together, and the ends of its interval."""
    found = json.loads(document)["together"]
    return [found["alpha"], *found["realised_rate"]]


def test_test_samples_that_are_rejected_more_often_than_promised_are_named(
    small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cautions(rejected: int) -> list[Notice]:
        found = [Rejections(what=RIGHT, group=None, rejected=rejected, samples=100)]
        monkeypatch.setattr("gradscore.deployment.bundle_making.measured_rejections", lambda *_args, **_options: found)
        made = make_bundle(RunFolder(small_run), alpha=0.1, trust_code=True)
        limit = next(iter(made.detectors.values()))
        rank, n = round(limit.levels[limit.threshold.rank - 1] * (limit.threshold.n + 1)), limit.threshold.n
        chances.append(betabinom.sf(rejected - 1, 100, rank, n + 1 - rank))
        return urgent(notes(made.notices))

    chances: list[float] = []
    usual, said = cautions(10), [str(each) for each in cautions(60)]
    assert chances[0] > 0.01 > chances[1]
    assert not usual
    assert len(said) == 1
    assert said[0].startswith(
        "60.0 % of correctly predicted test samples are rejected, more often than the calibration samples promise ("
    )
    then = "the two are probably not alike; draw both at random from samples like those to come (select by `hash` or"
    assert f"P = {chances[1]:.1g}): {then}" in said[0]


SCORES = {"both": [], "a baseline": ["--score", "energy"]}


@pytest.mark.parametrize("options", SCORES.values(), ids=SCORES)
def test_the_command_says_it(small_run: Path, tmp_path: Path, options: list[str]) -> None:
    target = tmp_path / "x.gradscore"
    command = ["bundle", str(small_run), "--out", str(target), "--alpha", "0.1", "--trust-code", *options]
    said, document = (cli(*command, *more).stdout for more in ([], ["--json"]))
    assert said.startswith("On the run's own test samples ")
    noise, wrong, right = (100 * each.rejected / each.samples for each in read_bundle(target).rejections)
    assert (
        f"On the run's own test samples the bundle rejects {right:.1f} % of correct predictions, and "
        f"catches {percent(noise / 100)} of noise, "
        f"{percent(wrong / 100)} of wrong predictions. The report's figures are with 5 % false alarms by each score."
    ) in said
    together, low, high = (100 * each for each in together_of(document))
    row = next(line.split() for line in said.splitlines() if "both together" in line)
    assert row[2:] == [f"{together:.2g}", "%", f"{low:.1f}-{high:.1f}", "%"]
    assert low < together < high
    assert "expect what evaluate says" not in said, "that is at another share of correct predictions"
    assert ("expect less of new kinds." in said) == (not options), "others of these sets fitted it"
    assert [each["what"] for each in json.loads(document)["rejections"]] == [
        "noise",
        "wrong predictions",
        "correct predictions",
    ]


def test_a_calibration_too_small_for_its_alpha_is_named_with_what_would_do(
    small_run: Path, small_bundle: Path, tmp_path: Path
) -> None:
    """Of the bounds that the calibration knows, the first is far below this alpha, and the second above it."""
    detector = next(iter(read_bundle(small_bundle).detectors.values()))
    first, second = detector.levels[:2]
    alpha = 0.95 * second
    command = ["bundle", str(small_run), "--out", str(tmp_path / "x.gradscore"), "--trust-code"]
    said, enough = (" ".join(cli(*command, "--alpha", each).stdout.split()) for each in (alpha, second + 1e-4))
    n = detector.threshold.n
    assert (
        f"{n} calibration samples allow a false-alarm rate of {100 * first:.1f} %, below the {100 * alpha:.4g} % asked "
        "for; about " in said
    )
    wanted = math.ceil(2 / (0.1 * alpha)) - 1  # steps of two samples, a tenth of alpha each
    assert f"about {wanted} correctly predicted calibration samples or --alpha " in said
    advised = float(said.split("or --alpha ")[1].split()[0])
    assert second <= advised < second + 1e-4
    assert "asked for" not in enough


OF_FEW = {
    "wrong predictions": (
        [Rejections(what=WRONG, group=None, rejected=3, samples=4)],
        "and catches 3 of 4 wrong predictions. The report's figures are with",
    ),
    "nothing": ([], "so what it catches is not known. The OOD score was fitted"),
}


@pytest.mark.parametrize(("few", "said"), OF_FEW.values(), ids=OF_FEW)
def test_of_few_samples_the_command_says_the_number(
    small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_run: Path, few, said: str
) -> None:
    made = replace(read_bundle(small_bundle), rejections=few)
    monkeypatch.setattr("gradscore.deployment.make_bundle", lambda *_args, **_options: made, raising=False)
    found = cli("bundle", small_run, "--out", tmp_path / "x.gradscore", "--trust-code")
    assert said in " ".join(found.stdout.split())
