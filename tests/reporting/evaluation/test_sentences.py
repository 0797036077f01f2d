import numpy as np
import pytest

from gradscore.evaluation import Record
from gradscore.reporting.evaluation.figures import Figures
from gradscore.reporting.evaluation.sentences import gains, headlines
from gradscore.reporting.plots import histograms, thinned

TEST = "in_dist.test"


def record(metric="auroc", *, task="misclassification", protocol="in_dist_only", dataset=TEST, score="meta",
           value=0.9, low=0.85, high=0.93, n=500, n_positive=50):  # fmt: skip
    return Record(
        task=task, protocol=protocol, dataset=dataset, score=score, metric=metric, value=value, low=low, high=high, n=n,
        n_positive=n_positive,
    )  # fmt: skip


def gain(over, *, low, high):
    return record(f"auroc_gain_over_{over}", value=(low + high) / 2, low=low, high=high)


def compared(*found):
    baselines = [record(score="msp", value=0.88), record(score="energy", value=0.8), record(score="logit_lr")]
    return gains(Figures([record(), *baselines, *found]))


VERDICTS = {
    "above both": ((0.01, 0.03), (0.02, 0.04), "pays", "Gradients pay here."),
    "zero inside": ((-0.01, 0.03), (0.02, 0.04), "open", "do not show that gradients pay"),
    "zero at the edge": ((0.0, 0.03), (0.02, 0.04), "open", "An interval includes zero"),
    "below one": ((-0.03, -0.01), (0.02, 0.04), "worse", "use the score that does better"),
}


@pytest.mark.parametrize(("best", "logits", "kind", "text"), VERDICTS.values(), ids=VERDICTS.keys())
def test_gradients_pay_only_above_both_rivals(best, logits, kind, text):
    (found,) = compared(
        gain("msp", low=best[0], high=best[1]), gain("logit_lr", low=logits[0], high=logits[1]),
        gain("energy", low=-1.0, high=-0.5),
    )  # fmt: skip
    assert (found.label, found.kind) == ("Wrong predictions", kind)
    assert text in found.text


def test_the_comparison_names_rival_and_interval():
    (found,) = compared(gain("msp", low=-0.01, high=0.03))
    assert "AUROC gained over msp, the best single score on these samples, +0.010 (-0.010 to +0.030)" in found.text


def test_too_few_samples_give_no_verdict():
    assert gains(Figures([record(value=None, low=None, high=None)])) == []


def test_the_headline_in_plain_words():
    (found,) = headlines(Figures([record()]))
    assert (found.value, found.interval) == ("0.900", "AUROC (0.850 to 0.930)")
    assert "more suspicious 90.0 % of the time (50 wrong, 450 right)." in found.text


def test_few_mistakes_are_said_in_the_headline():
    (found,) = headlines(Figures([record(n_positive=5)]))
    assert "Only 5 are wrong, so the interval is wide." in found.text


def test_leave_one_out_is_the_headline_for_ood():
    found = [record(task="ood", protocol=name, dataset="a") for name in ("known", "leave_one_out", "in_dist_only")]
    (headline,) = headlines(Figures(found))
    assert headline.title == "OOD: a"
    assert "fitted on the other OOD sets only" in headline.text


def test_groups_stand_for_their_sets():
    ood = {"task": "ood", "protocol": "leave_one_out"}
    sets = [record(**ood, dataset=name) for name in ("a", "b")]
    groups = [
        record(**ood, dataset="near (mean)"),
        record(**ood, dataset="near (pooled)", value=0.7, low=0.6, high=0.8),
    ]
    (headline,) = headlines(Figures([*sets, *groups]))
    assert (headline.title, headline.interval) == ("Near OOD", "mean AUROC (0.850 to 0.930)")
    assert "Pooled over all samples: 0.700 (0.600 to 0.800)." in headline.text


def test_nothing_to_report_has_no_headline():
    assert headlines(Figures([])) == []


def test_thinned_curves_keep_their_ends():
    x, y = thinned(np.arange(5000.0), np.arange(5000.0) ** 2)
    assert (len(x), x[0], x[-1]) == (300, 0.0, 4999.0)
    assert (y == x**2).all()


def test_histograms_hold_every_sample():
    generator = np.random.default_rng(0)
    values = generator.standard_cauchy(1000)
    found = histograms(
        [("a", values, "#000000"), ("b", values[:50], "#ffffff")], name="n", title="t", caption="c", x_label="x"
    )
    areas = [np.sum(density * np.diff(found.edges)) for _, density, _ in found.densities]
    assert areas == pytest.approx([1.0, 1.0])


def test_a_histogram_of_one_value():
    found = histograms([("a", np.ones(3), "#000000")], name="n", title="t", caption="c", x_label="x")
    assert (found.edges[0], found.edges[-1]) == (0.5, 1.5)
