"""What `gradscore monitor` estimates and notices, on windows whose accuracy is known.

    python benchmarks/monitoring.py --run RUN --bundle FILE [--streams 500] [--write docs/evidence.md]
    python benchmarks/monitoring.py --run RUN --bundle FILE --corruptions 500 [--model python:FILE:NAME]

RUN is a finished run with in_dist.calibration, labelled shifted sets and OOD sets (configs/cifar10_monitoring.yaml for
the table on the page); FILE is its bundle, made with --monitor. Nothing of the sets reported here fitted anything:
leave the protocol `known` out of the run. With --corruptions it is said of windows of so many test images under each of
the 19 kinds and 5 severities of benchmarks/corruptions.py, all of which are scored first.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd
import torch
from corruptions import RECIPES, corrupted
from numpy.random import Generator
from numpy.typing import NDArray
from pages import put_table
from scipy.optimize import linear_sum_assignment, minimize_scalar
from scipy.special import expit, log_softmax
from scipy.stats import binomtest
from sklearn.isotonic import IsotonicRegression

from gradscore.columns import logit_columns, penultimate_columns
from gradscore.data import TEST, Preprocessing
from gradscore.deployment import CLASS, CONFIDENCE, Bundle, Scorer, is_stream, read_bundle, watched
from gradscore.extractor import Extractor
from gradscore.monitoring import Alarm, EstimatedAccuracy, Stream
from gradscore.monitoring.accuracy import AccuracyEstimate
from gradscore.monitoring.changes import CLASSES
from gradscore.monitoring.streams import NOVELTY, Novelty, after_window
from gradscore.pipeline import open_datasets
from gradscore.store import RunFolder

WINDOW, CALIBRATION, CALM, LONG, ALPHA, AGAIN = 1000, 2500, 5, 20, 0.01, 5
EDGES = np.array([0, 0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1])
OOD_SHARES = (0.05, 0.1, 0.2, 0.3)
Array = NDArray[np.float64]


class Samples(NamedTuple):
    """What is watched of samples, whether they are right, their classes, and what baselines need of them."""

    columns: dict[str, Array]
    right: Array
    label: Array
    residual: Array
    inputs: Array
    logits: Array

    def at(self, places: NDArray[np.int64]) -> "Samples":
        """Some of them."""
        return Samples(
            {name: each[places] for name, each in self.columns.items()}, *(each[places] for each in self[1:])
        )


def joined(parts: list[Samples]) -> Samples:
    columns = {name: np.concatenate([each.columns[name] for each in parts]) for name in parts[0].columns}
    return Samples(
        columns, *(np.concatenate([each[place] for each in parts]) for place in range(1, len(Samples._fields)))
    )


def samples_of(frame: pd.DataFrame, bundle: Bundle, novelty: Novelty, *, ood: bool) -> Samples:
    features = frame[bundle.columns]
    columns = {f"score_{name}": each.model.decision(features) for name, each in bundle.detectors.items()}
    columns |= {str(name): each.to_numpy(dtype=np.float64) for name, each in watched(features).items()}
    columns |= {NOVELTY: novelty.of(columns), CLASSES: columns[CLASS]}
    logits = features[logit_columns(features.columns)].to_numpy(dtype=np.float64)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(chances)), logits.argmax(axis=1)] -= 1
    right = np.zeros(len(frame)) if ood else frame["correct"].to_numpy(dtype=np.float64)
    inputs = features[penultimate_columns(features.columns)].to_numpy(dtype=np.float64)
    return Samples(columns, right, frame["label"].to_numpy(dtype=np.int64), chances, inputs, logits)


def drawn(samples: Samples, count: int, random: Generator) -> Samples:
    return samples.at(random.choice(len(samples.right), count, replace=count > len(samples.right)))


def uneven(samples: Samples, random: Generator) -> Samples:
    """A window whose classes have other shares: of a Dirichlet distribution with concentration 1."""
    classes, places, counts = np.unique(samples.label, return_inverse=True, return_counts=True)
    weights = (random.dirichlet(np.ones(len(classes))) / counts)[places]
    return samples.at(random.choice(len(samples.right), WINDOW, p=weights / weights.sum()))


def mean_confidence(window: Samples) -> float:
    return float(expit(window.columns[CONFIDENCE]).mean())


def temperature(logits: Array, label: NDArray[np.int64]) -> float:
    """What logits (n, K) are divided by so that the labels (n,) are most likely (Guo et al. 2017)."""

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(logits / np.exp(log_temperature), axis=1)[np.arange(len(label)), label].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-8}).x))


def largest_probability(logits: Array) -> Array:
    return np.exp(log_softmax(logits, axis=1).max(axis=1))


def negative_entropy(logits: Array) -> Array:
    logs = log_softmax(logits, axis=1)
    return (np.exp(logs) * logs).sum(axis=1)


def atc(calibration: Samples, score: Callable[[Array], Array]) -> Callable[[Samples], float]:
    """Average thresholded confidence: the share of scores above a threshold, of calibration samples the accuracy.

    Scores are those of logits after temperature scaling on the calibration samples.

    Source: Garg et al. 2022, "Leveraging unlabeled data to predict out-of-distribution performance".
    """
    scale = temperature(calibration.logits, calibration.label)
    wrong = round(float((calibration.right == 0).sum()))
    ordered = np.sort(score(calibration.logits / scale))
    limit = ordered[wrong] if wrong < len(ordered) else np.inf
    return lambda window: float((score(window.logits / scale) >= limit).mean())


def difference_of_confidences(calibration: Samples) -> Callable[[Samples], float]:
    """The accuracy of the calibration samples, less by how much the mean confidence falls (Guillory et al. 2021)."""
    scale = temperature(calibration.logits, calibration.label)
    start = float(calibration.right.mean() - largest_probability(calibration.logits / scale).mean())
    return lambda window: float(np.clip(start + largest_probability(window.logits / scale).mean(), 0, 1))


def transport_costs(logits: Array, label: NDArray[np.int64]) -> Array:
    """(n,) what it costs to move each probability to a label, where labels come in the shares of `label` (m,).

    Of all ways to deal the labels out, that of the least cost in all. The cost of one is half the sum of absolute
    differences between probabilities and label: 1 less the probability of the label.

    Source: Lu et al. 2023, "Characterizing out-of-distribution error via optimal transport".
    """
    dealt = label[np.linspace(0, len(label) - 1, len(logits)).round().astype(np.int64)]
    costs = 1 - np.exp(log_softmax(logits, axis=1))[:, dealt]
    places, chosen = linear_sum_assignment(costs)
    return costs[places, chosen]


def transport(calibration: Samples, *, threshold: bool) -> Callable[[Samples], float]:
    """COT, 1 less the mean cost; or COTT, the share whose cost is below a threshold, in calibration the accuracy."""
    scale = temperature(calibration.logits, calibration.label)
    label = np.sort(calibration.label)
    limit = np.quantile(transport_costs(calibration.logits / scale, label), calibration.right.mean())

    def accuracy(window: Samples) -> float:
        costs = transport_costs(window.logits / scale, label)
        return float((costs < limit).mean() if threshold else 1 - costs.mean())

    return accuracy


def calibrated(calibration: Samples) -> Callable[[Samples], float]:
    """CBPE: the mean of calibrated probabilities of the predicted class, isotonic for each class against the rest.

    Source: NannyML, "Confidence-based performance estimation", for several classes.
    """
    chances = np.exp(log_softmax(calibration.logits, axis=1))
    curves = [
        IsotonicRegression(out_of_bounds="clip").fit(chances[:, place], calibration.label == place)
        for place in range(chances.shape[1])
    ]

    def accuracy(window: Samples) -> float:
        values = np.exp(log_softmax(window.logits, axis=1))
        found = np.column_stack([curve.predict(each) for curve, each in zip(curves, values.T, strict=True)])
        found /= np.maximum(found.sum(axis=1, keepdims=True), 1e-12)
        return float(found[np.arange(len(found)), values.argmax(axis=1)].mean())

    return accuracy


def gradient_norm(window: Samples) -> float:
    """The 0.3-norm of the gradient of the last layer's weights against the predicted classes (Xie et al. 2023)."""
    gradient = window.residual.T @ window.inputs / len(window.right)
    return float((np.abs(gradient) ** 0.3).sum() ** (1 / 0.3))


