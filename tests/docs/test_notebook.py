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
    assert "coverage: 4 parameters: 4 by rule" in findings


def test_nothing_is_printed_or_warned(executed) -> None:
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.output_type == "stream"] == []


def test_readme_has_the_figures_that_are_stored() -> None:
    (report,) = (text for text in shown(nbformat.read(NOTEBOOK, as_version=4)) if text.startswith("Chosen: "))
    readme = (NOTEBOOK.parent.parent / "README.md").read_text()
    rows = {
        "wrong predictions": "wrong predictions",
        "digits_8_and_9": "digits 8 and 9, never seen",
    }
    for name, words in rows.items():
        (line,) = (each for each in report.splitlines() if each.strip().startswith(f"{name} ") and "0." in each)
        _, auroc, low, high, best, gain, gain_low, gain_high, *_ = line.split(name)[1].split()
        (row,) = (each for each in readme.splitlines() if each.startswith(f"| {words} |") and best in each)
        cells = [each.strip(" *") for each in row.split("|")[2:-1]]
        signed = [f"{float(each):+.3f}" for each in (gain, gain_low, gain_high)]
        assert cells == [auroc, f"{low}-{high}", best, signed[0], f"{signed[1]} to {signed[2]}"]


def test_the_stored_outputs_are_of_these_cells(executed) -> None:
    stored = shown(nbformat.read(NOTEBOOK, as_version=4))
    assert [bool(text) for text in stored] == [bool(text) for text in shown(executed)]
