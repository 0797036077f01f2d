"""From files to a configuration that runs."""

import importlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from commands import cli
from PIL import Image
from torch import nn

from gradscore.config import load_config
from gradscore.system import import_torchvision

QUICK = (
    *("--set", "preprocessing.resize=32", "--set", "preprocessing.crop=32", "--set", "meta.cv_folds=2"),
    *(
        "--set",
        "features.parameters=['@last']",
        "--set",
        "meta.Cs=[0.01]",
        "--set",
        "evaluate.protocols=[known]",
        "--set",
        "data.auxiliary=[]",
    ),
)


def images(folder: Path, *, count: int) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(list(str(folder).encode()))
    for number in range(count):
        Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{number}.png")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a ResNet-18 with 7 classes, and images."""
    import_torchvision()
    from torchvision.models import resnet18

    folder = tmp_path_factory.mktemp("files")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save({"state_dict": resnet18(num_classes=7).state_dict()}, folder / "best.pth")
    for part in ("val", "test"):
        for place in range(7):
            images(folder / "images" / part / f"class {place}", count=4)
    images(folder / "textures", count=9)
    return folder


def test_a_checkpoint_and_a_folder_give_a_configuration_that_runs(files: Path) -> None:
    config = files / "gradscore.yaml"
    made = cli("init", files)
    assert made.exit_code == 0, made.output
    assert "ood: # 9 images; check that they are of none of the classes\n" in re.sub(" +", " ", config.read_text())
    found = load_config(config)
    assert (found.model.source, found.model.num_classes) == ("torchvision:resnet18", 7)
    assert found.preprocessing.mean == [0.485, 0.456, 0.406]
    assert [entry.name for entry in found.data.ood if not entry.auxiliary] == ["textures"]
    assert found.features.penultimate == found.data.auxiliary == "auto"
    ran = cli("run", config, *QUICK)
    assert ran.exit_code in (0, 3), ran.output  # so few samples may come to no verdict
    assert (files / "run" / "evaluation" / "report.html").is_file()


def test_networks_with_the_same_parameters_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_torchvision()
    timm = importlib.import_module("timm")
    monkeypatch.setattr(timm, "list_models", lambda: ["mobilenetv3_small_075", "tf_mobilenetv3_small_075"])
    torch.save(timm.create_model("tf_mobilenetv3_small_075", num_classes=2).state_dict(), tmp_path / "best.pt")
    made = cli("init", tmp_path)
    wanted = (
        "check that it is timm:mobilenetv3_small_075: parameters of the same names and shapes are in "
        "tf_mobilenetv3_small_075, which may want another mean and std"
    )
    assert wanted in " ".join(made.stdout.split())
    comments = [line.lstrip("# ") for line in (tmp_path / "gradscore.yaml").read_text().splitlines() if "#" in line]
    assert wanted in " ".join(comments)
    assert "these names and shapes; check: others have the same" in " ".join(comments)


def test_what_was_found_as_json(files: Path, tmp_path: Path) -> None:
    command = ["init", str(files / "best.pth"), str(files / "images"), "--out", str(tmp_path / "made.yaml"), "--json"]
    found = json.loads(cli(*command).stdout)
    assert found["settings"]["model.source"] == "torchvision:resnet18"
    assert found["missing"] == {}
    assert isinstance(found["notices"], list)


ADDRESSES = {
    "images": ("s3://bucket/images", "folder:s3://bucket/images"),
    "weights": ("s3://bucket/net.pt", "s3://bucket/net.pt"),
}


@pytest.mark.parametrize(("address", "setting"), ADDRESSES.values(), ids=ADDRESSES)
def test_an_address_is_not_looked_at(address: str, setting: str) -> None:
    result = cli("init", address)
    wanted = f"error: {address}: init looks at local folders; write {setting} into the configuration"
    assert (result.exit_code, wanted in result.stderr) == (2, True)


