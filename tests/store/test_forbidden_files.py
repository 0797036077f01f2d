"""Files that the user may not read are not called damaged: nobody should delete them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from gradscore.errors import FORBIDDEN, GradscoreError
from gradscore.evaluation import ScoreFile
from gradscore.models.weights import load_checkpoint
from gradscore.store import RunFolder
from gradscore.store.run_files import read_checksums

READERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "features": (
        "pyarrow.parquet.ParquetFile",
        "features/in_dist.fit/part-00000.parquet",
        lambda run: RunFolder(run).read("in_dist.fit"),
    ),
    "checksums": ("pathlib.Path.read_text", "SHA256SUMS", read_checksums),
    "manifest": ("pathlib.Path.read_bytes", "manifest.json", RunFolder),
    "scores": (
        "pyarrow.parquet.read_table",
        "evaluation/scores.parquet",
        lambda run: ScoreFile(run / "evaluation").table(),
    ),
    "weights": (
        "gradscore.models.weights.format_of",
        "config.yaml",
        lambda run: load_checkpoint(nn.Linear(2, 2), run / "config.yaml"),
    ),
}


@pytest.mark.parametrize(("refuses", "name", "read"), READERS.values(), ids=READERS)
def test_a_file_that_may_not_be_read_is_called_so(small_run: Path, monkeypatch, refuses: str, name: str, read) -> None:
    """The system is made to refuse: whoever runs the tests may be allowed everything."""

    def refused(*_given: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(refuses, refused)
    with pytest.raises(GradscoreError) as raised:
        read(small_run)
    assert f"{small_run / name}: {FORBIDDEN}" in str(raised.value)