def matrix_norm(window: Samples) -> float:
    """MaNo: the 4-norm of the matrix of normalised logits (N, K), divided by that of ones.

    Normalised by softmax, or by its Taylor approximation where the mean cross-entropy to equal probabilities is at
    most 5.

    Source: Xie et al. 2024, "MaNo: exploiting matrix norm for unsupervised accuracy estimation under distribution
    shifts", and the authors' code for the least value of a row, which the approximation takes from each.
    """
    logs = log_softmax(window.logits, axis=1)
    if -logs.mean() > 5:
        chances = np.exp(logs)
    else:
        terms = 1 + window.logits + window.logits**2 / 2
        terms -= terms.min(axis=1, keepdims=True)
        chances = terms / np.maximum(terms.sum(axis=1, keepdims=True), 1e-12)
    return float((chances**4).mean() ** (1 / 4))


CORRELATED = {"gradient norm": gradient_norm, "MaNo": matrix_norm}
"""Published scores that rise with the accuracy and are none, by the heading of their columns."""


def line_of(score: Callable[[Samples], float], known: Sequence[Samples]) -> Callable[[Samples], float]:
    line = np.polyfit([*map(score, known)], [each.right.mean() for each in known], 1)
    return lambda window: float(np.clip(np.polyval(line, score(window)), 0, 1))


