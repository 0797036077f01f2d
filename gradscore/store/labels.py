"""Whether labels agree with predictions: more than guesses would, and in the order of the classes of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import erfc, sqrt
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import binom

from ..columns import LOGIT
from ..config import as_flow
from ..data import BANK, FIT, GIVEN, TEST, DataConfig, DatasetConfig, are_whole_numbers, planned_splits
from ..errors import DataError, DoubtfulLabelsError
from ..models import NO_CHECKPOINT
from ..notices import Notice
from ..system import IntArray, some
from .run_folder import RunFolder

ENOUGH = 50
"""Labelled samples from which on an accuracy is judged by itself: with 20 of two classes 0.7 may be chance."""

GUESSED = 1 / 40
"""Share of guessers who have to be as right for an accuracy to be called chance."""

EXCHANGED = 1e-4
"""Chance of a sign test that a few classes in another order want: of 7,500 simulated networks none reached 1e-3."""

ROOM = 20
"""Samples that have to be in question for chance to be told from skill by how often each class is predicted.

With 3 of 200 samples in a class, a network that finds none and has one false alarm is no better than chance, and no
worse than another.
"""

ORDERS = 1999
"""Orders of the labels that are drawn to see how often they agree by chance."""

VARIANCE_FOR_NORMAL = 25
"""Variance of how many are right from which on they are normally distributed: their skewness is below 0.2."""

NEVER_GUESSED = 1e-3
"""Share of guessers below which the agreement with classes in another order is none by chance."""

NEVER_FOUND = 0.05
"""Share of the samples of a class below which it may go with the output of one that has no samples.

