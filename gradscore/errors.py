"""The errors gradscore raises.

Every message says what went wrong, where, what was wanted, what was found, and what to do about it.
The command line turns a `GradscoreError` into one line on standard error and the exit code the class names.
"""

from __future__ import annotations

from typing import ClassVar


class GradscoreError(Exception):
    """Base class of every error raised on purpose by gradscore."""

    exit_code: ClassVar[int] = 2


FORBIDDEN = "this user may not read it; change its permissions"
"""Message for a file that raises `PermissionError`, which need not be damaged; it follows the path."""


def reason(error: BaseException) -> str:
    """The first line of what an error says, with its kind where that is a key alone, or its kind."""
    kind, said = type(error).__name__, str(error).strip()
    return f"{kind}: {said}".splitlines()[0] if isinstance(error, KeyError) else (said or kind).splitlines()[0]


class ConfigError(GradscoreError):
    """A configuration that cannot be read or does not validate."""


class ModelError(GradscoreError):
    """A model that cannot be built, or a checkpoint that does not fit it."""


class DataError(GradscoreError):
    """A data set, sample or label that cannot be used."""


class BadSampleError(DataError):
    """A sample that cannot be used, where none is to be left out."""


class DoubtfulLabelsError(DataError):
    """Labels that are probably not those that the network learned, so that figures would mean nothing."""

    exit_code: ClassVar[int] = 3


class EngineError(GradscoreError):
    """Per-sample gradients that cannot be computed for this graph."""


class CoupledSamplesError(EngineError):
    """The loss of one sample depends on other samples of the batch, so per-sample gradients are not defined."""


class AmplifiedRoundingError(EngineError):
    """A network whose outputs are made of its own rounding, so that they change with the size of the batch."""


class StoreError(GradscoreError):
    """A run folder that is damaged, missing a part, or made from other inputs."""


class OutputError(GradscoreError):
    """A target that cannot be written."""


class ObjectStorageError(GradscoreError):
    """Object storage that cannot be reached or does not do what it is asked, or an address that cannot be used."""


class EvaluationError(GradscoreError):
    """Features from which nothing can be fitted or reported."""


class MissingExtraError(GradscoreError):
    """An optional package is needed and not installed."""


class BundleError(GradscoreError):
    """A scorer bundle that is damaged, incomplete, or does not fit the model it is used with."""


class ExpectedFiguresError(GradscoreError):
    """A file of expected figures that is damaged, or cannot be compared with a run."""


class MonitorError(GradscoreError):
    """A monitor's state that is damaged or belongs to something else, or a bundle that nothing can be watched with."""
