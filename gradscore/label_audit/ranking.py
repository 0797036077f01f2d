"""From a feature table to the samples whose label may be wrong, the likeliest first.

The score of a sample is that of last layers which are fitted to other samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from ..baselines import Bank, NetworkOutputs
from ..errors import DataError
from ..meta import outputs_of
from ..store import ROOM, agreement_of
from ..system import FloatArray, IntArray
from .last_layers import accuracy_of, cross_fitted, log_odds_of_labels, memorised, with_network
from .noise import WrongLabels, suspects, wrong_labels

NEIGHBOURS = 30
"""Nearest samples whose labels are counted."""

MOST_LOST = 0.02
"""Accuracy that an augmentation may cost the classifier; one that costs more is not looked at."""


GRAND = "label/model/l2"
"""The column of the gradient norm over all parameters."""

LITTLE = 0.1
"""Part of a count that its lower end has to be above for the count to be said."""

NEAREST = 4
"""Nearest samples of the suggested class that are named."""

DESCRIBED = 500
"""So many samples of the head of the table have their nearest samples named."""


_LOOK = "run gradscore doctor CONFIG, in Python call gradscore.check_model(model, batch, labels=labels)"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was found.

    Attributes:
        table: one row for each sample, the most suspicious first: `rank` (from 1), `place` (among those audited),
            `sample_id`, `label`, `suggested` (the likeliest other class), `suspected` (whether the label is among
            those to look at, of which a part is wrong); `label_probability` and `suggested_probability`, of last layers
            that are fitted to other samples and of the network; `score` (less the logarithm of the
            first, plus half of that of the second, higher = more likely wrong); what the network says (`prediction`,
            `loss`, `margin`, `el2n`, `grand`, higher = more likely wrong); `neighbours_label` and
            `neighbours_suggested`, how many of the nearest 30 have either label; `nearest_suggested`, the names of the
            nearest samples of the suggested class (of the first 500 rows), and `reason`, a sentence.
        wrong: how many labels are wrong, with a 95 % interval; and how many at most if mistakes are close calls.
        nearest: by `place`, the places of the nearest samples of the suggested class, of the first 500 rows.
        class_names: in the order of the outputs of the model; None where they are not known.
        notices: what a reader should know.
        doubt: why how many labels are wrong cannot be said, where the network agrees with them no more than by chance.
        memorised: the shares of the labels that the network agrees with, and last layers that are fitted to other
            samples, where the first is larger by so much that the network may have memorised wrong labels: then
            more of them may be wrong than `wrong` has.
    """

    table: pd.DataFrame
    wrong: WrongLabels
    nearest: dict[int, list[int]]
    class_names: Sequence[str] | None = None
    notices: list[str] = field(default_factory=list)
    doubt: str | None = None
    memorised: tuple[float, float] | None = None

    def __repr__(self) -> str:
        """What was found, in one line."""
        found = self.doubt or f"suspected={self.suspected}"
        return f"Audit(N={len(self.table)}, {found}; .table has the samples, the worst first)"

    @property
    def sentence(self) -> str:
        """How many labels are wrong, or why that cannot be said."""
        if self.doubt is not None:
            return self.doubt
        count, low, high, up_to = self.wrong
        samples = f"{len(self.table):,} labels"
        if low <= count * LITTLE:
            said = f"{low:,} to {high:,} of {samples} are wrong (95 %)"
        else:
            said = f"about {count:,} of {samples} are wrong (95 %: {low:,} to {high:,})"
        if self.memorised is not None:
            network, layers = self.memorised
            return (
                f"{said}, or many more if the network has memorised wrong ones: it agrees with {network:.0%} of "
                f"the labels, and last layers that are fitted to other samples with {layers:.0%}"
            )
        return said if up_to <= high else f"{said}, or up to {up_to:,} if mistakes are between similar classes"

    @property
    def suspected(self) -> int:
        """How many labels to look at, of which a part is wrong."""
        return int(self.table["suspected"].sum())

    def name(self, label: int) -> str:
        """What a class is called."""
        return str(label) if self.class_names is None else self.class_names[label]


def check_names(names: Sequence[str], num_classes: int) -> None:
    """Makes sure that there is a name for every class of the model.

    Raises:
        DataError: there are others, or a name stands for two.
    """
    if isinstance(names, str) or len(names) != num_classes or len(set(names)) != num_classes:
        raise DataError(
            f"class_names: wanted a different name for each of the {num_classes} outputs of the model, got {names!r}"
        )


