"""Stops extract, fit-meta and evaluate in every way that happens, and looks at what is left.

    python benchmarks/faults.py --times 50 --write docs/evidence.md

After every fault the run folder must be valid (every recorded checksum right, and every finished split readable), and
the same command must go on to the files of an uninterrupted run, byte for byte; in the manifest, times may differ. The
model and the data are made on the spot. Commands run in forked processes, so that faults hit the work and not the start
of Python. A fault that comes when the command is done is made again, at another moment, until as many hit it at work as
were asked for. Exits with 1 if anything was lost, or if too few hit.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pages import put_table
from safetensors.torch import save_file
from torch import nn

from gradscore import evaluation, pipeline, reporting  # noqa: F401  loaded once, before processes are forked
from gradscore.errors import GradscoreError
from gradscore.store import CHECKSUMS, RunFolder, verify_run
from gradscore.system import is_temporary
from gradscore_cli.main import main as gradscore

NET = """
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
"""
CONFIG = """
model: {source: "python:net.py:net", checkpoint: net.safetensors, num_classes: 10}
preprocessing: {mean: [0.5], std: [0.5]}
data:
  in_dist:
    fit: {source: "sklearn:digits", select: {stop: 300}}
    test: {source: "sklearn:digits", select: {start: 300, stop: 500}}
  ood:
    - {source: "synthetic:gaussian_noise", name: noise, select: {stop: 100}}
features: {losses: [uniform], statistics: [max, l1, l2], penultimate: true}
extract: {batch_size: 25, part_size: 50, device: cpu}
meta: {Cs: [0.01, 0.1], cv_folds: 2}
evaluate: {protocols: [known, in_dist_only]}
run: run
"""
COMMANDS = ("extract", "fit-meta", "evaluate")
PATIENCE = 2.0
"""Seconds within which Ctrl-C must end a command."""

NOT_BEGUN = 99
"""How a process ends that was interrupted before its command."""

TRIES = 10
"""Faults made, at most, for each that must hit a command at work."""


@dataclass
class Ended:
    """How a command ended, what it said on standard error, and after how long."""

    code: int
    said: str
    seconds: float

    @property
    def finished(self) -> bool:
        """Whether it did all it was to do; `evaluate` has no verdict on random weights, and then ends with 3."""
        return self.code in (0, 3)


@dataclass
class Row:
    """What came of a fault that was made so often in a command, and hit it at work so often."""

    fault: str
    command: str
    times: int = 0
    hits: int = 0
    valid: int = 0
    same: int = 0
    slowest: float = 0.0
    problems: list[str] = field(default_factory=list)

    def until(self, hits: int) -> Iterator[float]:
        """Goes on until so many faults hit the command at work, within a bound.

        Yields the part of a command's time within which to choose the next moment: half as much after each miss in a
        row, since a command that was slow when it was timed may be done long before.
        """
        part = 1.0
        while self.hits < hits and self.times < TRIES * hits:
            before = self.hits
            yield part
            part = 1.0 if self.hits > before else part / 2
        if self.hits < hits:
            self.problems.append(f"{self.fault}, {self.command}: only {self.hits} of {self.times} hit it at work")

    def line(self) -> str:
        cells = (self.fault, f"`{self.command}`", self.times, self.hits, self.valid, self.same)
        return f"| {' | '.join(map(str, cells))} |"


def table_of(rows: Sequence[Row]) -> str:
    """How many of the faults hit each command at work, and what became of all of them."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.fault, []).append(f"`{row.command}` {row.hits}/{row.times}")
    lines = [f"- {fault}: {', '.join(each)}" for fault, each in found.items()]
    times, valid, same = (sum(getattr(row, each) for row in rows) for each in ("times", "valid", "same"))
    slowest = max(row.slowest for row in rows)
    ends = f"Of {times} faults, {valid} left a valid folder, and {same} ended in the same result."
    return "\n".join([*lines, "", f"{ends} After Ctrl-C, the slowest command ended after {slowest:.1f} s."])


