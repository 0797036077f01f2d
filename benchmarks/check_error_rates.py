"""How often does `gradscore check` cry wolf, and how often does it miss a damaged model? On the digits model.

    python data_scripts/digits.py
    python benchmarks/check_error_rates.py --trials 13 --write docs/evidence.md

Every trial extracts, fits and evaluates anew and is compared with the same expected figures. Finished trials are kept
in the folder `--work`, so an interrupted measurement goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import put_table
from safetensors.torch import load_file, save_file
from scipy.stats import beta

from gradscore.check import ExpectedFigures, Policy, check_run, make_expected, read_expected, write_expected
from gradscore.config import Config, load_config
from gradscore.errors import GradscoreError
from gradscore.evaluation import evaluate_run, fit_run
from gradscore.pipeline import extract
from gradscore.store import RunFolder

ROOT = Path(__file__).parent.parent
SETTINGS = ["meta.Cs=[0.01]", "evaluate.protocols=[known]", "extract.device=cpu",
            *(f"data.ood.{place}.select.count=130" for place in range(3, 7))]  # fmt: skip
FIRST = 100
"""The margins for retrained models were chosen on trials before this one."""

POLICIES = {
    "default": Policy(),
    "for retrained models": Policy(accuracy=0.05, auroc=0.1, detection=0.4),
}
LAYERS = ("0", "2", "6", "8")

Case = Callable[[int, Path], Config]


def settings(folder: Path, *changes: str, checkpoint: Path | None = None) -> Config:
    moved = [] if checkpoint is None else [f"model.checkpoint={checkpoint}"]
    return load_config(ROOT / "configs" / "digits.yaml", [*SETTINGS, f"run={folder / 'run'}", *moved, *changes])


def changed_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Config:
    weights = load_file(ROOT / "runs" / "digits" / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    return settings(folder, checkpoint=folder / "model.safetensors")


def perturbed(trial: int, folder: Path) -> Config:
    """Normal noise of 0.5 to 2 standard deviations of each weight tensor."""
    generator, size = torch.Generator().manual_seed(trial), (0.5, 1.0, 2.0)[trial % 3]

    def change(weights: dict[str, torch.Tensor]) -> None:
        for name, tensor in weights.items():
            weights[name] = tensor + size * tensor.std() * torch.randn(tensor.shape, generator=generator)

    return changed_weights(folder, change)


def permuted(trial: int, folder: Path) -> Config:
    """The outputs of two to eight classes change places."""
    generator = np.random.default_rng(trial)
    order = np.arange(8)
    chosen = generator.choice(8, 2 + trial % 7, replace=False)
    order[chosen] = np.roll(chosen, 1)

    def change(weights: dict[str, torch.Tensor]) -> None:
        weights.update({name: weights[name][order].clone() for name in ("8.weight", "8.bias")})

    return changed_weights(folder, change)


def reinitialised(trial: int, folder: Path) -> Config:
    """One of the four layers is as before training."""
    layer = LAYERS[trial % len(LAYERS)]
    torch.manual_seed(1000 + trial)
    fresh = architecture()

    def change(weights: dict[str, torch.Tensor]) -> None:
        weights.update({name: tensor for name, tensor in fresh.items() if name.startswith(f"{layer}.")})

    return changed_weights(folder, change)


def wrong_normalisation(trial: int, folder: Path) -> Config:
    """Another mean and standard deviation of the pixels."""
    generator = np.random.default_rng(trial)
    mean, std = generator.uniform(0.0, 0.4), generator.uniform(0.2, 0.4)
    return settings(folder, f"preprocessing.mean=[{mean:.3f}]", f"preprocessing.std=[{std:.3f}]")


def other_batches(trial: int, folder: Path) -> Config:
    """Another batch size, which moves the last bits."""
    return settings(folder, f"extract.batch_size={5 + 7 * trial}")


def retrained(trial: int, folder: Path) -> Config:
    """The classifier trained anew from another seed."""
    sys.path.insert(0, str(ROOT / "data_scripts"))
    from digits import CLASSES, TRAINED, known_digits  # a script, not a package
    from training import train

    torch.manual_seed(100 + trial)
    model = architecture_of(CLASSES)
    images, labels = known_digits()
    train(model, images[:TRAINED], labels[:TRAINED], epochs=12, batch_size=32, rate=2e-3)
    save_file(model.state_dict(), folder / "model.safetensors")
    return settings(folder, checkpoint=folder / "model.safetensors")


def architecture_of(classes: int) -> torch.nn.Module:
    sys.path.insert(0, str(ROOT / "data_scripts"))
    from architectures import digits_cnn

    return digits_cnn(classes)


def architecture() -> dict[str, torch.Tensor]:
    return architecture_of(8).state_dict()


DAMAGES: dict[str, Case] = {
    "weights perturbed": perturbed,
    "classes permuted": permuted,
    "a layer re-initialised": reinitialised,
    "normalisation wrong": wrong_normalisation,
}
BENIGN: dict[str, Case] = {
    "other batch size": other_batches,
    "trained from another seed": retrained,
}


def finished(config: Config) -> RunFolder:
    extract(config, trust_code=True)
    run = RunFolder(config.run)
    fit_run(run)
    evaluate_run(run)
    return run


def outcome(case: Case, trial: int, expected: ExpectedFigures) -> dict[str, Any]:
    """How a check of one trial ended under each policy, and which tests did not pass."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = finished(case(trial, Path(folder)))
            reports = {name: check_run(run, expected, policy=policy) for name, policy in POLICIES.items()}
        except GradscoreError as error:
            return {name: {"status": "unusable", "why": [str(error)[:200]]} for name in POLICIES}
    return {
        name: {
            "status": report.status,
            "why": [test.name for test in report.tests if test.status == report.status != "pass"],
            "moves": {test.name: None if test.now is None else test.now - (test.before or 0) for test in report.tests},
        }
        for name, report in reports.items()
    }


