"""The demo: real images, a network, and the commands from training to decisions.

In comes the name of a folder; out comes the folder as a user has one (`project`): images, code and a configuration. The
files of this package are those that it gets, and `net.py` trains the network where it lies there.
"""

from __future__ import annotations

from .demo_folder import Step, example, project, steps, train
