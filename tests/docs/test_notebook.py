"""The notebook of the documentation, run from a clean kernel."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parent.parent.parent / "docs" / "detector.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = str(tmp_path_factory.mktemp("notebook"))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    return notebook


def shown(notebook: nbformat.NotebookNode) -> list[str]:
    """What the cells with code show, as text."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs) for cell in cells]


def test_every_cell_shows_what_it_should(executed) -> None:
    _, _, table, drivers, report, loaded, features, findings = shown(executed)
    assert "p_value_wrong" in table
    assert "drivers_ood" in drivers
    assert "digits_8_and_9" in report
    assert loaded == "True"
    assert "uniform/4.bias/l2" in features
    assert "coverage: 4 by rule" in findings


def test_nothing_is_printed_or_warned(executed) -> None:
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.output_type == "stream"] == []


def test_the_stored_outputs_are_of_these_cells(executed) -> None:
    stored = shown(nbformat.read(NOTEBOOK, as_version=4))
    assert [bool(text) for text in stored] == [bool(text) for text in shown(executed)]
