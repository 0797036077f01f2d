"""How often does each interval that gradscore prints hold the true value? Simulated.

    python benchmarks/coverage_of_intervals.py --sets 2000 --write docs/evidence.md

Populations whose true figures are known stand for a score: positives and negatives normal with equal spread, positives
twice as wide, scores rounded to halves (ties), and positives of which most are far away and the rest like negatives.
Each is set so that the AUROC is 0.7, 0.95 and 0.99. Sets of several sizes are drawn, and the share whose interval holds
the true figure is counted.
"""

import argparse
import csv
import functools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pages import put_table
from scipy.optimize import brentq
from scipy.stats import binomtest, norm

from gradscore.check.differences import (
    Difference,
    auroc_difference_same,
    judge,
    rate_difference_same,
)
from gradscore.deployment import threshold
from gradscore.evaluation.intervals import (
    AREAS,
    ENOUGH,
    RATES,
    brier_interval,
    mean_auroc_interval,
    metric_bounds,
    paired_delong,
    paired_delong_of_truths,
    paired_mean_delong,
    placements,
)
from gradscore.evaluation.metrics import METRICS, aurc, brier

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Draw = Callable[[np.random.Generator, Bools], Floats]

AUROCS = (0.7, 0.95, 0.99)
SIZES = ((10, 500), (25, 500), (60, 500), (300, 1000))
"""Positives and negatives."""


FIRST_SEED = 2_000_000
"""Formulas were chosen with other sets, whose seeds begin at 0."""

MANY = 400_000
ONE_BY_ONE = {**METRICS, "aurc": aurc}


def normal(shift: float, generator: np.random.Generator, truth: Bools) -> Floats:
    return generator.normal(size=len(truth)) + shift * truth


def wide(shift: float, generator: np.random.Generator, truth: Bools) -> Floats:
    return generator.normal(size=len(truth)) * np.where(truth, 2.0, 1.0) + shift * truth


def tied(shift: float, generator: np.random.Generator, truth: Bools) -> Floats:
    return np.round(2 * normal(shift, generator, truth)) / 2


def mixed(share: float, generator: np.random.Generator, truth: Bools) -> Floats:
    far = truth & (generator.random(len(truth)) > share)
    return generator.normal(size=len(truth)) + 20.0 * far


def area_of_tied(shift: float) -> float:
    grid = np.arange(-24, 25) / 2
    mass = [norm.cdf(grid + 0.25 - each) - norm.cdf(grid - 0.25 - each) for each in (0.0, shift)]
    below = np.cumsum(mass[0]) - mass[0] / 2
    return float((mass[1] * below).sum())


@functools.cache
def populations(area: float) -> dict[str, Draw]:
    """Draws scores of given truths, with this AUROC."""
    quantile = float(norm.ppf(area))
    shift = brentq(lambda value: area_of_tied(value) - area, 0.0, 8.0)
    return {
        "normal": functools.partial(normal, quantile * 2**0.5),
        "wide": functools.partial(wide, quantile * 5**0.5),
        "tied": functools.partial(tied, shift),
        "mixed": functools.partial(mixed, 2 * (1 - area)),
    }


def truth_of(positives: int, negatives: int, generator: np.random.Generator, *, fixed: bool) -> Bools:
    total = positives + negatives
    return np.arange(total) < positives if fixed else generator.random(total) < positives / total


@dataclass(frozen=True)
class Tally:
    """Of how many sets the interval held the true figure; of the others there was none."""

    held: int
    counted: int

    @property
    def rate(self) -> float:
        return self.held / self.counted if self.counted else float("nan")


Interval = tuple[float, float] | None


def tally(intervals: Iterator[tuple[Interval, float]]) -> Tally:
    found = [interval[0] <= true <= interval[1] for interval, true in intervals if interval is not None]
    return Tally(sum(found), len(found))


def span(interval: object) -> Interval:
    return None if interval is None else (interval.low, interval.high)  # type: ignore[attr-defined]


