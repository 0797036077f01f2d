"""Three lines of Python: a detector of wrong predictions and OOD samples for a model and loaders that are there.

In come a model object and samples as a program has them; out come a fitted `Detector`, tables of scores and a `Report`.

There is no second pipeline. `Detector.fit` writes an ordinary run folder, a temporary one unless it is given: its
tables come through the extractor, the cutting into batches and the writer that `gradscore extract` uses, and then the
functions behind `fit-meta`, `bundle`, `score` and `evaluate` do the rest. Functions that take tables instead would have
had to carry all that a run folder carries anyway: identities of fits, checksums, the last layer, settings. So the
numbers are those of the commands to the last digit (with as many threads), commands understand the folder, and whatever
a run folder learns to do works from here.

`fit_data` and `runs` turn what is given into settings and streams of samples, `images` makes auxiliary sets and keeps
thumbnails, within bounds; `recipe` sees that one builds the model; `report` is what evaluations give, `progress` has
the bar.
"""

from __future__ import annotations

from .detector import Detector
from .report import Report

__all__ = ["Detector", "Report"]
