"""Arguments, options and exit codes that several commands share, and what they open.

Where commands take paths, they take addresses in object storage: local copies stand in for them until a command ends.

PyTorch, MKL and NumPy's linear algebra each keep a pool of threads. This is the only place that decides on them, before
any of these libraries is loaded, by environment variables that they read; compiled loops use as many as PyTorch does.
Processes that load data (`--workers`) compute with one thread each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from gradscore.errors import ConfigError
from gradscore.notices import Notice

from .output import Output

if TYPE_CHECKING:
    from gradscore.config import Config
    from gradscore.object_storage import WorkingCopy
    from gradscore.store import RunFolder

UNDECIDED = 3
"""The exit code where samples leave it undecided, or there is no verdict."""

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

WAITING = "OMP_WAIT_POLICY"
SPINNING = "GOMP_SPINCOUNT"

SPINS = "1000"
"""How often a thread of PyTorch's looks for work before it sleeps, some tens of microseconds in all: the next operation
mostly comes within them."""

NUMBERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables of the number of threads of the libraries."""


def local_run(context: typer.Context, given: Any) -> Any:
    """The run folder that a command works in, for a run at an address; several of them, and anything else as it is."""
    if isinstance(given, list | tuple):
        return [local_run(context, each) for each in given]
    found = working_copy_of(context, given, must_exist=True)
    return given if found is None else found.path


def local_file(_context: typer.Context, given: Path | None) -> Path | None:
    """The file that a command reads; the local copy of one at an address."""
    if given is None or not _is_address(given):
        return given
    from gradscore.object_storage import fetched

    return fetched(given)


def local_output(context: typer.Context, given: Path | None) -> Path | None:
    """Local path of what a command writes, no part of a run; for an address it is uploaded when the command ends."""
    if given is None:
        return None
    if _is_address(given):
        from gradscore.object_storage import uploading

        return context.with_resource(uploading(given))
    from gradscore.store import refuse_run_files

    refuse_run_files(given, option="--out")
    return given


def working_copy_of(context: typer.Context, given: Path | None, *, must_exist: bool) -> WorkingCopy | None:
    """The working copy of a run at an address, which lasts until the command ends; None for a path."""
    if given is None or not _is_address(given):
        return None
    from gradscore.object_storage import working_copy

    return context.with_resource(working_copy(given, must_exist=must_exist))


def _is_address(given: Path) -> bool:
    from gradscore.system import is_address

    return is_address(given)


def wait_asleep() -> None:
    """Has threads spin for a moment and then sleep while they wait, unless the environment says otherwise.

    Threads that spin keep a processor from another program, or from the other pools of this one: of two extractions at
    once on two cores each took six times as long as alone. Threads that sleep at once take longer to wake than many
    operations last. docs/benchmarks.md has what was measured.
    """
    if WAITING not in os.environ:
        os.environ[WAITING] = "passive"
        os.environ.setdefault(SPINNING, SPINS)


def use_threads(number: int | None) -> int | None:
    """Sets the number of threads of all pools; None leaves the environment's, or one for each processor."""
    if number is not None:
        os.environ.update(dict.fromkeys(NUMBERS, str(number)))
        if "torch" in sys.modules:  # in a program that has loaded it, it no longer reads the environment
            sys.modules["torch"].set_num_threads(number)
    return number


T = TypeVar("T")
"""Type of an option where commands have defaults of their own: `AlphaOption[float]`, `AlphaOption[float | None]`."""

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A YAML configuration file.", show_default=False)
]
SourceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG|RUN",
        help="A YAML configuration file or a run folder.",
        callback=local_run,
        show_default=False,
    ),
]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run folder, or its address, s3://bucket/run.",
        callback=local_run,
        show_default=False,
    ),
]
BundleArgument = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A file made by gradscore bundle.", callback=local_file)
]
SamplesArgument = Annotated[
    list[str],
    typer.Argument(metavar="SAMPLES", help="Images, folders, patterns, .npz, .csv or Parquet files."),
]


def out_option(metavar: str, what: str) -> Any:
    """`--out`, with what it names in its help: not a part of a run, and it may be an address."""
    return typer.Option("--out", metavar=metavar, help=what, callback=local_output)


RunOutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="RUN", help="Run folder or address of one, instead of the configuration's."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting, such as meta.cv_folds=3; repeatable.",
        show_default=False,
    ),
]
DeviceOption = Annotated[T, typer.Option("--device", metavar="auto|cpu|cuda|...", help="Where to compute.")]
BatchSizeOption = Annotated[T, typer.Option("--batch-size", min=1, help="Samples at a time.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", help="Processes that load samples.")]
SplitOption = Annotated[
    str, typer.Option("--split", help="The split to look at: in_dist.fit, in_dist.test, in_dist.bank, ...")
]
ALPHA = "False-alarm rate: on average at most this share of correctly predicted in-distribution samples is rejected"
AlphaOption = Annotated[T, typer.Option("--alpha", help=f"{ALPHA}.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="SOURCE", help="Where the model's code is, if not near the run or the bundle."),
]
WeightsOption = Annotated[
    Path | None, typer.Option("--weights", metavar="FILE", help="Where the weights are now, if they were moved.")
]
HashOption = Annotated[str | None, typer.Option("--sha256", help="Refuse a bundle with another SHA-256.")]
ColumnOption = Annotated[
    str | None, typer.Option("--column", help="The column of tables, or the array of .npz files, with the samples.")
]
IdsOption = Annotated[
    str | None,
    typer.Option("--ids", help="The column of tables that names the samples; id or sample_id by default."),
]
RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="FOLDER",
        help="Let paths in tables lead anywhere below this folder, not only below their own.",
    ),
]
TrustOption = Annotated[
    bool, typer.Option("--trust-code", help="Run the Python code that the configuration or bundle names.")
]
NothingToTrustOption = Annotated[bool, typer.Option("--trust-code", hidden=True)]
"""Commands that run no code of others take the option all the same, as one of several that are typed alike."""

ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        callback=use_threads,
        is_eager=True,
        help="Threads to compute with, instead of one for each processor.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON; notes go to standard error.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and warnings.")]


def given_settings(settings: list[str] | None, **options: object) -> list[str]:
    """Settings as `--set` takes them, those that have options of their own last."""
    return [*(settings or ()), *(f"extract.{name}={value}" for name, value in options.items() if value is not None)]


class _FlagsWithoutValues:
    """A command or group whose `--help` does not say `<bool>` after flags, which looks like a value to give."""

    def get_params(self, ctx: Any) -> Any:
        """Arguments and options of the command."""
        found = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return found


class Group(_FlagsWithoutValues, TyperGroup):
    """A group of commands."""


class Command(_FlagsWithoutValues, TyperCommand):
    """A command that takes `--trust-code`: it says which code of others will run, and lets it run meanwhile."""

    def invoke(self, ctx: Any) -> Any:
        """Runs it; not before all its arguments are right, since nobody ends what one with wrong ones began."""
        allowed = ctx.params.get("_trust", False)
        if allowed or "GRADSCORE_TRUST_CODE" in os.environ:
            from gradscore.models import trusting_code

            def tell(code: str) -> None:
                Output(quiet=ctx.params["quiet"]).tell(f"running {code}", stderr=True)

            ctx.with_resource(trusting_code(allowed, tell=tell))
        return super().invoke(ctx)


def opened(
    context: typer.Context, source: Path, settings: list[str], *, folder: str
) -> tuple[Config, Path, RunFolder | None]:
    """The configuration, where the files go, and the run folder that it is of.

    Of a run folder, code runs that it was made with, and no other.

    Args:
        context: of the command.
        source: a configuration file or a run folder.
        settings: of `--set`, for a configuration file.
        folder: what the folder of the files is called, in the run folder or beside it; beside the configuration, where
            the run is in object storage.

    Raises:
        ConfigError: settings for a run folder, which has its own.
    """
    from gradscore.config import load_config
    from gradscore.models import trusting_code
    from gradscore.store import RunFolder
    from gradscore.system import is_address

    if not source.is_dir():
        config = load_config(source, settings)
        beside = source if is_address(config.run) else config.run
        return config, beside.parent / folder, None
    if settings:
        raise ConfigError("--set changes a configuration; a run folder has its own: give the configuration file")
    run = RunFolder(source)
    context.with_resource(trusting_code(False, origin=run.code))  # nothing else, trusted or not
    if run.moved:
        Output(quiet=context.params["quiet"]).tell(Notice(f"{source}: {run.moved}", "caution"), stderr=True)
    return run.config, source / folder, run
