"""The baselines by name, and all of a run: fitted once on in-distribution samples, then tables of them for any."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import getdoc
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import EvaluationError, MissingExtraError, StoreError
from ..models import Head
from ..system import FloatArray, IntArray, Registry, first_line
from . import formulas
from .formulas import Arrays, InDistFeatures, OwnSamples
from .neighbours import Bank, Neighbours, too_few

Needs = Literal["logits", "penultimate", "neighbours", "augmentations", "features of augmentations"]
"""What a baseline looks at. Every sample has logits; features before the last layer, and with them neighbours in a
bank, are there where a run stores them, augmentations where it makes them."""

OVER_AUGMENTATIONS = "@augmentations"
"""End of the name of a baseline that is averaged over a sample and its augmentations."""


@dataclass(frozen=True, kw_only=True)
class NetworkOutputs:
    """Outputs of a network for N samples, and the hashes that tell these apart.

    Attributes:
        logits: (N, K) float64.
        penultimate: (N, D) float64, or None.
        augmentations: the same of every augmentation of them, by name.
        content: (N,) hashes of their content, by which they are told from themselves in a bank; None if unknown.
        neighbours: their neighbours in the bank, where they have been looked for.
        left_out: which of them baselines learned from; None where it is none.
    """

    logits: FloatArray
    penultimate: FloatArray | None = None
    augmentations: Mapping[str, NetworkOutputs] = field(default_factory=dict)
    content: NDArray[np.str_] | None = None
    neighbours: Neighbours | None = None
    left_out: OwnSamples | None = None

    def __len__(self) -> int:
        """N, the number of samples."""
        return len(self.logits)

    @property
    def predictions(self) -> IntArray:
        """(N,) the class of the largest logit."""
        return np.asarray(self.logits.argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class InDistribution:
    """In-distribution samples that a baseline is fitted on.

    Attributes:
        outputs: what the network says of them.
        classes: (N,) of each, whichever occur.
        head: the last layer; None without penultimate features.
    """

    outputs: NetworkOutputs
    classes: IntArray
    head: Head | None = None

    @cached_property
    def features(self) -> InDistFeatures:
        """Penultimate features of the samples, with their classes and the last layer.

        Raises:
            EvaluationError: there are none, too few, or no last layer.
        """
        if self.head is None:
            raise EvaluationError("baselines: penultimate features without the last layer that takes them")
        values = penultimate_of(self.outputs, width=self.head.weight.shape[1])
        if len(values) < 2:
            raise too_few(values)
        return InDistFeatures(values, self.classes, self.head)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A score without gradients: an input of meta models, or reported beside them, which have to beat it.

    Attributes:
        fit: from in-distribution samples to what it has learned, by default nothing; raises `MissingExtraError` where a
            package is missing.
        of: from outputs and what was learned to scores (N,) float64, higher = more likely wrong or out of distribution.
        needs: what it looks at.
        summary: what it is, on one line; by default the first line of the docstring of its formula.
        words: what a sentence calls it, such as "the largest probability"; its name if empty.
        source: where it comes from; by default what that docstring says behind `Source:`, up to the year.
        is_input: meta models look at it, so that adding or changing it changes every fit.
        is_compared: meta models are compared with it.
        leaves_out: samples that it was fitted on are left out of it when they are scored, so that they are as far as
            new ones. With few samples they are not, and it is no input where meta models are fitted on the same.
        of_unseen: it is fitted on samples that did not train the network, never on a bank of those that did.
        starts_only: as an input, models of wrong predictions start from it, and no other looks at it.
    """

    fit: Callable[[InDistribution], Arrays] = lambda _in_dist: {}
    of: Callable[[NetworkOutputs, Arrays], FloatArray]
    needs: Needs
    summary: str = ""
    words: str = ""
    source: str = ""
    is_input: bool = False
    is_compared: bool = True
    leaves_out: bool = False
    of_unseen: bool = False
    starts_only: bool = False


def _said(formula: Callable[..., FloatArray]) -> dict[str, Any]:
    """The summary and the source of a baseline, as the docstring of its formula says them."""
    source = re.search(r"Source: (.*? \d{4})", getdoc(formula) or "")
    return {"summary": first_line(formula), "source": source[1] if source else ""}


def of_logits(function: Callable[[ArrayLike], FloatArray], **others: Any) -> Baseline:
    """A baseline that is a function of the logits (N, K) alone; `others` as for `Baseline`."""
    said = _said(function) | others
    return Baseline(of=lambda outputs, _learned: function(outputs.logits), needs="logits", **said)


