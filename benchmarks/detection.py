"""Where the scores win and where they lose: networks of several kinds, OOD sets of each, every protocol.

    python benchmarks/detection.py --out FOLDER [--cifar FOLDER] [--only NAME ...] [--write docs/detection.md]

Networks are made, or read, by detection_networks.py. Each is run with the product's own defaults (`gradscore run`), in
a folder of its own below --out, so that the same command goes on after an interruption and computes nothing twice. The
tables have, for each network and OOD set, what the chosen score gains in AUROC over the best of all baselines on that
very set, with the 95 % interval, and for each protocol the worst of these. --small is for tests: few samples.
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


def table(found: pd.DataFrame, *, score: str = "chosen") -> str:
    """All cells as Markdown: for each protocol a row for each network, with the mean over its sets and every set."""
    lines = []
    for protocol, rows in found[found["score"] == score].groupby("protocol", sort=False):
        is_mean = rows["dataset"].str.endswith("(mean)")
        worst = rows[~is_mean].loc[rows[~is_mean]["gain"].idxmin()]
        if protocol == "wrong":
            lines += ["", "| wrong predictions | AUROC | best baseline | gain, 95 % |", "|---|---|---|---|"]
            lines += [f"| {_name(row['network'])} | {_cell(row)} |" for _, row in rows.iterrows()]
            lines.append(f"| **worst**: {worst['network']} | {_cell(worst)} |")
            continue
        lines += [
            "",
            f"| `{protocol}` | mean AUROC | best baseline by mean | gain, 95 % | gain over the best of each set |",
        ]
        lines.append("|---|---|---|---|---|")
        for network, of_network in rows.groupby("network", sort=False):
            single = of_network[~of_network["dataset"].str.endswith("(mean)")]
            sets = ", ".join(f"{row['dataset']} {_gain(row)}" for _, row in single.iterrows())
            lines += [
                f"| {_name(network)} | {_cell(row)} | {sets} |"
                for _, row in of_network[of_network["dataset"] == MEAN].iterrows()
            ]
        lines.append(f"| **worst set**: {worst['network']}, {worst['dataset']} | {_cell(worst)} | |")
    return "\n".join(lines).strip()


def _name(network: str) -> str:
    return f"{network} (chosen on)" if network in CHOSEN_ON else network


def _gain(row: "pd.Series[Any]") -> str:
    """Three decimals of a gain; bold where its interval lies above zero, in italics where it lies below."""
    mark = "**" if row["low"] > 0 else "*" if row["high"] < 0 else ""
    return f"{mark}{row['gain']:+.3f}{mark}"


def _cell(row: "pd.Series[Any]") -> str:
    interval = "" if np.isnan(row["low"]) else f" ({row['low']:+.3f} to {row['high']:+.3f})"
    return f"{row['auroc']:.3f} | {row['best_auroc']:.3f} `{row['best']}` | {row['gain']:+.3f}{interval}"


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
    put_table("detection", table(found), options.write)
    return found


if __name__ == "__main__":
    main()
