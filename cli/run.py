"""`gradscore run`: extract, fit-meta and evaluate in one."""

from __future__ import annotations

import typer

from .evaluate import PermutedOption, TablesOption, end, evaluated
from .extract import BatchOption, DeviceOption, OutOption, WorkersOption, extracted, settings_of
from .extract import document as extract_document
from .fit_meta import AgainOption, fitted
from .fit_meta import document as fit_document
from .options import (
    ConfigArgument,
    JsonOption,
    ProtocolsOption,
    QuietOption,
    SetOption,
    TrustOption,
    with_protocols,
)
from .output import Output
from .threads import ThreadsOption


def run(
    context: typer.Context,
    config: ConfigArgument,
    out: OutOption = None,
    settings: SetOption = None,
    device: DeviceOption = None,
    batch_size: BatchOption = None,
    workers: WorkersOption = None,
    protocols: ProtocolsOption = None,
    again: AgainOption = False,
    tables: TablesOption = False,
    permuted: PermutedOption = False,
    trust_code: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Extract features, fit the meta models and evaluate: from a configuration to the report.

    The same command goes on after an interruption: samples that are done are not computed again.

    Example: gradscore run configs/digits.yaml --trust-code
    """
    output = Output(as_json=as_json, quiet=quiet)
    given = settings_of(with_protocols(settings, protocols), device=device, batch_size=batch_size, workers=workers)
    summary = extracted(context, output, config, given, out=out, trust_code=trust_code, to_fit=True)
    models = fitted(output, summary.run, again=again)
    found = evaluated(output, summary.run, tables=tables, permuted=permuted, trust_code=trust_code)
    output.document({"extract": extract_document(summary), "fit_meta": fit_document(models), "evaluate": found})
    end(found)