A network that knows the class under another name finds it by mistake alone. A weak one finds more, and its errors look
like a name where most of them are in one class without samples.
"""

OVERCONFIDENT = 0.3
"""Mean confidence less accuracy from which on the labels, the preprocessing or the network are doubted."""


@dataclass(frozen=True)
class Doubt:
    """What speaks against labels by how their network predicts them.

    Attributes:
        cause: `order` of the classes, `chance` or `confidence`.
        words: what follows an accuracy in a sentence, with {} for the number that it is compared with, if any.
        number: that number.
        is_severe: whether the accuracy is at chance, or less than half of that in another order.
    """

    cause: Literal["order", "chance", "confidence"]
    words: str
    number: float = 0.0
    is_severe: bool = False

    def after(self, *numbers: float, digits: int) -> str:
        """What follows accuracies, each compared with its number."""
        return self.words.replace("{}", " and ".join(f"{number:.{digits}f}" for number in numbers))


@dataclass(frozen=True)
class Agreement:
    """How far predictions agree with labels.

    Attributes:
        accuracy: share of the samples.
        is_judged: whether they are enough to judge by; `is_at_chance` says nothing otherwise.
        in_another_order: see `accuracy_in_another_order`, where that is more than chance explains or, of enough
            samples, twice the accuracy.
        is_at_chance: see `is_at_chance`.
        only: the class that is predicted for every sample, where that is no better than chance; from `ROOM` samples on.
    """

    accuracy: float
    is_judged: bool = False
    in_another_order: float | None = None
    is_at_chance: bool = False
    only: int | None = None

    @property
    def is_mostly_in_another_order(self) -> bool:
        """Whether more than twice as many labels are right with the classes in another order."""
        return self.is_judged and (self.in_another_order or 0.0) > 2 * self.accuracy

    def doubt(self, confidence: float = 0.0, *, class_names: Sequence[str] | None = None) -> Doubt | None:
        """What speaks against the labels, of a network of this mean confidence; None for nothing."""
        is_at_chance = self.is_at_chance or self.only is not None
        if self.in_another_order is not None:
            words, is_severe = ", and would be {} with the classes in another order", self.is_mostly_in_another_order
            return Doubt("order", words, self.in_another_order, is_severe or is_at_chance)
        if self.only is not None:
            name = self.only if class_names is None else class_names[self.only]
            return Doubt("chance", f", as the network predicts class {name} for every sample", is_severe=True)
        if is_at_chance:
            return Doubt("chance", ", which is chance", is_severe=True)
        if self.is_surer(confidence):
            return Doubt("confidence", ", and the network's mean confidence there is {}", confidence)
        return None

    def is_surer(self, confidence: float) -> bool:
        """Whether a network of this mean confidence is far surer than it is right."""
        return self.is_judged and confidence - self.accuracy > OVERCONFIDENT


def agreement_of(labels: IntArray, predictions: IntArray, *, classes: int) -> Agreement:
    """Compares predictions (N,) with labels (N,) of K classes."""
    accuracy = float((labels == predictions).mean())
    chance = is_at_chance(labels, predictions, classes=classes)
    only = int(predictions[0]) if chance and len(labels) >= ROOM and not np.ptp(predictions) else None
    is_judged = len(labels) >= ENOUGH
    other = partial(accuracy_in_another_order, labels, predictions, classes=classes)
    better = other() if is_judged else None
    if better is None:
        better = other(significantly=True)
    return Agreement(accuracy, is_judged, better, is_judged and chance, only)


def confusion(labels: IntArray, predictions: IntArray, classes: int) -> IntArray:
    """How many samples of each class (rows) are taken for each (columns), (K, K)."""
    return np.bincount(labels * classes + predictions, minlength=classes**2).reshape(classes, classes)


def is_at_chance(labels: IntArray, predictions: IntArray, *, classes: int) -> bool:
    """Whether a network is right no more often than one whose predictions do not depend on the sample.

    That one predicts each class as often, so that an accuracy that rare classes make high is not taken for skill.
    Where the best that as many predictions of each class could do is hardly better (`ROOM`), as with one class only,
    it guesses among all classes.

    Args:
        labels: (N,) of samples that have one.
        predictions: (N,).
        classes: K.
    """
    given, predicted = (np.bincount(each, minlength=classes) for each in (labels, predictions))
    if np.minimum(given, predicted).sum() - given @ predicted / len(labels) < ROOM:
        return bool(binom.sf((labels == predictions).sum() - 1, len(labels), 1 / classes) > GUESSED)
    return _as_right_by_chance(labels, predictions, classes, GUESSED)


def _as_right_by_chance(labels: IntArray, predictions: IntArray, classes: int, share: float) -> bool:
    """Whether more than a share of all orders of the labels agree with predictions of several classes as often.

    Orders that agree equally often count half (mid-p), which makes the share right on average. The normal distribution
    stands for many right ones, drawn orders for few.
    """
    given, predicted = (np.bincount(each, minlength=classes).astype(np.float64) for each in (labels, predictions))
    both, count, right = given * predicted, len(labels), int((labels == predictions).sum())
    mean = both.sum() / count
    # Of sum_i a(i, order(i)), where a is 1 for equal classes: its square, less means of rows and columns, by N - 1.
    lines = (both * (given + predicted)).sum() / count
    variance = (both.sum() - lines + mean**2) / (count - 1)
    above = (right - mean) / sqrt(variance)
    if variance > VARIANCE_FOR_NORMAL:
        return erfc(above / sqrt(2)) / 2 > share
    if above > 0 and 1 / (1 + above**2) < share:  # Cantelli's inequality
        return False
    generator, order, ranks = np.random.default_rng(0), labels.copy(), 0.0
    for _ in range(ORDERS):
        generator.shuffle(order)
        other = int((order == predictions).sum())
        ranks += ((other > right) + (other >= right)) / 2
        if ranks > share * (ORDERS + 1):
            return True
    return ranks + 0.5 > share * (ORDERS + 1)


def accuracy_in_another_order(
    labels: IntArray, predictions: IntArray, *, classes: int, significantly: bool = False
) -> float | None:
    """The accuracy with the classes renamed, where that would be more than twice what it is.

    The names are those that suit one half of the samples of each class best, judged on the other half, and the other
    way round, since of many classes with few samples some order always suits.

    Args:
        labels: (N,) of samples that have one.
        predictions: (N,).
        classes: K.
        significantly: not twice, but more often than chance explains: by a sign test of the samples that are right in
            one order alone (`EXCHANGED`). Two classes that are exchanged are seen by that, from 14 samples on.

    Returns:
        The accuracy; None where no other order is right so often.
    """
    renamed, _ = _renamed(labels, predictions, classes)
    if not _is_better(renamed, labels, predictions, classes=classes, significantly=significantly):
        return None
    return float((renamed == predictions).mean())


def _is_better(
    renamed: IntArray, labels: IntArray, predictions: IntArray, *, classes: int, significantly: bool
) -> bool:
    """Whether labels by other names are right so much more often; see `accuracy_in_another_order`."""
    now, then = labels == predictions, renamed == predictions
    right, gained, lost = (int(each.sum()) for each in (then, then & ~now, now & ~then))
    is_better = binom.sf(gained - 1, gained + lost, 0.5) < EXCHANGED if significantly else right > 2 * now.sum()
    if not is_better or binom.sf(right - 1, len(labels), 1 / classes) > NEVER_GUESSED:
        return False
    if not np.ptp(labels):
        return True
    # One answer for everything is in no order.
    return bool(np.ptp(predictions)) and not _as_right_by_chance(renamed, predictions, classes, NEVER_GUESSED)


def _renamed(labels: IntArray, predictions: IntArray, classes: int) -> tuple[IntArray, IntArray]:
    """The labels (N,) by the names that suit the other half of the samples best; and these names (2, K) of the halves.

    Returns:
        In the second, -1 for a class of which the half has no sample.
    """
    # Half of each class, drawn: every other sample in order may be of another kind.
    order = np.lexsort((np.random.default_rng(0).random(len(labels)), labels))
    half = np.empty(len(labels), dtype=np.bool_)
    half[order] = (np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])) % 2 == 0
    everything = confusion(labels, predictions, classes)
    given = everything.sum(axis=1)
    may_be = (everything.diagonal() < NEVER_FOUND * given)[:, None] | (given > 0)
    renamed, found = np.empty_like(labels), np.empty((2, classes), dtype=np.int64)
    for place, held_out in enumerate((half, ~half)):
        counts = confusion(labels[~held_out], predictions[~held_out], classes)
        names = _best_names(counts * may_be)
        renamed[held_out] = names[labels[held_out]]
        found[place] = np.where(counts.any(axis=1), names, -1)
    return renamed, found


def _best_names(counts: IntArray) -> IntArray:
    """The output (K,) that each class goes with best by a confusion (K, K), each output going with one class."""
    # A class without samples keeps its own output where that is free.
    names = linear_sum_assignment(counts + np.eye(len(counts)) / (len(counts) + 1), maximize=True)[1]
    return np.asarray(names, dtype=np.int64)


EVERYWHERE = " in data.in_dist.fit, data.in_dist.test and every other set with these labels, in place of any there is"
"""Where an advised map belongs if one split speaks for all."""

RELABELLED = 0.8
"""Share of the inputs that the best renaming of the classes must get right to be suggested.

