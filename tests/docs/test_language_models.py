"""The page on language models: its programs run and print what it says."""

import re

import numpy as np
from manual_pages import code_of

from gradscore.system import import_torchvision

import_torchvision()  # before transformers looks for it


def numbers(text):
    return [float(each) for each in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?(?=\s|$)", text)]


def test_what_is_printed(capsys):
    exec(compile(code_of("language-models.md"), "language-models.md", "exec"), {})
    printed, shown = capsys.readouterr().out, code_of("language-models.md", "text")
    assert printed.split()[:3] == shown.split()[:3] == ["sample_id", "loss", "loss/model/l2"]
    np.testing.assert_allclose(numbers(printed), numbers(shown), rtol=5e-3)
