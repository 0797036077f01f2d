"""What is proposed for folders and checkpoints."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from gradscore.config import DataConfig, load_config
from gradscore.data import FILL_IN, open_source
from gradscore.errors import ConfigError, ModelError
from gradscore.reporting.pages import TEMPLATES
from gradscore.setup import propose, write_proposal
from gradscore.setup.proposal import as_yaml
from gradscore.system import import_torchvision


def images(folder: Path, *classes: str, size: tuple[int, ...] = (8, 6), count: int = 2) -> None:
    """Images (height, width), or with channels, of each class, or in the folder itself."""
    for name in classes or (".",):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.fromarray(np.zeros(size, np.uint8)).save(folder / name / f"{number}.png")


def network(path: Path, classes: int = 2) -> None:
    torch.save(nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(72, classes)).state_dict(), path)


LAYOUTS = {
    "validation and test": (("train", "val", "test"), {"bank": "train", "fit": "val", "test": "test"}),
    "test alone": (("train", "test"), {"bank": "train", "fit": "test", "test": "test"}),
    "one set": (("photos",), {"fit": "photos", "test": "photos"}),
    "names that say nothing": (("first", "second"), {"fit": "first", "test": "second"}),
    "calibration": (
        ("calibration", "fit", "test"),
        {"fit": "fit", "test": "test", "calibration": "calibration"},
    ),
}


@pytest.mark.parametrize(("folders", "wanted"), LAYOUTS.values(), ids=LAYOUTS)
def test_parts(tmp_path: Path, folders: tuple[str, ...], wanted: dict[str, str]) -> None:
    for folder in folders:
        images(tmp_path / folder, "cat", "dog")
    settings = propose([tmp_path], base=tmp_path).settings
    found = {key.rpartition(".")[2]: value for key, value in settings.items() if key.startswith("data.in_dist.")}
    assert {role: entry["source"] for role, entry in found.items()} == {
        role: f"folder:{name}" for role, name in wanted.items()
    }
    halves = [entry["select"]["hash"] for entry in (found["fit"], found["test"]) if "select" in entry]
    assert halves == ([[0.0, 0.5], [0.5, 1.0]] if wanted["fit"] == wanted["test"] else [])


HELD_OUT = {
    "fit and test": (("val", "test"), {"fit": {"lot": [0.0, 0.75]}, "calibration": {"lot": [0.75, 1.0]}}),
    "one set": (
        ("photos",),
        {
            "fit": {"hash": [0.0, 0.5], "lot": [0.0, 0.75]},
            "calibration": {"hash": [0.0, 0.5], "lot": [0.75, 1.0]},
            "test": {"hash": [0.5, 1.0]},
        },
    ),
}


@pytest.mark.parametrize(("folders", "wanted"), HELD_OUT.values(), ids=HELD_OUT)
def test_a_quarter_of_what_fits_sets_thresholds(
    tmp_path: Path, folders: tuple[str, ...], wanted: dict[str, dict[str, list[float]]]
) -> None:
    for folder in folders:
        images(tmp_path / folder, "cat", "dog", count=320)
    proposal = propose([tmp_path], base=tmp_path)
    parts_are_halves = "half to fit on" in proposal.reasons["data.in_dist.calibration"]
    assert parts_are_halves == ("hash" in wanted["calibration"])
    found = {
        key.rpartition(".")[2]: entry["select"]
        for key, entry in proposal.settings.items()
        if key.startswith("data.in_dist.") and "select" in entry
    }
    assert found == wanted


def test_too_few_samples_are_not_divided_once_more(tmp_path: Path) -> None:
    for folder in ("val", "test"):
        images(tmp_path / folder, "cat", "dog", count=159)
    made = propose([tmp_path], base=tmp_path)
    assert "data.in_dist.calibration" not in made.settings
    assert made.reasons["data.in_dist.test"].endswith("; sets thresholds as well, since few are to fit on")


def test_training_images_alone_are_said(tmp_path: Path) -> None:
    images(tmp_path / "train", "cat", "dog")
    assert "figures are too good" in propose([tmp_path], base=tmp_path).reasons["data.in_dist.fit"]


OTHERS = {
    "other classes": ("textures", ("wool", "wood")),
    "classes of the same names": ("ood", ("cat", "dog")),
}


@pytest.mark.parametrize(("name", "classes"), OTHERS.values(), ids=OTHERS)
def test_other_images_are_ood(tmp_path: Path, name: str, classes: tuple[str, ...]) -> None:
    images(tmp_path / "in" / "val", "cat", "dog", "emu")
    images(tmp_path / "in" / "test", "cat", "dog", "emu")
    images(tmp_path / name, *classes, count=1)
    found = propose([tmp_path], base=tmp_path).settings["data.ood"]
    assert found == [{"name": name, "source": f"folder:{name}"}]


PARTS_OF_OOD = {
    "kinds": ("ood", ("greek", "runes"), ["ood/greek", "ood/runes"]),
    "a class of the network among them": ("ood", ("cat", "greek"), ["ood"]),
    "as many as classes of a data set": ("ood", tuple(f"n{place}" for place in range(21)), ["ood"]),
}


@pytest.mark.parametrize(("name", "parts", "wanted"), PARTS_OF_OOD.values(), ids=PARTS_OF_OOD)
def test_folders_in_one_that_is_called_ood_are_sets(
    tmp_path: Path, name: str, parts: tuple[str, ...], wanted: list[str]
) -> None:
    for part in ("val", "test"):
        images(tmp_path / part, "cat", "dog", "emu")
    images(tmp_path / name, *parts, count=3)
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["data.ood"] == [
        {"name": each.rpartition("/")[2], "source": f"folder:{each}"} for each in wanted
    ]
    images_each = 3 * len(parts) // len(wanted)
    assert made.reasons["data.ood"].startswith(", ".join([f"{images_each} images"] * len(wanted)) + ";")
    assert not any(name in remark for remark in made.remarks)


def test_code_is_read_and_not_run(tmp_path: Path) -> None:
    network(tmp_path / "weights.pt")
    (tmp_path / "net.py").write_text("""