def test_an_own_configuration_stays(tmp_path: Path) -> None:
    (tmp_path / "gradscore.yaml").write_text("mine")
    result = cli("init", tmp_path)
    assert (result.exit_code, (tmp_path / "gradscore.yaml").read_text()) == (2, "mine")
    assert "there is a file already; name another with --out, or replace it with --force" in result.stderr


def test_only_a_configuration_gives_way_by_force(files: Path, tmp_path: Path) -> None:
    before = (files / "best.pth").read_bytes()
    result = cli("init", files, "--out", files / "best.pth", "--force")
    assert (result.exit_code, (files / "best.pth").read_bytes() == before) == (2, True)
    wanted = "--force replaces a configuration, a file that ends in .yaml or .yml; give another path"
    assert wanted in " ".join(result.stderr.split())
    (tmp_path / "own.yaml").write_text("mine")
    made = cli("init", files, "--out", tmp_path / "own.yaml", "--force")
    assert made.exit_code == 0, made.output
    assert load_config(tmp_path / "own.yaml").model.source == "torchvision:resnet18"


def test_a_class_and_tables_of_numbers_give_a_configuration_that_runs_as_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, classes = np.random.default_rng(0), np.arange(160) % 2
    values = random.normal(2.0 * classes, 1.0, (3, 160)).T
    for name, rows in {"val": slice(80), "test": slice(80, 160)}.items():
        table = pd.DataFrame(values[rows], columns=["a", "b", "c"]).assign(label=classes[rows])
        table.to_parquet(tmp_path / f"{name}.parquet")
    (tmp_path / "net.py").write_text("""
from torch import nn

class Sum(nn.Module):
    def __init__(self, features=3):
        super().__init__()
        self.layer = nn.Linear(features, 2)

    def forward(self, x):
        return self.layer(x)
""")
    weights = {"layer.weight": torch.tensor([[-1.0] * 3, [1.0] * 3]), "layer.bias": torch.tensor([3.0, -3.0])}
    torch.save(weights, tmp_path / "weights.pt")
    monkeypatch.chdir(tmp_path)
    made = cli("init")
    assert (made.exit_code, made.stderr) == (0, "")
    said = made.stdout.splitlines()
    assert [line.partition(": ")[0] for line in said[:-1]] == ["warning", "warning", "configuration"]
    assert said[-1] == "Next, with these filled in: gradscore run gradscore.yaml --trust-code"
    file = tmp_path / "gradscore.yaml"
    file.write_text(file.read_text().replace("fill-in", "null"))
    for command in (["doctor"], ["run", *QUICK[4:]]):
        ran = cli(*command, "gradscore.yaml", "--trust-code")
        assert ran.exit_code in (0, 3), ran.output
    assert (tmp_path / "run" / "evaluation" / "report.html").is_file()


@pytest.mark.slow
def test_on_a_terminal_it_asks(tmp_path: Path) -> None:
    for place in ("cat", "dog"):
        images(tmp_path / "val" / place, count=2)
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "weights.pt")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gradscore_cli", "init", str(tmp_path)]
    asked = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.write(ours, b"python:my.py:net\n[0.5, 0.5, 0.5]\n\n")
    assert asked.wait(timeout=120) == 0
    os.close(theirs)
    os.close(ours)
    text = (tmp_path / "gradscore.yaml").read_text()
    assert "source: python:my.py:net" in text
    assert "mean: [0.5, 0.5, 0.5]" in text
    assert text.count("FILL IN: ") == 1


WORDS = (("ant", "bee", "cow", "dog", "elk", "fox"), ("oak", "pine", "rose", "sage", "tulip", "yew"))
"""Those of texts of either class."""


