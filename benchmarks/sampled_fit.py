"""What fitting on a sample costs: meta models fitted on every sample beside those of `gradscore fit-meta`.

    OMP_NUM_THREADS=1 python benchmarks/sampled_fit.py --rows 1000000 --features 100

Of more than 100,000 samples that fit, `fit-meta` takes as many at random. Here models are fitted both ways to one
synthetic run (see `memory.py`), and all reported samples are scored by both: the AUROC of each, the correlation of
their scores, and the largest difference of a coefficient, relative to the largest one of the fit on all samples.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
from memory import make_run

from gradscore.evaluation import evaluate_run, fit_run, protocols
from gradscore.meta import MetaInputs, MetaModel
from gradscore.store import RunFolder

KEY = ["task", "protocol", "dataset"]


def fitted(run: RunFolder, most: int) -> tuple[dict[str, np.ndarray], dict[tuple[str, ...], float], dict]:
    """Coefficients of each model, and AUROCs and scores by data set."""
    protocols.MOST_SAMPLES = most
    shutil.rmtree(run.meta_path, ignore_errors=True)  # models that are there would be kept
    report = fit_run(run)
    inputs = MetaInputs.load(run.inputs_path)
    models = {each.spec.label: MetaModel.load(run.meta_path / each.spec.label, inputs) for each in report.models}
    found = evaluate_run(run)
    areas = {
        (each.task, each.protocol, each.dataset): each.value
        for each in found.records
        if (each.score, each.metric) == ("meta", "auroc")
    }
    scores = {key: block["meta"].to_numpy() for key, block in found.scores.groupby(KEY, sort=False)}
    coefficients = {label: model.arrays["coefficients"] for label, model in models.items()}
    return coefficients, areas, scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(make_run(Path(folder), rows=options.rows, features=options.features))
        sampled = fitted(run, protocols.MOST_SAMPLES)
        whole = fitted(run, options.rows + 1)
    print("| data set | AUROC, fitted on a sample | on all | correlation of scores |\n|---|---|---|---|")
    for key, area in whole[1].items():
        correlation = np.corrcoef(sampled[2][key], whole[2][key])[0, 1] if key in whole[2] else np.nan
        print(f"| {', '.join(key)} | {sampled[1][key]:.5f} | {area:.5f} | {correlation:.5f} |")
    for label, coefficients in whole[0].items():
        moved = np.abs(sampled[0][label] - coefficients).max() / np.abs(coefficients).max()
        print(f"{label}: largest difference of a coefficient {moved:.3f} of the largest one")


if __name__ == "__main__":
    main()
