"""Many samples through a scorer, in order and in constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import pandas as pd
from torch import Tensor

from ..data import RawImage, UserImages, form, stacked
from ..errors import DataError, ModelError
from ..objects import called
from ..printable import storable
from .scorer import Scorer, with_errors


def score_stream(
    scorer: Scorer, images: Iterable[RawImage], *, batch_size: int = 64, explain: int = 0, watch: bool = False
) -> Iterator[pd.DataFrame]:
    """Scores images batch by batch.

    An image that cannot be decoded, has another size than the model takes, or whose values are not finite gives a row
    with an error; the others of its batch are scored.

    Args:
        scorer: decides.
        images: in order.
        batch_size: images in a batch.
        explain: how many drivers of each score to name.
        watch: add what `gradscore.Monitor` watches.

    Yields:
        Tables as `Scorer` gives them, a row for each image, in order.

    Raises:
        ModelError: the model fails on images of the size it was run on.
    """
    source = iter(images)
    while chunk := list(islice(source, batch_size)):
        yield _scored(scorer, chunk, explain=explain, watch=watch)


def score_file(
    scorer: Scorer, images: UserImages, *, file: Path | None, batch_size: int = 64, explain: int = 0
) -> Iterator[pd.DataFrame]:
    """Scores what a user named, as `score_stream` does, and says in a column `file` where each sample comes from.

    Args:
        scorer: decides.
        images: of one file, or image files.
        file: the file; None of image files, which are files of their own.
        batch_size: images in a batch.
        explain: how many drivers of each score to name.
    """
    for table in score_stream(scorer, images, batch_size=batch_size, explain=explain):
        yield table.assign(file=table["sample_id"] if file is None else storable(called(str(file))))


def result_columns(scorer: Scorer, *, explain: int = 0) -> list[str]:
    """The names of the columns of `score_file`, in order."""
    return [*scorer.columns(explain=explain), "file"]


def _scored(scorer: Scorer, chunk: Sequence[RawImage], *, explain: int, watch: bool) -> pd.DataFrame:
    errors = {place: raw.error for place, raw in enumerate(chunk) if raw.pixels is None}
    groups: dict[tuple[object, ...], dict[int, Tensor | Mapping[str, Tensor]]] = {}
    for place, raw in enumerate(chunk):
        if raw.pixels is not None:
            try:
                image = scorer.model_input(raw.pixels)
                groups.setdefault(form(image), {})[place] = image
            except (DataError, RuntimeError, ValueError) as error:
                errors[place] = f"{raw.sample_id} cannot be preprocessed: {error}"
    tables = [scorer.nothing(explain=explain, watch=watch)]
    places: list[int] = []
    for shape, members in groups.items():
        names = [chunk[place].sample_id for place in members]
        try:
            tables.append(scorer(stacked(list(members.values())), sample_ids=names, explain=explain, watch=watch))
        except ModelError as error:
            if shape == scorer.input_shape:
                raise
            size = f"{shape} after preprocessing, the model was run on {scorer.input_shape}"
            errors |= {place: f"{chunk[place].sample_id} has size {size}: {error}" for place in members}
            continue
        places += members
    table = pd.concat([each for each in tables if len(each)] or tables[:1], ignore_index=True)
    lost = sorted(errors)
    if lost:
        table = with_errors(table, [chunk[place].sample_id for place in lost], [errors[place] for place in lost])
    rows = [*places, *lost]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return table.iloc[order].reset_index(drop=True)
