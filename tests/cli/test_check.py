"""`gradscore check`: exit codes and files."""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
import yaml
from click.testing import Result
from commands import cli
from PIL import Image
from restored import restored
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits


def check(run: Path, expected: Path, *arguments: object) -> Result:
    return cli("check", run, "--expected", expected, *arguments)


@pytest.fixture
def expected(small_run: Path, tmp_path: Path) -> Path:
    path = tmp_path / "expected.json"
    margins = ["accuracy=0.1", "auroc=0.2", "false_alarm=0.1", "detection=0.4"]
    result = check(small_run, path, "--update", *[word for margin in margins for word in ("--margin", margin)])
    assert result.exit_code == 0
    assert f"new expected figures: {path}" in result.stdout.replace("\n", "")
    return path


def spoiled(expected: Path) -> Path:
    """Expected figures with an accuracy that no run reaches."""
    content = json.loads(expected.read_text())
    samples = content["splits"]["in_dist.test"]
    samples["correct"] = "1" * (len(samples["correct"]) - 2) + "00"
    expected.write_text(json.dumps(content))
    return expected


def test_a_run_folder_is_compared_with_code_trusted_or_not(small_run, expected) -> None:
    assert check(small_run, expected, "--trust-code").exit_code == 0


def test_update_shows_the_difference_then_writes(small_run, expected) -> None:
    before = spoiled(expected).read_text()
    result = check(small_run, expected, "--update", "--margin", "auroc=0.15")
    assert result.exit_code == 0
    assert "a drop of more than 0.1" in result.stdout
    assert expected.read_text() != before
    assert json.loads(expected.read_text())["policy"]["auroc"] == 0.15
    assert check(small_run, expected).exit_code == 0


def test_for_machines(small_run, expected, tmp_path: Path) -> None:
    found = check(small_run, expected, "--junit", tmp_path / "a.xml", "--json")
    assert (tmp_path / "a.xml").read_text().startswith("<?xml")
    content = json.loads(found.stdout)
    assert (content["status"], content["exit_code"], len(content["tests"])) == ("pass", 0, 8)


UNUSABLE = {
    "an unknown margin": ("speed=1", "--margin speed=1: wanted NAME=VALUE"),
    "a margin out of range": ("auroc=2", "less than 1"),
}


