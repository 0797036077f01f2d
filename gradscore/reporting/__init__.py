"""Pages: the report of an evaluation, and what all reports share.

`pages` draws, and writes pages that need nothing but a browser.
`evaluation_report` is what `gradscore evaluate` writes: sentences, tables, plots, and samples to look at (`gallery`).
Everything that draws needs the extra `report`.
"""

from __future__ import annotations

from .evaluation_report import write_report
from .pages import (
    GREY,
    Line,
    Part,
    Plot,
    ToolFiles,
    check_packages,
    colour,
    file_name,
    heat_map,
    histograms,
    layer_profile,
    small_copy,
    thumbnail,
    time_rows,
    write_beside,
    write_page,
)