def lines_without(kind: str, windows: dict[str, list[Samples]]) -> dict[str, Callable[[Samples], float]]:
    """The accuracy by each correlated score, on a line through the windows of all other kinds, without OOD samples."""
    known = [each for other, some in windows.items() if other != kind and "among" not in other for each in some]
    return {name: line_of(score, known) for name, score in CORRELATED.items()}


def windows_of(sets: dict[str, Samples], random: Generator) -> dict[str, list[Samples]]:
    test = sets["in_dist.test"]
    found = {
        "without shift": [drawn(test, WINDOW, random) for _ in range(20)],
        "without shift, classes in other shares": [uneven(test, random) for _ in range(20)],
    }
    for name, each in sets.items():
        if name.startswith("shifted."):
            kind = name.removeprefix("shifted.").rstrip("12345")
            found.setdefault(kind, []).append(drawn(each, WINDOW, random))
    for name, each in sets.items():
        if name.startswith("ood."):
            found[f"{name.removeprefix('ood.')} among them"] = [
                joined([drawn(test, round(WINDOW * (1 - share)), random), drawn(each, round(WINDOW * share), random)])
                for share in OOD_SHARES
            ]
    return found


def estimators_of(calibration: Samples) -> dict[str, Callable[[Samples], float]]:
    """Published estimators that need no shifted samples, by the heading of their columns."""
    return {
        "mean confidence": mean_confidence,
        "ATC, confidence": atc(calibration, largest_probability),
        "ATC, entropy": atc(calibration, negative_entropy),
        "DoC": difference_of_confidences(calibration),
        "COT": transport(calibration, threshold=False),
        "COTT": transport(calibration, threshold=True),
        "CBPE": calibrated(calibration),
    }


def estimate_of(window: Samples, estimated: EstimatedAccuracy) -> AccuracyEstimate:
    return estimated.of_sums(estimated.terms.added(estimated.terms.none, window.columns))


