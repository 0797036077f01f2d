"""Names of scores by what they look at."""

from gradscore.baselines import BASELINES
from gradscore.baselines.baselines import Needs


def score_names(needs: Needs) -> list[str]:
    """In the order of `BASELINES`."""
    return [name for name in BASELINES if BASELINES[name].needs == needs]