def ranked(table: pd.DataFrame, *, class_names: Sequence[str] | None = None, seed: int = 0) -> Audit:
    """Ranks labelled samples by how likely their label is wrong.

    The score comes from last layers that are fitted to the other samples, on what enters the last layer of the network,
    averaged over the sample and its augmentations; and from the network (see `with_network`).

    Args:
        table: features with `sample_id`, `label`, logits, penultimate features, and perhaps those of augmentations,
            `content_hash` and `label/model/l2`.
        class_names: in the order of the outputs of the model.
        seed: of the folds.

    Raises:
        DataError: no penultimate features, a sample without a label or with values that are not finite, or a class with
            too few samples.
    """
    samples = outputs_of(table)
    labels = table["label"].to_numpy(dtype=np.int64)
    if samples.penultimate is None:
        raise DataError("audit: wanted penultimate features, got none; set features.penultimate")
    if (labels < 0).any():
        raise DataError(f"audit: {int((labels < 0).sum())} of {len(labels)} samples have no label; leave them out")
    features, left_out = combined_features(samples, labels)
    lost = np.flatnonzero(~(np.isfinite(features).all(axis=1) & np.isfinite(samples.logits).all(axis=1)))
    if len(lost):
        raise DataError(
            f"audit: {len(lost)} of {len(labels)} samples have values that are not finite, the first of them "
            f"{table['sample_id'].iloc[lost[0]]}; leave them out, or mend them"
        )
    fitted = cross_fitted(features, labels, samples.logits.shape[1], seed=seed, content=samples.content)
    log_p, rows = with_network(fitted, samples.logits, labels), np.arange(len(labels))
    rest = log_p.copy()
    rest[rows, labels] = -np.inf
    others = rest.argmax(axis=1)
    log_odds = log_odds_of_labels(log_p, labels)
    # Without hashes of its content a sample is told from the others by its place.
    content = rows.astype(np.str_) if samples.content is None else samples.content
    bank = Bank.of(features, labels, content)
    found = pd.DataFrame({"place": rows, "sample_id": table["sample_id"].to_numpy(), "label": labels})
    found["suggested"], found["suspected"] = others, suspects(log_odds)
    found["score"] = rest[rows, others] / 2 - log_p[rows, labels]
    found["label_probability"] = np.exp(log_p[rows, labels])
    found["suggested_probability"] = np.exp(rest[rows, others])
    found = found.join(of_the_network(samples.logits, labels))
    if GRAND in table:
        found["grand"] = table[GRAND].to_numpy(dtype=np.float64)
    found["neighbours_label"], found["neighbours_suggested"], counts = votes(bank, features, labels, others)
    lost_too_much = f"augmentations that cost the classifier too much accuracy were left out: {', '.join(left_out)}"
    audit = Audit(
        table=found,
        wrong=wrong_labels(fitted, log_odds, labels),
        nearest={},
        class_names=class_names,
        notices=[lost_too_much] if left_out else [],
        doubt=_doubt(samples.logits, labels) or _doubt_of_features(fitted, labels),
        memorised=memorised(fitted, samples.logits, labels),
    )
    copies = labels_of_copies(samples.content, labels)
    found["reason"] = [
        _reason(audit, row, int(count), others)
        for (_, row), count, others in zip(found.iterrows(), counts, copies, strict=True)
    ]
    return _ordered(audit, bank)


def _doubt(logits: FloatArray, labels: IntArray) -> str | None:
    """What is to be said where the network agrees with the labels no more than by chance."""
    classes, predictions = logits.shape[1], logits.argmax(axis=1)
    agreement = agreement_of(labels, predictions, classes=classes)
    doubt = agreement.doubt()
    columns = "what it says itself (prediction, loss, margin, el2n, grand)"
    others = int((labels != predictions[0]).sum())
    if others >= ROOM and not np.ptp(predictions):
        return (
            f"the network predicts class {predictions[0]} for every sample, and {others} have other labels: {columns} "
            f"means little then; {_LOOK}"
        )
    if doubt is None:
        return None
    means = f"labels are probably in that other order, and {columns} means nothing then"
    if doubt.cause == "chance":
        means = f"{columns} means little then"
    measured = f"the network's accuracy by these labels is {agreement.accuracy:.3f}"
    return f"{measured}{doubt.after(doubt.number, digits=3)}: {means}; {_LOOK}"


def _doubt_of_features(fitted: FloatArray, labels: IntArray) -> str | None:
    """What is to be said where last layers (N, K) agree with the labels of other samples no more than by chance."""
    agreement = agreement_of(labels, fitted.argmax(axis=1), classes=fitted.shape[1])
    if not agreement.is_at_chance:
        return None
    return (
        f"last layers that are fitted to other samples agree with {agreement.accuracy:.1%} of the labels, which is "
        "chance, so they cannot say which are wrong: audit with a network whose features tell these classes apart"
    )


def _ordered(audit: Audit, bank: Bank) -> Audit:
    """The rows by score, equal ones in the order of the data, the first with their nearest samples."""
    table = audit.table.sort_values("score", ascending=False, kind="stable").reset_index(drop=True)
    table.insert(0, "rank", np.arange(1, len(table) + 1))
    head = table.head(DESCRIBED)
    nearest = {
        int(place): nearest_of_class(bank, int(place), int(label), NEAREST)
        for place, label in zip(head["place"], head["suggested"], strict=True)
    }
    ids = dict(zip(table["place"], table["sample_id"], strict=True))
    named = [" ".join(str(ids[each]) for each in nearest.get(int(place), [])) for place in table["place"]]
    table.insert(len(table.columns) - 1, "nearest_suggested", named)  # the sentence stays the last column
    return replace(audit, table=table, nearest=nearest)


