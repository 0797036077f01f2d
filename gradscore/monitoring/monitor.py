"""Watch a deployed model without labels: window by window, the estimated accuracy and what changed."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter, model_validator

from ..data import are_images
from ..deployment import BUNDLE, CLASS, CONFIDENCE, DETECTORS, WATCHED, Bundle, is_stream, read_bundle
from ..errors import DataError, MonitorError
from ..notices import printable, storable
from ..system import (
    FloatArray,
    as_rate,
    checked,
    closest,
    file_sha256,
    held,
    make_folder,
    parse_document,
    sha256,
    write_text,
)
from .accuracy import MIXED_OOD, UNKNOWN, EstimatedAccuracy, Sums
from .changes import (
    CLASSES,
    FEWEST,
    Change,
    Suspicious,
    Window,
    changes_of,
    checked_window,
    come_in_runs,
    effective_classes,
)
from .streams import NOVELTY, Novelty, Stream, after_window

ALPHA = 0.01
"""Probability of a false alarm, ever, by default."""

NOT_LEARNT = (
    "the bundle was made without --monitor, so what P(wrong) is worth under shift was not learnt, and no accuracy can "
    "be estimated; gradscore bundle --monitor learns it"
)
"""Notice on a bundle without shifted copies."""

NO_IMAGES = "samples that are no images have no estimated accuracy: changes are noticed without it"
"""Notice on a bundle for which there can be no estimated accuracy."""

SUSPICIOUS = 5
"""Samples of a window to look at."""

MOST_OOD = max(MIXED_OOD)
"""Share flagged as OOD above which a window is unlike all that was learnt from."""

MUCH_OOD = 0.15
"""Share flagged as OOD above which errors go upwards, if the samples are OOD: of OOD sets that were left out, on five
networks, the interval lay above the accuracy of 29 % of the windows with such a share, and of 12 % of others."""

WHY_LESS = (
    f"where more than {100 * MUCH_OOD:.0f} % of a window is flagged as OOD, and these are of no known class, fewer "
    "predictions may be right than its interval says, as in three of ten windows with OOD sets that were left out; "
    "where they are shifted samples, more may be"
)
TOO_FEW = (
    f"a window in which fewer than {FEWEST} samples could be scored has no estimated accuracy; gradscore score says "
    "why the others could not (column error)"
)
TOO_ODD = (
    f"no accuracy is given for a window with more than {100 * MOST_OOD:.0f} % flagged as OOD: it is unlike all that "
    "the bundle learnt from; look at its samples"
)
IN_RUNS = (
    "samples of the same predicted class follow each other more often than by chance, as where they are sorted, "
    "repeated or depend on each other (frames of a video): an alarm may come of that alone; give samples in the order "
    "in which they came, and of those that depend on each other one"
)
FEW_CLASSES = (
    "the predictions of a window are of fewer than half as many classes as usual: where the others do not come, and "
    "the samples are shifted as well, the accuracy is often below its interval"
)
NOTHING_KNOWN = (
    "an interval from 0 to 1 says that the accuracy cannot be known: the estimates of kinds of shift that were "
    "left out were this far off"
)


_PATIENCE = 10.0
"""Seconds to wait for monitors with other states in the same folder, which hold it for as long as they write one."""

_Version = Literal[15]
"""Version of the format of a state."""

_ADVICE = "restore it from a copy, or remove it to start anew"


class Monitor:
    """Watches what a scorer says of new samples; no labels are needed.

    Attributes:
        bundle: what the scorer works with.
        window: samples of a window.
        alpha: bound of the probability of a false alarm, ever.
        path: the file of its state; None where that is in memory only.
    """

    @checked
    def __init__(
        self, bundle: Bundle, *, window: int = 1000, alpha: float = ALPHA, state: str | Path | None = None
    ) -> None:
        """Begins to watch, or goes on where a state ends.

        Args:
            bundle: what the scorer works with.
            window: samples of a window.
            alpha: bound of the probability of a false alarm, ever, in (0, 1).
            state: a file that holds what is known between calls; what is there is gone on with. In memory only if None.

        Raises:
            MonitorError: the state is damaged or not of this bundle.
            DataError: windows too small.
            ConfigError: alpha out of range.
        """
        self.bundle, self.window, self.alpha = bundle, checked_window(window), as_rate(alpha, "alpha")
        known_sets = bundle.known_sets
        self._watched, self._classes = list(known_sets.calibration.columns), known_sets.classes
        self._accuracy, self._novelty = EstimatedAccuracy.learnt(known_sets), Novelty.learnt(known_sets)
        self._usual_classes = effective_classes(known_sets.calibration.columns[CLASS])
        self.path = None if state is None else Path(state)
        self._state = State(
            bundle=bundle.identity,
            window=self.window,
            alpha=self.alpha,
            streams={name: Stream.of(values) for name, values in self._values(known_sets.calibration.columns).items()},
            sums=self._accuracy.terms.none,
        )
        self._lock = threading.Lock()
        self._mark = None if self.path is None else mark_of(self.path)
        if self.path is not None and self._mark is not None:
            self._state = read_state(self.path, self._state)
        self._opened: tuple[State | None, list[Window]] = (None, [])
        self._learnt = bool(known_sets.shifted)

    @classmethod
    @checked
    def load(
        cls, path: str | Path, *, window: int = 1000, alpha: float = ALPHA, state: str | Path | None = None
    ) -> Self:
        """Reads a bundle, without its model, and begins to watch; see `Monitor`.

        Raises:
            BundleError: a damaged bundle.
        """
        return cls(read_bundle(Path(path)), window=window, alpha=alpha, state=state)

    @property
    def notices(self) -> list[str]:
        """Notices on the windows so far."""
        windows = self.windows
        applies = {
            f"{self._state.repeated:,} samples are counted twice: they have the names and scores of the call before; "
            "give each sample once, and begin anew in another folder where that matters": self._state.repeated > 0,
            IN_RUNS: any(each.in_runs for each in windows),
            NOT_LEARNT if are_images(self.bundle.self_test.inputs) else NO_IMAGES: not self._learnt,
            TOO_FEW: any(0 < each.samples - each.not_scored < FEWEST and each.complete for each in windows),
            WHY_LESS: any(each.accuracy is not None and (each.ood or 0.0) > MUCH_OOD for each in windows),
            TOO_ODD: self._learnt and any(each.ood is not None and each.ood > MOST_OOD for each in windows),
            FEW_CLASSES: any(each.accuracy is not None and each.few_classes for each in windows),
            NOTHING_KNOWN: any(each.accuracy is not None and (each.low, each.high) == (0.0, 1.0) for each in windows),
        }
        return [notice for notice, is_so in applies.items() if is_so]

    @property
    def watched(self) -> list[str]:
        """What is watched: scores, the confidence, gradients of groups of parameters, and the novelty of it all."""
        return list(self._state.streams)

    def _values(self, columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """(n,) of each stream, from all that is watched of samples."""
        found = {name: values for name, values in sorted(columns.items()) if is_stream(name)}
        found[CLASSES] = columns[CLASS]
        return found if self._novelty is None else {**found, NOVELTY: self._novelty.of(columns)}

    @property
    def windows(self) -> list[Window]:
        """All windows so far; the last one may be incomplete."""
        return [*self._state.windows, *self._open_window()]

    @property
    def changes(self) -> list[Change]:
        """Changes so far, each with its alarms, which stand until the monitor starts anew, with another bundle say."""
        return changes_of(self.windows, usual=self._accuracy.usual)

    def update(self, table: pd.DataFrame) -> list[Window]:
        """Takes samples in the order in which they came; with a state, it is written. Threads take turns.

        Args:
            table: what `Scorer(samples, watch=True)` gives, a row for each sample.

        Returns:
            The windows that became complete.

        Raises:
            DataError: no table, columns are missing or there twice, or values are none that this bundle gives.
                Nothing is taken then.
            MonitorError: the state was replaced since it was read, by another monitor say. Nothing is taken then.
            OutputError: the state cannot be written. Nothing is taken then.
        """
        rows = self._rows(table)
        with self._lock:
            return self._taken(rows)

    def _taken(self, rows: pd.DataFrame) -> list[Window]:
        names = "\n".join(map(str, rows["sample_id"])).encode(errors="backslashreplace")
        last = sha256(names + rows[list(map(_column, self._watched))].to_numpy(dtype=np.float64).tobytes())
        last = last if len(rows) else self._state.last  # a call without samples is none to compare with
        repeated = len(rows) if last == self._state.last else 0
        state, before = self._state, len(self._state.windows)
        state = replace(state, last=last, repeated=state.repeated + repeated)
        while len(rows):
            free = self.window - state.pending_samples
            state, rows = self._with_rows(state, rows.iloc[:free]), rows.iloc[free:]
            state = self._closed(state) if state.pending_samples == self.window else state
        if self.path is not None:
            self._mark = write_state(self.path, state, replaces=self._mark)
        self._state = state
        return list(state.windows[before:])

    def _rows(self, table: pd.DataFrame) -> pd.DataFrame:
        watched = list(map(_column, self._watched))
        wanted = ["sample_id", "decision", "reason", BUNDLE, *watched, *self._judged]
        if not isinstance(table, pd.DataFrame):
            raise DataError(
                f"table: wanted a data frame, as Scorer(samples, watch=True) gives, got {type(table).__name__}"
            )
        twice = next((name for name in table.columns[table.columns.duplicated()] if name in wanted), None)
        if twice is not None:
            raise DataError(f"table: column {twice!r} is there twice; leave one of them out")
        missing = [name for name in wanted if name not in table]
        if missing:
            raise DataError(
                f"table: no column {missing[0]!r}; wanted what Scorer(samples, watch=True) of the same bundle gives; "
                f"{closest(missing[0], list(map(str, table.columns)))}"
            )
        rows = table[wanted].reset_index(drop=True)
        rows["reason"] = rows["reason"].astype(object).where(rows["reason"].notna(), "")  # a CSV file has no empty text
        is_lost = rows["decision"].isin(["error"]).to_numpy()

        def check(name: str, is_right: NDArray[np.bool_], what: str) -> None:
            wrong = np.flatnonzero(~(is_right | is_lost))
            if len(wrong):
                sample, got = (rows[each].iloc[wrong[:1]].tolist()[0] for each in ("sample_id", name))
                raise DataError(
                    f"table: column {name!r}: wanted {what}, got {printable(repr(got))} in row {wrong[0]} "
                    f"({printable(str(sample))}), such rows: {len(wrong)}; give what Scorer(samples, watch=True) of "
                    "the same bundle gives, as it is"
                )

        check("decision", rows["decision"].isin(["accept", "reject"]).to_numpy(), "accept, reject or error")
        check("reason", rows["reason"].map(lambda value: isinstance(value, str)).to_numpy(dtype=np.bool_), "text")
        check(BUNDLE, rows[BUNDLE].isin([self._state.bundle]).to_numpy(), f"the bundle {self._state.bundle[:12]}...")
        for name in [*watched, *self._judged]:
            values = _numbers(rows[name])
            may_be_missing = rows[name].isna().to_numpy() & name.startswith("probability_")
            check(name, np.isfinite(values) | may_be_missing, "a finite number")
            if name.startswith(("probability_", "p_value_")):
                check(name, ((values >= 0) & (values <= 1)) | may_be_missing, "a number from 0 to 1")
            rows[name] = values
        classes = np.isin(rows[_column(CLASS)], np.arange(self._classes))
        check(_column(CLASS), classes, f"a class from 0 to {self._classes - 1}")
        return rows

    @property
    def _judged(self) -> list[str]:
        return [f"{kind}_{name}" for name in self.bundle.detectors for kind in ("probability", "p_value")]

    def _with_rows(self, state: State, rows: pd.DataFrame) -> State:
        """The state with more rows of its window, in which values that are missing are None."""
        scored = rows[(rows["decision"] != "error").to_numpy()]
        columns = {name: scored[_column(name)].to_numpy(dtype=np.float64) for name in self._watched}
        kept = rows[["sample_id", "decision", "reason", *self._judged]].assign(
            **{name: pd.Series(values, index=scored.index) for name, values in self._values(columns).items()}
        )
        kept = kept.astype(object).where(kept.notna(), None)
        pending = {str(name): [*state.pending.get(str(name), []), *kept[name].tolist()] for name in kept}
        return replace(state, pending=pending, sums=self._accuracy.terms.added(state.sums, columns))

    def _closed(self, state: State) -> State:
        window, streams = self._window(state, complete=True)
        return replace(
            state,
            streams=streams,
            windows=(*state.windows, window),
            pending={},
            sums=self._accuracy.terms.none,
        )

    def _open_window(self) -> list[Window]:
        """The window that is not complete, if there is one, which is worked out once for each state."""
        state, found = self._opened
        if state is not self._state:
            found = [self._window(self._state, complete=False)[0]] if self._state.pending_samples else []
            self._opened = (self._state, found)
        return found

    def _window(self, state: State, *, complete: bool) -> tuple[Window, dict[str, Stream]]:
        """Figures of the pending rows, and the streams after them."""
        rows = pd.DataFrame(dict(state.pending))
        scored = rows[(rows["decision"] != "error").to_numpy()]
        values = {name: scored[name].to_numpy(dtype=np.float64) for name in state.streams}
        name = str(len(state.windows) + 1)
        streams, alarms, e_values = after_window(
            state.streams,
            values,
            before=state.windows,
            name=name,
            alpha=self.alpha,
            seed=int(state.bundle, 16),
            not_scored=len(rows) - len(scored),
        )
        flagged = scored["reason"].str.contains(DETECTORS["ood"].reason) if len(scored) else None
        ood = float(flagged.mean()) if flagged is not None and "ood" in self.bundle.detectors else None
        is_known = ood is None or ood <= MOST_OOD
        estimate = self._accuracy.of_sums(state.sums) if is_known else UNKNOWN
        window = Window(
            name=name,
            first=state.samples - len(rows),
            samples=len(rows),
            not_scored=len(rows) - len(scored),
            complete=complete,
            accuracy=estimate.accuracy,
            low=estimate.low,
            high=estimate.high,
            mean_confidence=float((1 / (1 + np.exp(-values[CONFIDENCE]))).mean()) if len(scored) else None,
            ood=ood,
            rejected=float((scored["decision"] == "reject").mean()) if len(scored) else None,
            in_runs=come_in_runs(values[CLASSES]),
            few_classes=effective_classes(values[CLASSES]) < self._usual_classes / 2,
            log10_e_values=e_values,
            alarms=alarms,
            suspicious=self._suspicious(scored),
        )
        return window, streams

    def _suspicious(self, scored: pd.DataFrame) -> list[Suspicious]:
        """Samples with the smallest p-value of any detector."""
        columns = [f"p_value_{name}" for name in self.bundle.detectors]
        least = scored[columns].min(axis=1).to_numpy(dtype=np.float64)
        found = []
        for place in np.argsort(least, kind="stable")[:SUSPICIOUS]:
            row = scored.iloc[int(place)]
            chance = row.get("probability_wrong")  # a baseline that decides has none
            found.append(
                Suspicious(
                    sample_id=storable(str(row["sample_id"])),
                    probability_wrong=None if pd.isna(chance) else float(chance),
                    reason=str(row["reason"]),
                )
            )
        return found


def _column(name: str) -> str:
    return {CLASS: "prediction"}.get(name, name if name.startswith("score_") else f"{WATCHED}{name}")


def _numbers(column: pd.Series[Any]) -> FloatArray:
    """(n,) its numbers, NaN for all that is none: text of digits, too."""
    if not pd.api.types.is_any_real_numeric_dtype(column):
        column = column.where(column.map(lambda value: isinstance(value, Real)))
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


@dataclass(frozen=True, kw_only=True)
class State:
    """State of a monitor.

    Attributes:
        bundle: hash of what it compares with; a state belongs to one bundle.
        window: samples of a window.
        alpha: probability of a false alarm, ever.
        streams: what is watched, by name.
        sums: over the samples of the window that is not complete.
        windows: those that are complete.
        pending: rows of the window that is not complete, as columns of plain values.
        last: hash of the names and scores of the last call.
        repeated: samples of calls that were like the one before.
    """

    bundle: str
    window: int
    alpha: float
    streams: Mapping[str, Stream]
    sums: Sums
    windows: tuple[Window, ...] = ()
    pending: Mapping[str, list[Any]] = field(default_factory=dict)
    last: str = ""
    repeated: int = 0

    @property
    def pending_samples(self) -> int:
        """Samples of the window that is not complete."""
        return len(next(iter(self.pending.values()), []))

    @property
    def samples(self) -> int:
        """Samples so far."""
        return sum(window.samples for window in self.windows) + self.pending_samples


class _StateFile(BaseModel):
    """The file of a state, with a hash of the state."""

    format: Literal["gradscore monitor"]
    version: _Version
    sha256: str
    state: State

    @model_validator(mode="before")
    @classmethod
    def _is_as_written(cls, file: Any) -> Any:
        if isinstance(file, dict) and sha256(_text(file.get("state")).encode()) != file.get("sha256"):
            raise ValueError("it was changed after it was written")
        return file


_STORED = TypeAdapter(_StateFile)


def mark_of(path: Path) -> str | None:
    """Mark that tells the content of a state from any other; None where there is no file."""
    if path.exists() and not path.is_file() and not path.is_dir():  # reading a pipe would wait for who writes to it
        raise MonitorError(f"{path}: wanted a file for the state, got a device or a pipe; give the path of a file")
    try:
        return file_sha256(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise MonitorError(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from None


def write_state(path: Path, state: State, *, replaces: str | None) -> str | None:
    """Writes a state in one step.

    Args:
        path: the file.
        state: what it will hold.
        replaces: the mark of what was there when this monitor last looked.

    Returns:
        The mark of what is there now.

    Raises:
        MonitorError: something else is there by now, which would be lost.
        OutputError: it cannot be written; what was there before still is.
        StoreError: another process holds the folder.
    """
    (version,) = get_args(_Version)
    unsigned = _StateFile.model_construct(format="gradscore monitor", version=version, sha256="", state=state)
    file = unsigned.model_dump(mode="json")
    file["sha256"] = sha256(_text(file["state"]).encode())
    make_folder(path.parent)
    with held(path.parent, patience=_PATIENCE):
        if mark_of(path) != replaces:
            raise MonitorError(
                f"{path}: another monitor wrote this state meanwhile; none of these samples is counted. Load the state "
                "again and give them again"
            )
        write_text(path, _text(file) + "\n")
        return mark_of(path)


def read_state(path: Path, fresh: State) -> State:
    """Reads a state back.

    Args:
        path: the file.
        fresh: what the monitor would begin with, which the state has to belong to.

    Raises:
        MonitorError: it is damaged, or belongs to another bundle or other settings.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MonitorError(f"{path}: cannot be read: {error.strerror}; check its permissions") from None
    state = parse_document(content, _STORED, where=path, error=MonitorError, advice=_ADVICE).state
    if state.bundle != fresh.bundle:
        raise MonitorError(
            f"{path}: belongs to another bundle; give each bundle a state (or folder) of its own, or remove the file "
            "to start anew with this one"
        )
    for setting in ("window", "alpha"):
        before, now = getattr(state, setting), getattr(fresh, setting)
        if before != now:
            raise MonitorError(
                f"{path}: was begun with {setting} {before}, got {setting} {now}; go on with the same, or give another "
                "folder"
            )
    return state


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)