def of_score(kind: str, area: float, size: tuple[int, int], sets: int, *, fixed: bool) -> dict[str, Tally]:
    """Every interval of a baseline, of the same sets: OOD samples (of which there are as many as were chosen)
    or wrong predictions."""
    draw = populations(area)[kind]
    areas = ("aupr_in", "aupr_out") if fixed else tuple(AREAS)
    found: dict[str, list[bool]] = {}
    true = {"auroc": area}
    if min(size) >= ENOUGH:
        true |= true_values(kind, area, size)
    for seed in range(sets):
        generator = np.random.default_rng(FIRST_SEED + seed)
        truth = truth_of(*size, generator, fixed=fixed)
        scores = draw(generator, truth)
        placed = placements(scores, truth)
        bounds = {"auroc": None if placed is None else span(mean_auroc_interval([placed]))}
        if min(size) >= ENOUGH:
            bounds |= metric_bounds(scores, truth, areas=areas, fixed_sizes=fixed)
        for name, interval in bounds.items():
            if interval is not None:
                found.setdefault(name, []).append(interval[0] <= true[name] <= interval[1])
    return {name: Tally(sum(held), len(held)) for name, held in found.items()}


def of_gain(draw: Draw, size: tuple[int, int], sets: int) -> Tally:
    """Two scores of equal AUROC that share half of their variance."""

    def each() -> Iterator[tuple[Interval, float]]:
        for seed in range(sets):
            generator = np.random.default_rng(FIRST_SEED + seed)
            truth = truth_of(*size, generator, fixed=True)
            yield span(paired_delong(*alike(draw, generator, truth), truth)), 0.0

    return tally(each())


def alike(draw: Draw, generator: np.random.Generator, truth: Bools) -> tuple[Floats, Floats]:
    """Two scores with the same distribution: for half of the samples, chosen at random, they are the same."""
    first, other = draw(generator, truth), draw(generator, truth)
    return first, np.where(generator.random(len(truth)) < 0.5, first, other)


def of_mean(draw: Draw, area: float, size: tuple[int, int], sets: int, *, gain: bool) -> Tally:
    """Three sets of positives, of one, two and three times as many samples, with the same negatives."""
    positives, negatives = size

    def each() -> Iterator[tuple[Interval, float]]:
        for seed in range(sets):
            generator = np.random.default_rng(FIRST_SEED + seed)
            both = [alike(draw, generator, np.ones(positives * times, dtype=bool)) for times in (1, 2, 3)]
            shared = alike(draw, generator, np.zeros(negatives, dtype=bool))
            placed = [
                [placements(np.r_[one[which], shared[which]], np.arange(len(one[which]) + negatives) < len(one[which]))
                 for one in both]
                for which in (0, 1)
            ]  # fmt: skip
            test = paired_mean_delong(*placed) if gain else mean_auroc_interval(placed[0])
            yield span(test), 0.0 if gain else area

    return tally(each())


@functools.cache
def true_values(kind: str, area: float, size: tuple[int, int]) -> dict[str, float]:
    """The figures of so many samples that they stand for the truth."""
    positives, negatives = size
    scale = MANY // (positives + negatives)
    truth = truth_of(positives * scale, negatives * scale, np.random.default_rng(0), fixed=True)
    scores = populations(area)[kind](np.random.default_rng(1), truth)
    return {name: float(ONE_BY_ONE[name](scores, truth)) for name in ONE_BY_ONE}


def of_two_truths(area: float, size: tuple[int, int], sets: int) -> Tally:
    """Two equally good classifiers, wrong on related samples, and equally good scores of their errors."""
    total, share = sum(size), size[0] / sum(size)

    def each() -> Iterator[tuple[Interval, float]]:
        for seed in range(sets):
            generator = np.random.default_rng(FIRST_SEED + seed)
            hard = generator.normal(size=total)
            truths = [hard + 0.7 * generator.normal(size=total) > norm.ppf(1 - share) * 1.49**0.5 for _ in range(2)]
            scores = [normal(float(norm.ppf(area)) * 2**0.5, generator, truth) for truth in truths]
            yield span(paired_delong_of_truths(*scores, *truths)), 0.0

    return tally(each())