class Campaign:
    """A model with its data, an uninterrupted run, and copies of it before and after each command."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        (folder / "net.py").write_text(NET)
        (folder / "config.yaml").write_text(CONFIG)
        torch.manual_seed(0)
        namespace: dict[str, Callable[[], nn.Module]] = {}
        exec(NET, namespace)
        save_file(namespace["net"]().state_dict(), folder / "net.safetensors")
        self.seconds: dict[str, float] = {}
        """How long each command took from its beginning to its end, the last time that nothing stopped it."""
        for command in COMMANDS:
            if (folder / "run").exists():
                shutil.copytree(folder / "run", folder / f"before {command}")
            ended = self.finish(command)
            if not ended.finished:
                raise SystemExit(f"{command} without a fault: {ended.said}")
            shutil.copytree(folder / "run", folder / f"after {command}")
            self.reset(command)
            self.seconds[command] = self.finish(command).seconds  # the first run also fills the caches of the disk

    def start(self, command: str, *, workers: int = 0, prepare: Callable[[], None] | None = None) -> int:
        """Forks a process that runs a command, after `prepare`, and returns its id."""
        extra = ["config.yaml", "--trust-code", "--workers", str(workers)] if command == "extract" else ["run"]
        # Ctrl-C waits until the process is at its command: before, it would end a copy of this script, which cleans up.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        process = os.fork()
        if process:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            return process
        code = 70
        try:
            os.setpgrp()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job ignores
            os.chdir(self.folder)
            said = os.open(self.folder / f"said-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
            os.dup2(said, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.argv = ["gradscore", command, *extra]
            if prepare is not None:
                prepare()
            code = NOT_BEGUN
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            code = 70
            gradscore()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)

    def ended(self, process: int, began: float) -> Ended:
        """Waits for a process."""
        _, status = os.waitpid(process, 0)
        seconds = time.monotonic() - began
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # loading workers of a killed process
        path = self.folder / f"said-{process}"
        said = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return Ended(os.waitstatus_to_exitcode(status), said, seconds)

    def finish(self, command: str, **options: object) -> Ended:
        """Runs a command to its end."""
        began = time.monotonic()
        return self.ended(self.start(command, **options), began)

    def reset(self, command: str) -> None:
        """Brings the run folder into the state before a command."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        before = self.folder / f"before {command}"
        if before.exists():
            shutil.copytree(before, self.folder / "run")

    def check(self, row: Row, what: str) -> None:
        """Looks at the run folder after a fault, goes on, and looks at the result."""
        row.times += 1
        problem = damage(self.folder / "run")
        row.valid += not problem
        ended = self.finish(row.command)
        if row.command != "extract":  # the others begin anew
            self.seconds[row.command] = ended.seconds
        problem += [f"going on: exit {ended.code}, {ended.said}"] * (not ended.finished)
        wrong = differences(self.folder / f"after {row.command}", self.folder / "run")
        row.same += not wrong and ended.finished
        row.problems += [f"{row.fault}, {row.command}, {what}: {each}" for each in [*problem, *wrong]]


def damage(run: Path) -> list[str]:
    """What is not valid in a run folder; a folder without a manifest has not begun."""
    if not (run / "manifest.json").exists():
        return []
    try:
        folder = RunFolder(run)
        finished = [info.name for info in folder.splits() if folder.manifest.splits[info.name].finished]
        for name in finished:
            folder.read(name)
        return verify_run(run).damaged
    except GradscoreError as error:
        return [str(error)]


def differences(wanted: Path, got: Path) -> list[str]:
    """The files in which two finished runs differ."""
    before, now = contents(wanted), contents(got)
    return [f"{name} differs" for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]


def contents(run: Path) -> dict[str, bytes]:
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    found = {name: path.read_bytes() for name, path in files.items() if name != CHECKSUMS}
    manifest = json.loads(found.get("manifest.json", b'{"splits": {}}'))
    for entry in manifest["splits"].values():
        entry.pop("spent", None)
    left = [name for name, path in files.items() if is_temporary(path)]
    state = verify_run(run)
    # A file without a checksum, or one that is not right, is a difference as well.
    report = {"checksums": json.dumps([state.damaged, state.not_recorded, left]).encode()}
    return {**found, "manifest.json": json.dumps(manifest).encode(), **report}


def killed(campaign: Campaign, command: str, hits: int) -> Row:
    row = Row("`kill -9`", command)
    for _ in row.until(hits):
        _, moment = stopped(campaign, row, signal.SIGKILL, code=-signal.SIGKILL)
        campaign.check(row, f"after {moment:.3f} s")
    return row


def interrupted(campaign: Campaign, command: str, hits: int) -> Row:
    row = Row("Ctrl-C", command)
    for _ in row.until(hits):
        ended, moment = stopped(campaign, row, signal.SIGINT, code=130)
        row.slowest = max(row.slowest, ended.seconds)
        told = ended.finished or ended.code == NOT_BEGUN or (ended.code == 130 and "the same command" in ended.said)
        if not told:
            row.problems.append(f"Ctrl-C, {command}, after {moment:.3f} s: exit {ended.code}, said {ended.said!r}")
        if ended.seconds > PATIENCE:
            row.problems.append(f"Ctrl-C, {command}, after {moment:.3f} s: ended only {ended.seconds:.1f} s later")
        campaign.check(row, f"after {moment:.3f} s")
    return row


