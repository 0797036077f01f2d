"""Every kind of interval that is printed has a row on the page that says how often it covers."""

from pathlib import Path

from gradscore.evaluation.metrics import METRICS

PAGE = (Path(__file__).parent.parent.parent / "docs" / "evidence.md").read_text(encoding="utf-8")
ROWS = {
    **{f"{name} of OOD samples": f"| `{name}`, OOD samples |" for name in METRICS},
    **{f"{name} of wrong predictions": f"| `{name}`, wrong predictions |" for name in (*METRICS, "aurc")},
    "gain": "| gain in AUROC |",
    "group of OOD sets": "| AUROC, mean of three sets |",
    "gain of a group": "| gain, mean of three sets |",
    "Brier score": "| `brier` |",
    "accuracy of shifted sets": "| accuracy |",
    "comparison of two runs": "| AUROC, two classifiers |",
    "test of AUROCs on the same samples": "| auroc, other scores |",
    "test of AUROCs of two truths": "| auroc, two truths |",
    "test of rates on the same samples": "| rate |",
    "false-alarm rate of a threshold": "a threshold's own false-alarm rate",
}


def test_every_kind_of_interval_was_measured():
    assert [kind for kind, row in ROWS.items() if row not in PAGE] == []
