"""The same figures as reference implementations give on the same arrays."""

import numpy as np
import pytest
from delong_reference import interval_of, variance_of

from gradscore.evaluation.intervals import paired_delong
from gradscore.evaluation.metrics import aurc, auroc, risk_coverage

# The 113 patients of Turck et al., Intensive Care Medicine 2010, as pROC 1.19 carries them (aSAH): outcome poor,
# grade of the World Federation of Neurological Surgeons, and S100-beta in units of 0.01 micrograms per litre.
POOR = (
    np.array(
        [
            *"00001101001011001011101000000000100110110000000001100010001010011101101111000110100000010000000000001111110001000"
        ]
    )
    == "1"
)
GRADE = [
    *map(
        int,
        "11113254125255125225211112121134214541425511241125521251222151125214524414121421232421451154221113125225552445111",
    )
]
S100B = """
    13 14 10 4 13 10 47 16 18 10 12 10 44 71 4 8 49 4 7 33 9 9 7 11 7 17 7 11 13 19 5 16 41 14 34 35 48 9 96
    25 50 46 16 7 43 45 11 8 9 86 52 8 6 13 207 10 14 15 7 6 77 5 9 30 3 9 4 23 70 9 27 71 8 26 8 16 9 13 10
    8 11 33 11 28 7 10 32 22 7 5 24 38 10 15 8 14 10 7 4 19 56 14 58 32 82 74 15 47 17 44 15 50 48
"""
PATIENTS = {"wfns": np.array(GRADE, dtype=np.float64), "s100b": np.array(S100B.split(), dtype=np.float64)}


@pytest.mark.parametrize(
    ("marker", "area", "variance"),
    [("wfns", 0.8236789, 0.00146991470882363), ("s100b", 0.7313686, 0.00266868245717244)],
)
def test_variance_is_that_of_proc(marker, area, variance):
    assert auroc(PATIENTS[marker], POOR) == pytest.approx(area, abs=5e-8)
    assert variance_of(interval_of(PATIENTS[marker], POOR)) == pytest.approx(variance, rel=1e-12)


def test_paired_test_is_that_of_proc():
    result = paired_delong(PATIENTS["wfns"], PATIENTS["s100b"], POOR)
    assert result.p_value == pytest.approx(0.0271757822291882, rel=1e-12)
    assert (result.low, result.high) == pytest.approx((0.0104061769564846, 0.174214419249478), rel=1e-12)


# Computed by fd_shifts.analysis.rc_stats (IML-DKFZ/fd-shifts at c4467ae), the code of Traub et al., "Overcoming Common
# Flaws in the Evaluation of Selective Classification Systems", 2024.
STEPS = np.arange(200)
UNCERTAIN = np.sin(STEPS * STEPS / 7.0)
WRONG = (UNCERTAIN + np.cos(5.0 * STEPS)) > 1.1


def test_aurc_is_that_of_fd_shifts():
    # It joins the risks of 1 to N samples by straight lines, where the definition takes their mean.
    first, last = risk_coverage(UNCERTAIN, WRONG).risk[[0, -1]]
    assert aurc(UNCERTAIN, WRONG) + (first - last) / (2 * len(STEPS)) == pytest.approx(0.06413998329043919, rel=1e-12)
