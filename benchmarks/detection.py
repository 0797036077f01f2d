"""Where the scores win and where they lose: networks of several kinds, OOD sets of each, every protocol.

    python benchmarks/detection.py --out FOLDER [--cifar FOLDER] [--only NAME ...] [--write docs/detection.md]

Networks are made, or read, by detection_networks.py. Each is run with the product's own defaults (`gradscore run`), in
a folder of its own below --out, so that the same command goes on after an interruption and computes nothing twice. The
tables have what the chosen score gains in AUROC: in the mean of a network's OOD sets over the baseline that is best in
it, and on the worst of these over the best baseline of that very set. --write puts them into a page, and every set with
its 95 % interval into a CSV file beside it. --small is for tests: few samples.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from detection_networks import CHOSEN_ON, CIFAR, NETWORKS, SMALL, Place, Size
from pages import put_table

from gradscore.baselines import BASELINES, plain_name

PROTOCOLS = ("leave_one_dataset_out", "auxiliary", "in_dist_only")
MEAN = "all (mean)"
WRONG = "in_dist.test"

WORST = 4
"""Sets of a protocol that are named."""


def run(name: str, place: Place, *, threads: int) -> Path:
    """Makes a network and its data, runs the product on them, and returns the run folder."""
    folder = place.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**NETWORKS[name](place), "evaluate": {"protocols": list(PROTOCOLS)}, "run": "run"}
    (folder / "gradscore.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    command = ["-m", "gradscore_cli", "run", str(folder / "gradscore.yaml"), "--trust-code", "-q"]
    done = subprocess.run([sys.executable, *command, "--threads", str(threads)], capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{name}: gradscore run ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return folder / "run"


def cells(name: str, folder: Path) -> pd.DataFrame:
    """What the chosen score and the meta model gain over the best baseline, on each set and in the mean."""
    records = pd.DataFrame(json.loads((folder / "evaluation" / "metrics.json").read_text()))
    is_baseline = records["score"].map(lambda score: plain_name(score) in BASELINES)
    areas = records[records["metric"] == "auroc"]
    rows: list[dict[str, Any]] = []
    for (task, protocol, dataset), block in areas.groupby(["task", "protocol", "dataset"], sort=False):
        if (task, dataset) != ("misclassification", WRONG) and task != "ood":
            continue
        best = block[is_baseline[block.index]].set_index("score")["value"]
        if best.empty:
            continue
        over = best.idxmax()
        here = records[(records["task"] == task) & (records["protocol"] == protocol) & (records["dataset"] == dataset)]
        for score in ("chosen", "meta"):
            gain = here[(here["score"] == score) & (here["metric"] == f"auroc_gain_over_{over}")]
            area = block[block["score"] == score]["value"]
            # A score that is the best baseline itself gains nothing, and there is nothing to test.
            found = gain.iloc[0] if len(gain) and gain["p_value"].iloc[0] < 1 else None
            rows.append(
                {
                    "network": name, "protocol": "wrong" if task == "misclassification" else protocol,
                    "dataset": dataset, "score": score, "auroc": float(area.iloc[0]), "best": over,
                    "best_auroc": float(best.max()), "gain": float(area.iloc[0]) - float(best.max()),
                    "low": np.nan if found is None else found["low"],
                    "high": np.nan if found is None else found["high"],
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def published(found: pd.DataFrame) -> pd.DataFrame:
    """The cells of the chosen score as the manual has them, one row for each protocol, network and set."""
    names = {"dataset": "set", "best": "best_baseline", "best_auroc": "baseline_auroc"}
    rows = found[found["score"] == "chosen"].drop(columns="score").rename(columns=names).round(6)
    rows.insert(2, "chosen_on", rows["network"].isin(CHOSEN_ON))
    rows["protocol"] = pd.Categorical(rows["protocol"], [*PROTOCOLS, "wrong"])
    return rows.sort_values("protocol", kind="stable")[["protocol", *rows.columns.drop("protocol")]]


def table(rows: pd.DataFrame) -> str:
    """What is published as Markdown: the counts and worst sets of each protocol, and the means of each network.

    Best baselines by mean and wrong predictions are the same under every protocol. Bold: ahead, by the interval.
    """
    heads = [
        "protocol",
        "mean gain above 0 (by interval)",
        "sets at most 0.003 behind",
        "behind by interval",
        "worst sets",
    ]
    lines = _head(heads)
    for protocol in PROTOCOLS:
        of_protocol = rows[rows["protocol"] == protocol]
        is_mean = of_protocol["set"] == MEAN
        sets = of_protocol[~of_protocol["set"].str.endswith("(mean)")]
        close, behind = (sets["gain"] >= -0.003).sum(), (sets["high"] < 0).sum()
        worst = sets.sort_values("gain", kind="stable").head(WORST).to_dict("records")
        said = ", ".join(f"{each['set']} of {each['network']} {each['gain']:+.3f}" for each in worst)
        above, surely = ((of_protocol[column][is_mean] > 0).sum() for column in ("gain", "low"))
        networks = f"{above}/{is_mean.sum()} ({surely})"
        lines.append(_row([f"`{protocol}`", networks, f"{close}/{len(sets)}", f"{behind}", said]))
    heads = ["network", "AUROC", "best baseline", *(f"gain, `{each}`" for each in PROTOCOLS)]
    lines += ["", *_head([*heads, "wrong predictions: AUROC", "gain"])]
    means = rows[(rows["set"] == MEAN) | (rows["protocol"] == "wrong")]
    for network, of_network in means.groupby("network", sort=False):
        by = {str(row["protocol"]): row for _, row in of_network.iterrows()}
        whole, wrong = by[PROTOCOLS[0]], by["wrong"]
        area = [f"{whole['auroc']:.3f}", f"{whole['baseline_auroc']:.3f} `{whole['best_baseline']}`"]
        gains = [_gain(by[each]) for each in PROTOCOLS]
        lines.append(_row([str(network), *area, *gains, f"{wrong['auroc']:.3f}", _gain(wrong)]))
    return "\n".join(lines)


def _gain(row: "pd.Series[float]") -> str:
    return f"**{row['gain']:+.3f}**" if row["low"] > 0 else f"{row['gain']:+.3f}"


def _head(cells: Sequence[str]) -> list[str]:
    return [_row(cells), "|---" * len(cells) + "|"]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> pd.DataFrame:
    """Runs the command and returns the cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where networks, data and runs go")
    parser.add_argument("--cifar", type=Path, help=f"folder with {', '.join(CIFAR)}; without it these are left out")
    parser.add_argument("--only", nargs="+", choices=NETWORKS, help="networks, by default all")
    parser.add_argument("--small", action="store_true", help="few samples")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a page of the documentation for the tables")
    options = parser.parse_args(arguments)
    place = Place(options.out.resolve(), options.cifar, SMALL if options.small else Size())
    needs_cifar = {name for name in NETWORKS if name in CIFAR}
    chosen = options.only or [name for name in NETWORKS if options.cifar or name not in needs_cifar]
    if not options.cifar and needs_cifar & set(chosen):
        raise SystemExit(f"{', '.join(sorted(needs_cifar & set(chosen)))}: name the folder of CIFAR by --cifar")
    parts = []
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        parts.append(cells(name, run(name, place, threads=options.threads)))
    found = pd.concat(parts, ignore_index=True)
    found.to_csv(place.folder / "cells.csv", index=False)
    rows = published(found)
    put_table("detection", table(rows), options.write)
    if options.write:
        rows.to_csv(options.write.with_suffix(".csv"), index=False)
    return found


if __name__ == "__main__":
    main()
