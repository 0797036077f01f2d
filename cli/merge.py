"""`gradscore merge`: a run of the shares that several processes made."""

from __future__ import annotations

from .extract import document, report
from .options import JsonOption, QuietOption, RunArgument, TrustOption
from .output import Output, counting


def merge(
    run: RunArgument,
    _trust: TrustOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Finish a run whose shares were made by gradscore extract --share.

    The run is that of one process, value for value with --threads 1. A missing or foreign shard is named.

    After gradscore demo: gradscore extract demo/gradscore.yaml --out demo/shared --share 0/1 --trust-code

    Then: gradscore merge demo/shared --trust-code
    """
    from gradscore.distributed import merge as merge_shares

    output = Output(as_json=as_json, quiet=quiet)
    with counting(quiet=output.quiet) as tell:
        summary = merge_shares(run, progress=tell)
    report(output, summary)
    output.document(document(summary))