def of_penultimate(
    fit: Callable[[InDistFeatures], Arrays],
    of: Callable[..., FloatArray],
    *,
    leaves_out: bool = False,
    **others: Any,
) -> Baseline:
    """A baseline of penultimate features.

    Args:
        fit: from the features of in-distribution samples to what is learned.
        of: from features (N, D), logits (N, K) and what was learned to scores (N,); with `leaves_out` also from what to
            leave out, a `OwnSamples` of the same samples.
        leaves_out: see `Baseline`.
        others: as for `Baseline`.
    """

    def fitted(in_dist: InDistribution) -> Arrays:
        return {name: np.asarray(values, dtype=np.float64) for name, values in fit(in_dist.features).items()}

    def score(outputs: NetworkOutputs, learned: Arrays) -> FloatArray:
        features, logits = penultimate_of(outputs), outputs.logits
        found = np.asarray(of(features, logits, learned), dtype=np.float64)
        if leaves_out and outputs.left_out is not None:
            rows = outputs.left_out.classes >= 0
            found[rows] = of(features[rows], logits[rows], learned, outputs.left_out.at(rows))
        return found

    return Baseline(fit=fitted, of=score, needs="penultimate", leaves_out=leaves_out, **_said(of) | others)


def penultimate_of(outputs: NetworkOutputs, *, width: int | None = None) -> FloatArray:
    """The penultimate features (N, D) of samples.

    Raises:
        EvaluationError: there are none, not as many as the last layer takes, or values that are not finite.
    """
    values = outputs.penultimate
    if values is None or values.ndim != 2 or (width is not None and values.shape[1] != width):
        got = "none" if values is None else str(values.shape)
        raise EvaluationError(f"baselines: wanted penultimate features (N, {width or 'D'}), got {got}")
    if not np.isfinite(values).all():
        raise EvaluationError("baselines: some penultimate features are not finite; leave their samples out")
    return values


def _of_neighbours(
    distance: Callable[[Neighbours], FloatArray], summary: str, *, is_compared: bool = False, **others: Any
) -> Baseline:
    def of(outputs: NetworkOutputs, _learned: Arrays) -> FloatArray:
        assert outputs.neighbours is not None, "a bank finds them"
        return np.asarray(distance(outputs.neighbours))

    return Baseline(of=of, needs="neighbours", summary=summary, is_input=True, is_compared=is_compared, **others)


def _nnguide(outputs: NetworkOutputs, _learned: Arrays) -> FloatArray:
    assert outputs.neighbours is not None, "a bank finds them"
    assert outputs.neighbours.guidance is not None, "with them"
    return formulas.nnguide(outputs.neighbours.guidance, outputs.logits)


def _looks(outputs: NetworkOutputs) -> FloatArray:
    """The logits (V + 1, N, K) of samples and of their V augmentations."""
    return np.stack([outputs.logits, *(each.logits for each in outputs.augmentations.values())])


def _of_augmentations(
    function: Callable[[FloatArray], FloatArray], *, is_compared: bool = False, **others: Any
) -> Baseline:
    """A baseline of the logits (V + 1, N, K) of samples and of their V augmentations."""
    return Baseline(
        of=lambda outputs, _learned: function(_looks(outputs)),
        needs="augmentations",
        is_input=True,
        is_compared=is_compared,
        **_said(function) | others,
    )


