from __future__ import annotations

import pkgutil
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_what_the_page_of_python_is_made_of_is_there():
    for name in re.findall(r"^::: (\S+)$", PAGE.read_text(), re.MULTILINE):
        pkgutil.resolve_name(name)
