"""`gradscore project`: random projections of the gradients of a split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gradscore.errors import ConfigError
from gradscore.notices import notes

from .options import (
    JsonOption,
    QuietOption,
    SetOption,
    SourceArgument,
    SplitOption,
    ThreadsOption,
    TrustOption,
    local_file,
    opened,
    out_option,
)
from .output import Output, counting, figures_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

PRINTED = 10
"""Rows on the terminal; all of them are in the file."""


def project(
    context: typer.Context,
    source: SourceArgument,
    out: Annotated[Path, out_option("DIR", "A folder for the projections; the same command goes on there.")],
    split: SplitOption = "in_dist.fit",
    loss: Annotated[
        str, typer.Option("--loss", help="The loss whose gradients are projected: pseudo_label, label, ...")
    ] = "pseudo_label",
    dimension: Annotated[int, typer.Option("--dim", metavar="K", help="Numbers for each sample, 64 to 8192.")] = 4096,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the projection.")] = 0,
    nearest: Annotated[
        Path | None,
        typer.Option(
            "--nearest",
            metavar="DIR",
            help="Also list the nearest samples in this folder of projections.",
            callback=local_file,
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Nearest samples to list for each sample; 10 by default.")
    ] = None,
    by: Annotated[
        Literal["cosine", "dot"] | None,
        typer.Option(
            "--by", help="Rank by the cosine, the default, or by the product (dot), which favours large gradients."
        ),
    ] = None,
    settings: SetOption = None,
    _trust: TrustOption = False,
    _threads: ThreadsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Project every sample's gradient to a few thousand numbers that approximate inner products of gradients.

    With --nearest, also the samples with the most similar gradients, in nearest.parquet.

    After gradscore demo: gradscore project demo/gradscore.yaml --split in_dist.fit --out demo/projected --trust-code
    """
    from gradscore.losses import LOSSES
    from gradscore.projections import (
        load_projections,
        nearest_table,
        project_config,
    )
    from gradscore.system import replacing

    output = Output(as_json=as_json, quiet=quiet)
    config, _, _ = opened(context, source, settings or [], folder="projections")
    bank = None if nearest is None else load_projections(nearest)
    given = {"--count": count, "--by": by}
    if bank is None and (ignored := [name for name, value in given.items() if value is not None]):
        raise ConfigError(
            f"{ignored[0]} is for --nearest DIR, the projections to look in; give that too, or leave it out"
        )
    with counting(quiet=quiet) as tell:
        found, names = project_config(
            config,
            split=split,
            loss=loss,
            dim=dimension,
            seed=seed,
            out=out,
            like=None if bank is None else bank.about,
            progress=tell,
        )
    more, file = list[str](), None
    if bank is not None:
        table, more = nearest_table(bank, found, count=count or 10, similarity=by or "cosine", bank_name=str(nearest))
        file = out / "nearest.parquet"
        with replacing(file) as temporary:
            table.to_parquet(temporary, index=False)
        _print(output, table, names, looks_at_labels=LOSSES[loss].needs_labels)
    output.say(f"{len(found)} samples, {dimension} numbers each: {out}")
    if file is not None:
        output.say(f"nearest samples: {file}")
    output.tell(*notes(more), rest=str(out))
    output.tell(*notes(found.notices), rest=f"{out / 'projections.json'}")
    output.document({"samples": len(found), "folder": out, "nearest": file, "notices": [*more, *found.notices]})


def _print(output: Output, found: pd.DataFrame, names: Sequence[str] | None, *, looks_at_labels: bool) -> None:
    def name(label: int) -> str:
        return "" if label < 0 else str(label) if names is None else names[label]

    shown = figures_table(["sample", "label", "nearest", "its label"], ["similarity"])
    nearest = found[found["rank"] == 1]
    for row in nearest.head(PRINTED).to_dict("records"):
        shown.add_row(
            str(row["sample_id"]),
            name(row["label"]),
            str(row["nearest_sample_id"]),
            name(row["nearest_label"]),
            f"{row['similarity']:.4g}",
        )
    output.show(shown)
    if len(found) > len(nearest) or len(nearest) > PRINTED:
        output.say(f"the nearest of the first {min(len(nearest), PRINTED)} samples; the file has {len(found)} rows")
    first = nearest[(nearest["label"] >= 0) & (nearest["nearest_label"] >= 0)]
    if len(first):
        alike = int((first["label"] == first["nearest_label"]).sum())
        known = ", which the loss looks at," if looks_at_labels else ""
        output.say(f"the nearest sample has the same label{known} for {alike} of {len(first)} samples")