BASELINES: Registry[Baseline] = Registry(
    "baseline",
    {
        "msp": of_logits(formulas.msp, words="the largest probability", is_input=True),
        "entropy": of_logits(formulas.entropy, words="the entropy", is_input=True),
        "margin": of_logits(formulas.margin, words="the margin of the largest probability", is_input=True),
        "max_logit": of_logits(formulas.max_logit, words="the largest logit", is_input=True),
        "energy": of_logits(formulas.energy, words="the energy", is_input=True),
        "gen": of_logits(formulas.gen, words="the generalised entropy", is_input=True),
        "doctor": of_logits(formulas.doctor, words="DOCTOR"),
        "max_logit_pnorm": of_logits(formulas.max_logit_pnorm, words="MaxLogit-pNorm"),
        "knn": _of_neighbours(
            lambda found: found.distances[:, -1],
            "distance to the 50th neighbour among features of unit length",
            words="the distance to the nearest neighbours",
            source="Sun et al. 2022",
            is_compared=True,
        ),
        "knn_10": _of_neighbours(lambda found: found.distances[:, :10][:, -1], "the same, 10th neighbour"),
        "knn_1": _of_neighbours(lambda found: found.distances[:, 0], "the same, nearest neighbour"),
        "class_knn": _of_neighbours(
            lambda found: found.of_class[:, -1],
            "distance to the 10th neighbour of the predicted class among features of unit length",
            words="the distance to neighbours of the predicted class",
            is_compared=True,
        ),
        "class_knn_1": _of_neighbours(lambda found: found.of_class[:, 0], "the same, nearest neighbour"),
        "nnguide": Baseline(of=_nnguide, needs="neighbours", **_said(formulas.nnguide), words="NNGuide"),
        "mahalanobis": of_penultimate(
            lambda in_dist: in_dist.class_means,
            formulas.mahalanobis,
            words="the Mahalanobis distance",
            is_input=True,
            leaves_out=True,
        ),
        "relative_mahalanobis": of_penultimate(
            formulas.relative_means,
            formulas.relative_mahalanobis,
            words="the relative Mahalanobis distance",
            is_input=True,
            leaves_out=True,
        ),
        "unit_mahalanobis": of_penultimate(
            formulas.class_directions,
            formulas.unit_mahalanobis,
            words="the Mahalanobis distance of features of unit length",
            is_input=True,
            leaves_out=True,
        ),
        "wdiscood": of_penultimate(formulas.discriminants, formulas.wdiscood, words="WDiscOOD"),
        "vim": of_penultimate(formulas.residual_space, formulas.vim, words="ViM"),
        "react": of_penultimate(formulas.clip, formulas.react, words="ReAct", is_input=True),
        "ash": of_penultimate(formulas.last_layer, formulas.ash, words="ASH", is_input=True),
        "scale": of_penultimate(formulas.last_layer, formulas.scale, words="SCALE", is_input=True),
        "gradnorm": of_penultimate(formulas.last_layer, formulas.gradnorm, words="GradNorm", is_input=True),
        "feature_norm": of_penultimate(
            formulas.last_layer, formulas.norm, words="the norm of the features", is_input=True
        ),
        "nci": of_penultimate(formulas.along_classes, formulas.nci, words="NCI"),
        "pnml": of_penultimate(formulas.correlations, formulas.pnml, words="pNML"),
        "sirc": of_penultimate(formulas.usual_norm, formulas.sirc, words="SIRC"),
        "she": of_penultimate(formulas.patterns, formulas.she, words="SHE"),
        "fdbd": of_penultimate(formulas.mean_and_gaps, formulas.fdbd, words="fDBD", is_input=True, leaves_out=True),
        "dice": of_penultimate(formulas.contributing, formulas.dice, words="DICE"),
        "augmentations_probability": _of_augmentations(
            formulas.mean_probability, words="the averaged probability", is_compared=True
        ),
        "augmentations_temperature": Baseline(
            fit=lambda unseen: formulas.temperature(unseen.outputs.logits, unseen.classes),
            of=lambda outputs, learned: formulas.mean_probability(_looks(outputs) / learned["temperature"][0]),
            needs="augmentations",
            summary="the same at the temperature that makes the labels of `in_dist.fit` likeliest",
            words="the averaged probability at a fitted temperature",
            source="Guo et al. 2017",
            is_input=True,
            of_unseen=True,
            starts_only=True,
        ),
        "augmentations_log_probability": _of_augmentations(formulas.mean_log_probability),
        "augmentations_entropy": _of_augmentations(formulas.mean_entropy),
        "augmentations_logits": _of_augmentations(formulas.logit_variance),
        "augmentations_features": Baseline(
            of=lambda outputs, _learned: formulas.feature_disagreement(
                [penultimate_of(each) for each in (outputs, *outputs.augmentations.values())]
            ),
            needs="features of augmentations",
            **_said(formulas.feature_disagreement),
            is_input=True,
            is_compared=False,
        ),
    },
    wanted=Baseline,
    reserved=(
        *("task", "protocol", "dataset", "split", "sample_id", "content_hash", "label", "prediction", "positive"),
        *("probability", "chosen", "chosen_apart", "meta", "score_lr", "classifier"),
    ),  # other columns of the tables of an evaluation
)
"""Baselines by name, in the order of reports; higher = more likely wrong or out of distribution."""


