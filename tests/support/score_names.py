"""Names of scores by what they look at."""

from gradscore.scores import SCORES
from gradscore.scores.score import Needs


def score_names(needs: Needs) -> list[str]:
    """In the order of `SCORES`."""
    return [name for name in SCORES if SCORES[name].needs == needs]