def estimated_table(windows: dict[str, list[Samples]], estimated: EstimatedAccuracy, calibration: Samples) -> list[str]:
    others = estimators_of(calibration)
    lines = [
        f"| windows | how many | accuracy | monitor | {' | '.join([*others, *CORRELATED])} | intervals that hold it |",
        "|---" * (len(others) + len(CORRELATED) + 5) + "|",
    ]
    rows: dict[str, list[tuple[float, ...]]] = {}
    for name, some in windows.items():
        estimators = others | lines_without(name, windows)
        for window in some:
            true, found = float(window.right.mean()), estimate_of(window, estimated)
            guesses = (found.accuracy, *(each(window) for each in estimators.values()))
            errors = [abs(each - true) for each in guesses]
            rows.setdefault(name, []).append((true, *errors, found.low <= true <= found.high))
    shifted = [row for name in windows if "without" not in name and "among" not in name for row in rows[name]]
    mixed = [row for name in windows if "among" in name for row in rows[name]]
    unshifted = {name: some for name, some in rows.items() if "without" in name}
    for name, some in {**unshifted, "**all shifted**": shifted, "**all with OOD images**": mixed}.items():
        if some:
            table = np.array(some, dtype=np.float64)
            true = span(list(100 * table[:, 0]))
            means = " | ".join(f"{100 * each:.1f}" for each in table[:, 1:-1].mean(axis=0))
            lines.append(f"| {name} | {len(some)} | {true} | {means} | {100 * table[:, -1].mean():.0f} % |")
    return lines


def corrupted_windows(run: RunFolder, scorer: Scorer, novelty: Novelty, count: int) -> dict[str, list[Samples]]:
    """Windows of so many test images by kind of corruption, one of each severity; images are drawn for each anew."""
    bundle, test = scorer.bundle, open_datasets(run.config, only=[TEST])[TEST]
    labels, windows = np.asarray(test.labels), {}
    extractor = Extractor(scorer.model, features=bundle.features, num_classes=bundle.model.classes)
    preprocess = Preprocessing(bundle.preprocessing)
    for kind in RECIPES:
        for severity in range(1, 6):
            random = np.random.default_rng([severity, crc32(kind.encode())])
            places = random.choice(len(labels), count, replace=False)
            images = [corrupted(test.source.sample(place), kind, severity, random) for place in places.tolist()]
            batches = [images[start : start + 100] for start in range(0, count, 100)]
            values = [extractor.values(torch.stack([*map(preprocess, batch)])) for batch in batches]
            frame = pd.DataFrame(np.concatenate(values), columns=extractor.names)
            predicted = frame[logit_columns(frame.columns)].to_numpy().argmax(axis=1)
            frame = frame.assign(label=labels[places], correct=predicted == labels[places])
            windows.setdefault(kind, []).append(samples_of(frame, bundle, novelty, ood=False))
        print(kind, *(f"{100 * each.right.mean():.1f}" for each in windows[kind]), flush=True)
    return windows


def corruption_tables(
    windows: dict[str, list[Samples]], estimated: EstimatedAccuracy, calibration: Samples, chosen: Sequence[str]
) -> list[str]:
    """Errors in points over all windows by estimator, and mean ones of some by kind of corruption."""
    others, names = estimators_of(calibration), np.array([kind for kind, some in windows.items() for _ in some])
    every = [window for some in windows.values() for window in some]
    true, found = np.array([each.right.mean() for each in every]), [estimate_of(each, estimated) for each in every]
    low, high = (np.array([getattr(each, end) for each in found]) for end in ("low", "high"))
    errors = {"monitor": np.array([each.accuracy for each in found], dtype=np.float64) - true}
    errors |= {name: np.array([*map(estimate, every)]) - true for name, estimate in others.items()}
    lines_by_kind = {kind: lines_without(kind, windows) for kind in windows}
    for name in CORRELATED:
        guesses = [lines_by_kind[kind][name](window) for kind, some in windows.items() for window in some]
        errors[name] = np.array(guesses) - true
    lines = [f"| {len(every)} windows | root mean square error | mean absolute error | mean error |", "|---" * 4 + "|"]
    for name, some in errors.items():
        root, size, mean = 100 * np.sqrt((some**2).mean()), 100 * np.abs(some).mean(), 100 * some.mean()
        lines.append(f"| {name} | {root:.1f} | {size:.1f} | {mean:+.1f} |")
    held, half = 100 * ((low <= true) & (true <= high)).mean(), 100 * (high - low).mean() / 2
    lines += ["", f"Intervals of the monitor hold {held:.0f} % of the accuracies, {half:.0f} points either way.", ""]
    lines += [f"| kind | accuracy | {' | '.join(chosen)} |", "|---" * (len(chosen) + 2) + "|"]
    for kind in windows:
        there = names == kind
        sizes = " | ".join(f"{100 * np.abs(errors[name][there]).mean():.1f}" for name in chosen)
        lines.append(f"| {kind.replace('_', ' ')} | {span([*(100 * true[there])])} | {sizes} |")
    return lines