_BANK = "bank/"


@dataclass(frozen=True, kw_only=True)
class FittedBaselines:
    """Baselines and what they have learned.

    Attributes:
        learned: by baseline, in the order of `BASELINES`.
        bank: in-distribution samples to compare with; None where penultimate features are not stored.
        augmentations: the augmentations that count.
        leave_out: those that leave out the samples they were fitted on are inputs.
        notices: sentences for the reader.
    """

    learned: Mapping[str, Arrays]
    bank: Bank | None = None
    augmentations: Sequence[str] = ()
    leave_out: bool = True
    notices: list[str] = field(default_factory=list)

    @classmethod
    def fit(
        cls,
        in_dist: InDistribution,
        *,
        unseen: InDistribution | None = None,
        augmentations: Sequence[str] = (),
        on_others: bool = True,
    ) -> Self:
        """Fits every baseline that the samples allow.

        Args:
            in_dist: what to fit on; its samples become the bank, where they have penultimate features.
            unseen: samples that did not train the network; None if that is so of `in_dist`.
            augmentations: the augmentations that count.
            on_others: meta models are fitted on other samples.

        Raises:
            EvaluationError: too few samples, or values that are not finite.
        """
        has_features = in_dist.outputs.penultimate is not None
        there: set[Needs] = {"logits"}
        if has_features:
            there |= {"penultimate", "neighbours"}
        if augmentations:
            there |= {"augmentations", "features of augmentations"} if has_features else {"augmentations"}
        learned, notices = {}, []
        for name in BASELINES:
            if BASELINES[name].needs not in there:
                continue
            try:
                fitted_on = unseen if unseen is not None and BASELINES[name].of_unseen else in_dist
                learned[name] = BASELINES[name].fit(fitted_on)
            except MissingExtraError as error:
                notices.append(str(error))
        bank = None
        if has_features:
            outputs = in_dist.outputs
            bank = Bank.of(penultimate_of(outputs), in_dist.classes, outputs.content, outputs.logits)
        return cls(
            learned=learned,
            bank=bank,
            augmentations=tuple(augmentations),
            leave_out=on_others or (has_features and in_dist.features.can_leave_out),
            notices=list(dict.fromkeys(notices)),
        )

    @property
    def names(self) -> list[str]:
        """Names of the columns of `scores`, in order."""
        averaged = [name for name in self.learned if not BASELINES[name].needs.endswith("augmentations")]
        return [*self.learned, *(name + OVER_AUGMENTATIONS for name in averaged if self.augmentations)]

    @property
    def compared(self) -> list[str]:
        """Names of the baselines that meta models are compared with."""
        return [name for name in self.names if BASELINES[plain_name(name)].is_compared]

    @property
    def missing(self) -> list[str]:
        """Names of baselines to compare with that lack stored penultimate features; none where they are stored."""
        if self.bank is not None:
            return []
        needs = ("penultimate", "neighbours")
        return [name for name in BASELINES if BASELINES[name].is_compared and BASELINES[name].needs in needs]

    @property
    def inputs(self) -> list[str]:
        """Names of the baselines that meta models look at."""
        found = {name: BASELINES[plain_name(name)] for name in self.names}
        return [name for name, each in found.items() if each.is_input and (self.leave_out or not each.leaves_out)]

    def scores(self, outputs: NetworkOutputs) -> dict[str, FloatArray]:
        """The scores (N,) float64 of samples by name, higher = more likely wrong or out of distribution.

        Raises:
            EvaluationError: features or augmentations that were there when the scores were fitted are missing, or a
                value is not finite.
        """
        if not len(outputs):
            return {name: np.empty(0) for name in self.names}
        missing = [name for name in self.augmentations if name not in outputs.augmentations]
        if missing:
            raise EvaluationError(
                f"baselines: augmentation {missing[0]!r} of these samples is missing; extract it as well"
            )
        own = self._own_samples(outputs)
        counted = {name: self._located(outputs.augmentations[name], outputs, own) for name in self.augmentations}
        whole = replace(self._located(outputs, outputs, own), augmentations=counted)
        columns = {name: self._of(name, whole) for name in self.learned}
        for name in self.names[len(columns) :]:
            plain = plain_name(name)
            columns[name] = np.mean([columns[plain], *(self._of(plain, each) for each in counted.values())], axis=0)
        return columns

    def for_scores(self, names: Iterable[str]) -> Self:
        """The inputs of meta models and the baselines called `names`, without what new samples are never asked for.

        Gone are the other baselines, and of the bank the hashes by which samples are told from themselves.
        """
        kept = {plain_name(name) for name in (*self.inputs, *names)}
        bank = self.bank
        if bank is not None:
            bank = replace(bank, content=None, energies=bank.energies if "nnguide" in kept else None)
        learned = {name: values for name, values in self.learned.items() if name in kept}
        return replace(self, learned=learned, bank=bank)

    def arrays(self, *, content: bool = True) -> dict[str, NDArray[Any]]:
        """Everything that was learned, by name, to be stored; with or without hashes of the bank's content."""
        found: dict[str, NDArray[Any]] = {
            f"{name}/{array}": values for name, learned in self.learned.items() for array, values in learned.items()
        }
        if self.bank is not None:
            found |= {f"{_BANK}features": self.bank.features, f"{_BANK}classes": self.bank.classes}
            if self.bank.energies is not None:
                found[f"{_BANK}energies"] = self.bank.energies
            if content and self.bank.content is not None:
                found[f"{_BANK}content"] = _as_bytes(self.bank.content)
        return found

    @classmethod
    def restored(
        cls, arrays: Mapping[str, NDArray[Any]], *, names: Sequence[str], augmentations: Sequence[str]
    ) -> Self:
        """The baselines of which `arrays` were stored.

        Args:
            arrays: with others among them.
            names: of the baselines.
            augmentations: those that count.

        Raises:
            StoreError: a baseline is not known here.
        """
        unknown = [name for name in names if name not in BASELINES]
        if unknown:
            raise StoreError(
                f"baselines: {', '.join(map(repr, unknown))} unknown here; install the package that brings it"
            )
        stored = dict(_below(_BANK, arrays))
        content = stored.get("content")
        bank = Bank(
            features=stored["features"],
            classes=stored["classes"],
            content=None if content is None else _as_text(content),
            energies=stored.get("energies"),
        ) if stored else None  # fmt: skip
        learned = {name: dict(_below(f"{name}/", arrays)) for name in names}
        return cls(learned=learned, bank=bank, augmentations=tuple(augmentations))

    def _of(self, name: str, outputs: NetworkOutputs) -> FloatArray:
        return np.asarray(BASELINES[name].of(outputs, self.learned[name]), dtype=np.float64)

    def _own_samples(self, outputs: NetworkOutputs) -> OwnSamples | None:
        """Those of the samples that baselines learned from; None where it is none."""
        classes = None if self.bank is None else self.bank.classes_of(outputs.content)
        return None if classes is None else OwnSamples(penultimate_of(outputs), classes)

    def _located(self, augmented: NetworkOutputs, outputs: NetworkOutputs, own: OwnSamples | None) -> NetworkOutputs:
        """Samples or an augmentation of them with its neighbours, among those of the class predicted of the samples."""
        if self.bank is None:
            return augmented
        found = self.bank.neighbours(penultimate_of(augmented), outputs.predictions, outputs.content)
        return replace(augmented, neighbours=found, left_out=own)


