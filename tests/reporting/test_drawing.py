"""Drawings of what names from outside can make unusual."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gradscore.reporting import HeatMap, write_plots


@pytest.mark.parametrize("classes", [2, 5, 10])
@pytest.mark.parametrize("letters", [1, 24, 100])
def test_names_of_any_length_leave_room_for_the_map(tmp_path: Path, classes: int, letters: int) -> None:
    names = [f"{number}{'n' * letters}" for number in range(classes)]
    plot = HeatMap(name="classes", title="Classes", rows=names, columns=names, values=np.eye(classes))
    write_plots([plot], tmp_path)
    drawn = np.asarray(Image.open(tmp_path / "classes.png").convert("RGB"))
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 20