def _reason(audit: Audit, row: pd.Series, counted: int, copies: Sequence[int]) -> str:
    label, other, predicted = (audit.name(row[name]) for name in ("label", "suggested", "prediction"))
    parts = [
        f"all evidence: {other} {_share(row['suggested_probability'])}, {label} {_share(row['label_probability'])}",
        f"the network predicts {predicted}",
        f"{row['neighbours_suggested']} of the {counted} nearest samples are labelled {other}, "
        f"{row['neighbours_label']} are labelled {label}",
    ]
    if copies:
        parts.append(f"an exact copy is labelled {' or '.join(map(audit.name, copies))}")
    return "; ".join(parts)


def _share(probability: float) -> str:
    if probability < 0.01:
        return "below 1 %"
    return "above 99 %" if 0.99 < probability < 1 else f"{100 * probability:.0f} %"


def combined_features(samples: NetworkOutputs, labels: IntArray) -> tuple[FloatArray, list[str]]:
    """What enters the last layer, averaged over sample and augmentations, and the augmentations that were left out.

    Args:
        samples: with penultimate features, and those of augmentations.
        labels: (N,) the given classes.

    Returns:
        (N, D) float64, and the names of augmentations that cost the classifier too much accuracy.
    """
    plain = accuracy_of(samples.logits, labels)
    kept = {
        name: each
        for name, each in samples.augmentations.items()
        if accuracy_of(each.logits, labels) > plain - MOST_LOST
    }
    looks = [samples, *kept.values()]
    features = np.mean([each.penultimate for each in looks if each.penultimate is not None], axis=0)
    return np.asarray(features, dtype=np.float64), [name for name in samples.augmentations if name not in kept]


def of_the_network(logits: FloatArray, labels: IntArray) -> pd.DataFrame:
    """What the network itself says of the labels.

    Args:
        logits: (N, K).
        labels: (N,) the given classes.

    Returns:
        `prediction`; `loss`, the cross entropy against the label; `margin`, the largest logit of another class less
        that of the label; `el2n`, the L2 distance of the softmax from the label. The last three are higher the worse
        the label fits.

    Source: Paul, Ganguli, Dziugaite 2021, "Deep learning on a data diet", for EL2N.
    """
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    errors = softmax(logits, axis=1)
    errors[rows, labels] = 0
    errors[rows, labels] = -errors.sum(axis=1)  # one less the label's own would cancel
    return pd.DataFrame(
        {
            "prediction": logits.argmax(axis=1),
            "loss": np.logaddexp(0, logsumexp(others, axis=1) - logits[rows, labels]),
            "margin": others.max(axis=1) - logits[rows, labels],
            "el2n": np.linalg.norm(errors, axis=1),
        }
    )


def votes(bank: Bank, features: FloatArray, labels: IntArray, others: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """The labels of the nearest samples; copies of a sample are none of them.

    Args:
        bank: all samples.
        features: (N, D) of the same samples.
        labels: (N,) the given classes.
        others: (N,) the classes that are suggested.

    Returns:
        (N,) how many of them have the sample's own label; (N,) how many have the class that is suggested; and (N,) how
        many there are: 30, or all others but copies if these are fewer.
    """
    content = bank.content
    places = bank.neighbours(features, labels, content).places[:, :NEIGHBOURS]
    # Where there are fewer, the last one stands in the places that are left.
    there = np.ones(places.shape, dtype=bool)
    there[:, 1:] = places[:, 1:] != places[:, :-1]
    if content is not None:
        there &= content[places] != content[:, None]
    near = labels[places]
    return (
        (there & (near == labels[:, None])).sum(axis=1),
        (there & (near == others[:, None])).sum(axis=1),
        there.sum(axis=1),
    )


def nearest_of_class(bank: Bank, place: int, label: int, count: int) -> list[int]:
    """The places of the samples of a class that are nearest to the sample at `place`, which is none of them."""
    members = np.flatnonzero(bank.classes == label)
    members = members[members != place]
    if bank.content is not None:
        members = members[bank.content[members] != bank.content[place]]
    likeness = bank.features[members] @ bank.features[place]
    return [int(members[each]) for each in np.argsort(-likeness, kind="stable")[:count]]


def labels_of_copies(content: NDArray[np.str_] | None, labels: IntArray) -> list[list[int]]:
    """For each sample the other labels that exact copies of it have."""
    if content is None:
        return [[] for _ in labels]
    given = pd.Series(labels).groupby(content).unique()
    given = given[given.map(len) > 1]
    return [
        sorted(int(each) for each in given.get(digest, ()) if each != label)
        for digest, label in zip(content, labels, strict=True)
    ]
