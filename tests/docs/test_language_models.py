"""The page on language models: its programs run and print what it says."""

import re
from pathlib import Path

import numpy as np

from gradscore.system import import_torchvision

import_torchvision()  # before transformers looks for it

PAGE = (Path(__file__).parent.parent.parent / "docs" / "language-models.md").read_text()


def numbers(text):
    return [float(each) for each in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?(?=\s|$)", text)]


def test_what_is_printed(capsys):
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile("\n".join(programs), "language-models.md", "exec"), {})
    printed, shown = capsys.readouterr().out, "".join(re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL))
    assert printed.split()[:3] == shown.split()[:3] == ["sample_id", "loss", "loss/model/l2"]
    np.testing.assert_allclose(numbers(printed), numbers(shown), rtol=5e-3)