def test_a_margin_is_given_once(small_run, expected) -> None:
    result = check(small_run, expected, "--margin", "accuracy=0.5", "--margin", "accuracy=0.0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--margin accuracy=0.0: accuracy is given twice; give each margin once" in " ".join(result.stderr.split())


@pytest.mark.parametrize(("margin", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_unusable_margins(small_run, expected, margin: str, message: str) -> None:
    result = check(small_run, expected, "--margin", margin)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.fixture(scope="module")
def made(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one's own: a configuration, a model, an OOD set, and the run made of them."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("net.py", "net.safetensors"):
        shutil.copy(small_run.parent / name, folder / name)
    noise(folder, seed=0)
    settings = yaml.safe_load((small_run / "config.yaml").read_text())
    settings["model"] |= {"source": f"python:{folder}/net.py:net", "checkpoint": str(folder / "net.safetensors")}
    settings["data"]["ood"] = [{"name": "mine", "source": f"npz:{folder}/ood.npz"}]
    settings["run"] = str(folder / "run")
    (folder / "own.yaml").write_text(yaml.safe_dump(settings))
    margins = [word for name in ("accuracy=0.1", "auroc=0.2", "false_alarm=0.1") for word in ("--margin", name)]
    result = check(folder / "own.yaml", folder / "expected.json", "--update", "--trust-code", *margins)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Iterator[Path]:
    """The same folder, put back as it was afterwards."""
    yield from restored(made, tmp_path)


def noise(folder: Path, *, seed: int, count: int = 60) -> None:
    """An OOD set of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 8, 8), dtype=np.uint8)
    np.savez(folder / "ood.npz", images=pixels)


def swap_classes(folder: Path, order: Sequence[int] = (1, 0, 3, 2, 4, 5, 6, 7, 8, 9)) -> None:
    """Classes of the last layer change places, in the file that the run was made from."""
    weights = load_file(folder / "net.safetensors")
    save_file(
        weights | {name: weights[name][list(order)].clone() for name in ("3.weight", "3.bias")},
        folder / "net.safetensors",
    )


def ordinary_digits(folder: Path) -> None:
    """The OOD set gives way to another one of the same name: digits, which no detector finds."""
    np.savez(folder / "ood.npz", images=np.round(load_digits().images[900:960] * 255 / 16).astype(np.uint8))


def test_what_is_said_of_a_damaged_sample_works(own) -> None:
    (own / "pictures").mkdir()
    for place, pixels in enumerate(np.load(own / "ood.npz")["images"]):
        Image.fromarray(pixels).save(own / "pictures" / f"{place:02}.png")
    text = (own / "own.yaml").read_text().replace(f"npz:{own}/ood.npz", f"folder:{own}/pictures")
    (own / "pictures.yaml").write_text(text)
    figures, given = own / "pictures.json", (own / "pictures.yaml", own / "pictures.json", "--trust-code")
    assert check(*given, "--update").exit_code == 0
    (own / "pictures" / "07.png").write_bytes(b"no image")
    result = check(*given)
    assert result.exit_code == 2
    said = result.stderr.replace("\n", " ")
    assert "on_error=skip" in said
    assert said.rstrip().endswith("repair it, or delete that file and make it anew with --update")
    figures.unlink()
    assert check(*given, "--set", "extract.on_error=skip", "--update").exit_code == 0
    assert check(*given, "--set", "extract.on_error=skip").exit_code == 0


def test_a_configuration_that_did_not_change_passes(own) -> None:
    result = check(own / "own.yaml", own / "expected.json", "--trust-code")
    assert result.exit_code == 0
    assert "this run is already complete: nothing to compute" in result.stderr
    assert "Next: " not in result.output
    assert "no worse than expected: 8 of 8 tests pass\n" in result.stdout
    assert result.stdout.index("8 of 8") < result.stdout.index("margin")
    assert "Chosen: " not in result.stdout, "the question is another one"


def test_damaged_weights_never_pass(own) -> None:
    """Neither by the run of the weights as they were, nor as new expected figures; anew, they fail."""
    swap_classes(own)
    before = (own / "expected.json").read_text()
    for options in ([], ["--update"]):
        result = check(own / "run", own / "expected.json", *options)
        assert (result.exit_code, "no worse" in result.output) == (2, False)
        assert "net.safetensors, is another one" in result.stderr.replace("\n", " ")
    assert (own / "expected.json").read_text() == before
    result = check(own / "own.yaml", own / "expected.json", "--trust-code")
    assert result.exit_code == 2
    assert "model.weights_sha256 was" in result.stderr.replace("\n", " ")
    result = check(own / "own.yaml", own / "expected.json", "--trust-code", "--out", own / "damaged")
    assert result.exit_code == 1
    assert "\nworse than expected: " in result.stdout
    assert " tests fail\n" in result.stdout
    assert "better by, bounds" in result.stdout


def test_labels_in_another_order_are_no_expected_figures(own) -> None:
    swap_classes(own, (1, 0, 3, 2, 5, 4, 7, 6, 8, 9))
    assert check(own / "own.yaml", own / "expected.json", "--trust-code", "--out", own / "swapped").exit_code == 1
    before = (own / "expected.json").read_text()
    for path in (own / "expected.json", own / "new.json"):
        result = check(own / "swapped", path, "--update")
        assert result.exit_code == 3
        said = " ".join(result.stderr.split())
        assert "with the classes in another order" in said
        assert "was not written; if that is all the network can do" in said
    assert (own / "expected.json").read_text() == before
    assert not (own / "new.json").exists()


def test_a_set_too_small_to_pass_is_named_with_the_new_figures(own) -> None:
    noise(own, seed=0, count=20)
    given = ("--trust-code", "--out", own / "small", "--update")
    said = " ".join(check(own / "own.yaml", own / "small.json", *given).stdout.split())
    found = re.search(r"ood\.mine has (\d+) samples: with fewer than 30, a model that is as good but", said)
    kept = json.loads((own / "small.json").read_text())["splits"]["ood.mine"]["content_hash"]
    assert int(found[1]) == len(kept) <= 20


def test_another_ood_set_of_the_same_name_never_passes(own) -> None:
    ordinary_digits(own)
    result = check(own / "run", own / "expected.json")
    assert result.exit_code == 2
    assert "ood.mine: the samples of ood.mine changed" in result.stderr.replace("\n", " ")
    extracted = cli("extract", own / "own.yaml", "--trust-code")
    assert extracted.exit_code == 0
    result = check(own / "run", own / "expected.json")
    assert result.exit_code == 2
    assert "the features of ood.mine changed since; run `gradscore fit-meta" in result.stderr.replace("\n", " ")
    result = check(own / "own.yaml", own / "expected.json", "--trust-code")
    assert result.exit_code == 2
    assert "samples of the expected figures are not in the run" in result.stderr.replace("\n", " ")


def test_a_run_whose_weights_are_gone_needs_a_word(own, tmp_path: Path) -> None:
    (own / "net.safetensors").unlink()
    result = check(own / "run", own / "expected.json")
    assert result.exit_code == 2
    assert "is missing, so it cannot be compared with that: the file of the weights" in result.stderr.replace("\n", " ")
    result = check(own / "run", own / "expected.json", "--without-sources", "--junit", tmp_path / "a.xml")
    assert result.exit_code == 0
    said = "the stored run alone was compared, without a look at its model and data"
    assert said in result.stdout.replace("\n", " ")
    assert said in (tmp_path / "a.xml").read_text()
    assert said in check(own / "run", own / "expected.json", "--without-sources", "--json").stdout


WRONG_OPTIONS = {
    "a run is not computed": (("run", "--out", "other"), "a run folder is compared as stored"),
    "nor with other settings": (("run", "--set", "meta.cv_folds=3"), "a run folder is compared as stored"),
    "a configuration has sources": (("own.yaml", "--without-sources"), "--without-sources is for a run folder"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_options_that_would_be_ignored(own, arguments: tuple[str, ...], message: str) -> None:
    result = check(own / arguments[0], own / "expected.json", *arguments[1:])
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")


def test_thresholds_are_frozen_at_the_alpha_of_the_expected_figures(small_run, expected, tmp_path: Path) -> None:
    refused = check(small_run, expected, "--margin", "alpha=0.3", "--junit", tmp_path / "a.xml")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "frozen at alpha 0.05; add --update to freeze others" in " ".join(refused.stderr.split())
    before = json.loads(expected.read_text())["thresholds"]
    assert check(small_run, expected, "--margin", "alpha=0.05").exit_code == 0
    assert check(small_run, expected, "--margin", "alpha=0.3", "--update").exit_code == 0
    assert all(now < before[target] for target, now in json.loads(expected.read_text())["thresholds"].items())


def test_no_hours_are_spent_without_expected_figures(own) -> None:
    result = check(own / "own.yaml", own / "nothing.json", "--trust-code", "--out", own / "other")
    assert result.exit_code == 2
    assert "there are no expected figures" in result.stderr
    assert not (own / "other").exists()


TARGETS = {
    "a folder": ("folder", "got a folder"),
    "the expected figures": ("expected.json", "this is the file of --expected as well"),
    "a link to them": ("link.json", "this is the file of --expected as well"),
}


@pytest.mark.parametrize(("name", "message"), TARGETS.values(), ids=TARGETS)
def test_what_cannot_be_written_is_said_before_any_verdict(
    small_run, expected, tmp_path: Path, name: str, message: str
) -> None:
    before = expected.read_text()
    (tmp_path / "link.json").symlink_to(expected)
    (tmp_path / "folder").mkdir()
    (tmp_path / "net.py").touch()
    result = check(small_run, expected, "--junit", tmp_path / name)
    assert (result.exit_code, result.stdout, expected.read_text()) == (2, "", before)
    assert message in result.stderr


@pytest.mark.parametrize("name", ["own.yaml", "net.py", "net.safetensors", "ood.npz"])
def test_no_input_gives_way_to_junit_xml(own, name: str) -> None:
    before = (own / name).read_bytes()
    result = check(own / "own.yaml", own / "expected.json", "--trust-code", "--junit", own / name)
    assert (result.exit_code, result.stdout, (own / name).read_bytes()) == (2, "", before)
    assert "this file is there already and is no XML; give another path, or remove it" in " ".join(
        result.stderr.split()
    )


def test_figures_and_xml_go_where_links_lead(own) -> None:
    (own / "deep").mkdir()
    for name in ("new.json", "a.xml"):
        (own / name).symlink_to(f"deep/{name}")
    for option in (["--update"], ["--junit", own / "a.xml"]):
        assert check(own / "own.yaml", own / "new.json", "--trust-code", *option).exit_code == 0
    assert {path.name for path in (own / "deep").iterdir()} == {"new.json", "a.xml"}
    assert (own / "new.json").is_symlink()
    assert (own / "a.xml").is_symlink()


def test_a_refusal_takes_the_place_of_earlier_junit_xml(small_run, expected, tmp_path: Path) -> None:
    assert check(small_run, expected, "--junit", tmp_path / "a.xml").exit_code == 0
    expected.write_text("{")
    refused = check(small_run, expected, "--junit", tmp_path / "a.xml")
    suite = Xml.parse(tmp_path / "a.xml").getroot()
    assert (refused.exit_code, suite.get("errors"), suite.get("failures"), len(suite)) == (2, "1", "0", 1)
    assert suite[0][0].get("message") in " ".join(refused.stderr.split())


def test_new_expected_figures_take_the_place_of_earlier_junit_xml(small_run, tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text('<?xml version="1.0"?><testsuite name="old" tests="0"/>')
    made = check(small_run, tmp_path / "new.json", "--update", "--junit", tmp_path / "a.xml")
    suite = Xml.parse(tmp_path / "a.xml").getroot()
    assert (made.exit_code, suite.get("name")) == (0, "gradscore check run")
    assert (int(suite.get("tests")) > 0, suite.get("failures"), suite.get("errors")) == (True, "0", "0")


@pytest.mark.parametrize("error", [KeyboardInterrupt, AssertionError("a bug")])
def test_a_check_that_ends_early_is_an_error_in_junit_xml(small_run, expected, tmp_path, monkeypatch, error) -> None:
    def ends(*_, **__):
        raise error

    assert check(small_run, expected, "--junit", tmp_path / "a.xml").exit_code == 0
    monkeypatch.setattr("gradscore.check.check_run", ends)
    assert check(small_run, expected, "--junit", tmp_path / "a.xml").exit_code not in (0, 1)
    suite = Xml.parse(tmp_path / "a.xml").getroot()
    assert (suite.get("errors"), len(suite)) == ("1", 1)


def test_earlier_junit_xml_and_an_empty_file_give_way(own) -> None:
    (own / "a.xml").touch()
    for _ in range(2):
        assert check(own / "own.yaml", own / "expected.json", "--trust-code", "--junit", own / "a.xml").exit_code == 0
        assert (own / "a.xml").read_text().startswith("<?xml")


@pytest.mark.slow
def test_a_folder_that_was_moved_is_run_again_as_its_bundle_advises(own) -> None:
    settings = yaml.safe_load((own / "own.yaml").read_text())
    settings["model"] |= {"source": "python:net.py:net", "checkpoint": "net.safetensors"}
    settings["data"]["ood"][0]["source"] = "npz:ood.npz"
    settings["run"] = "run"
    (own / "own.yaml").write_text(yaml.safe_dump(settings))
    assert cli("run", own / "own.yaml", "--trust-code").exit_code == 0
    moved = own.rename(own.with_name("elsewhere"))
    bundle = ("bundle", moved / "run", "--out", moved / "x.gradscore", "--alpha", "0.1", "--trust-code")
    refused = cli(*bundle)
    assert refused.exit_code == 2
    assert "run the configuration again, which notes where they are now (gradscore run CONFIG)" in " ".join(
        refused.stderr.split()
    )
    assert cli("run", moved / "own.yaml", "--trust-code").exit_code == 0
    assert cli(*bundle).exit_code == 0
    moved.rename(own)
