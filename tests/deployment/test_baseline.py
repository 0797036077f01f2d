"""Bundles in which a baseline decides: the score of the table, with thresholds of its own."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import cli
from PIL import Image
from scipy.special import logsumexp
from sklearn.datasets import load_digits

from gradscore.baselines import BASELINES
from gradscore.deployment import Bundle, Scorer, make_bundle, read_bundle, write_bundle
from gradscore.errors import BundleError
from gradscore.evaluation import count_or_percent, evaluate_run, stored_verdicts
from gradscore.evaluation.answer import answer_of
from gradscore.meta import MetaInputs, ScoreChoice, read_notes
from gradscore.monitoring import Monitor
from gradscore.store import RunFolder

ALPHA = 0.1


def energy(frame: pd.DataFrame) -> np.ndarray:
    return -logsumexp(frame.filter(regex=r"^logit_\d+$").to_numpy(), axis=1)


@pytest.fixture(scope="module")
def bundle_file(small_run: Path) -> Path:
    path = small_run.parent / "energy.gradscore"
    bundle = make_bundle(RunFolder(small_run), alpha=ALPHA, with_weights=True, scores=["ood=energy"], trust_code=True)
    write_bundle(path, bundle)
    return path


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.round(load_digits().images[600:640, None] * (255 / 16)).astype(np.uint8)


def test_scores_and_p_values_are_those_of_the_score(small_run, bundle_file, small_bundle, images) -> None:
    found = Scorer.load(bundle_file, trust_code=True)(images)
    scorer = Scorer.load(small_bundle, trust_code=True)
    features = pd.DataFrame(scorer._extractor.values(scorer.form.tensors(images)), columns=scorer.bundle.columns)
    calibration = RunFolder(small_run).read("in_dist.calibration")
    negatives = energy(calibration[calibration["correct"].astype(bool)])
    wanted = energy(features)
    np.testing.assert_allclose(found["score_ood"], wanted, rtol=1e-5)
    p_values = (1 + (negatives[None, :] >= found["score_ood"].to_numpy()[:, None]).sum(axis=1)) / (1 + len(negatives))
    np.testing.assert_allclose(found["p_value_ood"], p_values)
    rejected = found["reason"].str.contains("OOD score above its threshold")
    limit = read_bundle(bundle_file).detectors["ood"].threshold
    assert ALPHA / 2 <= limit.alpha <= ALPHA
    np.testing.assert_array_equal(rejected, p_values <= limit.alpha)


def test_it_holds_what_its_scores_look_at_alone(small_run: Path, small_bundle: Path) -> None:
    made = make_bundle(RunFolder(small_run), alpha=ALPHA, scores=["ood=doctor", "wrong=score_lr"], trust_code=True)
    inputs = {name for name, each in BASELINES.items() if each.is_input}
    assert set(made.inputs.baselines.learned) - inputs == {"doctor"}
    assert set(read_bundle(small_bundle).inputs.baselines.learned) <= inputs
    of_run = MetaInputs.load(RunFolder(small_run).inputs_path).baselines.learned
    assert set(of_run) - inputs == {"doctor", "max_logit_pnorm"}


def test_the_other_detector_stays(bundle_file: Path, small_bundle: Path, images: np.ndarray) -> None:
    single, usual = (Scorer.load(path, trust_code=True)(images) for path in (bundle_file, small_bundle))
    assert single["probability_ood"].isna().all()
    pd.testing.assert_frame_equal(single.filter(like="_wrong"), usual.filter(like="_wrong"))


@pytest.fixture
def caught(small_run: Path) -> Callable[[str, Bundle, str], list[str]]:
    """What a bundle catches of a set, and what it does with a score asked for."""

    def shares(what: str, made: Bundle, score: str) -> list[str]:
        asked = make_bundle(RunFolder(small_run), alpha=ALPHA, trust_code=True, scores=[score])
        of_set = [each for bundle in (made, asked) for each in bundle.rejections if each.what == what]
        return [count_or_percent(each.rejected / each.samples, each.samples) for each in of_set]

    return shares


def test_a_bundle_says_which_baselines_are_better(small_run: Path, caught, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence for both detectors, of what the report shows to be worse, and nothing of what is undecided."""
    run = RunFolder(small_run)
    found = evaluate_run(run).verdicts
    assert [(each.what, each.best) for each in stored_verdicts(run)] == [(each.what, each.best) for each in found]
    wrong, noise = found
    assert (wrong.what, wrong.outcome, noise.what) == ("wrong predictions", "undecided", "noise")
    assert make_bundle(run, alpha=ALPHA, trust_code=True).notices == []
    worse = [replace(each, gain=replace(each.gain, value=-0.05, low=-0.06, p_value=1e-9), over_all=False,
                     best="energy", is_best=False, caught=0.5, shares={"energy": 0.52}) for each in found]  # fmt: skip
    monkeypatch.setattr("gradscore.deployment.deciding_scores.stored_verdicts", lambda _run: worse)
    made = make_bundle(run, alpha=ALPHA, trust_code=True)
    assert made.notices == [
        f"in the report energy catches more of {what} (52 % against 50 %): {when}add --score "
        f"{which}=energy to gradscore bundle; {here} it would catch fewer: {then} of {all_of} against {now}"
        for what, when, which, all_of, now, then, here in [
            (
                "wrong predictions",
                "",
                "wrong",
                "wrong predictions",
                *caught("wrong predictions", made, "wrong=energy"),
                "on this run",
            ),
            (
                "noise",
                "for such samples, ",
                "ood",
                "OOD samples",
                *caught("noise", made, "ood=energy"),
                "on this run, whose sets were fitted,",
            ),
        ]
    ]


