"""How well `gradscore audit` finds flipped labels, beside the loss, the maximum probability and cross-validation.

    python benchmarks/label_audit.py --cifar FOLDER --work FOLDER [--only digits] [--write docs/audit.md]

Of every set a tenth of the labels is flipped to another class, uniformly, by seed. Networks are trained on such labels:
those of the audited samples themselves, or of others. FOLDER of --cifar holds `cifar10_train10k.npz`,
`cifar10_test.npz` (images uint8 (N, 32, 32, 3), labels) and `cifar10_resnet20.safetensors`. Networks, features
and figures are kept in the folder of --work, and taken from there the next time.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pages import put_table
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parent.parent / "data_scripts"))
from architectures import cifar_resnet20, digits_cnn, lenet
from fashion_mnist import DEBIAN, read_idx

from gradscore.evaluation import auroc, paired_delong
from gradscore.label_audit import audited_features, ranked
from gradscore.label_audit.ranking import C
from gradscore.pipeline import given_samples

FLIPPED, CLASSES, SEEDS = 0.1, 10, (1, 2, 3)
BASELINES = {
    "loss": "loss",
    "max softmax": "maximum probability",
    "self-confidence": "cleanlab's self-confidence, cross-validated",
    "self-confidence, same penalty": "the same with the audit's penalty",
    "grand": "gradient norm",
}


def cifar_cnn(classes: int) -> nn.Module:
    """Three convolutions, 0.18 M parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(48, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 16, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


class Recipe(NamedTuple):
    network: Callable[[int], nn.Module]
    epochs: int
    batch_size: int
    augmented: bool


RECIPES = {
    "cnn": Recipe(cifar_cnn, 15, 64, augmented=True),
    "digits": Recipe(digits_cnn, 15, 32, augmented=False),
    "lenet": Recipe(lenet, 8, 64, augmented=False),
}


class Case(NamedTuple):
    title: str
    network: str
    trained_on: str
    audited: str
    seeds: tuple[int, ...] = SEEDS


CASES = {
    "cifar-own": Case("CIFAR-10, trained on these labels", "cnn", "cifar-train10k", "cifar-train10k"),
    "cifar-other": Case("CIFAR-10, trained on other samples", "cnn", "cifar-test", "cifar-train10k"),
    "cifar-published": Case("CIFAR-10, published ResNet-20, clean training", "resnet20", "", "cifar-test", (1,)),
    "digits": Case("digits, trained on these labels", "digits", "digits", "digits"),
    "fashion-own": Case("Fashion-MNIST, trained on these labels", "lenet", "fashion-a", "fashion-a"),
    "fashion-other": Case("Fashion-MNIST, trained on other samples", "lenet", "fashion-b", "fashion-a"),
}


def flipped(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The labels with a tenth of them, drawn by seed, changed to another class."""
    rng = np.random.default_rng(seed)
    chosen = rng.random(len(labels)).argsort()[: round(FLIPPED * len(labels))]
    given = labels.copy()
    given[chosen] = (labels[chosen] + rng.integers(1, CLASSES, len(chosen))) % CLASSES
    return given


def samples(name: str, cifar: Path) -> tuple[Tensor, NDArray[np.int64]]:
    """Normalised images (N, C, H, W) and their true labels (N,)."""
    if name == "digits":
        digits = load_digits()
        pixels = torch.from_numpy(digits.images * (255 / 16)).round().float().unsqueeze(1)
        return (pixels / 255 - 0.5) / 0.5, digits.target.astype(np.int64)
    if name.startswith("fashion"):
        rows = slice(0, 10_000) if name.endswith("a") else slice(10_000, 20_000)
        images, labels = (read_idx(DEBIAN, f"train-{kind}-ubyte")[rows] for kind in ("images-idx3", "labels-idx1"))
        return (torch.from_numpy(images.copy()).float().unsqueeze(1) / 255 - 0.286) / 0.353, labels.astype(np.int64)
    with np.load(cifar / f"cifar10_{name.removeprefix('cifar-')}.npz") as found:
        images = torch.from_numpy(found["images"]).permute(0, 3, 1, 2).float() / 255
        mean, spread = (torch.tensor(each).view(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        return (images - mean) / spread, found["labels"]


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrored at random, and moved by at most four pixels."""
    images = torch.where(torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5, images.flip(3), images)
    padded = F.pad(images, (4, 4, 4, 4))
    moves = torch.randint(0, 9, (2, len(images)), generator=generator).T.tolist()
    return torch.stack([each[:, y : y + 32, x : x + 32] for each, (x, y) in zip(padded, moves, strict=True)])


def trained(network: str, images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """Trains by AdamW with a one-cycle schedule."""
    recipe = RECIPES[network]
    torch.manual_seed(seed)
    model = recipe.network(CLASSES).to(memory_format=torch.channels_last).train()
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=5e-4)
    steps = recipe.epochs * -(-len(images) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(recipe.epochs):
        for batch in torch.randperm(len(images), generator=order).split(recipe.batch_size):
            inputs = augmented(images[batch], order) if recipe.augmented else images[batch]
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def network_of(case: Case, seed: int, cifar: Path, work: Path) -> nn.Module:
    """The network of a case, trained unless its weights are in the folder."""
    if case.network == "resnet20":
        model = cifar_resnet20(CLASSES)
        model.load_state_dict(load_file(cifar / "cifar10_resnet20.safetensors"))
        return model.eval()
    path = work / "nets" / f"{case.network}-{case.trained_on}-{seed}.safetensors"
    if not path.exists():
        images, labels = samples(case.trained_on, cifar)
        model = trained(case.network, images, torch.from_numpy(flipped(labels, seed)), seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: each.contiguous() for name, each in model.state_dict().items()}, path)
    model = RECIPES[case.network].network(CLASSES)
    model.load_state_dict(load_file(path))
    return model.eval()


def features_of(name: str, seed: int, cifar: Path, work: Path) -> tuple[pd.DataFrame, NDArray[np.bool_]]:
    """The features of the audited samples with flipped labels, computed unless they are in the folder; the flips."""
    case = CASES[name]
    images, labels = samples(case.audited, cifar)
    given = flipped(labels, seed)
    path = work / "features" / f"{name}-{seed}.parquet"
    if not path.exists():
        model = network_of(case, seed, cifar, work)
        table = audited_features(model, given_samples(model, (images, torch.from_numpy(given))))
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(path)
    return pd.read_parquet(path), given != labels


def cross_validated(
    penultimate: NDArray[np.float64], labels: NDArray[np.int64], *, penalty: float, seed: int
) -> NDArray[np.float64]:
    """Less self-confidence, as cleanlab computes it, of cross-validated logistic regressions on network features.

    The folds are drawn at random: files are sorted by the true class, and folds in their order would tell it.
    """
    head = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=400))
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    probabilities = cross_val_predict(head, penultimate, labels, cv=folds, method="predict_proba")
    return -probabilities[np.arange(len(labels)), labels]


