"""Runs in cleanlab's environment: all of its scores of labels and its flags, for probabilities of several kinds.

Arguments, in pairs: a file with `features`, `labels`, and probabilities by name; and the file for scores and flags.
"""

import contextlib
import io
import sys

import numpy as np
from cleanlab import Datalab
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores

SCORES = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")


def main(source: str, target: str) -> None:
    with np.load(source) as found:
        given = dict(found)
    labels, features, results = given.pop("labels"), given.pop("features"), {}
    for name, chances in given.items():
        for score in SCORES:
            quality = get_label_quality_scores(labels, chances, method=score, adjust_pred_probs=False)
            results[f"{score}/{name}"] = -quality
        results[f"flags/{name}"] = find_label_issues(labels, chances)
        with contextlib.redirect_stdout(io.StringIO()):
            lab = Datalab({"label": labels}, label_name="label", verbosity=0)
            lab.find_issues(pred_probs=chances, features=features, issue_types={"label": {}})
        issues = lab.get_issues("label")
        results[f"datalab/{name}"] = -issues["label_score"].to_numpy()
        results[f"datalab_flags/{name}"] = issues["is_label_issue"].to_numpy()
    np.savez(target, **results)


if __name__ == "__main__":
    for pair in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        main(*pair)
