"""`gradscore.Detector`: fit, score, evaluate, save and load."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from rich.console import Console
from scipy.stats import beta
from torch import Tensor, nn

from ..config import Config, ExtractConfig, ModelConfig, check_features, section
from ..data import (
    BANK,
    CALIBRATION,
    FIT,
    HOLDOUT,
    Preprocessing,
    PreprocessingConfig,
    Samples,
    check_synthetic,
    form_of,
    refuse_shuffled,
    samples_of,
)
from ..deployment import DETECTORS, Bundle, Scorer, make_bundle, samples_needed, write_bundle
from ..errors import ConfigError, EvaluationError
from ..evaluation import describe_score, evaluate_run, fit_run, without_gradients
from ..extractor import Extractor, check_mode, count_classes, input_dtype
from ..losses import OF_LOGITS, is_of_logits, refuse_with_labels, registered
from ..models import LIVE, Interface, trusting_code
from ..notices import Notice, by_urgency, notes
from ..pipeline import Counter, Progress, cut, extract_given, progress_bar, resolved
from ..store import RunFolder, refuse_doubtful_labels
from ..system import Device, Inputs, as_rate, checked, described
from .detector_runs import (
    Folder,
    Report,
    check_recipe,
    choice_notes,
    config_of_fit,
    fit_without_reported,
    with_test,
)
from .detector_sets import FitSamples, FitSets, SampleForm, Thumbnails, count, kept_small, test_sets

ONE_CLASS = (
    "no OOD sample was given and none was made, so OOD is told by a model that has seen in-distribution samples alone "
    "(in_dist_only); it finds more with OOD sets, ood={...}, even of noise"
)
"""Notice on a fit without any OOD set."""

EXTRACT = ("batch_size", "part_size", "seed")
"""Settings of the section `extract` that mean something for samples and a model that a program has."""


@dataclass(frozen=True)
class _Fitted:
    """State after `fit`: the run folder, what computed its features, and a few samples."""

    folder: Folder
    config: Config
    form: SampleForm
    extractor: Extractor
    thumbnails: Thumbnails
    samples: Inputs


class Detector:
    """Tells wrong predictions and out-of-distribution samples of a classifier, from their gradients.

    Args:
        model: the classifier with its weights, in eval mode, on the device that computes. Nothing about it is changed.
        alpha: of new in-distribution samples that are predicted right, at most this share is rejected, on average over
            calibrations.
        recipe: how commands build the model, as in a configuration: `python:net.py:build`, or with arguments
            `{"source": "torchvision:resnet18", "arguments": {...}}`. Without, what is saved needs the model again.
        preprocessing: settings of that section: what makes model inputs of raw pixels (N, C, H, W) uint8, and
            of the PIL images of a Dataset. Other samples are as the model takes them, and refused with such settings.
        features: settings of that section: losses, statistics, parameters, augmentations, ...
        extract: settings of that section: batch_size, part_size and seed.
        meta: settings of that section.
        evaluate: settings of that section; protocols are `auxiliary` and `in_dist_only` unless others are named.
        losses: whose gradients, in the place of `features["losses"]`: names in `gradscore.losses.LOSSES`, or one; or a
            function of yours from logits (N, K) to the loss of each sample (N,), which autograd differentiates. Where
            such a detector is loaded in another process, that needs the loss by its name:
            `LOSSES.add("margin", Loss(OfLogits(margin)))`.
        scores: what decides in the place of the chosen score: the name of a score, such as `energy`, or `ood=knn` and
            `wrong=energy` for one question; `notices` say what it costs.
        output: name or position of the logits among what the model returns, where it is not obvious.
        one_logit: the model returns one logit z for two classes, which become the logits `[0, z]`.
        progress: True for a bar on standard error, or a function that is called as `progress(split, done, total)`.

    Examples:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> inputs = torch.randn(400, 4)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
        >>> labels = model(inputs).argmax(1)
        >>> labels[::5] = 1 - labels[::5]
        >>> detector = Detector(model, meta={"Cs": [0.01], "cv_folds": 2})
        >>> detector = detector.fit((inputs, labels), ood={"far": 5 * torch.randn(100, 4)})
        >>> table = detector.score(torch.randn(3, 4))
        >>> list(table.columns[:5])
        ['sample_id', 'prediction', 'probability_wrong', 'score_wrong', 'p_value_wrong']
        >>> set(table["decision"]) <= {"accept", "reject"}
        True

        With the gradients of a loss of one's own:

        >>> def margin(logits):
        ...     first, second = logits.topk(2).values.unbind(1)
        ...     return second - first
        >>> detector = Detector(model, losses=margin, meta={"Cs": [0.01], "cv_folds": 2})
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        *,
        alpha: float = 0.05,
        recipe: str | Mapping[str, Any] | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        features: Mapping[str, Any] | None = None,
        extract: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        evaluate: Mapping[str, Any] | None = None,
        losses: str | Sequence[str] | Callable[[Tensor], Tensor] | None = None,
        scores: str | Sequence[str] = (),
        output: str | int | None = None,
        one_logit: bool = False,
        progress: bool | Progress = False,
    ) -> None:
        """Looks at the settings; nothing is computed.

        Raises:
            ModelError: the model is in training mode, compiled, or frozen as a whole.
            ConfigError: an argument of another kind, `alpha` is no rate, unknown weights in `preprocessing`, or another
                setting in `extract`.
        """
        check_mode(model)
        self._sections = {
            "preprocessing": preprocessing,
            "features": features,
            "extract": extract,
            "meta": meta,
            "evaluate": evaluate,
        }
        self._scorer: Scorer | None = None
        self._extract = _extract_settings(extract or {})
        if callable(losses):
            if not is_of_logits(losses):
                raise ConfigError(f"losses: a detector has a loss of logits, wanted {OF_LOGITS}")
            losses = registered(losses)
        if losses is not None:
            of_losses = {"losses": [losses] if isinstance(losses, str) else list(losses)}
            self._sections["features"] = {**(features or {}), **of_losses}
        self._scores = scores
        self.model = model
        self._alpha = as_rate(alpha, "alpha")
        self._interface = Interface(output=output, one_logit=one_logit)
        self._recipe = {"source": recipe} if isinstance(recipe, str) else recipe
        self._preprocess: Preprocessing | None = None
        if preprocessing is not None:
            self._preprocess = Preprocessing(section(PreprocessingConfig, preprocessing, where="preprocessing"))
        self._progress = progress
        self._fitted: _Fitted | None = None
        self.notices: list[Notice] = []
        """What a user should know of the features, the fits and the thresholds."""

    @checked
    @np.errstate(under="ignore")
    def fit(
        self,
        data: Any,
        *,
        bank: Any = None,
        ood: Mapping[str, Any] | None = None,
        calibration: Any = None,
        auxiliary: Sequence[str] | Literal["auto"] = "auto",
        holdout: float = HOLDOUT,
        run: str | Path | None = None,
    ) -> Self:
        """Fits the meta models and sets thresholds.

        Every set is read once, batch by batch and to its end, and may be anything that `gradscore.features` takes.

        Args:
            data: labelled in-distribution samples that did not train the model.
            bank: samples such as those that trained it: neighbours are looked for among them.
            ood: OOD sets by name, to fit on and to choose the score by.
            calibration: labelled in-distribution samples that set thresholds; without, a share of `data` does.
            auxiliary: synthetic OOD sets made of `data`, by kind. `auto` makes, as `data.auxiliary` in a configuration,
                `rotate90`, `mixup`, `cutmix`, `jigsaw` and `permuted_pixels` of images (1 or 3, H, W), and others of
                numbers or tokens where no `ood` is given. They are made of the first 256 MiB of the samples, which are
                kept that long.
            holdout: share of `data`, drawn at random, that sets thresholds unless `calibration` is given.
            run: an empty or new folder that becomes the run folder; a temporary one if None.

        Returns:
            The detector itself.

        Raises:
            DataError: samples that cannot be used, none, or none with a label where some are wanted.
            ModelError: the model cannot take them.
            ConfigError: an unknown setting, or an unusable name of a set.
            DoubtfulLabelsError: labels in another order than the classes of the network, in which it would be right
                twice as often; of other doubts about them warnings speak.
            EvaluationError: too few samples; the message says of what.
            EngineError: gradients that cannot be computed: samples are coupled, for one.
            StoreError: there is something in `run`.
        """
        as_rate(holdout, "holdout")
        folder = Folder(run)
        with self._interface.attached(self.model):
            given = self._given(data, split=FIT)
            first = given.first
            form = SampleForm(
                dtype=input_dtype(self.model),
                num_classes=count_classes(self.model, first),
                preprocess=self._preprocess,
                form=form_of(first.inputs),
                shape=described(first.inputs),
            )
            held = None if calibration is None else form.samples(
                calibration, "calibration", split=CALIBRATION, labelled=True, want_labels=True
            )  # fmt: skip
            sets = FitSets(
                form=form,
                fit=form.checked(given, want_labels=True),
                holdout=holdout,
                seed=self._extract.seed,
                calibration=held,
                bank=None if bank is None else form.samples(bank, "bank", split=BANK, labelled=True),
                ood=form.several("ood", ood, labelled=False),
            )
            self._fit(sets, folder, auxiliary)
        return self

    def _fit(self, sets: FitSets, folder: Folder, auxiliary: Sequence[str] | str) -> None:
        """From samples to a run folder, meta models, thresholds and a scorer."""
        recipe = {
            **(self._recipe or {"source": f"{LIVE}:{type(self.model).__name__}"}),
            "checkpoint": None,
            "num_classes": 1 if self._interface.one_logit else sets.form.num_classes,
            "output": self._interface.output,
        }
        model = section(ModelConfig, recipe, where="recipe")
        device = next(self.model.parameters()).device
        several = [auxiliary] if isinstance(auxiliary, str) and auxiliary != "auto" else auxiliary
        config = config_of_fit(self._sections, model, sets, several, run=folder.path, device=device.type)
        check_features(config.features)
        first, kept = sets.fit.first, FitSamples()
        kept.add(first)
        sample = kept.sample(0)
        for kind in () if config.data.auxiliary == "auto" else config.data.auxiliary:
            check_synthetic(kind, sample)
        config, left_out = resolved(
            config, self.model, sample=sample, inputs=first.inputs, base=kept, samples=sets.fit.count
        )
        bank = sets.bank if config.data.in_dist.bank is not None else None
        sets = replace(sets, auxiliary=config.data.ood[len(sets.ood) :], bank=bank)
        refuse_with_labels(config.features.losses, where="Detector")
        with trusting_code():
            extractor = Extractor(self.model, features=config.features, num_classes=model.classes)
        extractor.warm_up(first.inputs)
        thumbnails = Thumbnails()
        with _telling(self._progress) as tell:
            summary = extract_given(
                config,
                extractor,
                sets.stream(thumbnails),
                progress=tell,
                total=sets.total,
            )
            run = RunFolder(folder.path)
            refuse_doubtful_labels(run)
            report = fit_run(run, progress=None if tell is None else lambda label: tell(f"fitting {label}", 0, 0))
        fitted = _Fitted(folder, config, sets.form, extractor, thumbnails, first.inputs)
        doubts = [each for each in report.notices if each.level == "warning"]
        try:
            bundle = self._bundle(fitted, self._scores)
        except EvaluationError as error:
            if doubts:
                raise EvaluationError(f"{error}. But {doubts[0]}") from None
            if sets.calibration is not None:
                raise
            raise EvaluationError(f"{error}{self._enough(run, sets)}") from None
        with trusting_code():
            self._scorer = Scorer(bundle, self.model, device=None)
        self._fitted = fitted
        for doubt in doubts:
            warnings.warn(doubt, stacklevel=5)
        # That there is no OOD set to report on is no news here, where a model needs none.
        skipped = [each for each in report.skipped if not each.startswith("ood: ") or "ood" not in bundle.detectors]
        if not sets.ood and not sets.auxiliary:
            skipped.append(ONE_CLASS)
        notices = [*left_out, *summary.notices, *report.notices, *skipped, *bundle.notices]
        self.notices = by_urgency(dict.fromkeys(notices))

    def _bundle(self, fitted: _Fitted, scores: str | Sequence[str]) -> Bundle:
        """Bundle that decides by these scores, or by those that were chosen."""
        asked = [scores] if isinstance(scores, str) else scores
        with trusting_code(), self._interface.attached(self.model):
            return make_bundle(
                RunFolder(fitted.folder.path), alpha=self._alpha, model=self.model, samples=fitted.samples, scores=asked
            )

    def _enough(self, run: RunFolder, sets: FitSets) -> str:
        """Sentence on how many samples `fit` needs for a share of them to calibrate on, as far as that is known."""
        held, fitting = (run.read(split, ["correct"])["correct"] for split in (CALIBRATION, FIT))
        count, needed = int(held.sum()), samples_needed(self._alpha / len(DETECTORS))
        if not 0 < count < needed:
            return ""
        samples = len(held) + len(fitting)
        # One standard deviation below the share that is predicted right, as few samples say little of it. Of so many by
        # lot, two standard deviations below their mean are enough.
        law = beta(1 + count + int(fitting.sum()), 1 + samples - count - int(fitting.sum()))
        enough = ceil((1 + sqrt(1 + needed)) ** 2 / (sets.holdout * float(law.mean() - law.std())))
        return (
            f". fit() got {samples} samples and held out {len(held)} of them (holdout={sets.holdout:g}); "
            f"with about {enough} like these it has enough"
        )

    @property
    def bundle(self) -> Bundle:
        """Bundle that decisions are made with, thresholds among it; `EvaluationError` before `fit`."""
        return self.scorer.bundle

    @property
    def scorer(self) -> Scorer:
        """Scorer of single batches; `EvaluationError` before `fit`."""
        if self._scorer is None:
            raise EvaluationError("this detector is not fitted; call fit(data) first, or Detector.load(path)")
        return self._scorer

    @property
    def run(self) -> RunFolder:
        """The run folder of the fit, which commands understand; `EvaluationError` before `fit` and after `load`."""
        return RunFolder(self._needed("run folder").folder.path)

    @checked
    def score(self, data: Any, *, explain: int = 0) -> pd.DataFrame:
        """Scores samples.

        Args:
            data: as `gradscore.features` takes it; labels are not looked at.
            explain: how many of the strongest drivers of each score to name.

        Returns:
            One row for each sample in order, with the columns of `Scorer`: `prediction`; `probability_*`, `score_*` and
            `p_value_*` of `wrong` and `ood`; `because_*` and `drivers_*` if asked for; `decision` and `reason`.

        Raises:
            EvaluationError: the detector is not fitted.
            ConfigError: a DataLoader that shuffles.
            DataError: samples that cannot be used, or none.
            ModelError: the model cannot take them.
            CoupledSamplesError: what the model makes of a sample depends on the others of its batch.
        """
        scorer = self.scorer
        refuse_shuffled(data)
        given = self._given(data, labelled=False)
        scorer.look_anew()
        options, tables = self._extract, []
        with _telling(self._progress) as tell:
            counter = Counter(given.count or 0, tell)
            for each in cut(given, batch_size=options.batch_size, shard_size=options.part_size):
                tables.append(scorer.judge(each.batch.inputs, sample_ids=each.batch.ids, explain=explain))
                counter.add("scoring", each.batch.places)
        return pd.concat(tables, ignore_index=True)

    @checked
    @np.errstate(under="ignore")
    def evaluate(
        self,
        test: Any,
        *,
        ood: Mapping[str, Any] | None = None,
        shifted: Mapping[str, Any] | None = None,
        groups: Mapping[str, str] | None = None,
        run: str | Path | None = None,
    ) -> Report:
        """Reports how good the detector is on samples it has not seen.

        Samples that it was fitted on after all, as their content tells, are left out of the fits that are reported; the
        first notice says so, since the models of the report are then others than those that score.

        Args:
            test: labelled in-distribution samples.
            ood: OOD sets by name; other names than those that `fit` had. They take no part in the choice of the score,
                as half of each set of a configuration does: give `fit` samples of the kinds that you expect.
            shifted: labelled sets of the same classes under covariate shift by name.
            groups: what OOD sets are reported together: `near` or `far`, by the name of the set.
            run: an empty or new folder that becomes a run folder; a temporary one if None.

        Returns:
            The report.

        Raises:
            EvaluationError: the detector is not fitted, or was loaded; or there is nothing to report, or nothing to fit
                on without the reported samples.
            DataError: samples that cannot be used, or none.
            ConfigError: an unusable name of a set, or one that is taken.
            StoreError: there is something in `run`.
            BundleError: the model changed since `fit`.
        """
        fitted = self._needed("feature table of its fit")
        self.scorer.check_unchanged()
        folder = Folder(run)
        thumbnails = fitted.thumbnails.copy()
        sets = test_sets(fitted.form, test, ood=ood, shifted=shifted)
        config = with_test(fitted.config, folder.path, ood=ood or {}, shifted=shifted or {}, groups=groups or {})
        folder.copy_of(fitted.folder.path)
        with _telling(self._progress) as tell, self._interface.attached(self.model):
            extract_given(
                config,
                fitted.extractor,
                kept_small(sets, thumbnails),
                onto=RunFolder(folder.path),
                progress=tell,
                total=count(sets),
            )
            opened = RunFolder(folder.path)
            progress = None if tell is None else lambda label: tell(f"fitting {label}", 0, 0)
            first, skipped = fit_without_reported(opened, self.run, progress=progress)
        found = evaluate_run(opened, skipped=skipped)
        shown = replace(
            found,
            notices=by_urgency([*first, *found.notices, *choice_notes(opened, self.run)]),
            next_command='detector.save("scorer.gradscore")'
            + ("" if self._recipe else "  # for Python; Detector(..., recipe=...) for gradscore score too"),
            without_gradients=without_gradients(opened, how="With losses=[], a detector"),
            deciding='detector.save(..., scores=["{}"])',
        )
        return Report(opened, shown, thumbnails, kept=folder)

    @checked
    def save(
        self, path: str | Path, *, with_weights: bool | None = None, scores: str | Sequence[str] | None = None
    ) -> Path:
        """Writes a bundle, as `gradscore bundle` does.

        Args:
            path: the file.
            with_weights: put the weights into the bundle; by default where there is a recipe, so that
                `gradscore score` and `Scorer.load` can build the model.
            scores: what decides in the bundle, as for `Detector`; by default what decides here.

        Returns:
            The path.

        Raises:
            EvaluationError: the detector is not fitted; or it was loaded, and other scores are to decide.
            ModelError: the recipe does not build this model.
            BundleError: the file is there already and is no bundle, there is no such score, or the weights that it is
                to hold changed since `fit`.
            OutputError: it cannot be written.
        """
        bundle = self.bundle if scores is None else self._bundle(self._needed("run to take other scores from"), scores)
        has_recipe = self._recipe is not None
        inside = has_recipe if with_weights is None else with_weights
        if has_recipe:
            check_recipe(bundle.model, self.model)
        if inside:
            self.scorer.check_unchanged()
        write_bundle(Path(path), replace(bundle, weights=self.model.state_dict() if inside else None))
        return Path(path)

    @classmethod
    @checked
    def load(
        cls,
        path: str | Path,
        *,
        model: nn.Module | None = None,
        trust_code: bool = False,
        device: Device | None = None,
        alpha: float | None = None,
        model_source: str | None = None,
        weights: str | Path | None = None,
        sha256: str | None = None,
        progress: bool | Progress = False,
    ) -> Self:
        """Reads a bundle: what `save` or `gradscore bundle` wrote.

        Args:
            path: the bundle.
            model: the model with its weights, in eval mode; needed where the bundle has no recipe for it.
            trust_code: allow a `python:` model and augmentations, whose code is run.
            device: where to compute, for a model that is built.
            alpha: another bound of the false-alarm rate than that of the bundle.
            model_source: where the model's code is, if not in a file beside the bundle or below its folder.
            weights: where its weights are now, if not where they were.
            sha256: refuse a file with another SHA-256.
            progress: as for `Detector`.

        Returns:
            A detector that scores. It has no features to evaluate with.

        Raises:
            BundleError: a damaged bundle, or a model that is not that of the bundle.
            ModelError: a model that cannot be built, or that has to be given.
            EvaluationError: too few calibration samples for `alpha`.
        """
        found = Scorer.load(
            path,
            model=model,
            trust_code=trust_code,
            device=device if model is not None else device or "auto",
            alpha=alpha,
            model_source=model_source,
            weights=weights,
            sha256=sha256,
        )
        bundle = found.bundle
        has_recipe = not bundle.model.source.startswith(f"{LIVE}:")
        raw = bundle.preprocessing != PreprocessingConfig()
        detector = cls(
            found.model,
            alpha=bundle.alpha,
            recipe=bundle.model.model_dump() if has_recipe else None,
            output=bundle.model.output,
            one_logit=bundle.model.one_logit,
            preprocessing=bundle.preprocessing.model_dump() if raw else None,
            features=bundle.features.model_dump(),
            progress=progress,
        )
        detector._scorer = found
        detector.notices = notes(bundle.notices)
        return detector

    def __repr__(self) -> str:
        """The model, what the detector is fitted on, and which score tells what."""
        name = (
            f"Detector({type(self.model).__name__}, alpha={self.scorer.bundle.alpha if self._scorer else self._alpha})"
        )
        if self._scorer is None:
            return f"{name}: not fitted"
        told = [
            f"{question.what} by {describe_score(self.bundle.detectors[each].model.name)}"
            for each, question in DETECTORS.items()
            if each in self.bundle.detectors
        ]
        return "; ".join([f"{name}: {self._origin()}", *told])

    def _origin(self) -> str:
        """Name of the samples it is fitted on, in words."""
        if self._fitted is None:
            return f"of a bundle, calibrated on {next(iter(self.bundle.detectors.values())).threshold.n} samples"
        counts = {info.name: self.run.manifest.splits[info.name].rows for info in self.run.splits()}
        sets = [f"{info.dataset_name} ({counts[info.name]})" for info in self.run.splits() if info.kind == "ood"]
        bank = f", a bank of {counts[BANK]}" if BANK in counts else ""
        ood = f"OOD sets {', '.join(sets)}" if sets else "no OOD set"
        return f"fitted on {counts[FIT]} samples, calibrated on {counts[CALIBRATION]}{bank}; {ood}"

    def _given(self, data: Any, *, split: str = "", labelled: bool = True) -> Samples:
        dtype = input_dtype(self.model)
        return samples_of(data, name="data", dtype=dtype, labelled=labelled, preprocess=self._preprocess, split=split)

    def _needed(self, what: str) -> _Fitted:
        if self._fitted is None:
            state = "not fitted" if self._scorer is None else "loaded from a bundle"
            raise EvaluationError(f"this detector is {state}, so there is no {what}; call fit(data) first")
        return self._fitted


def _extract_settings(given: Mapping[str, Any]) -> ExtractConfig:
    found = section(ExtractConfig, given, where="extract")
    ignored = next((name for name in given if name not in EXTRACT), None)
    if ignored is not None:
        raise ConfigError(
            f"extract.{ignored}: it is for the commands, wanted batch_size, part_size or seed; the model decides where "
            "to compute, and a DataLoader how samples are read"
        )
    return found


@contextmanager
def _telling(progress: bool | Progress) -> Iterator[Progress | None]:
    """Progress function: a bar on standard error for True, nothing for False, and a function itself."""
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield None
        return
    with progress_bar(Console(file=sys.stderr, markup=False, emoji=False)) as tell:
        yield tell