def figures_of(name: str, seed: int, cifar: Path, work: Path) -> dict[str, Any]:
    """What was measured, from the folder where it is there."""
    path = work / "figures" / f"{name}-{seed}.json"
    if not path.exists():
        row = measured(name, seed, cifar, work)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(row, indent=1))
    return json.loads(path.read_text())


def measured(name: str, seed: int, cifar: Path, work: Path) -> dict[str, Any]:
    """AUROC for finding the flipped labels, and paired differences."""
    table, wrong = features_of(name, seed, cifar, work)
    found = ranked(table).table.sort_values("place")
    logits = table[[each for each in table if each.startswith("logit_")]].to_numpy()
    plain = [each for each in table if each.startswith("penultimate_")]
    scores = {each: found[each].to_numpy() for each in ("score", "loss", "margin", "el2n", "grand")}
    scores["max softmax"] = -torch.from_numpy(logits).softmax(1).amax(1).numpy()
    for each, penalty in (("self-confidence", 1.0), ("self-confidence, same penalty", C)):
        labels = table["label"].to_numpy()
        scores[each] = cross_validated(table[plain].to_numpy(), labels, penalty=penalty, seed=seed)
    row: dict[str, Any] = {"case": CASES[name].title, "seed": seed}
    row["accuracy"] = float((logits.argmax(1) == samples(CASES[name].audited, cifar)[1]).mean())
    for each, values in scores.items():
        row[each] = auroc(values, wrong)
        pair = None if each == "score" else paired_delong(scores["score"], values, wrong)
        row |= {} if pair is None else {f"gain over {each}": (pair.difference, pair.low, pair.high)}
    suspected = found["suspected"].to_numpy()
    top = found["rank"].to_numpy() <= wrong.sum()
    row |= {"suspected": int(suspected.sum()), "wrong among the suspected": int(wrong[suspected].sum())}
    row["right in the first tenth"] = float(wrong[top].mean())
    return row


def table_of(rows: list[dict[str, Any]]) -> str:
    """The figures as Markdown, each with its range over the seeds of a case."""
    head = ["set and network", "audit", *(f"gain over {title}" for title in BASELINES.values())]
    head += ["found", "suspected", "of these wrong"]
    lines = [" | ".join(head), " | ".join(["---"] * len(head))]
    for case in dict.fromkeys(row["case"] for row in rows):
        some = [row for row in rows if row["case"] == case]
        gains = [gain([row[f"gain over {each}"] for row in some]) for each in BASELINES]
        found = span([100 * row["right in the first tenth"] for row in some], ".0f")
        counts = [span([row[each] for row in some], "d") for each in ("suspected", "wrong among the suspected")]
        audit = span([row["score"] for row in some], ".4f")
        lines.append(" | ".join([case, f"**{audit}**", *gains, f"{found} %", *counts]))
    return "\n".join(f"| {line} |" for line in lines)


def span(values: Sequence[float], form: str) -> str:
    """The least and the greatest of some figures."""
    return "-".join(dict.fromkeys(f"{each:{form}}" for each in (min(values), max(values))))


def gain(found: Sequence[tuple[float, float, float]]) -> str:
    """The mean of some differences, and how many of their intervals lie above zero."""
    mean = sum(each for each, _, _ in found) / len(found)
    return f"{mean:+.4f} ({sum(low > 0 for _, low, _ in found)} of {len(found)})"


def main(arguments: list[str]) -> None:
    """Measures, prints, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--write", type=Path, help="a page to put the table into")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    rows = [figures_of(name, seed, options.cifar, options.work) for name in options.only for seed in CASES[name].seeds]
    put_table("label_audit", table_of(rows), options.write)


if __name__ == "__main__":
    main(sys.argv[1:])