def texts(count: int, *, seed: int) -> list[tuple[str, int]]:
    """Texts and their classes; most words are those of the class."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    own = random.random((count, 5)) < 0.7
    words = [
        [random.choice(WORDS[label if mine else 1 - label]) for mine in row]
        for label, row in zip(labels, own, strict=True)
    ]
    return [(" ".join(some), int(label)) for some, label in zip(words, labels, strict=True)]


def table(path: Path, rows: list[tuple[str, int]], heading: str, names: tuple[str, ...] = ("0", "1")) -> None:
    path.write_text("\n".join([heading, *(f"{text},{names[label]}" for text, label in rows)]) + "\n")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT that tells two classes of texts apart, with its tokenizer, as `save_pretrained` writes them."""
    import_torchvision()
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder = tmp_path_factory.mktemp("bert")
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS[0], *WORDS[1]]
    tokenizer = BertTokenizer(vocab={word: place for place, word in enumerate(entries)}, model_max_length=8)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(vocab_size=len(entries), max_position_embeddings=8, **sizes))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(60):
            rows = texts(32, seed=step)
            batch = tokenizer([text for text, _ in rows], padding=True, return_tensors="pt")
            optimizer.zero_grad()
            model(**batch, labels=torch.tensor([label for _, label in rows])).loss.backward()
            optimizer.step()
    model.eval().save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    return folder


def test_a_classifier_of_texts_and_tables_give_a_configuration_that_runs(bert: Path) -> None:
    table(bert / "train.csv", texts(80, seed=1000), "text,label")
    table(bert / "test.csv", texts(240, seed=1001), "text,label")
    (bert / "strange.csv").write_text("text\n" + "yew yew yew yew yew\n" * 3 + "cow oak cow oak\nant\nfox fox\n" * 8)
    made = cli("init", bert)
    assert made.exit_code == 0, made.output
    assert "to fill in" not in made.output
    config = bert / "gradscore.yaml"
    found = load_config(config)
    assert found.model.source == f"transformers:{bert / 'bert'}"
    assert (found.model.checkpoint, found.model.num_classes) == (None, 2)
    assert found.data.in_dist.bank.source == f"csv:{bert / 'train.csv'}"
    assert [each.name for each in found.data.ood] == ["strange"]
    result = cli("run", config, *QUICK[4:])
    assert result.exit_code == 0, result.output
    assert "wrong predictions" in result.stdout


def test_classes_of_texts_in_a_column_of_another_name(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert / "bert", tmp_path / "bert")
    table(tmp_path / "fit.csv", texts(80, seed=1), "text,library", names=("LABEL_0", "LABEL_1"))
    (tmp_path / "test.csv").write_text("text\nant bee\noak\n")
    result = cli("init", tmp_path)
    assert result.exit_code == 0, result.output
    assert "{source: 'csv:fit.csv', arguments: {labels: library}" in (tmp_path / "gradscore.yaml").read_text()


def test_a_source_that_is_not_filled_in_is_said(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert / "bert", tmp_path / "bert")
    cli("init", tmp_path)
    result = cli("extract", tmp_path / "gradscore.yaml")
    assert result.exit_code == 2
    assert "data.in_dist.fit.source: still to be filled in ('csv:fill-in')" in result.stderr


def test_classes_that_the_network_does_not_name_are_asked_for(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert / "bert", tmp_path / "bert")
    table(tmp_path / "val.csv", texts(9, seed=0), "text,label", names=("animal", "plant"))
    result = cli("init", tmp_path)
    wanted = "to fill in: data.class_names: names of the network's classes in the order of its outputs"
    assert wanted in result.stdout


def test_a_model_that_is_no_classifier_is_refused(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert / "bert", tmp_path / "bert")
    file = tmp_path / "bert" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["BertForMaskedLM"]}))
    result = cli("init", tmp_path)
    assert result.exit_code == 2
    assert "this is BertForMaskedLM of transformers, and init knows those with ForSequenceCl" in result.stderr
    assert not (tmp_path / "gradscore.yaml").exists()


def test_of_nothing_no_configuration_is_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1")
    result = cli("init", tmp_path)
    assert result.exit_code == 2
    assert "wanted folders with the weights of a network (.safetensors, " in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["train.py"]
