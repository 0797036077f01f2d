from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.parametrize("name", re.findall(r"^::: (\S+)$", PAGE.read_text(), re.MULTILINE))
def test_what_the_page_of_python_is_made_of_is_there(name):
    pkgutil.resolve_name(name)
