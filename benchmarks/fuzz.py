"""Reads damaged files of every kind by the thousand; nothing but success or a GradscoreError may come of one.

Run from the top of the repository: OMP_NUM_THREADS=1 python benchmarks/fuzz.py --cases 10500 --seed 1
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from conftest import finished_run, run_config, trained
from fuzz_targets import TARGETS
from fuzzing import fuzz, limit_memory

from gradscore.deployment import make_bundle, write_bundle
from gradscore.store import RunFolder


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=12_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=TARGETS)
    options = parser.parse_args()
    limit_memory()
    failures = Counter[str]()
    print("| kind | cases | accepted | refused | other |\n|---|---|---|---|---|")
    made = Path(tempfile.mkdtemp())
    trained(made)
    run = finished_run(run_config(made))
    write_bundle(made / "small.gradscore", make_bundle(RunFolder(run), alpha=0.1, with_weights=True, trust_code=True))
    for kind in [options.only] if options.only else TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            found = fuzz(TARGETS[kind], Path(folder), run, cases=options.cases, seed=options.seed)
        counts = Counter(case.outcome for case in found)
        other = Counter({name: count for name, count in counts.items() if name not in ("accepted", "refused")})
        print(f"| {kind} | {len(found)} | {counts['accepted']} | {counts['refused']} | {other.total()} |", flush=True)
        failures += other
        for name, count in other.most_common(12):
            first = next(case for case in found if case.outcome == name)
            print(f"    {count} x {name} (case {first.number}, {first.file})", file=sys.stderr, flush=True)
    shutil.rmtree(made)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
