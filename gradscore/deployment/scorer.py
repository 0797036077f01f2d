"""Decide on new samples: from a bundle and images or other samples to accept or reject, with the reason."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..columns import logit_columns
from ..config import ModelConfig
from ..data import (
    BadSample,
    Batch,
    Preprocessing,
    RawSample,
    augmentation_name,
    is_pixels,
    prepared_batches,
)
from ..errors import BundleError, DataError, ModelError
from ..extractor import Extractor, check_mode, input_dtype
from ..losses import LOSSES
from ..meta import BaselineScore, MetaModel, drivers, explained, largest_group
from ..models import (
    CodeOrigin,
    Interface,
    attribute_state,
    build_model,
    is_code_trusted,
    memory_state,
    to_be_named,
    trusting_code,
    weights_sha256,
)
from ..notices import called
from ..system import (
    Device,
    FloatArray,
    Inputs,
    checked,
    checked_but,
    each_input,
    is_address,
    is_whole,
    magnitudes,
    resolve_device,
    rows_of,
    sample_count,
)
from .bundle_file import Bundle, read_bundle
from .calibration import DETECTORS, ScoreInputs, p_values
from .known_sets import BUNDLE, CLASS, WATCHED, watched
from .raw_inputs import Given, Images, SampleForm, as_texts, form_of, kind_of, raw_images, raw_samples
from .self_test import check_answers

CHANNELS = (1, 3, 4)
"""Sizes of the last axis of the pixels of one image."""

_SAME_SCALE = 10.0
"""Samples whose values are usually so many times as large, or as small, as known ones are on another scale."""

NOT_FINITE = "its logits or gradients are not finite"

WEIGHTS = "--weights FILE"
"""How a command is told where weights are now that were moved."""


class Scorer:
    """Scores samples with the model, meta models and thresholds of a bundle; made by `Scorer.load`.

    One scorer may be called from several threads; the calls take turns.

    Attributes:
        bundle: what it works with.
        form: that of its samples.
        input_shape: (C, H, W) of the samples the bundle was made with; names and shapes of keyword inputs.
    """

    @checked
    def __init__(
        self,
        bundle: Bundle,
        model: nn.Module,
        *,
        device: Device | None = "auto",
    ) -> None:
        """Takes a bundle and its model with weights; `Scorer.load` does so from a file, and says where code may lie.

        Without a device the model stays where it is.

        Raises:
            BundleError: the model is not that of the bundle, or it answers the self-test differently.
            ModelError: a model that cannot be scored as it stands.
        """
        check_mode(model)
        _check_weights(bundle, model)
        _check_losses(bundle)
        self.bundle = bundle
        self._columns = pd.Index(bundle.columns)  # made once: there are thousands
        logits = set(logit_columns(bundle.columns))
        self._logits = [place for place, name in enumerate(bundle.columns) if name in logits]
        self._lock = threading.RLock()
        self._is_scale_told = False
        self._preprocess = Preprocessing(bundle.preprocessing)
        self.form = SampleForm(bundle.self_test.inputs, self._preprocess, bundle.input_columns)
        self.input_shape = self.form.shape
        self._dtype = input_dtype(model)
        config = bundle.model
        self._interface = Interface(num_classes=config.classes, output=config.output, one_logit=config.one_logit)
        self._extractor = self._new_extractor(model if device is None else model.to(resolve_device(device)))
        self._state, self._frozen = memory_state(self.model), _frozen(self.model)
        self._settings = attribute_state(self.model)
        self._self_test()
        self._extractor.engine.warns = True  # of what extract has not said

    @classmethod
    @checked
    def load(
        cls,
        path: str | Path,
        *,
        trust_code: bool = False,
        device: Device | None = "auto",
        alpha: float | None = None,
        model_source: str | None = None,
        weights: str | Path | None = None,
        sha256: str | None = None,
        model: nn.Module | None = None,
    ) -> Self:
        """Reads a bundle and makes a scorer of it.

        Args:
            path: the bundle.
            trust_code: allow a `python:` model and augmentations, whose code is run.
            device: where to compute.
            alpha: another bound of the false-alarm rate than that of the bundle.
            model_source: where the model's code is, if not in a file beside the bundle or below its folder.
            weights: where its weights are now, if not where they were.
            sha256: refuse a file with another SHA-256.
            model: the model with its weights, in eval mode, where it need not be built.

        Returns:
            The scorer.

        Raises:
            BundleError: a damaged bundle, or a model that is not that of the bundle; the message says which.
            ModelError: a model that cannot be built, or whose code is not that of the bundle or not to be run.
            EvaluationError: too few calibration samples for `alpha`.
            ConfigError: the device is not there.
        """
        bundle = read_bundle(Path(path), sha256=sha256)
        bundle = bundle if alpha is None else bundle.at(alpha)
        moved: dict[str, Any] = {} if model_source is None else {"source": model_source}
        moved |= {} if weights is None else {"checkpoint": Path(weights)}
        config = ModelConfig.model_validate({**bundle.model.model_dump(), **moved})
        bundle = replace(bundle, model=config)  # what is written of it later says where they are now
        if config.checkpoint is not None and not config.checkpoint.exists():  # beside a bundle in object storage
            config = config.model_copy(update={"checkpoint": Path(called(str(config.checkpoint)))})
        is_lost = config.checkpoint is not None and not is_address(config.checkpoint) and not config.checkpoint.exists()
        options, arguments = f"--model '{to_be_named(config.source)}'", "model_source=..."
        if is_lost:  # said together, so that nobody mends one to be told of the other
            options, arguments = f"{options} {WEIGHTS}", f"{arguments}, weights=..."
        trust = "" if trust_code or is_code_trusted() else " --trust-code"
        known = bundle.augmentation_code_sha256
        origin = CodeOrigin(
            name=str(path),
            hashes={config.source: bundle.code_sha256}
            | {name: known.get(augmentation_name(name)) for name in bundle.features.augmentations},
            folders=(Path(path).absolute().parent,),
            advice=f"{options}{trust}, in Python {arguments}{trust and ', trust_code=True'}",
        )
        if model is None:
            own = origin if model_source is None else replace(origin, folders=None)
            try:
                with trusting_code(trust_code, origin=own):
                    built = build_model(config).model
            except ModelError as error:
                if not is_lost or WEIGHTS in str(error):
                    raise
                lost = f"say where {config.checkpoint} is now: {WEIGHTS}, in Python weights=..."
                raise ModelError(f"{error}; {lost}") from None
            model = _with_weights(built, config, bundle)
        with trusting_code(trust_code, origin=origin):
            return cls(bundle, model, device=device)

    @checked_but("images", "sample_ids")
    def __call__(
        self,
        images: Images | Given | pd.DataFrame | pd.Series | Sequence[Given | Mapping[str, Any]],
        *,
        sample_ids: Sequence[str] | None = None,
        explain: int = 0,
        raw: bool = False,
        watch: bool = False,
    ) -> pd.DataFrame:
        """Scores samples.

        Args:
            images: a batch (N, C, H, W), or (N, ...) of samples that are no images: floats are taken as preprocessed,
                as the model takes them; uint8 images, (N, H, W, C) as well, and (N, H, W) of a network for grey ones,
                are raw pixels and go through the preprocessing of the bundle. A mapping has keyword inputs, (N, ...)
                each. Or one or several paths, PIL images and arrays of pixels (H, W) or (H, W, C) uint8, which go
                through the preprocessing, too; one that cannot be used has a row with the error.
            sample_ids: names of the samples, numbers as texts, of which several may have the same; their paths or
                positions if None.
            explain: how many of the strongest drivers of each score to name.
            raw: samples are as the data of the bundle were before their preprocessing, which they go through: rows of a
                table (by the names of their columns, where they have some), texts, a column of them among these,
                numbers (N, ...), or mappings of these by keyword input; one that cannot be used has a row with the
                error.
            watch: add what `gradscore.Monitor` watches, in columns `watched_*`.

        Returns:
            One row for each sample: `sample_id`, `prediction` and, where classes have names, `prediction_name`; for
            each detector `probability_*` (missing where no OOD set fitted the score), `score_*` (higher = more likely
            wrong or OOD), `p_value_*` and, if asked for, `because_*` (the group of inputs that contributes most) and
            `drivers_*`; then `decision` (`accept`, `reject` or `error`), `reason` and `error`.

        Raises:
            DataError: samples of another form.
            ModelError: the model cannot take the samples, though they have the form of those that it was run on.
        """
        if raw:
            floats = isinstance(self.form.example, Tensor) and self.form.example.is_floating_point()
            given = as_texts(images, self.bundle.input_columns) if self.form.takes_texts else images
            samples = raw_samples(given, floats=floats, columns=self.bundle.input_columns)
            return self._all_raw(samples, sample_ids, explain=explain, watch=watch)
        if isinstance(images, pd.DataFrame | pd.Series):
            kind = "data frame" if isinstance(images, pd.DataFrame) else "column"
            raise DataError(f"samples: got a {kind}, whose rows are scored as the table's with raw=True")
        is_grey = len(self.input_shape) == 3 and self.input_shape[0] == 1
        if is_pixels(images) and images.ndim == 3 and is_grey and images.shape[2] not in CHANNELS:
            images = list(images)  # (N, H, W), as an .npz has them
        one_image = is_pixels(images) and len(self.input_shape) == 3
        if isinstance(images, Tensor | Mapping | np.ndarray) and not one_image:
            batch = self.form.as_taken(self.form.tensors(images))
            try:
                return self.judge(batch, sample_ids=sample_ids, explain=explain, watch=watch)
            except ModelError as error:
                if (shape := form_of(batch)) == self.input_shape:
                    raise
                said = f"samples: wanted shape {self.input_shape}, as the model was run on, got {shape}: {error}"
                raise DataError(said) from None
        samples = raw_images(images, columns=self.bundle.input_columns, takes=self.form.takes)
        return self._all_raw(samples, sample_ids, explain=explain, watch=watch)

    def __getstate__(self) -> object:
        """Refuses to be pickled or copied, as a detector with it: a scorer belongs to a model in this process."""
        raise BundleError(
            "a scorer, and a detector that is fitted, cannot be pickled or copied: save it to a bundle, which "
            "Scorer.load and Detector.load read, with model=... where the bundle does not say how to build it"
        )

    @checked_but("batch", "sample_ids")
    def judge(
        self, batch: Inputs, *, sample_ids: Sequence[str] | None = None, explain: int = 0, watch: bool = False
    ) -> pd.DataFrame:
        """Scores a batch (N, ...) as the model takes it, or keyword arguments; otherwise like a call.

        Raises:
            DataError: no tensors, names of another number than the samples, or no number of drivers in `explain`.
            ModelError: the model cannot take the samples.
        """
        if not (is_whole(explain) and explain >= 0):
            raise DataError(f"explain: wanted how many drivers to name, 0 or more, got {explain!r}")
        parts = [*batch.values()] if isinstance(batch, Mapping) else [batch]
        if not parts or not all(isinstance(each, Tensor) and each.ndim for each in parts):
            got = type(next((each for each in parts if not isinstance(each, Tensor)), batch)).__name__
            raise DataError(f"samples: wanted {kind_of(self.form.example)}, a tensor (N, ...) each, got {got}")
        count = sample_count(batch)
        names = [str(place) for place in range(count)] if sample_ids is None else _names(sample_ids, count)
        values = self._values(batch)
        if count and self.form.takes is None and (shape := form_of(batch)) != self.input_shape:
            warnings.warn(
                f"images of shape {shape} are scored, and the bundle was made with {self.input_shape}: scores and "
                "decisions change with the size; resize them, unless the bundle was made with many sizes",
                UserWarning,
                stacklevel=2,
            )
        self._look_at_magnitudes(batch)
        usable = np.isfinite(values).all(axis=1)
        table = self._judged(values[usable], explain=explain)
        if watch:
            seen = watched(pd.DataFrame(values[usable], columns=self._columns)).drop(columns=CLASS)
            table = pd.concat([table, seen.add_prefix(WATCHED)], axis=1).assign(**{BUNDLE: self.bundle.identity})
        kept, lost = (np.flatnonzero(each).tolist() for each in (usable, ~usable))
        table.insert(0, "sample_id", [names[place] for place in kept])
        return _with_errors(table, kept, [BadSample(names[place], NOT_FINITE, place) for place in lost])

    def _look_at_magnitudes(self, batch: Inputs) -> None:
        """Warns, once, where most values are on another scale: logits that grow with it make samples look sure."""
        for name, each in {} if self._is_scale_told else magnitudes(batch).items():
            known, usual = self.bundle.magnitudes.get(name, 0.0), float(each.median())
            if known and usual and not known / _SAME_SCALE <= usual <= known * _SAME_SCALE:
                self._is_scale_told = True
                warnings.warn(
                    f"{name or 'samples'}: values up to {usual:.3g}, and up to {known:.3g} where the bundle was made: "
                    "scores say little of samples on another scale; scale them as the model takes them",
                    UserWarning,
                    stacklevel=4,
                )

    def look_anew(self) -> None:
        """Has the next batch looked at for samples that depend on each other, as the first one was."""
        with self._lock:
            self._extractor.look_anew()

    @checked
    def stream(
        self, samples: Iterable[RawSample], *, batch_size: int = 64, explain: int = 0, watch: bool = False
    ) -> Iterator[pd.DataFrame]:
        """Scores samples batch by batch, in constant memory.

        One that cannot be decoded, has another size than the model takes, holds a token of no vocabulary, or whose
        values are not finite gives a row with an error; the others of its batch are scored.

        Args:
            samples: in order.
            batch_size: samples in a batch.
            explain: how many drivers of each score to name.
            watch: add what `gradscore.Monitor` watches.

        Yields:
            Tables as a call gives them, a row for each sample, in order.

        Raises:
            ModelError: the model fails on all samples of a batch of the size it was run on.
        """
        for batch in prepared_batches(samples, self._preprocess.model_input, batch_size=batch_size):
            yield self._decided(batch, explain=explain, watch=watch)

    def _all_raw(
        self, raw: Sequence[RawSample], sample_ids: Sequence[str] | None, *, explain: int, watch: bool
    ) -> pd.DataFrame:
        if sample_ids is not None:
            names = _names(sample_ids, len(raw))
            raw = [replace(image, id=name) for image, name in zip(raw, names, strict=True)]
        tables = list(self.stream(raw, explain=explain, watch=watch))
        if len(tables) == 1:
            return tables[0]
        return pd.concat(tables, ignore_index=True) if tables else self._nothing(explain=explain, watch=watch)

    def _decided(self, batch: Batch, *, explain: int, watch: bool) -> pd.DataFrame:
        """Scores a batch, with rows of errors for samples that cannot be used."""
        names, bad = batch.ids, list(batch.bad)
        unusable = {each.place for each in bad}
        places = [place for place in range(batch.places) if place not in unusable]
        table = None
        if names:
            inputs = self.form.as_taken(batch.inputs)
            try:
                table = self.judge(inputs, sample_ids=names, explain=explain, watch=watch)
            except ModelError as error:
                lost = self._refused(inputs, batch, error)
                if len(lost) in (0, len(names)) and form_of(batch.inputs) == self.input_shape:
                    raise
                bad += [BadSample(names[row], f"{names[row]}{why}", places[row]) for row, why in lost.items()]
                kept = [row for row in range(len(names)) if row not in lost]
                places = [places[row] for row in kept]
                if kept:
                    others, called = rows_of(inputs, torch.tensor(kept)), [names[row] for row in kept]
                    table = self.judge(others, sample_ids=called, explain=explain, watch=watch)
        if table is None:
            table = self._nothing(explain=explain, watch=watch)
        return _with_errors(table, places, bad)

    def _refused(self, inputs: Inputs, batch: Batch, error: ModelError) -> dict[int, str]:
        """Why the model cannot take samples (N, ...), by row: all of another size, else those it cannot take alone."""
        if (shape := form_of(batch.inputs)) != self.input_shape:
            size = f"{shape} after preprocessing, the model was run on {self.input_shape}{self.form.files}"
            return dict.fromkeys(range(sample_count(inputs)), f" has size {size}: {error}")
        found: dict[int, str] = {}
        for row in range(sample_count(inputs)):
            try:
                self._values(rows_of(inputs, slice(row, row + 1)))
            except ModelError as alone:
                found[row] = f": {alone}"
        return found

    @property
    def model(self) -> nn.Module:
        """The network that scores."""
        return self._extractor.model

    def _nothing(self, *, explain: int, watch: bool) -> pd.DataFrame:
        """The result of no sample: columns without a row."""
        return self.judge(rows_of(self.form.example, slice(0)), sample_ids=[], explain=explain, watch=watch)

    @checked
    def columns(self, *, explain: int = 0) -> list[str]:
        """The names of the columns of a result, in order."""
        return list(self._nothing(explain=explain, watch=False).columns)

    def _values(self, batch: Inputs) -> NDArray[np.float64]:
        inputs = each_input(batch, lambda each: each.to(self._dtype) if each.is_floating_point() else each)
        with self._lock:
            self.check_unchanged()
            with self._interface.attached(self.model):
                one = sample_count(inputs) == 1
                found = self._extractor.values_of_one(inputs) if one else self._extractor.values(inputs)
                self._settings = attribute_state(self.model)  # a model may count its calls
        return found

    def _new_extractor(self, model: nn.Module) -> Extractor:
        return Extractor(model, features=self.bundle.features, num_classes=self.bundle.model.classes)

    def check_unchanged(self) -> None:
        """Makes sure that the model is still that of the bundle: a program may have gone on with it.

        Raises:
            BundleError: its weights, frozen parameters, or answers to the samples of the self-test are others.
            ModelError: it is in training mode.
        """
        with self._lock:  # another thread may be in the middle of a pass, whose hooks and counts are no change
            check_mode(self.model)
            state, settings = memory_state(self.model), attribute_state(self.model)
            if state != self._state:
                _check_weights(self.bundle, self.model)
                _check_frozen(self.model, self._frozen)
            if (state, settings) == (self._state, self._settings):
                return
            before = self._state, self._settings, self._extractor
            self._state, self._settings = state, settings
            self._extractor = self._new_extractor(self.model)  # parameters may be others of the same values
            try:
                self._self_test()
            except Exception:
                self._state, self._settings, self._extractor = before
                raise
            self._extractor.engine.warns = True

    def _judged(self, values: FloatArray, *, explain: int) -> pd.DataFrame:
        predictions = values[:, self._logits].argmax(axis=1)
        table: dict[str, Any] = {"prediction": pd.array(predictions, dtype="Int64")}
        if self.bundle.class_names is not None:
            table["prediction_name"] = [self.bundle.class_names[place] for place in predictions.tolist()]
        fires: dict[str, NDArray[np.bool_]] = {}
        inputs = self.bundle.inputs
        score_inputs = ScoreInputs(inputs, values)
        for name, detector in self.bundle.detectors.items():
            model = detector.model
            scores = score_inputs.by(model)
            table[f"probability_{name}"] = model.probability(scores, at_prevalence=name == "wrong")
            table[f"score_{name}"] = scores
            table[f"p_value_{name}"] = p_values(detector.calibration, scores)
            if explain and isinstance(model, BaselineScore):
                said = [f"{model.name} {score:+.3g}" for score in scores]
                table[f"because_{name}"] = [f"{each}: the only score that decides" for each in said]
                table[f"drivers_{name}"] = said
            elif explain and isinstance(model, MetaModel):
                found = explained(model, score_inputs.scaled)
                table[f"because_{name}"] = largest_group(inputs.names, found)
                strongest = drivers(inputs.names, found.contributions, k=explain)
                table[f"drivers_{name}"] = ["; ".join(map(str, row)) for row in strongest]
            fires[name] = scores > detector.threshold.value
        reasons = [
            "; ".join(DETECTORS[name].reason for name, fired in fires.items() if fired[row])
            for row in range(len(values))
        ]
        table["decision"] = ["reject" if reason else "accept" for reason in reasons]
        return pd.DataFrame({**table, "reason": reasons, "error": [""] * len(values)})

    def _self_test(self) -> None:
        """Sees that the model answers as it did, and learns the sample layout on the way."""
        values = self._values(self.bundle.self_test.inputs)
        if self._extractor.names != self.bundle.columns:
            raise BundleError(
                f"the model gives {values.shape[1]} columns, other than the {len(self.bundle.columns)} of the bundle; "
                "the names or number of its parameters or layers changed"
            )
        check_answers(self.bundle, values)


def _names(sample_ids: Sequence[str], count: int) -> list[str]:
    is_several = isinstance(sample_ids, Iterable) and not isinstance(sample_ids, str | bytes)
    names = [*map(str, sample_ids)] if is_several else None
    if names is None or len(names) != count:
        got = type(sample_ids).__name__ if names is None else len(names)
        raise DataError(f"sample_ids: wanted {count} names, one for each sample, got {got}")
    if (missing := next((place for place, name in enumerate(sample_ids) if name is None), None)) is not None:
        raise DataError(f"sample_ids: wanted {count} names, one for each sample, got None at position {missing}")
    return names


def _with_errors(table: pd.DataFrame, places: Sequence[int], bad: Sequence[BadSample]) -> pd.DataFrame:
    """A table of results, whose rows go to these places, with rows for samples that could not be scored."""
    if not bad:
        return table
    nothing = [""] * len(bad)
    known = {
        "sample_id": [each.id for each in bad],
        "decision": ["error"] * len(bad),
        "error": [each.error for each in bad],
    }
    text = [
        str(name)
        for name in table.columns
        if name in (*known, "reason", "prediction_name") or str(name).startswith(("because_", "drivers_"))
    ]
    joined = table.reset_index(drop=True).reindex(pd.RangeIndex(len(table) + len(bad)))
    joined = joined.assign(**{name: [*table[name], *known.get(name, nothing)] for name in text})
    order = np.argsort([*places, *(each.place for each in bad)], kind="stable")
    return joined.iloc[order].reset_index(drop=True)


def _with_weights(model: nn.Module, config: ModelConfig, bundle: Bundle) -> nn.Module:
    """The model with the weights inside the bundle, unless others are named."""
    if bundle.weights is None or config.checkpoint is not None:
        return model
    try:
        model.load_state_dict(bundle.weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise BundleError(f"the weights in the bundle do not fit {config.source}: {reason}") from None
    return model


def _check_weights(bundle: Bundle, model: nn.Module) -> None:
    got = weights_sha256(model)
    if got != bundle.weights_sha256:
        raise BundleError(
            f"the bundle was made for weights of hash {bundle.weights_sha256[:12]}..., the model has {got[:12]}...; "
            "use the checkpoint it was made with, or make the bundle anew (in Python: fit again)"
        )


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def _check_frozen(model: nn.Module, wanted: set[str]) -> None:
    """Refuses a model some of whose parameters were frozen, or thawed, since: gradients of frozen ones are zero."""
    got = _frozen(model)
    if got != wanted:
        name = min(got ^ wanted)
        raise BundleError(
            f"{name}: requires_grad was {name not in wanted} when this scorer was made and is {name not in got} now, "
            "which gives its gradients other values; set it back"
        )


def _check_losses(bundle: Bundle) -> None:
    """Makes sure that all losses of a bundle are known to this process, those of a program's own too."""
    unknown = next((name for name in bundle.features.losses if name not in LOSSES), None)
    if unknown is not None:
        raise BundleError(
            f"this bundle has a loss '{unknown}' that this process does not know. Where it is a function of yours, "
            f"register it first: from gradscore.losses import LOSSES, Loss, OfLogits; LOSSES.add('{unknown}', "
            "Loss(head=OfLogits(function))). Otherwise install the package that brings it"
        )