def independent(pool: Samples, count: int, random: Generator) -> Samples:
    """Samples one by one, as of a population without end: what is drawn before tells nothing of what comes."""
    return pool.at(random.integers(len(pool.right), size=count))


def after(
    streams: dict[str, Stream], window: Samples, random: Generator, *, alpha: float = ALPHA
) -> tuple[dict[str, Stream], list[Alarm], float]:
    """The streams after a window, whose ranks within bins are drawn anew, its alarms, and its largest e-value."""
    seed = int(random.integers(2**63))
    streams, alarms, powers = after_window(streams, window.columns, before=[], name="", alpha=alpha, seed=seed)
    return streams, alarms, 10 ** max(powers.values())


def raised_after(streams: dict[str, Stream], windows: list[Samples], random: Generator) -> int | None:
    """Samples until the first alarm of any stream; None without one."""
    seen = 0
    for window in windows:
        streams, alarms, _ = after(streams, window, random)
        if alarms:
            return seen + min(alarm.sample for alarm in alarms)
        seen += WINDOW
    return None


def streams_of(calibration: Samples) -> dict[str, Stream]:
    return {name: Stream.of(each) for name, each in calibration.columns.items() if is_stream(name)}


def calm_streams(pool: Samples, random: Generator) -> dict[str, Stream]:
    """Streams with calibration samples of their own, after some windows without shift."""
    streams = streams_of(independent(pool, CALIBRATION, random))
    for _ in range(CALM):
        streams, *_ = after(streams, independent(pool, WINDOW, random), random)
    return streams


def largest_e_value(pool: Samples, random: Generator) -> float:
    """Of any stream at any time of a monitor without shift, with calibration samples of its own."""
    streams, largest = streams_of(independent(pool, CALIBRATION, random)), 0.0
    for _ in range(LONG):
        streams, _, e_value = after(streams, independent(pool, WINDOW, random), random, alpha=1e-99)
        largest = max(largest, e_value)
    return largest


def false_alarm_table(pool: Samples, *, streams: int) -> list[str]:
    found = np.array([largest_e_value(pool, np.random.default_rng([1, place])) for place in range(streams)])
    lines = [
        "| alpha | monitors without shift | samples each | raised an alarm | 95 % upper bound of that rate |",
        "|---|---|---|---|---|",
    ]
    for alpha in (ALPHA, 0.1):
        false = int((found >= 1 / alpha).sum())
        bound = binomtest(false, streams, alternative="less").proportion_ci(0.95).high
        lines.append(f"| {alpha:g} | {streams} | {LONG * WINDOW:,} | {false} | {100 * bound:.1f} % |")
    return lines


def drop_of(five: float, each: Samples, calm: Samples) -> float:
    """The share of a set that makes the accuracy fall by so much; more than 1 where it cannot."""
    return five / max(1e-9, float(calm.right.mean() - each.right.mean()))


def changed_windows(share: float, odd: Samples, calm: Samples, random: Generator) -> list[Samples]:
    """Five windows with this share of other samples, in an order of chance."""
    count = round(share * WINDOW)
    windows = [joined([independent(calm, WINDOW - count, random), independent(odd, count, random)]) for _ in range(5)]
    return [window.at(random.permutation(WINDOW)) for window in windows]


