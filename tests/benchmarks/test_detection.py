"""The tables of benchmarks/detection.py on records made up, and one small network from its data to the tables."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("detection_benchmark", FOLDER / "detection.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FOLDER))  # for its neighbours
        patched.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


def record(dataset: str, score: str, metric: str, value: float, low: float | None = None, high: float | None = None):
    named = {"task": "ood", "protocol": "auxiliary", "dataset": dataset, "score": score, "metric": metric}
    return {**named, "value": value, "low": low, "high": high}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One set where a baseline is best, one where the chosen score is, and the mean of both."""
    records = []
    for dataset, chosen, msp, knn in (("near", 0.7, 0.8, 0.6), ("far", 0.9, 0.7, 0.8), ("all (mean)", 0.8, 0.75, 0.7)):
        areas = {"chosen": chosen, "meta": 0.5, "msp": msp, "knn@augmentations": knn, "score_lr": 0.99}
        records += [record(dataset, name, "auroc", area) for name, area in areas.items()]
        records += [
            record(
                dataset, "chosen", f"auroc_gain_over_{name}", chosen - area, chosen - area - 0.01, chosen - area + 0.01
            )
            for name, area in (("msp", msp), ("knn@augmentations", knn))
        ]
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "metrics.json").write_text(json.dumps(records))
    return tmp_path


def test_the_gain_is_that_over_the_best_baseline_of_each_set(benchmark: ModuleType, folder: Path) -> None:
    """Regressions without gradients are none."""
    found = benchmark.cells("net", folder)
    chosen = found[found["score"] == "chosen"].set_index("dataset")
    assert chosen["best"].to_dict() == {"near": "msp", "far": "knn@augmentations", "all (mean)": "msp"}
    assert chosen["gain"].round(9).to_dict() == {"near": -0.1, "far": 0.1, "all (mean)": 0.05}
    assert chosen.loc["far", ["low", "high"]].round(9).tolist() == [0.09, 0.11]


def test_the_worst_set_of_a_protocol_is_named(benchmark: ModuleType, folder: Path) -> None:
    lines = benchmark.table(benchmark.cells("net", folder)).splitlines()
    assert lines[0].startswith("| `auxiliary` |")
    gains = "+0.050 (+0.040 to +0.060) | near *-0.100*, far **+0.100**"
    assert lines[2] == f"| net | 0.800 | 0.750 `msp` | {gains} |"
    assert lines[-1] == "| **worst set**: net, near | 0.700 | 0.800 `msp` | -0.100 (-0.110 to -0.090) | |"


@pytest.mark.slow
def test_a_small_network_goes_through_and_is_not_run_again(benchmark: ModuleType, tmp_path: Path) -> None:
    command = ["--out", str(tmp_path), "--only", "cells", "--small", "--threads", "1"]
    first = benchmark.main(command)
    assert set(first["protocol"]) == {"wrong", *benchmark.PROTOCOLS}
    assert first[first["protocol"] == "auxiliary"]["dataset"].nunique() == 6 + 3  # and the means of near, far and all
    features = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells" / "run" / "features").rglob("*.parquet")}
    again = benchmark.main(command)
    assert {path: path.stat().st_mtime_ns for path in features} == features
    pd.testing.assert_frame_equal(again, first)


def test_networks_for_cifar_ask_for_its_folder(benchmark: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="resnet20: name the folder of CIFAR by --cifar"):
        benchmark.main(["--out", str(tmp_path), "--only", "resnet20"])
