"""`gradscore merge`: a run of the shares that several processes made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .extract import document, report
from .options import JsonOption, QuietOption, RunArgument, TrustOption, run_at_hand
from .output import Output, counting

SourcesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FROM...",
        help="Run folders of single shares, copied into RUN first.",
        callback=run_at_hand,
        show_default=False,
    ),
]


def merge(
    run: RunArgument,
    sources: SourcesArgument = None,
    _trust: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Finish a run whose shares were made by gradscore extract --shard.

    The run is that of one process, value for value with --threads 1. A missing or foreign shard is named.

    After gradscore demo: gradscore extract demo/gradscore.yaml --out demo/shared --shard 0/1 --trust-code

    Then: gradscore merge demo/shared --trust-code
    """
    from gradscore.distributed import merge as merge_shares  # imports PyTorch, which help need not wait for

    output = Output(as_json=as_json, quiet=quiet)
    with counting(quiet=output.quiet) as tell:
        summary = merge_shares(run, sources or (), progress=tell)
    report(output, summary)
    output.document(document(summary))
