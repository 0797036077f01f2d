"""What the README tells its readers to do, done."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from commands import cli
from manual_pages import blocks_of

import gradscore
from gradscore.store import RunFolder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return [block.text for block in blocks_of("README.md", language)]


def step(command):
    """The block of commands that begins with this one."""
    (block,) = (block for block in blocks("sh") if block.startswith(f"gradscore {command} "))
    return block


@pytest.fixture(scope="module")
def own_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    script = ROOT / "data_scripts" / "example_folder.py"
    spec = importlib.util.spec_from_file_location("example_folder", script)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(script.parent))
        spec.loader.exec_module(module)
        module.main([str(folder / "my_model")])
        patch.chdir(folder)
        commands, results = run_lines(step("init"))
    assert commands == ["init"]
    assert "to fill in: preprocessing.mean" in results[0].output
    file = folder / "my_model" / "gradscore.yaml"
    written = file.read_text()
    file.write_text(written.replace("mean: fill-in", "mean: [0.5]").replace("std: fill-in", "std: [0.5]"))
    return folder


def run_lines(block):
    lines = [line.split("#")[0].split()[1:] for line in block.splitlines()]
    results = [cli(*line) for line in lines]
    assert [result.exit_code for result in results] == [0] * len(lines), [result.output for result in results]
    return [line[0] for line in lines], results


@pytest.fixture(scope="module")
def finished(own_model):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(own_model)
        return run_lines(step("run"))


def test_steps_for_your_own_model(own_model, finished):
    commands, results = finished
    assert commands == ["run"]
    assert results[-1].stdout.startswith("Chosen: ")
    assert "\nNext: gradscore bundle" in results[-1].stdout
    run = RunFolder(own_model / "my_model" / "run")
    assert (run.evaluation_path / "report.html").is_file()
    assert run.read("in_dist.test")["correct"].mean() > 0.9


@pytest.mark.usefixtures("finished")
def test_steps_for_new_samples(own_model, monkeypatch):
    monkeypatch.chdir(own_model)
    commands, results = run_lines(step("bundle"))
    assert commands == ["bundle", "score", "score"]
    assert "decision" in results[1].stdout
    assert "accepted" in results[2].stdout
    assert len((own_model / "scores.csv").read_text().splitlines()) == 355


@pytest.mark.usefixtures("finished")
def test_steps_for_a_gate(own_model, monkeypatch):
    monkeypatch.chdir(own_model)
    commands, results = run_lines(step("check"))
    assert commands == ["check", "check"]
    assert "no worse than expected" in results[1].output


def notebook_cells():
    notebook = json.loads((ROOT / "docs" / "detector.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_three_lines(tmp_path, monkeypatch):
    """On the model and loaders of the notebook."""
    monkeypatch.chdir(tmp_path)
    names = example(0, **{"gradscore": gradscore} | setup_of_notebook())
    verdict = names["report"].verdict
    assert verdict["what"].tolist() == ["wrong predictions", "digits_8_and_9"]
    shown = re.findall(r"^\| .* \| \*{0,2}(0\.\d{3})\*{0,2} \| (0\.\d{3})-(0\.\d{3}) \|.*\|$", README, re.MULTILINE)
    assert verdict["auroc"].tolist() == pytest.approx([float(area) for area, _, _ in shown], abs=0.02)
    assert set(names["table"]["decision"]) == {"accept", "reject"}
    assert (tmp_path / "report.html").is_file()


def setup_of_notebook():
    names = {}
    exec(compile(notebook_cells()[0], "detector.ipynb", "exec"), names)
    return names


def example(place, **names):
    exec(compile(blocks("python")[place], "README.md", "exec"), names)
    return names


def test_files_that_are_mentioned_are_there():
    mentioned = re.findall(r"(?:data_scripts|configs|docs)/[\w./-]+\w|\b[A-Z]+\.md", README)
    assert len(mentioned) > 5
    assert [name for name in mentioned if not (ROOT / name).is_file()] == []