raise SystemExit("this file was run")

def helper(path):
    pass

def build(num_classes, width=3):
    pass
""")
    settings = propose([tmp_path], base=tmp_path).settings
    assert settings["model.source"] == "python:net.py:build"
    assert settings["model.arguments"] == {"num_classes": 2}
    assert (settings["model.checkpoint"], settings["model.num_classes"]) == ("weights.pt", 2)
    assert settings["preprocessing.channels"] == 1


CODE = """
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        self.fc = nn.Linear(width, width)

class Plain(nn.Module):
    pass

class SmallNet(nn.Module):
    def __init__({}):
        self.stem = nn.Conv2d(1, 3, 3)
        self.fc = nn.Linear(72, 2)
"""
CLASSES = {
    "of nothing": ("self", {"model.source": "python:net.py:SmallNet"}),
    "of classes": ("self, num_classes=9", {"model.arguments": {"num_classes": 2}}),
    "of what is not known": ("self, width, *, depth", {"model.arguments": FILL_IN}),
}


@pytest.mark.parametrize(("arguments", "wanted"), CLASSES.values(), ids=CLASSES)
def test_the_class_whose_layers_are_called_as_the_weights_is_the_network(
    tmp_path: Path, arguments: str, wanted: dict
) -> None:
    layers = nn.ModuleDict({"stem": nn.Conv2d(1, 3, 3), "fc": nn.Linear(72, 2)})
    torch.save(layers.state_dict(), tmp_path / "weights.pt")
    (tmp_path / "net.py").write_text(CODE.format(arguments))
    settings = propose([tmp_path], base=tmp_path).settings
    assert {"model.source": "python:net.py:SmallNet", **wanted}.items() <= settings.items()


OWN = {"made of nothing": ("self", "python:net.py:Net"), "made of blocks": ("self, block", "torchvision:resnet18")}


@pytest.mark.parametrize(("arguments", "wanted"), OWN.values(), ids=OWN)
def test_code_that_fits_goes_before_networks_of_packages(tmp_path: Path, arguments: str, wanted: str) -> None:
    """It may compute otherwise than the network with the same parameters."""
    import_torchvision()
    from torchvision.models import resnet18

    network = resnet18(num_classes=3)
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    layers = "\n".join(f"        self.{name} = make('{name}')" for name, _ in network.named_children())
    (tmp_path / "net.py").write_text(
        f"from torch import nn\n\nclass Net(nn.Module):\n    def __init__({arguments}):\n{layers}"
    )
    assert propose([tmp_path], base=tmp_path).settings["model.source"] == wanted


def test_of_several_checkpoints_one_that_can_be_read_is_used(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(2)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    with pytest.raises(ModelError, match="optimizer"):
        propose([tmp_path], base=tmp_path)
    network(tmp_path / "weights.pt")
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["model.checkpoint"] == "weights.pt"
    assert made.remarks[0].startswith(f"passed over: checkpoint {tmp_path / 'optimizer.pt'} ")


def test_the_weights_that_were_taken_are_said_with_the_others(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),))
    first, second = (tmp_path / f"{name}.pt2" for name in "ab")
    for path in (first, second):
        torch.export.save(program, path)
    assert f"weights: {first} was taken, not {second}" in propose([tmp_path], base=tmp_path).remarks
    network(tmp_path / "best.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pt")
    said = f"weights: {tmp_path / 'best.pt'} was taken, not {tmp_path / 'whole.pt'}, {first}, {second}"
    assert said in propose([tmp_path], base=tmp_path).remarks


NAMED = {
    "those of the images": ({"classes": ["emu", "cat"]}, ["emu", "cat"], []),
    "more": ({"idx_to_class": {0: "emu", 1: "fox", 2: "cat"}}, None, []),
    "others": ({"class_names": ["fox", "hen"]}, None, ["the checkpoint names the classes fox, hen, and"]),
    "nothing": ({}, None, []),
}


@pytest.mark.parametrize(("beside", "wanted", "said"), NAMED.values(), ids=NAMED)
def test_names_of_classes_in_the_checkpoint(tmp_path: Path, beside: dict, wanted: list | None, said: list[str]) -> None:
    layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(72, 2))
    torch.save({"state_dict": layers.state_dict(), **beside}, tmp_path / "weights.pt")
    images(tmp_path / "val", "cat", "emu")
    made = propose([tmp_path], base=tmp_path)
    assert made.settings.get("data.class_names") == wanted
    assert [remark[: len(begin)] for remark, begin in zip(made.remarks, said, strict=True)] == said


def test_classes_of_the_network_that_have_no_images_are_named_by_the_checkpoint(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(72, 3))
    names = ["emu", "cat", "fox"]
    torch.save({"state_dict": layers.state_dict(), "classes": names}, tmp_path / "weights.pt")
    images(tmp_path / "val", "cat", "emu")
    images(tmp_path / "others", "hen", "owl", "yak")
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["data.class_names"] == names
    assert made.settings["data.in_dist.fit"]["source"] == "folder:val"
    assert [each["name"] for each in made.settings["data.ood"]] == ["others"]
    assert made.remarks == []


SETS = {
    "other classes": (("emu", "fox"), ["mnist"], None),
    "some of the classes": (("cat", "emu"), [], "it has other classes; name it in data.ood"),
    "more classes than the network has": (("cat", "dog", "emu"), [], "it has other classes; name it in data.ood"),
    "none": ((), ["mnist"], None),
    "the same": (("cat", "dog"), [], "another set is for the same part; name it in data.ood"),
}


@pytest.mark.parametrize(("classes", "ood", "remark"), SETS.values(), ids=SETS)
def test_sets_whose_names_say_nothing_go_by_their_classes(
    tmp_path: Path, classes: tuple[str, ...], ood: list[str], remark: str | None
) -> None:
    network(tmp_path / "weights.pt")
    for part in ("val", "test"):
        images(tmp_path / part, "cat", "dog")
    images(tmp_path / "mnist", *classes, count=9)
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["data.in_dist.test"] == {"source": "folder:test"}
    assert [each["name"] for each in made.settings["data.ood"]] == ood
    assert made.remarks == ([] if remark is None else [f"{tmp_path / 'mnist'}: not used, since {remark}{REST}"])


PARTLY_THERE = {
    "as many as the network has": (4, ["fox"], True),
    "nobody knows how many it has": (None, ["fox", "hen"], True),
    "more than it has": (3, ["fox"], False),
}


@pytest.mark.parametrize(("count", "others", "is_used"), PARTLY_THERE.values(), ids=PARTLY_THERE)
def test_parts_that_lack_a_class_each(tmp_path: Path, count: int | None, others: list[str], is_used: bool) -> None:
    if count is not None:
        network(tmp_path / "weights.pt", classes=count)
    images(tmp_path / "fit", "cat", "dog", "emu")
    images(tmp_path / "test", "cat", "dog", *others)
    made = propose([tmp_path], base=tmp_path)
    assert [made.settings[f"data.in_dist.{part}"]["source"] for part in ("fit", "test")] == (
        ["folder:fit", "folder:test"] if is_used else ["folder:fit"] * 2
    )
    assert [remark for remark in made.remarks if "class" in remark] == (
        [] if is_used else [f"{tmp_path / 'test'}: not used, since it has other classes; name it in data.ood{REST}"]
    )


@pytest.mark.parametrize(("name", "classes"), [("new", ()), ("Unlabelled", ()), ("inbox", ("monday", "tuesday"))])
def test_samples_to_decide_are_not_ood(tmp_path: Path, name: str, classes: tuple[str, ...]) -> None:
    images(tmp_path / "val", "cat", "dog")
    images(tmp_path / name, *classes)
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["data.ood"] == []
    (remark,) = (each for each in made.remarks if each.startswith(f"{tmp_path / name}: "))
    assert "not used, since by its name it holds samples to decide, which gradscore score does; name it in" in remark


REST = " if its samples are of none of the network's classes"


def test_tables_of_numbers(tmp_path: Path) -> None:
    torch.save(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).state_dict(), tmp_path / "weights.pt")
    for name, heading in {"val": "a,b,label", "test": "a,b,label", "far": "a,b"}.items():
        row = ",".join(["1.5", "2.5", "{}"][: heading.count(",") + 1])
        (tmp_path / f"{name}.csv").write_text("\n".join([heading, *(row.format(number % 2) for number in range(6))]))
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["data.in_dist.fit"] == {"source": "csv:val.csv"}
    assert made.settings["data.ood"][0] == {"name": "far", "source": "csv:far.csv"}
    assert made.settings["data.auxiliary"] == "auto" == DataConfig.model_fields["auxiliary"].default
    assert not [key for key in made.settings if key.startswith(("features", "meta", "evaluate"))]
    assert {"preprocessing.mean", "preprocessing.std"} <= made.missing.keys()
    assert made.remarks == []


def test_weights_of_samples_among_the_columns_of_numbers_are_said(tmp_path: Path) -> None:
    torch.save(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).state_dict(), tmp_path / "weights.pt")
    rows = "".join(f"{number / 7},2.5,{number % 2},0.{number}\n" for number in range(8))
    (tmp_path / "val.csv").write_text(f"a,b,label,weight\n{rows}")
    assert propose([tmp_path], base=tmp_path).remarks == [
        f"{tmp_path / 'val.csv'} has 3 columns of numbers (a, b, weight), and 0.weight takes 2: name those that the "
        "network takes, in order, by arguments: {inputs: [COLUMN, ...]} of data.in_dist.fit"
    ]


BESIDE = {
    "a loss and a metric": ("net.", {"criterion.weight": 4, "train_acc.tp": 1}, "net."),
    "nothing": ("net.", {}, None),
    "a normalisation of the network's own": ("net.", {"norm.weight": 4}, None),
    "a count of averaged weights": ("module.", {"n_averaged": 1}, "module."),
    "an average of the network's own": ("net.", {"model.weight": 4}, None),
}


@pytest.mark.parametrize(("start", "beside", "wanted"), BESIDE.values(), ids=BESIDE)
def test_a_prefix_that_not_all_names_have_is_written(tmp_path: Path, start: str, beside: dict, wanted) -> None:
    state = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(72, 4)).state_dict()
    others = {name: torch.ones(size) for name, size in beside.items()}
    torch.save({f"{start}{name}": value for name, value in state.items()} | others, tmp_path / "weights.pt")
    made = propose([tmp_path], base=tmp_path)
    assert made.settings.get("model.prefix") == wanted
    assert made.settings["model.num_classes"] == 4
    write_proposal(made, tmp_path / "gradscore.yaml")
    assert yaml.safe_load((tmp_path / "gradscore.yaml").read_text())["model"].get("prefix") == wanted


TEACHERS = {
    "of the same class": (nn.ModuleDict({"stem": nn.Conv2d(1, 3, 3), "fc": nn.Linear(72, 2)}), FILL_IN),
    "of a class that is not there": (nn.ModuleDict({"body": nn.Conv2d(1, 9, 3), "head": nn.Linear(72, 2)}), "student."),
}


@pytest.mark.parametrize(("teacher", "wanted"), TEACHERS.values(), ids=TEACHERS)
def test_the_prefix_of_a_student_beside_a_teacher(tmp_path: Path, teacher: nn.Module, wanted: str) -> None:
    student = nn.ModuleDict({"stem": nn.Conv2d(1, 3, 3), "fc": nn.Linear(72, 2)})
    both = nn.ModuleDict({"student": student, "teacher": teacher, "loss": nn.PReLU()})
    torch.save({"state_dict": both.state_dict()}, tmp_path / "last.ckpt")
    (tmp_path / "net.py").write_text(CODE.format("self"))
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["model.prefix"] == wanted
    assert made.settings["model.source"] == "python:net.py:SmallNet"
    assert made.settings["model.num_classes"] == 2
    assert "rows of fc.weight" in as_yaml(made)
    asked = "what names of the network begin with in the checkpoint, 'student.' or 'teacher.'"
    assert made.missing.get("model.prefix") == {FILL_IN: asked}.get(wanted)


def test_what_is_missing_is_marked_and_refused(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "dog")
    made = propose([tmp_path], base=tmp_path)
    write_proposal(made, tmp_path / "gradscore.yaml")
    assert set(made.missing) == {"model.source", "model.checkpoint", "preprocessing.mean", "preprocessing.std"}
    assert (tmp_path / "gradscore.yaml").read_text().count("FILL IN: ") == 4
    with pytest.raises(ConfigError, match=f"preprocessing.mean: .*{FILL_IN}"):
        load_config(tmp_path / "gradscore.yaml")


MARKED = (
    *("model.source", "model.arguments", "model.checkpoint", "model.prefix", "model.num_classes"),
    *("preprocessing.resize", "preprocessing.mean", "preprocessing.std", "data.in_dist.fit.source", "data.class_names"),
)


@pytest.mark.parametrize("key", MARKED)
def test_whatever_is_left_to_be_filled_in_is_called_so(tmp_path: Path, key: str) -> None:
    (tmp_path / "gradscore.yaml").write_text(
        "model: {source: 'torchvision:resnet18', checkpoint: null, num_classes: 3}"
    )
    sources = ["data.in_dist.fit.source=sklearn:digits", "data.in_dist.test.source=sklearn:digits", "run=run"]
    load_config(tmp_path / "gradscore.yaml", sources)
    wanted = f"gradscore.yaml: {key}: still to be filled in ('fill-in'), as the comment above it says"
    with pytest.raises(ConfigError, match=f"{re.escape(wanted)}$"):
        load_config(tmp_path / "gradscore.yaml", [*sources, f"{key}=fill-in"])


LABELLED = {
    "a set": ({"val": "abc"}, 3, set()),
    "two sets of as many": ({"val": "abc", "test": "abc"}, 3, set()),
    "sets of several numbers": ({"val": "abc", "test": "ab"}, FILL_IN, {"model.num_classes"}),
    "one class": ({"val": "a"}, FILL_IN, {"model.num_classes"}),
}


@pytest.mark.parametrize(("sets", "wanted", "missing"), LABELLED.values(), ids=LABELLED)
def test_without_weights_the_classes_are_those_of_the_samples(tmp_path: Path, sets, wanted, missing) -> None:
    (tmp_path / "net.py").write_text("def build(num_classes):\n    ...\n")
    for name, classes in sets.items():
        images(tmp_path / name, *classes)
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["model.num_classes"] == wanted
    assert made.settings.get("model.arguments", {"num_classes": FILL_IN}) == {"num_classes": wanted}
    assert set(made.missing) & {"model.num_classes"} == missing


def test_sizes_that_differ_are_asked_for(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", size=(8, 6))
    images(tmp_path / "val", "dog", size=(80, 60))
    assert propose([tmp_path], base=tmp_path).missing["preprocessing.resize"].endswith("from 8 x 6 to 80 x 60")


def test_the_size_that_all_images_have_is_to_be_checked(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "dog")
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["preprocessing.resize"] == [8, 6]
    assert made.reasons["preprocessing.resize"].endswith("have this size; check that the network was trained with it")


def test_another_number_of_classes_is_said(tmp_path: Path) -> None:
    network(tmp_path / "weights.pt", classes=3)
    images(tmp_path / "val", "cat", "dog")
    (remark,) = propose([tmp_path], base=tmp_path).remarks
    assert "has 2 class folders and the network 3 classes: name all classes of the model in their order" in remark


def test_two_classes_for_one_logit_are_no_other_number(tmp_path: Path) -> None:
    network(tmp_path / "weights.pt", classes=1)
    images(tmp_path / "val", "cat", "dog")
    assert propose([tmp_path], base=tmp_path).remarks == []


def test_class_folders_without_an_image_are_said(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "dog")
    images(tmp_path / "test", "cat", "dog")
    (tmp_path / "test" / "emu" / "later").mkdir(parents=True)
    (tmp_path / "test" / ".thumbnails").mkdir()
    assert open_source(f"folder:{tmp_path / 'test'}").class_names == ["cat", "dog", "emu"]
    (remark,) = propose([tmp_path], base=tmp_path).remarks
    assert remark.startswith(f"{tmp_path / 'test'} has class folders without an image, which count as classes: emu;")
    network(tmp_path / "weights.pt", classes=3)
    assert propose([tmp_path], base=tmp_path).remarks == [remark]
    network(tmp_path / "weights.pt", classes=4)
    assert (
        f"{tmp_path / 'val'} and {tmp_path / 'test'} have 3 class folders and the network 4 classes: name all"
        in (propose([tmp_path], base=tmp_path).remarks[1])
    )


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    images(tmp_path / "images" / "val", "cat", "dog")
    made = propose([tmp_path / "images"], base=tmp_path / "configs")
    assert made.settings["data.in_dist.fit"]["source"] == "folder:../images/val"


def test_lines_are_not_too_long(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "dog")
    assert max(map(len, as_yaml(propose([tmp_path], base=tmp_path)).splitlines())) <= 120


def test_a_line_break_in_a_name_ends_no_comment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # short paths, which are not wrapped
    images(Path("val"), "cat", "dog")
    Path("a\nrun: b.csv").write_bytes(b"\xe9")
    made = propose([Path()], base=Path())
    assert "a\nrun: b.csv" in made.remarks[0]
    assert yaml.safe_load(as_yaml(made))["run"] == "run"
    assert [line for line in as_yaml(made).splitlines() if line.startswith("run")] == ["run: run"]


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent: no such file or folder"):
        propose([tmp_path / "absent"], base=tmp_path)


def test_a_program_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    images(tmp_path / "val", "cat", "dog", "emu")
    (tmp_path / "net.py").write_text("def build():\n    pass\n")
    program = torch.export.export(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), (torch.zeros(1, 48),))
    torch.export.save(program, tmp_path / "net.pt2")
    for places in ([tmp_path], [tmp_path / "net.pt2", tmp_path / "val"]):
        settings = propose(places, base=tmp_path).settings
        assert [settings[f"model.{key}"] for key in ("source", "checkpoint", "num_classes")] == [
            "program:net.pt2", None, 3
        ]  # fmt: skip
    network(tmp_path / "weights.pt", classes=3)
    assert propose([tmp_path], base=tmp_path).settings["model.source"] == "python:net.py:build"


def test_a_class_whose_layers_are_numbered_is_known_by_them(tmp_path: Path) -> None:
    torch.save(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).state_dict(), tmp_path / "weights.pt")
    (tmp_path / "net.py").write_text("""