def stopped(campaign: Campaign, row: Row, number: signal.Signals, *, code: int) -> tuple[Ended, float]:
    """Sends a signal to a command at a random moment; how it ended from then on, and the moment."""
    campaign.reset(row.command)
    # A process that was forked a moment ago has seldom begun with the command.
    moment = campaign.random.uniform(0.05, campaign.seconds[row.command])
    began = time.monotonic()
    process = campaign.start(row.command)
    while not (done := has_ended(process)) and time.monotonic() - began < moment:
        time.sleep(0.002)
    if done:
        campaign.seconds[row.command] = time.monotonic() - began
    sent = time.monotonic()
    os.kill(process, number)
    ended = campaign.ended(process, sent)
    row.hits += ended.code == code
    return ended, moment


def has_ended(process: int) -> bool:
    """Whether a process has ended; it can still be waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def failing_write(number: int) -> None:
    """Lets the disk be full from the so-many-th file on that is written."""
    import errno

    from gradscore.system import files

    synchronise, left = os.fsync, number

    def fsync(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synchronise(handle)

    files.os.fsync = fsync


def full(campaign: Campaign, command: str, hits: int) -> Row:
    row = Row("no space, at a file", command)
    for _ in row.until(hits):
        campaign.reset(command)
        number = campaign.random.randrange({"extract": 16, "fit-meta": 8, "evaluate": 8}[command])
        judge(row, campaign.finish(command, prepare=lambda: failing_write(number)), "No space left on device")  # noqa: B023
        campaign.check(row, f"file {number}")
    return row


def judge(row: Row, ended: Ended, message: str) -> None:
    """Counts an expected failure; what else but success is a problem."""
    if ended.code == 2 and message in ended.said:
        row.hits += 1
    elif not ended.finished:
        row.problems.append(f"{row.fault}, {row.command}: exit {ended.code}, said {ended.said!r}")


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """A file system of `size` bytes at `folder`, where the system allows it."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    made = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", str(folder)], check=True)


def small(campaign: Campaign, command: str, hits: int) -> Row:
    row = Row("a disk too small", command)
    run = campaign.folder / "run"
    sizes = [folder_size(campaign.folder / f"{state} {command}") for state in ("before", "after")]
    for _ in row.until(hits):
        size = campaign.random.randrange(sizes[0] + 4096, max(sizes[1], sizes[0] + 8192))
        shutil.rmtree(run, ignore_errors=True)
        with small_disk(run, size) as made:
            if not made:
                return row
            before = campaign.folder / f"before {command}"
            if before.exists():
                shutil.copytree(before, run, dirs_exist_ok=True)
            judge(row, campaign.finish(command), "No space left on device")
            shutil.copytree(run, campaign.folder / "kept")
        shutil.rmtree(run)
        (campaign.folder / "kept").rename(run)
        campaign.check(row, f"{size} bytes")
    return row


def folder_size(folder: Path) -> int:
    """What the files take on a disk of 4 KiB blocks."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


def without_worker(campaign: Campaign, command: str, hits: int) -> Row:
    row = Row("a loading worker killed", command)
    for part in row.until(hits):
        campaign.reset(command)
        began = time.monotonic()
        process = campaign.start(command, workers=1)
        children = Path(f"/proc/{process}/task/{process}/children")
        while not (workers := children.read_text().split()) and time.monotonic() - began < 60:
            time.sleep(0.005)
        time.sleep(campaign.random.uniform(0, 0.2) * part)
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(int(worker), signal.SIGKILL)
        judge(row, campaign.ended(process, began), "a worker that loads samples was lost")
        campaign.check(row, "")
    return row


def at_once(campaign: Campaign, command: str, hits: int) -> Row:
    row = Row("two at once", command)
    for part in row.until(hits):
        campaign.reset(command)
        began = time.monotonic()
        first = campaign.start(command)
        time.sleep(campaign.random.uniform(0, campaign.seconds[command]) * part)
        for process in (first, campaign.start(command)):
            judge(row, campaign.ended(process, began), "another process is writing to this folder")
        campaign.check(row, "")
    return row


FAULTS = (killed, interrupted, full, small, at_once)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="how often each is killed at work; other faults a fifth")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS, help="only these are stopped")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--write", type=Path, help="put the table into this file, in the place of an earlier one")
    options = parser.parse_args()

    torch.set_num_threads(1)
    rows: list[Row] = []
    fewer = -(-options.times // 5)
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), seed=options.seed)
        for command in options.commands:
            for fault in [*FAULTS, *[without_worker] * (command == "extract")]:
                rows.append(fault(campaign, command, options.times if fault is killed else fewer))
                print(rows[-1].line(), f"slowest end {rows[-1].slowest:.2f} s", file=sys.stderr, flush=True)
    put_table("faults", table_of([row for row in rows if row.times]), options.write)
    problems = [problem for row in rows for problem in row.problems]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
