"""Plots, and what names from outside can make unusual about them."""

import io
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
from PIL import Image

from gradscore.reporting import Line, heat_map, histograms
from gradscore.reporting.pages import curves

TEXTS = {"name": "n", "title": "t", "x_label": "x"}


@pytest.mark.parametrize(("classes", "letters"), [(2, 100), (5, 24), (10, 1), (10, 100)])
def test_names_of_any_length_leave_room_for_the_map(classes: int, letters: int) -> None:
    names = [f"{number}{'n' * letters}" for number in range(classes)]
    plot = heat_map(np.eye(classes), rows=names, columns=names, **TEXTS)
    image = io.BytesIO()
    plot.figure.savefig(image, format="png")
    pixels = np.asarray(Image.open(image).convert("RGB"))
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_signs_that_a_terminal_would_obey_are_drawn_as_escapes() -> None:
    names = ["c\x1b]0;gone", "d"]
    with catch_warnings():
        simplefilter("error")
        line = Line(name="a\x1b[2Jb", x=np.arange(3.0), y=np.arange(3.0), colour="#000000")
        lines = curves([line], **TEXTS | {"title": "\x9b"}, y_label="$y_1").drawn().decode()
        cells = heat_map(np.eye(2), rows=names, columns=names, **TEXTS).drawn().decode()
    assert all(text in lines for text in (r"a\x1b[2Jb", r"\x9b", "$y_1"))
    assert r"c\x1b]0;gone" in cells


def test_the_same_plot_gives_the_same_bytes() -> None:
    drawn = [histograms([("a", np.arange(9.0), "#000000")], **TEXTS).drawn() for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_subsampled_curves_keep_their_ends() -> None:
    x = np.arange(5000.0)
    plot = curves([Line(name="a", x=x, y=x**2, colour="#000000")], **TEXTS, y_label="y")
    x, y = plot.figure.axes[0].lines[0].get_data()
    assert (len(x), x[0], x[-1]) == (300, 0.0, 4999.0)
    assert (y == x**2).all()


def test_histograms_hold_every_sample() -> None:
    values = np.random.default_rng(0).standard_cauchy(1000)
    found = histograms([("a", values, "#000000"), ("b", values[:50], "#ffffff")], **TEXTS).figure.axes[0]
    areas = [np.sum(np.diff(data.edges) * data.values) for data in (patch.get_data() for patch in found.patches)]
    assert areas == pytest.approx([1.0] * 4)


def test_a_histogram_of_one_value() -> None:
    edges = histograms([("a", np.ones(3), "#000000")], **TEXTS).figure.axes[0].patches[0].get_data().edges
    assert (edges[0], edges[-1]) == (0.5, 1.5)