With its pixels inverted, which no renaming repairs, the digits model reaches 0.6; with classes in another order, 0.93.
"""


def renaming_advice(
    labels: IntArray,
    predictions: IntArray,
    *,
    classes: int,
    label_map: Mapping[int | str, int] | None = None,
    are_names: bool = False,
    how: str = "set label_map to",
    least: float = RELABELLED,
) -> str:
    """What to set `label_map` to, where the network is right about classes that only have other names.

    Of many classes with few samples some renaming is always right. So only one is advised whose names, found on half of
    the samples of each class, make the other half right, and are more often right than chance explains.

    Args:
        labels: (N,) of samples that have one, as they are mapped now.
        predictions: (N,).
        classes: K.
        label_map: from the labels of the data to `labels`, as `raw_labels` gives it; None where they are the same.
        are_names: the labels of the data are names of classes, whose order a configuration may say.
        how: what to do with the map.
        least: the share of the held-out labels that the renaming gets right.

    Returns:
        A sentence with the whole map, which says something of every label, but not where it belongs; empty where no
        renaming repairs enough.
    """
    renamed, (one, other) = _renamed(labels, predictions, classes)
    is_better = partial(_is_better, renamed, labels, predictions, classes=classes)
    if (renamed == predictions).sum() < least * len(labels):
        return ""
    if not (is_better(significantly=False) or is_better(significantly=True)):
        return ""
    told = (one == other) & (one >= 0)
    pairs = np.zeros((classes, classes), dtype=np.int64)
    pairs[told, one[told]] = 1
    best = _best_names(pairs)
    if (best == np.arange(classes))[told].all():
        return ""
    named, untold = dict(enumerate(best.tolist())), set(np.flatnonzero(~told).tolist())
    own: dict[int | str, int] = dict(label_map) if label_map else {label: label for label in range(classes)}
    ordered = sorted(own.items(), key=lambda pair: (pair[0], "") if isinstance(pair[0], int) else (0, pair[0]))
    entries = [f"{_in_yaml(raw)}: {named.get(label, label)}" for raw, label in ordered]
    names = [_in_yaml(raw) for raw, label in sorted(own.items(), key=lambda pair: named.get(pair[1], pair[1]))]
    order = f"set data.class_names to [{', '.join(names)}]" if are_names else ""
    # A number in a map would mean a name, not an output, where `data.class_names` are numbers.
    mapped = "" if are_names and are_whole_numbers(list(own)) else f"{how} {{{', '.join(entries)}}}"
    guessed = [str(raw) for raw, label in ordered if label in untold]
    doubt = f" (no input, or too few, had label {some(guessed)}, so check what stands there)" if guessed else ""
    return f"the classes are named otherwise: {', or '.join(filter(None, (order, mapped)))}{doubt}"


def raw_labels(
    data: DataConfig, spec: DatasetConfig, class_names: Sequence[str] | None
) -> tuple[dict[int | str, int] | None, bool]:
    """`label_map` and `are_names` of `renaming_advice` for a split.

    Args:
        data: of the configuration.
        spec: of the split.
        class_names: of the model, in the order of its outputs.
    """
    names = list(class_names or ())
    if spec.label_map is None or (data.class_names is not None and are_whole_numbers(names)):
        return {name: place for place, name in enumerate(names)} or None, bool(names)
    known = {
        key: names.index(value) if isinstance(value, str) and value in names else value
        for key, value in spec.label_map.items()
    }
    return {key: value for key, value in known.items() if isinstance(value, int)}, False


def _in_yaml(raw: int | str) -> str:
    """A label as an entry of a list or mapping in YAML: names that look like something else stand in quotes."""
    return as_flow([raw])[1:-1]


GAP = 0.1
"""Accuracies of `in_dist.fit` and `in_dist.test` nearer than this are not worth a warning."""

SIGNIFICANT = 1e-6
"""Chance that two equal accuracies come out as far apart as a warning wants."""


@dataclass(frozen=True)
class _Labelled:
    """What is known of the labelled samples of a split."""

    split: str
    count: int
    agreement: Agreement
    doubt: Doubt | None = None
    advice: str = ""


def label_warnings(run: RunFolder) -> list[Notice]:
    """Warns when the labels of `in_dist.fit` or `in_dist.test` are probably not those that the network learned.

    They are when the two accuracies differ by more than `GAP` and more than chance explains (two-proportion test), or
    when an accuracy is at chance, would be higher with the classes in another order than chance explains, or is far
    below the mean largest softmax probability (`Agreement`).

    Args:
        run: a finished run folder.

    Returns:
        One `Notice`, or none; it names the map of labels that would repair it, where there is one.

    Raises:
        StoreError: a damaged file.
    """
    classes = run.config.model.classes
    there = {info.name for info in run.splits()}
    found = [_labelled(run, split, classes) for split in (FIT, TEST) if split in there]
    gaps = [_gap(*found)] if len(found) == 2 else []
    doubts = [line for line in (*gaps, *_doubts(found)) if line]
    return [Notice(f"{'; '.join(doubts)}: {_reason(run, found)}", "warning")] if doubts else []


def missing_labels(run: RunFolder) -> list[Notice]:
    """A caution where some in-distribution samples of a finished run have no label, and others of their split do."""
    entries = {info.name: run.manifest.splits[info.name] for info in run.splits() if info.kind not in (BANK, "ood")}
    return partly_labelled({name: (each.rows - each.labelled, each.rows) for name, each in entries.items()})


def partly_labelled(counts: Mapping[str, tuple[int, int]]) -> list[Notice]:
    """A caution on splits of which some samples have no label; of those without any something else is said.

    Args:
        counts: split -> its samples without a label, and all of them.
    """
    found = [
        f"{missing} of {samples} of {name}" for name, (missing, samples) in counts.items() if 0 < missing < samples
    ]
    text = (
        f"samples without a label say nothing of wrong predictions: {some(found)}; give their labels, if there are any"
    )
    return [Notice(text, "caution")] if found else []


def refuse_unlabelled(run: RunFolder) -> None:
    """Makes sure that samples of `in_dist.fit` have labels, by which it is known what is predicted right.

    Raises:
        DataError: none has.
    """
    labels = run.read(FIT, columns=["label"])["label"]
    if not (labels >= 0).any():
        raise DataError(
            f"{run.path}: {FIT}: wanted labelled samples, and none of its {len(labels)} has a label; say where the "
            f"labels are in data.{FIT} (gradscore docs data)"
        )


def refuse_doubtful_labels(run: RunFolder, *, said: str | None = None) -> None:
    """Ends a command or a fit where the labels of `in_dist.fit` are probably not those that the network learned.

    They are where the accuracy is at chance or would be more than twice as high with the classes in another order,
    unless `model.declared_accuracy` says that it is so low.

    Args:
        run: a run folder; its other splits need not be finished.
        said: what was not done; None in a program, which may fit on a network at chance: it declares no accuracy.

    Raises:
        DataError: no sample of it has a label.
        DoubtfulLabelsError: with the map of labels that would repair it, where there is one.
    """
    refuse_unlabelled(run)
    fit, declared = _labelled(run, FIT, run.config.model.classes), run.config.model.declared_accuracy
    is_expected = declared is not None and declared - fit.agreement.accuracy < GAP
    is_at_chance = fit.agreement.is_at_chance and said is not None
    if is_expected or not (is_at_chance or fit.agreement.is_mostly_in_another_order):
        return
    go_on = f"if that is all the network can do, go on with --set model.declared_accuracy={fit.agreement.accuracy:.2f}"
    raise DoubtfulLabelsError(
        f"{_doubts([fit])[0]}: {_reason(run, [fit])}" + ("" if said is None else f". {said}; {go_on}")
    )


def _doubts(found: Sequence[_Labelled]) -> list[str]:
    """What speaks against the labels of splits by themselves, those together of which the same is to be said."""
    lines = []
    for doubt in {each.doubt.words: each.doubt for each in found if each.doubt}.values():
        alike = [(each, each.doubt.number) for each in found if each.doubt and each.doubt.words == doubt.words]
        measured = " and ".join(f"{each.agreement.accuracy:.2f} on {each.split}" for each, _ in alike)
        lines.append(f"accuracy is {measured}{doubt.after(*(number for _, number in alike), digits=2)}")
    return lines


def _reason(run: RunFolder, found: Sequence[_Labelled]) -> str:
    """What is probably the matter, and what to do."""
    causes = {each.doubt.cause for each in found if each.doubt}
    advices = {each.split: each.advice for each in found if each.advice}
    is_given = _is_given(run, FIT)
    if len(set(advices.values())) == 1 and len(advices) == len(found):
        why = (
            f"{found[0].advice}{'' if is_given else EVERYWHERE}; figures that depend on labels mean nothing until then"
        )
    elif advices:
        named = "; ".join(f"{advice} in data.{split}" for split, advice in advices.items())
        why = f"{named}; figures that depend on labels mean nothing until then"
    elif not causes:
        low, high = (each.split for each in sorted(found, key=lambda each: each.agreement.accuracy))
        why = (
            f"either the labels of {low} are partly in another order than the network's classes, or the network was "
            f"trained on {high}, or {low} is made of other samples; figures that depend on labels mean little then"
        )
    elif "order" in causes:
        repair = (
            "give them in its order"
            if is_given
            else "say with data.class_names, or label_map in every labelled set of data, which is which"
        )
        why = (
            f"labels are probably in another order than the network's classes; {repair}; figures that depend on labels "
            "mean nothing until then"
        )
    elif "chance" in causes:
        why = (
            "weights, labels, order of classes or preprocessing are not those of its training, or it tells these "
            "classes no better than so many samples can show"
        )
    else:
        why = (
            "the network is far surer than it is right: it is overfitted, or the data or their preprocessing are not "
            "those of its training, and then figures mean little"
        )
    if any(NO_CHECKPOINT in notice for notice in run.manifest.notices):
        why = f"figures mean nothing if the network was not trained ({NO_CHECKPOINT}); else {why}"
    look = "call gradscore.check_model(model, batch, labels=labels)" if is_given else "run gradscore doctor CONFIG"
    return why if advices else f"{why}; {look}"


def _is_given(run: RunFolder, split: str) -> bool:
    """Whether a program gave the samples of a split, so that no settings say what they are."""
    return planned_splits(run.config.data)[split][1].source.startswith(f"{GIVEN}:")


def _labelled(run: RunFolder, split: str, classes: int) -> _Labelled:
    logits = [f"{LOGIT}{place}" for place in range(classes)]
    frame = run.read(split, columns=["label", "prediction", *logits])
    values = frame[logits].to_numpy(dtype=np.float64)
    usable = (frame["label"] >= 0).to_numpy() & np.isfinite(values).all(axis=1)
    if not usable.any():
        return _Labelled(split, 0, Agreement(0.0))
    values = values[usable]
    largest = 1 / np.exp(values - values.max(axis=1, keepdims=True)).sum(axis=1)
    labels, predictions = (frame[name].to_numpy(dtype=np.int64)[usable] for name in ("label", "prediction"))
    spec = planned_splits(run.config.data)[split][1]
    own, are_names = raw_labels(run.config.data, spec, run.manifest.class_names)
    how = "change labels by" if _is_given(run, split) else "set label_map to"
    advice = renaming_advice(labels, predictions, classes=classes, label_map=own, are_names=are_names, how=how)
    agreement = agreement_of(labels, predictions, classes=classes)
    doubt = agreement.doubt(float(largest.mean()), class_names=run.manifest.class_names)
    return _Labelled(split, len(values), agreement, doubt, advice)


def _gap(first: _Labelled, second: _Labelled) -> str:
    """That two accuracies differ by more than chance explains; empty where they do not."""
    one, other = first.agreement.accuracy, second.agreement.accuracy
    gap = abs(one - other)
    if not first.count or not second.count or gap <= GAP:
        return ""
    pooled = (one * first.count + other * second.count) / (first.count + second.count)
    error = sqrt(pooled * (1 - pooled) * (1 / first.count + 1 / second.count))
    if erfc(gap / error / sqrt(2)) >= SIGNIFICANT:
        return ""
    return f"accuracy is {one:.2f} on {first.split} and {other:.2f} on {second.split}"
