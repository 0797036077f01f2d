"""`gradscore verify`: whether the files of a run folder are intact."""

from __future__ import annotations

from gradscore.errors import StoreError

from .options import JsonOption, NothingToTrustOption, QuietOption, RunArgument
from .output import Output


def verify(
    run: RunArgument, _trust: NothingToTrustOption = False, as_json: JsonOption = False, quiet: QuietOption = False
) -> None:
    """Verify the checksums of a run; exits with 2 if a file is damaged or missing.

    After gradscore demo: gradscore verify demo/run
    """
    from gradscore.store import RunFolder, verify_run

    RunFolder(run)  # says what is wrong with a manifest that cannot be read
    found = verify_run(run)
    output = Output(as_json=as_json, quiet=quiet)
    output.document(found)
    output.tell(*(f"not recorded: {name}" for name in found.not_recorded), rest="gradscore verify --json")
    output.say(
        f"{len(found.intact)} files intact, {len(found.damaged)} damaged, {len(found.not_recorded)} without checksum",
    )
    if found.damaged:
        raise StoreError(
            f"{run}: damaged: {'; '.join(found.damaged)}. Restore it from a copy; or delete damaged files and run the "
            "command again that makes them: extract for features, fit-meta for meta, evaluate for evaluation"
        )
