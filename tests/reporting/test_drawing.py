"""Drawings of what names from outside can make unusual."""

from pathlib import Path
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
from PIL import Image

from gradscore.reporting import Curve, Curves, HeatMap, write_plots


@pytest.mark.parametrize("classes", [2, 5, 10])
@pytest.mark.parametrize("letters", [1, 24, 100])
def test_names_of_any_length_leave_room_for_the_map(tmp_path: Path, classes: int, letters: int) -> None:
    names = [f"{number}{'n' * letters}" for number in range(classes)]
    plot = HeatMap(name="classes", title="Classes", rows=names, columns=names, values=np.eye(classes))
    write_plots([plot], tmp_path)
    drawn = np.asarray(Image.open(tmp_path / "classes.png").convert("RGB"))
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 20


def test_signs_that_a_terminal_would_obey_are_drawn_as_escapes(tmp_path: Path) -> None:
    curve = Curve(name="a\x1b[2Jb", x=np.arange(3.0), y=np.arange(3.0), colour="#000000")
    lines = Curves(name="lines", title="\x9b", x_label="x\x07", y_label="y", curves=[curve])
    names = ["c\x1b]0;gone", "d"]
    cells = HeatMap(name="cells", title="Classes", rows=names, columns=names, values=np.eye(2))
    with catch_warnings():
        simplefilter("error")
        write_plots([lines, cells], tmp_path)
    drawn = [(tmp_path / f"{name}.svg").read_text() for name in ("lines", "cells")]
    assert [r"a\x1b[2Jb" in drawn[0], r"c\x1b]0;gone" in drawn[1]] == [True, True]