from torch import nn

class Head(nn.Module):
    pass

class MLP(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
""")
    assert propose([tmp_path], base=tmp_path).settings["model.source"] == "python:net.py:MLP"


def test_a_column_of_text_that_differs_in_each_row_names_the_samples(tmp_path: Path) -> None:
    rows = "".join(f"p{row},{row}.5,2.5,{'good' if row % 2 else 'bad'}\n" for row in range(20))
    (tmp_path / "val.csv").write_text(f"patient_id,size,age,diagnosis\n{rows}")
    (tmp_path / "strange.csv").write_text("patient_id,size,age\nq1,1.5,2\nq2,2.5,3\n")
    network(tmp_path / "weights.pt")
    made = propose([tmp_path], base=tmp_path)
    arguments = made.settings["data.in_dist.fit"]["arguments"]
    assert arguments == {"labels": "diagnosis", "ids": "patient_id"}
    assert open_source(f"csv:{tmp_path / 'val.csv'}", arguments).vectors.shape == (20, 2)
    assert "names of samples of column 'patient_id', check" in made.reasons["data.in_dist.fit"]
    strange = {"name": "strange", "source": "csv:strange.csv", "arguments": {"ids": "patient_id"}}
    assert made.settings["data.ood"] == [strange]
    assert made.remarks == []


@pytest.mark.parametrize("labels", [["good", "bad"], [1, 0], [1.0, 0.0]], ids=["text", "whole", "float"])
def test_numbers_of_a_table_that_has_other_columns_are_named(tmp_path: Path, labels: list) -> None:
    there = {"size": np.arange(40) / 7, "age": np.arange(40) % 9 + 0.5, "dose": np.arange(40) % 7 + 0.5}
    since = [f"2024-01-{1 + row % 30:02}" for row in range(40)]
    others = {"label": labels * 20, "since": since, "vip": [True, False] * 20, "plan": ["pro", "basic"] * 20}
    pd.DataFrame(there | others).to_csv(tmp_path / "fit.csv", index=False)
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "best.pth")
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["data.in_dist.fit"]["arguments"] == {"inputs": ["size", "age", "dose", "vip"]}
    assert "left out of the rows: since (text), plan (text)" in str(made.remarks)
    assert "has 4 columns of numbers (size, age, dose, vip), and weight takes 3" in str(made.remarks)


GRADES = {
    "counting from 1": (["1", "2", "3"], "grade,visits", {"labels": "grade"}, [1, 2, 3]),
    "counting from 0": (["0", "1", "2"], "grade,visits", {"labels": "grade"}, None),
    "several columns": (["1", "2", "3"], "grade,level", None, None),
    "other numbers": (["1", "2", "5"], "grade,visits", None, None),
}


@pytest.mark.parametrize(("numbers", "columns", "arguments", "names"), GRADES.values(), ids=GRADES)
def test_a_column_of_as_many_numbers_as_the_network_has_classes_holds_them(
    tmp_path: Path, numbers: list[str], columns: str, arguments: dict | None, names: list[int] | None
) -> None:
    torch.save(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)).state_dict(), tmp_path / "weights.pt")
    other = {"grade,visits": 5, "grade,level": 3}[columns]
    rows = "".join(f"{row}.5,{numbers[row % 3]},{row % other}\n" for row in range(60))
    for part in ("val", "test"):
        (tmp_path / f"{part}.csv").write_text(f"size,{columns}\n{rows}")
    made = propose([tmp_path], base=tmp_path)
    settings = made.settings
    assert settings["data.in_dist.test"].get("arguments") == arguments
    assert settings.get("data.class_names") == names
    assert [f"{part}.csv" in str(made.remarks) for part in ("val", "test")] == [arguments is None] * 2


OTHER_DATA = {
    "texts beside numbers": ("texts.csv", "text,length,label\na good film,11,0\na bad one,9,1\n", "tutorial-text"),
    "columns of several kinds": (
        "mixed.csv",
        "name,since,plan,label\n" + "".join(f"c{row},2024-01-{row + 1:02},pro,{row % 2}\n" for row in range(20)),
        r"which columns hold the samples.*python:data\.py:rows \(gradscore docs tutorial-tables\)",
    ),
    "numbers of one class": ("rows.csv", "a,b,label\n1,2,0\n", "wanted two at least"),
    "texts": (
        "texts.csv",
        "text,label\na good film,0\na bad one,1\n",
        r"python:data\.py:rows brings token ids \(gradscore docs tutorial-text\)",
    ),
    "what cannot be read": ("rows.parquet", "no", "wanted a Parquet file"),
}


@pytest.mark.parametrize(("name", "content", "said"), OTHER_DATA.values(), ids=OTHER_DATA)
def test_other_data_alone_are_refused_with_their_page(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=f"{name}: not used: .*{said}"):
        propose([tmp_path], base=tmp_path)


@pytest.mark.parametrize("twice", [False, True])
def test_the_index_of_pandas_is_no_input(tmp_path: Path, twice: bool) -> None:
    frame = pd.DataFrame({"a": np.arange(40) / 7, "b": np.arange(40) % 3 + 0.5, "kind": ["x", "y"] * 20})
    frame.sample(frac=1, random_state=0).set_axis(np.arange(40)[::-1] // (1 + twice)).to_parquet(tmp_path / "t.parquet")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "best.pth")
    arguments = propose([tmp_path], base=tmp_path).settings["data.in_dist.fit"]["arguments"]
    assert "__index_level_0__" not in arguments.get("inputs", ["a", "b"])
    assert arguments["labels"] == "kind"


def test_a_table_without_columns_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "rows.parquet")
    with pytest.raises(ConfigError, match=r"rows\.parquet: not used: it has no columns"):
        propose([tmp_path], base=tmp_path)


def test_other_data_beside_a_checkpoint_are_said_and_left_to_fill_in(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2,3\n")
    images(tmp_path / "run" / "plots")
    torch.save(nn.Linear(3, 8).state_dict(), tmp_path / "best.pth")
    made = propose([tmp_path / "rows.csv", tmp_path / "best.pth"], base=tmp_path)
    assert "data.in_dist.fit" in made.missing
    assert any("rows.csv: not used, since its rows have no classes" in remark for remark in made.remarks)


def test_code_is_asked_for_where_a_network_of_ones_own_takes_texts(tmp_path: Path) -> None:
    (tmp_path / "fit.csv").write_text("text,label\n" + "a good film,good\na bad one,bad\n" * 20)
    (tmp_path / "net.py").write_text("from torch import nn\n\ndef build():\n    return nn.EmbeddingBag(50, 2)\n")
    torch.save(nn.EmbeddingBag(50, 2).state_dict(), tmp_path / "best.pth")
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["data.in_dist.fit"] == {"source": "python:fill-in"}
    assert "token ids of labelled texts, from code of yours" in as_yaml(made)


@pytest.mark.parametrize("classes", [3, 5])
def test_the_weight_of_the_logits_where_a_file_sorts_names(tmp_path: Path, classes: int) -> None:
    """As safetensors does: the last of them is a hidden one here."""
    layers = nn.ModuleDict({"conv": nn.Conv2d(1, 4, 3), "head": nn.Linear(7, classes), "hidden": nn.Linear(4, 7)})
    save_file(layers.state_dict(), tmp_path / "weights.safetensors")
    images(tmp_path / "val", *"abcde"[:classes])
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["model.num_classes"] == classes
    assert made.reasons["model.num_classes"] == "rows of head.weight"


def test_the_logits_of_a_recognised_network_where_a_file_sorts_names(tmp_path: Path) -> None:
    import_torchvision()
    from torchvision.models import resnet18

    save_file(resnet18(num_classes=7).state_dict(), tmp_path / "weights.safetensors")
    settings = propose([tmp_path], base=tmp_path).settings
    assert (settings["model.source"], settings["model.num_classes"]) == ("torchvision:resnet18", 7)
    assert settings["model.arguments"] == {"num_classes": 7}


def test_figures_of_gradscore_are_no_samples(tmp_path: Path) -> None:
    network(tmp_path / "weights.pt")
    images(tmp_path / "val", "cat", "dog")
    images(tmp_path / "inspect" / "plots", size=(300, 500))
    (tmp_path / "inspect" / "report.html").write_text((TEMPLATES / "base.html.jinja").read_text())
    made = propose([tmp_path], base=tmp_path)
    assert made.settings["preprocessing.resize"] == [8, 6]
    assert made.settings["data.ood"] == []
    assert made.remarks == []


def test_a_run_folder_is_refused(small_run: Path) -> None:
    with pytest.raises(ConfigError, match=r"this is a run folder, made with the configuration .*config\.yaml"):
        propose([small_run], base=small_run)
