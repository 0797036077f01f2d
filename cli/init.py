"""`gradscore init`: a first configuration for folders and checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from gradscore.errors import ConfigError
from gradscore.notices import Notice, notes

from .options import JsonOption, QuietOption
from .output import Output, doing

if TYPE_CHECKING:
    from gradscore.setup import Proposal


def init(
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FOLDER|CHECKPOINT",
            help="Folders of samples, code and weights, and files of these; this folder by default.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="The configuration to write; gradscore.yaml in the folder, or here if several places are named.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a configuration that is there.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Look at samples and a network, and write a commented configuration for them.

    Looked for are images in class folders; tables (CSV, Parquet) of images, texts or numbers and their classes; arrays
    in NumPy archives; weights, the network they are of (torchvision, timm, a class in a Python file) and its
    preprocessing; programs of torch.export; and classifiers that transformers saved. What cannot be found out is asked
    for on a terminal, and marked FILL IN in the file. No code is run.

    After gradscore demo: gradscore init demo --out demo/proposed.yaml
    """
    from gradscore.setup import propose, write_proposal

    chosen = places or [Path()]
    alone = chosen[0] if len(chosen) == 1 and chosen[0].is_dir() else Path()
    target = out or alone / "gradscore.yaml"
    if target.exists() and not force:
        raise ConfigError(f"{target}: there is a file already; name another with --out, or replace it with --force")
    if target.exists() and target.suffix not in (".yaml", ".yml"):  # weights, for example
        raise ConfigError(
            f"{target}: --force replaces a configuration, a file that ends in .yaml or .yml; give another path"
        )
    with doing(quiet=quiet or not sys.stderr.isatty()) as tell:  # one line for each network it could be
        proposal = propose(chosen, base=target.parent, progress=tell)
    if not as_json and not quiet and sys.stdin.isatty() and sys.stdout.isatty():
        _ask(proposal)
    write_proposal(proposal, target)
    output = Output(as_json=as_json, quiet=quiet)
    _report(output, proposal, target)
    output.document(
        {
            "config": target,
            "settings": proposal.settings,
            "missing": proposal.missing,
            "notices": proposal.remarks,
        }
    )


def _ask(proposal: Proposal) -> None:
    import yaml

    for key, wanted in list(proposal.missing.items()):
        answer = typer.prompt(f"{key} ({wanted}; empty: later)", default="", show_default=False)
        if answer:
            source = key.startswith("data.")
            proposal.put(key, {"source": answer} if source else yaml.safe_load(answer))


def _report(output: Output, proposal: Proposal, target: Path) -> None:
    output.tell(*(Notice(f"to fill in: {key}: {wanted}", "caution") for key, wanted in proposal.missing.items()))
    output.tell(*notes(proposal.remarks))
    output.say(f"configuration: {target} (check its values; comments say where they come from)")
    trust = " --trust-code" if proposal.settings["model.source"].startswith(("python:", "program:")) else ""
    command = f"gradscore run {quote(str(target))}{trust}"
    output.say(f"Next{', with these filled in' if proposal.missing else ''}: {command}", detail=True)