def plain_name(name: str) -> str:
    """The name of a baseline without what says that it is averaged over augmentations."""
    return name.removesuffix(OVER_AUGMENTATIONS)


def describe_baseline(name: str) -> str:
    """Name of a baseline in a sentence.

    Example:
        >>> describe_baseline("msp@augmentations")
        'the largest probability, averaged over augmentations'
    """
    plain = plain_name(name)
    averaged = ", averaged over augmentations" if plain != name else ""
    return (BASELINES[plain].words or plain) + averaged


def _below(start: str, arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    return ((name.removeprefix(start), values) for name, values in arrays.items() if name.startswith(start))


def _as_bytes(texts: NDArray[np.str_]) -> NDArray[np.uint8]:
    """Texts of ASCII as (N, width) bytes, ended by zeros."""
    fixed = np.char.encode(np.asarray(texts, dtype=np.str_), "ascii")
    return np.frombuffer(fixed.tobytes(), dtype=np.uint8).reshape(len(fixed), fixed.itemsize)


def _as_text(values: NDArray[Any]) -> NDArray[np.str_]:
    rows = np.ascontiguousarray(values, dtype=np.uint8)
    return np.char.decode(rows.view(f"S{rows.shape[1]}")[:, 0], "ascii") if rows.size else np.empty(0, dtype=np.str_)