def test_a_bundle_names_the_baseline_that_the_report_does(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(small_run)
    _, noise = evaluate_run(run).verdicts
    gain = replace(noise.gain, value=-0.05, low=-0.06, p_value=1e-9)
    lost = replace(noise, gain=gain, over_all=False, best="energy", is_best=False, caught=0.5,
                   shares={"energy": 0.6, "doctor": 0.3})  # fmt: skip
    more = replace(lost, what="more", best="doctor", shares={"energy": 0.4, "doctor": 0.8})
    hardly = replace(lost, gain=replace(gain, value=-0.001, low=-0.002))
    said = answer_of([lost, more], [], groups={}, choices={}, next_command="").sentences
    same = [f"{each[:1].lower()}{each[1:-1]}" for each in said if "catches more" in each]
    assert [each.partition(": ")[0] for each in same] == [
        "in the report doctor catches more of more (80 % against 50 %), and fewer of noise"
    ]
    monkeypatch.setattr("gradscore.deployment.deciding_scores.stored_verdicts", lambda _run: [lost, more])
    (notice,) = make_bundle(run, alpha=ALPHA, trust_code=True).notices
    assert notice.startswith(f"{same[0]};")
    monkeypatch.setattr("gradscore.deployment.deciding_scores.stored_verdicts", lambda _run: [hardly])
    assert make_bundle(run, alpha=ALPHA, trust_code=True).notices == [], "an AUROC that is hardly higher"
    monkeypatch.setattr(
        "gradscore.deployment.deciding_scores.stored_verdicts", lambda _run: [replace(lost, shares={"energy": 0.505})]
    )
    assert make_bundle(run, alpha=ALPHA, trust_code=True).notices == [], "a baseline that hardly catches more"


MISSING = {"wrong": "misclassification/in_dist_only/all", "ood": "ood/known/all"}


@pytest.mark.parametrize(("detector", "place"), MISSING.items(), ids=MISSING)
def test_a_meta_model_that_is_missing(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, detector: str, place: str
) -> None:
    monkeypatch.chdir(small_run.parent)  # where the model's code is
    copy = tmp_path / "run"
    shutil.copytree(small_run, copy)
    shutil.rmtree(copy / "meta" / place)
    command = ["bundle", str(copy), "--out", str(tmp_path / "x.gradscore"), "--alpha", "0.1", "--trust-code"]
    refused = cli(*command)
    assert (refused.exit_code, (tmp_path / "x.gradscore").exists()) == (2, False)
    assert f"asks for a meta model in {copy / 'meta' / place}, and there is none" in refused.stderr
    instead = cli(*command, "--score", f"{detector}=energy")
    assert instead.exit_code == 0, instead.output


def test_what_it_costs_to_ask_for_another_score(small_run: Path, bundle_file: Path) -> None:
    notes = read_notes(RunFolder(small_run).meta_path / "ood" / "known" / "all")
    choice = ScoreChoice.of_notes(notes)
    (said,) = (line for line in read_bundle(bundle_file).notices if "as asked: " in line)
    energy, chosen = (f"{choice.judged[name]:.3f}" for name in ("energy", choice.score))
    assert f"energy decides on OOD samples, as asked: mean AUROC of {energy} on " in said
    assert f", {chosen} of {choice.score}, which was chosen" in said


# AUROCs of energy on sets on which the chosen score has 0.8, and what is said of them.
IN_THE_REPORT = {
    "on one alone, and on the whole": ([0.9], "better on a"),
    "not on it": ([0.7], "not better"),
    "on all": ([0.9, 0.81], "better on a and b, and in the mean over all sets"),
    "on one": ([0.9, 0.6], "better on a, but not in the mean over all sets"),
    "on one by much": ([0.9, 0.79], "better on a, and in the mean over all sets"),
    "on none": ([0.8, 0.7, 0.8001], "not better on any set"),
}


@pytest.mark.parametrize(("aurocs", "words"), IN_THE_REPORT.values(), ids=IN_THE_REPORT)
def test_where_a_score_asked_for_is_better_in_the_report(
    small_run: Path, monkeypatch: pytest.MonkeyPatch, aurocs: list[float], words: str
) -> None:
    noise = evaluate_run(RunFolder(small_run)).verdicts[-1]
    sets = tuple(
        replace(noise, what=name, area=replace(noise.area, value=0.8), aurocs={"chosen": 0.8, "energy": value})
        for name, value in zip("abc", aurocs, strict=False)
    )
    found = [*sets] if len(sets) == 1 else [replace(noise, what="all", sets=sets)]
    monkeypatch.setattr("gradscore.deployment.deciding_scores.stored_verdicts", lambda run: found)
    made = make_bundle(RunFolder(small_run), alpha=ALPHA, scores=["ood=energy"], trust_code=True)
    (said,) = (line for line in made.notices if "as asked: " in line)
    assert said.endswith(f"; in the report energy is {words}")


def test_a_monitor_watches_it(bundle_file: Path, images: np.ndarray, tmp_path: Path) -> None:
    found = Scorer.load(bundle_file, trust_code=True)(np.concatenate([images, images[:, :, ::-1].copy()]), watch=True)
    watching = Monitor.load(bundle_file, window=50, alpha=0.01, state=tmp_path / "state")
    watching.update(found)
    flagged = found["reason"].str.contains("OOD score above its threshold").to_numpy()
    assert [window.ood for window in watching.windows] == pytest.approx([flagged[:50].mean(), flagged[50:].mean()])
    assert watching.changes == []


def test_neighbours_may_decide(make_run) -> None:
    run = RunFolder(make_run(bank={"start": 700, "stop": 900}, evaluate=False))
    bundle = make_bundle(run, alpha=ALPHA, with_weights=True, scores=["knn"], trust_code=True)
    assert {name: each.model.name for name, each in bundle.detectors.items()} == {"wrong": "knn", "ood": "knn"}
    model = bundle.detectors["ood"].model
    table = model.inputs.baseline_scores(run.read("in_dist.calibration")[bundle.columns])
    right = run.read("in_dist.calibration")["correct"].to_numpy(dtype=bool)
    np.testing.assert_allclose(bundle.detectors["ood"].calibration, np.sort(table["knn"][right]))


def test_the_table_of_thresholds_fits_a_terminal(small_run: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.gradscore"
    command = ["bundle", str(small_run), "--score", "ood=energy", "--out", str(target), "--trust-code"]
    result = cli(*command, COLUMNS="80")
    table = result.stdout.partition("samples: of the calibration;")[0].splitlines()
    table = table[next(number for number, line in enumerate(table) if line.strip() == "alarms") :]
    limits = [each.threshold for each in read_bundle(target).detectors.values()]
    assert [line.split()[-1] for line in table if "predictions" in line or "OOD" in line] == [
        f"{limit.value:.4g}" for limit in limits
    ]
    assert max(map(len, table)) <= 80, result.stdout


REFUSED = {
    "no such score": (["enery"], "score enery: this run has no score 'enery'; did you mean 'energy'?"),
    "no such detector": (["far=energy"], "no detector 'far'; wanted NAME or one of wrong, ood=NAME"),
    "two for one": (["energy", "ood=msp"], "'ood' has the score energy already"),
    "not stored": (["vim"], "this run has no score 'vim'"),
}


@pytest.mark.parametrize(("scores", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(small_run: Path, scores: list[str], message: str) -> None:
    with pytest.raises(BundleError, match=message.replace("?", r"\?")):
        make_bundle(RunFolder(small_run), alpha=ALPHA, with_weights=True, scores=scores, trust_code=True)


def test_on_the_command_line(small_run: Path, tmp_path: Path, images: np.ndarray) -> None:
    target = str(small_run.parent / "both.gradscore")
    command = ["bundle", str(small_run), "--out", target, "--alpha", "0.1", "--score", "energy", "--trust-code"]
    made = cli(*command, "--json")
    assert made.exit_code == 0, made.output
    assert {name: each["score"] for name, each in json.loads(made.stdout)["detectors"].items()} == (
        {"wrong": "energy", "ood": "energy"}
    )
    Image.fromarray(images[0, 0]).save(tmp_path / "digit.png")
    shown = cli("score", target, tmp_path / "digit.png", "--explain", "--trust-code")
    assert shown.exit_code == 0, shown.output
    assert "the only score that decides" in shown.stdout