def measure(expected: ExpectedFigures, trials: int, log: Path) -> dict[str, dict[str, Any]]:
    done: dict[str, dict[str, Any]] = json.loads(log.read_text()) if log.exists() else {}
    for trial in range(FIRST, FIRST + trials):
        for name, case in {**DAMAGES, **BENIGN}.items():
            key = f"{name} #{trial}"
            if key not in done:
                began = time.perf_counter()
                done[key] = outcome(case, trial, expected)
                log.write_text(json.dumps(done, indent=1) + "\n")
                statuses = " / ".join(found["status"] for found in done[key].values())
                print(f"{key}: {statuses} ({time.perf_counter() - began:.1f} s)", flush=True)
    return done


def rate(hits: int, n: int) -> str:
    """A share with its exact 95 % interval (Clopper and Pearson, 1934)."""
    low = beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, hits + 1, n - hits) if hits < n else 1.0
    return f"{hits} of {n} = {hits / n:.1%} ({low:.1%} to {high:.1%})"


def row(name: str, case: Case, done: dict[str, dict[str, Any]], trials: int) -> str:
    """How many trials of a change passed, were undecided and failed, under each policy."""
    cells = []
    for policy in POLICIES:
        counts = Counter(done[f"{name} #{trial}"][policy]["status"] for trial in range(FIRST, FIRST + trials))
        unusable = f", {counts['unusable']} unusable" if counts["unusable"] else ""
        cells.append(f"{counts['pass']} / {counts['undecided']} / {counts['fail']}{unusable}")
    return f"| {name}: {(case.__doc__ or '').strip()} | {' | '.join(cells)} |"


def total(name: str, cases: dict[str, Case], status: str, done: dict[str, dict[str, Any]], trials: int) -> str:
    """The share of all trials that ended so, under each policy."""
    keys = [f"{case} #{trial}" for case in cases for trial in range(FIRST, FIRST + trials)]
    hits = [sum(done[key][policy]["status"] == status for key in keys) for policy in POLICIES]
    return f"| *{name}* | {' | '.join(rate(each, len(keys)) for each in hits)} |"


def report(done: dict[str, dict[str, Any]], trials: int) -> str:
    lines = [
        f"{trials} trials of each kind.",
        "",
        "| change | default margins | for retrained models |",
        "|---|---|---|",
    ]
    lines += [row(name, case, done, trials) for name, case in DAMAGES.items()]
    lines += [total("damaged models that pass", DAMAGES, "pass", done, trials)]
    lines += [row(name, case, done, trials) for name, case in BENIGN.items()]
    lines += [total("harmless changes that fail", BENIGN, "fail", done, trials)]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=13, help="of each kind")
    parser.add_argument("--write", type=Path, help="put the table into this file, in the place of an earlier one")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "check-error-rates", help="for files in between")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    place = options.work / "expected.json"
    if not place.exists():
        with tempfile.TemporaryDirectory() as folder:
            write_expected(place, make_expected(finished(settings(Path(folder)))))
    expected = read_expected(place)
    done = measure(expected, options.trials, options.work / "trials.json")
    put_table("check", report(done, options.trials), options.write)


if __name__ == "__main__":
    main(sys.argv[1:])
