"""A detector for a model and loaders that are there, in three lines of Python.

In come a model object and samples as a program has them; out come a fitted `Detector`, tables of scores and a `Report`.

There is no second pipeline. `Detector.fit` writes an ordinary run folder, a temporary one unless it is given, by the
loop that `gradscore extract` uses, and then the functions behind `fit-meta`, `bundle`, `score` and `evaluate` do the
rest. So the numbers are those of the commands to the last digit (with as many threads), and commands understand the
folder.

`detector_sets` turns what is given into one stream of samples, with auxiliary sets made of them; `detector_runs` has
settings and places of run folders, and the `Report` that evaluations give.
"""

from __future__ import annotations

from .detector import Detector
from .detector_runs import Report