def of_brier(calibrated: bool, size: tuple[int, int], sets: int) -> Tally:
    def one(generator: np.random.Generator, n: int) -> tuple[Floats, Bools]:
        chance = generator.beta(0.5, 0.5 * size[1] / size[0], n)
        predicted = chance if calibrated else chance**0.7
        return predicted, generator.random(n) < chance

    true = brier(*one(np.random.default_rng(10**6), MANY))

    def each() -> Iterator[tuple[Interval, float]]:
        for seed in range(sets):
            yield brier_interval(*one(np.random.default_rng(FIRST_SEED + seed), sum(size))), true

    return tally(each())


def of_accuracy(size: tuple[int, int], sets: int) -> Tally:
    share = size[1] / sum(size)

    def each() -> Iterator[tuple[Interval, float]]:
        for seed in range(sets):
            right = np.random.default_rng(FIRST_SEED + seed).binomial(sum(size), share)
            yield span(binomtest(int(right), sum(size)).proportion_ci(method="wilson")), share

    return tally(each())


def of_realised_rate(n: int, alpha: float, sets: int) -> Tally:
    """Intervals of 90 % of the false-alarm rate of a threshold; the score is uniform, so the rate is 1 - threshold."""

    def each() -> Iterator[tuple[Interval, float]]:
        for seed in range(sets):
            limit = threshold(np.random.default_rng(FIRST_SEED + seed).random(n), alpha)
            yield limit.realised_rate(), 1.0 - limit.value

    return tally(each())


MARGIN = 0.05


def false_passes(kind: str, size: tuple[int, int], sets: int) -> float:
    """Share of tests that pass a model which is worse by exactly the margin; 5 % are allowed."""
    positives, negatives = size
    truth = np.arange(positives + negatives) < positives
    lost = MARGIN / 0.95  # one positive in 19 falls below all others

    def difference(generator: np.random.Generator) -> Difference:
        shift = float(norm.ppf(0.95)) * 2**0.5
        worse = float(norm.ppf(0.95 - MARGIN)) * 2**0.5
        noise = [generator.normal(size=len(truth)) for _ in range(3)]
        if kind == "auroc, lost samples":
            before = noise[0] + shift * truth
            return auroc_difference_same(
                before, np.where(truth & (generator.random(len(truth)) < lost), -9.0, before), truth, truth
            )
        if kind == "auroc, other scores":
            before, now = (0.8**0.5 * noise[0] + 0.2**0.5 * each for each in noise[1:])
            return auroc_difference_same(before + shift * truth, now + worse * truth, truth, truth)
        if kind == "auroc, two truths":
            other = truth ^ (generator.random(len(truth)) < 0.2 * positives / len(truth))
            before, now = (0.5**0.5 * (noise[0] + each) for each in noise[1:])
            return auroc_difference_same(before + shift * truth, now + worse * other, truth, other)
        right = generator.random(len(truth)) < 0.95
        return rate_difference_same(right, right & (generator.random(len(truth)) > lost))

    passed = [
        judge(difference(np.random.default_rng(FIRST_SEED + seed)), margin=MARGIN, level=0.95, tests=1).status == "pass"
        for seed in range(sets)
    ]
    return float(np.mean(passed))


CHECKED = ("auroc, other scores", "auroc, lost samples", "auroc, two truths", "rate")


def cell(rates: list[Tally]) -> str:
    """The lowest and highest coverage over populations with intervals."""
    found = sorted(each.rate for each in rates if each.counted)
    if not found:
        return "none"
    return f"{found[0]:.3f}" if len(found) == 1 else f"{found[0]:.3f}-{found[-1]:.3f}"


OF_OOD, OF_WRONG = "OOD samples", "wrong predictions"


def of_scores(kind: str, area: float, size: tuple[int, int], sets: int) -> dict[str, Tally]:
    """Every interval of a baseline, by the names of their rows."""
    found = {what: of_score(kind, area, size, sets, fixed=what == OF_OOD) for what in (OF_OOD, OF_WRONG)}
    return {f"`{name}`, {what}": each for what, rates in found.items() for name, each in rates.items()}


