"""Where the command line begins: an interrupt while it loads ends it as one later does."""

from __future__ import annotations

import sys


def main() -> None:
    """Loads the command line and runs it."""
    try:
        from .main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run the same command again\n")
        sys.exit(130)