def fewest(share: float, odd: Samples, calm: Samples, random: Generator) -> float:
    """Samples that the oracle needs to win 1 / alpha, on one stream: it knows which one, the share and the ranks.

    Its growth is the relative entropy of the ranks to uniform ones; a half of the samples says what to bet, the other
    what that wins.
    """
    growth = []
    for name, values in odd.columns.items():
        if is_stream(name):
            usual = np.sort(calm.columns[name])
            for sign in (1, -1):
                low, high = (np.searchsorted(np.sort(sign * usual), sign * values, side) for side in ("left", "right"))
                ranks = (low + random.random(len(values)) * (high - low)) / len(usual)
                halves = np.array_split(random.permutation(1 - ranks), 2)
                one, other = (np.histogram(each, EDGES)[0] / len(each) / np.diff(EDGES) for each in halves)
                bet, true = (1 - share + share * each for each in (one, other))
                growth.append(float((np.diff(EDGES) * true * np.log(bet)).sum()))
    return -np.log(ALPHA) / max(growth) if max(growth) > 0 else np.inf


def alarm_table(sets: dict[str, Samples], *, streams: int, random: Generator) -> list[str]:
    pool = sets["in_dist.test"]
    lines = [
        *false_alarm_table(pool, streams=streams),
        "",
        f"| 5 points of accuracy lost by | share of the samples | noticed after (median of {AGAIN}) | within 2,000 "
        "| the oracle needs |",
        "|---|---|---|---|---|",
    ]
    rows: dict[str, list[tuple[float, list[float], float]]] = {}
    for name, each in sets.items():
        share = drop_of(0.05, each, pool)
        if name.startswith("in_dist.") or share > 1:
            continue
        found = []
        for _ in range(AGAIN):
            calm = calm_streams(pool, random)
            found.append(raised_after(calm, changed_windows(share, each, pool, random), random) or np.inf)
        rows.setdefault(name.rstrip("12345"), []).append((share, found, fewest(share, each, pool, random)))
    for name, some in rows.items():
        shares, found, best = zip(*some, strict=True)
        within = sum(each <= 2000 for once in found for each in once)
        cells = [f"{span([100 * each for each in shares])} %", span([float(np.median(once)) for once in found])]
        lines.append(f"| {name} | {' | '.join(cells)} | {within}/{AGAIN * len(some)} | {span(best)} |")
    return lines


def span(values: Sequence[float]) -> str:
    """The least and the greatest of some numbers."""
    return "-".join(dict.fromkeys(f"{each:,.0f}" for each in (min(values), max(values))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--corruptions", type=int, help="images in a window, 50 or more")
    parser.add_argument("--model", help="where the code of the model is now")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    run, bundle = RunFolder(options.run), read_bundle(options.bundle)
    random = np.random.default_rng(0)
    wanted = [info for info in run.splits() if info.is_reported or info.kind == "in_dist.calibration"]
    novelty = Novelty.learnt(bundle.known_sets)
    sets = {info.name: samples_of(run.read(info.name), bundle, novelty, ood=info.kind == "ood") for info in wanted}
    estimated = EstimatedAccuracy.learnt(bundle.known_sets)
    if options.corruptions:
        scorer = Scorer.load(options.bundle, trust_code=True, model_source=options.model)
        windows = corrupted_windows(run, scorer, novelty, options.corruptions)
        chosen = ("monitor", "ATC, entropy", "COTT", "CBPE")
        print("\n".join(corruption_tables(windows, estimated, sets["in_dist.calibration"], chosen)))
        return
    lines = estimated_table(windows_of(sets, random), estimated, sets["in_dist.calibration"])
    lines += ["", *alarm_table(sets, streams=options.streams, random=random)]
    put_table(Path(__file__).name, "\n".join(lines), options.write)


if __name__ == "__main__":
    main()