def cases() -> list[Callable[[tuple[int, int], int], dict[str, Tally]]]:
    """What simulates one population each, given a size and a number of sets: name of a row -> its tally."""
    every = [(kind, area) for area in AUROCS for kind in populations(area)]
    draws = [(populations(area)[kind], area) for kind, area in every]

    def named(name: str, function: Callable[..., Tally], *given: object, **options: object) -> Callable[..., object]:
        return lambda size, sets: {name: function(*given, size, sets, **options)}

    return [
        *(functools.partial(of_scores, *each) for each in every),
        *(named("gain in AUROC", of_gain, draw) for draw, _ in draws),
        *(named("AUROC, mean of three sets", of_mean, *each, gain=False) for each in draws),
        *(named("gain, mean of three sets", of_mean, *each, gain=True) for each in draws),
        *(named("AUROC, two classifiers", of_two_truths, area) for area in AUROCS),
        *(named("`brier`", of_brier, calibrated) for calibrated in (True, False)),
        named("accuracy", of_accuracy),
    ]


def row_names() -> list[str]:
    """The rows of the table, in their order."""
    names = {OF_OOD: ["auroc", "aupr_in", "aupr_out", *RATES], OF_WRONG: ["auroc", *AREAS, *RATES]}
    of_scores = [f"`{name}`, {what}" for what, each in names.items() for name in each]
    return [*of_scores, "gain in AUROC", "AUROC, mean of three sets", "gain, mean of three sets",
            "AUROC, two classifiers", "`brier`", "accuracy"]  # fmt: skip


SHOWN = ("`auroc`, OOD samples", "`aupr_out`, OOD samples", "`fpr95_ood_positive`, OOD samples",
         "`auroc`, wrong predictions", "`aurc`, wrong predictions", "gain in AUROC")  # fmt: skip
"""The rows of the table in the manual; the file beside it has all."""


def coverage_rows(sets: int, processes: int) -> Iterator[tuple[str, list[str]]]:
    jobs = [(place, size, sets) for place in range(len(cases())) for size in SIZES]
    found: dict[tuple[str, tuple[int, int]], list[Tally]] = {}
    with ProcessPoolExecutor(processes) as pool:
        for (_, size, _), rates in zip(jobs, pool.map(simulated, jobs), strict=True):
            for name, each in rates.items():
                found.setdefault((name, size), []).append(each)
                print(f"{name}, {size}: {each.rate:.3f} of {each.counted}", file=sys.stderr, flush=True)
    for name in row_names():
        yield name, [cell(found.get((name, size), [])) for size in SIZES]


def simulated(job: tuple[int, tuple[int, int], int]) -> dict[str, Tally]:
    """A job of a process."""
    place, size, sets = job
    return cases()[place](size, sets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=2000, help="simulated sets of each population and size")
    parser.add_argument("--processes", type=int, default=2, help="populations simulated at once")
    parser.add_argument(
        "--write", type=Path, help="put the tables into this page, and all intervals into a CSV file beside it"
    )
    options = parser.parse_args()

    head = " | ".join(f"{positives} and {negatives}" for positives, negatives in SIZES)
    rule = "|---" * (len(SIZES) + 1) + "|"
    lines = [f"| 95 % interval of | {head} |", rule]
    rows = [["interval", *head.split(" | ")]]
    for name, cells in coverage_rows(options.sets, options.processes):
        rows.append([name.replace("`", ""), *cells])
        print(*rows[-1], sep=" | ", flush=True)
        if name in SHOWN:
            lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "Tests of `check` that pass a model which is worse by exactly the margin (5 % are allowed):", ""]
    lines += [f"| test | {head} |", rule]
    for kind in CHECKED:
        rates = [f"{false_passes(kind, size, options.sets):.3f}" for size in SIZES]
        lines.append(f"| {kind} | {' | '.join(rates)} |")
        print(lines[-1], flush=True)
    rates = {n: of_realised_rate(n, 0.05, options.sets).rate for n in (19, 100, 1000)}
    lines += ["", "The interval of 90 % of a threshold's own false-alarm rate (alpha 0.05) covers "
              + ", ".join(f"{rate:.3f} ({n} calibration samples)" for n, rate in rates.items()) + "."]  # fmt: skip
    put_table("coverage", "\n".join([f"{options.sets} simulated sets each.", "", *lines]), options.write)
    if options.write:
        with options.write.with_name("interval-coverage.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
