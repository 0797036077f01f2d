"""The answer of an evaluation in a few sentences, the same on a terminal, on a page and for a program.

They say which score to use, what it catches, whether gradients are worth their time, and what to do next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from ..baselines import describe_baseline
from ..meta import CHOSEN, CHOSEN_APART, MARGIN, META, SOUGHT, ScoreChoice
from ..store import RunFolder
from .deployed import deployed_protocol, places_of_models
from .records import FEW_SAMPLES, MEAN, Record, is_group
from .score_tables import SCORE_LR
from .verdicts import CHANCE, NOTHING_LABELLED, NOTHING_TO_TELL, USELESS, Verdict, groups_by_set, with_single_sets

WORDS = {
    META: "the meta model",
    SCORE_LR: "the regression on all scores without gradients",
    CHOSEN_APART: "the score chosen without knowing the set",
}
"""What a sentence calls scores that are no baselines."""

SETS_NAMED = 6
"""So many OOD sets are named in the sentence on what is caught."""

PRECISION = 0.1
"""Half the width of an AUROC's 95 % interval that tells chance from use, where nothing is known of the AUROC yet."""

DECIDING = "add --score {} to gradscore bundle"
"""What to add to what to have a score decide, its name in the place of `{}`."""

IN_REACH = 20
"""A difference that takes more than so many times the samples to decide is not in sight."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """The score to use for a question.

    Attributes:
        task: `ood` or `misclassification`.
        score: its name in tables, such as `meta` or `knn`.
        words: what a sentence calls it.
    """

    task: str
    score: str
    words: str

    @property
    def needs_gradients(self) -> bool:
        """Whether features of gradients have to be computed for it."""
        return self.score == META


@dataclass(frozen=True, kw_only=True)
class DetectionRate:
    """What the chosen score catches of one set with 5 % false alarms.

    Attributes:
        task: `ood` or `misclassification`.
        what: name of the OOD set, or `wrong predictions`.
        group: the group of the set, None without one.
        share: of the OOD (or wrong) samples that is caught.
        samples: how many of them there are.
    """

    task: str
    what: str
    group: str | None
    share: float
    samples: int

    @property
    def phrase(self) -> str:
        """What is caught, as a part of a sentence."""
        return describe_share(self.share, self.samples, self.what, self.group)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to do with a run.

    Attributes:
        uses: the score to use for each question; those of a bundle.
        caught: what they catch, OOD sets first.
        sentences: the answer as plain text, in order; where there is no verdict, why, and what would do.
        no_verdict: why there is none; None where there is one.
        next_command: what to type next; None where there is no verdict.
    """

    uses: Sequence[Use] = ()
    caught: Sequence[DetectionRate] = ()
    sentences: Sequence[str] = ()
    no_verdict: str | None = None
    next_command: str | None = None

    @property
    def lines(self) -> list[str]:
        """The sentences, and the next command as the last one: what a terminal and a page show first."""
        return [*self.sentences, *([] if self.next_command is None else [f"Next: {self.next_command}"])]

    def score(self, task: str) -> str | None:
        """The name of the score to use for a task, None without one."""
        return next((each.score for each in self.uses if each.task == task), None)


def describe_score(name: str) -> str:
    """What a sentence calls a score."""
    return WORDS.get(name) or describe_baseline(name)


def choices_of(run: RunFolder, notes: Mapping[str, Mapping[str, object]]) -> dict[str, ScoreChoice]:
    """By task the choice of the model that a bundle has; `notes` are those of models by their label."""
    places = places_of_models(deployed_protocol(run))
    return {task: ScoreChoice.of_notes(notes[place]) for task, place in places.items() if place in notes}


def bundle_command(run: Path, *, has_code: bool) -> str:
    """The command that packs a run into a file that decides on new samples."""
    here = Path.cwd()
    shown = run.relative_to(here) if run.is_relative_to(here) else run
    name = "scorer" if shown.name == "run" else shown.name  # so that runs beside each other have bundles of their own
    out = quote(str(shown.parent / f"{name}.gradscore"))
    return f"gradscore bundle {quote(str(shown))} --out {out}{' --trust-code' if has_code else ''}"


def without_gradients(
    run: RunFolder, *, how: str = "With --set 'features.losses=[]' and another --out, a run"
) -> str | None:
    """How to do without the gradients of a run, and what that saves; None where it has none."""
    if not run.config.features.losses:
        return None
    share = run.share_of_gradients
    saved = "" if not share or share >= 1 else f" and extracts about {1 / (1 - share):.1f} times as fast"
    return f"{how} goes without them{saved}."


def answer_of(
    found: Sequence[Verdict],
    records: Sequence[Record],
    *,
    groups: Mapping[str, Sequence[str]],
    choices: Mapping[str, ScoreChoice],
    next_command: str,
    without_gradients: str | None = None,
    deciding: str = DECIDING,
    doubts: str = "",
) -> Answer:
    """The answer that the verdicts of an evaluation give.

    Args:
        found: the verdicts.
        records: those of the evaluation.
        groups: name of a group of OOD sets -> names of its sets.
        choices: the choice for each task.
        next_command: what to type next where there is a verdict.
        without_gradients: how to do without gradients, and what it saves; None where the run has none.
        deciding: what has a score decide, its name in the place of `{}`.
        doubts: why no figure can be trusted, if so.
    """
    if doubts:
        return Answer(sentences=[f"No verdict: {doubts}."], no_verdict=doubts)
    wanting = {task: words for task in SOUGHT if (words := _wanted(task, found, records))}
    told = [each for each in found if each.tells]
    if not told:
        counts = {each.n for each in records if each.task == "misclassification"}
        reason = "; ".join(wanting.values()) or (NOTHING_LABELLED if counts == {0} else NOTHING_TO_TELL)
        return Answer(sentences=[f"No verdict: {reason}."], no_verdict=reason)
    useful = [each for each in told if each.finds_something]
    tasks = [task for task in SOUGHT if task in choices and any(each.area.task == task for each in useful)]
    uses = [Use(task=task, score=choices[task].score, words=describe_score(choices[task].score)) for task in tasks]
    protocols = {each.area.task: each.protocol for each in found}
    caught = [each for each in _caught(protocols, records, groups) if each.task in tasks]
    sentences = [
        _use(uses),
        _catches(uses, caught),
        _chosen_without(caught, _caught(protocols, records, groups, score=CHOSEN_APART)),
        _compared(told),
        *_advice(told, groups, deciding),
        _known_to_a_bundle(told, records, groups),
        _gradients(useful, uses, without_gradients),
        *(f"No verdict on {SOUGHT[task]}: {words}." for task, words in wanting.items()),
    ]
    return Answer(
        uses=uses,
        caught=caught,
        sentences=[each for each in sentences if each],
        next_command=next_command if uses else None,
    )


def _wanted(task: str, found: Sequence[Verdict], records: Sequence[Record]) -> str | None:
    """How many samples would do, where too few were seen to tell whether anything is found."""
    of_task = [each for each in found if each.area.task == task]
    if any(each.tells for each in of_task):
        return None
    areas = [each.area for each in of_task] or [
        each for each in records if (each.task, each.score, each.metric) == (task, CHOSEN, "auroc") and each.n
    ]
    if not areas:
        return None
    area, times = areas[0], samples_wanted(areas[0])
    if task == "ood":
        ood = f"of {area.dataset.removesuffix(MEAN)}"
        counts = {ood: area.n_positive, "in-distribution ones": area.n - area.n_positive}
        of_rarer = times * max(min(counts.values()), 1)
        # Three times as many of the other kind add a third to the variance that the rarer one leaves.
        wanted = {kind: min(times * max(count, 1), 3 * of_rarer) for kind, count in counts.items()}
        enough = " and ".join(
            f"about {_rounded(wanted[kind])} {kind}" for kind in counts if counts[kind] <= wanted[kind]
        )
    else:
        enough = f"about {_rounded(times * max(area.n, 1))} labelled samples in data.{area.dataset}"
    seen = f"1 {SOUGHT[task].removesuffix('s')}" if area.n_positive == 1 else f"{area.n_positive} {SOUGHT[task]}"
    return f"{seen} among {area.n} samples {'is' if area.n_positive == 1 else 'are'} too few; give {enough}"


def samples_wanted(area: Record) -> float:
    """How many times as many samples would tell whether a score finds anything, by how an interval's width shrinks.

    The wider side of the interval has to exclude chance, or an AUROC that is of use. Without an interval the AUROC of
    the rarer kind of samples may vary as much as any (Hanley and McNeil 1982: its variance is at most 1/4 of their
    inverse number); where there is none of them, up to three may be expected (rule of three), or half of so few.
    """
    rarer = min(area.n_positive, area.n - area.n_positive)
    if area.value is None or area.low is None or area.high is None:
        return max(1.0, (0.98 / PRECISION) ** 2 / max(rarer, min(3, area.n / 2)))
    above, below = area.value - CHANCE, USELESS - area.value
    ratio = (area.value - area.low) / above if above > below else (area.high - area.value) / below
    return max(ratio**2, FEW_SAMPLES / max(rarer, 1), 1.0)


def _rounded(count: float) -> str:
    """A number of samples with two digits, rounded up."""
    unit = 10 ** max(0, math.floor(math.log10(max(count, 1))) - 1)
    return f"{math.ceil(round(count / unit, 6)) * unit:,}"


def _caught(
    protocols: Mapping[str, str],
    records: Sequence[Record],
    groups: Mapping[str, Sequence[str]],
    *,
    score: str = CHOSEN,
) -> list[DetectionRate]:
    """What is caught of every OOD set under the protocol of each task, and then of wrong predictions."""
    group_of = groups_by_set(groups)
    shares = [
        each
        for each in records
        if each.score == score and each.metric == "fpr95_id_positive" and not is_group(each.dataset)
        and protocols.get(each.task) == each.protocol and each.value is not None
    ]  # fmt: skip
    shares.sort(key=lambda each: each.task != "ood")
    return [
        DetectionRate(
            task=each.task,
            what=each.dataset if each.task == "ood" else SOUGHT[each.task],
            group=group_of.get(each.dataset) if each.task == "ood" else None,
            share=1 - (each.value or 0.0),
            samples=each.n_positive,
        )
        for each in shares
    ]


def _use(uses: Sequence[Use]) -> str:
    if not uses:
        return ""
    if len({each.score for each in uses}) == 1:
        return f"Chosen: {uses[0].words} for {' and '.join(SOUGHT[each.task] for each in uses)}."
    return f"Chosen: {', and '.join(f'{each.words} for {SOUGHT[each.task]}' for each in uses)}."


def percent(share: float) -> str:
    """A share to the nearest percent, as 100 % only where it is all.

    Example:
        >>> percent(0.368), percent(0.9999)
        ('37 %', '99 %')
    """
    return f"{100 if share >= 1 else min(99, round(100 * share))} %"


def describe_share(share: float, samples: int, what: str, group: str | None) -> str:
    """How much of what is caught, and its group if it has one; of few samples their number, as no share is known.

    Example:
        >>> describe_share(0.7, 800, "bags", "near"), describe_share(0.75, 4, "wrong predictions", None)
        ('70 % of bags (near)', '3 of 4 wrong predictions')
    """
    name = f"{what}{'' if group is None else f' ({group})'}"
    of = "of " if samples >= FEW_SAMPLES else "" if what in SOUGHT.values() else "samples of "
    return f"{count_or_percent(share, samples)} {of}{name}"


def count_or_percent(share: float, samples: int) -> str:
    """A share of samples; of few samples their number, as no share is known.

    Example:
        >>> count_or_percent(0.368, 800), count_or_percent(0.75, 4)
        ('37 %', '3 of 4')
    """
    return percent(share) if samples >= FEW_SAMPLES else f"{round(share * samples)} of {samples}"


def signed(change: float, digits: int) -> str:
    """A change with its sign and so many decimals; what is rounded to nothing has that of more.

    Example:
        >>> signed(-0.0123, 3), signed(-0.00001, 3), signed(-0.0, 4)
        ('-0.012', '+0.000', '+0.0000')
    """
    return f"{round(change, digits) + 0.0:+.{digits}f}"


def _catches(uses: Sequence[Use], caught: Sequence[DetectionRate]) -> str:
    if not caught:
        return ""
    sets = [each for each in caught if each.task == "ood"]
    shown, more = sets[:SETS_NAMED], sets[SETS_NAMED:]
    named = [each.phrase for each in [*shown, *(each for each in caught if each.task != "ood")]]
    if more:
        lowest, highest = (percent(pick(each.share for each in more)) for pick in (min, max))
        named.insert(len(shown), f"{lowest.removesuffix(' %')} to {highest} of {len(more)} more sets")
    subject = "it catches" if len({each.score for each in uses}) == 1 else "they catch"
    cost = " for each question" if len(uses) > 1 else ""
    return f"With 5 % false alarms{cost}, {subject} {', '.join(named)}."


def _chosen_without(caught: Sequence[DetectionRate], without: Sequence[DetectionRate]) -> str:
    """What a score catches of a set, where it differs, that was chosen without its samples: as of one never seen."""
    known = {each.phrase for each in caught}
    other = [each for each in without if each.phrase not in known]
    if not other:
        return ""
    named = _listed([replace(each, group=None).phrase for each in other])
    return f"Samples of each set helped to choose the score; one chosen without them catches {named}."


def _compared(found: Sequence[Verdict]) -> str:
    """How the chosen scores do against the best baseline of each set, and how many samples would decide the rest."""
    each_once = [each for each in verdicts_on_sets(found) if not each.finds_nothing]
    parts = []
    for outcome, word in (("better", "better"), ("provisional", "provisionally better"), ("worse", "worse")):
        names = [
            f"{each.what} ({each.best} is {_points(-each.gained)} higher)" if outcome == "worse" else each.what
            for each in each_once
            if each.outcome == outcome
        ]
        limit = " (baselines that are often stronger are missing, or lack a bank)" if outcome == "provisional" else ""
        parts += [f"{word} on {_listed(names)}{limit}"] if names else []
    same = [each.what for each in each_once if each.outcome == "equal"]
    parts += [f"equal on {_listed(same)}"] if same else []
    undecided = [each for each in each_once if each.outcome == "undecided" and each.gain is not None]
    if undecided:
        nearest = min(undecided, key=lambda each: each.times)
        more = _deciding(nearest, alone=len(undecided) == 1) if nearest.times <= IN_REACH else "no difference in sight"
        parts.append(f"undecided on {_listed([each.what for each in undecided])} ({more})")
    return f"Against the best baseline of each set: {'; '.join(parts)}." if parts else ""


def _deciding(verdict: Verdict, *, alone: bool) -> str:
    """How many samples would decide a verdict, and the baseline where one is higher."""
    samples = f"about {max(2, math.ceil(verdict.times))} times the samples would decide"
    on = "" if alone else f" on {verdict.what}"
    return (
        samples + on if verdict.gained >= 0 else f"{verdict.best} is {_points(-verdict.gained)} higher{on}; {samples}"
    )


def _advice(found: Sequence[Verdict], groups: Mapping[str, Sequence[str]], deciding: str) -> list[str]:
    """What to do where a baseline is better, and where the score to use finds nothing."""
    advised = [*advice_by_task(with_single_sets(found, groups), deciding).values()]
    means = [each for each in found if not any(one.finds_nothing for one in each.sets or (each,))]
    lost = [each for each in (*verdicts_on_sets(found), *means) if each.finds_nothing]
    by_others = [each for each in lost if each.best is not None and (each.best_auroc or 0.0) > USELESS]
    by_none = [_in_mean(each) for each in lost if each not in by_others]
    named = [
        f"{_in_mean(each)} (an AUROC of {each.area.value:.2f}; {each.best} has {each.best_auroc:.2f})"
        for each in by_others
    ]
    return [
        *(f"{each[:1].upper()}{each[1:]}." for _, each in advised),
        *([f"The chosen score does not find {_listed(named)}."] if named else []),
        *([f"No score tells {_listed(by_none)} from the rest."] if by_none else []),
    ]


def _known_to_a_bundle(found: Sequence[Verdict], records: Sequence[Record], groups: Mapping[str, Sequence[str]]) -> str:
    """What a bundle catches of sets that its model finds where it is fitted on some of them, and not otherwise.

    The verdict leaves each set out of the fit where the model of bundles knows them all.
    """
    lost = {
        each.what
        for each in verdicts_on_sets(found)
        if each.finds_nothing and each.area.task == "ood" and each.protocol == "leave_one_dataset_out"
    }
    half = _caught({"ood": "known"}, records, groups)
    named = [replace(each, group=None).phrase for each in half if each.what in lost]
    return f"A bundle is fitted on samples of such kinds too: of others it catches {_listed(named)}." if named else ""


def advice_by_task(found: Sequence[Verdict], deciding: str = DECIDING) -> dict[str, tuple[str, str]]:
    """The baseline that should decide a question, by task, and the words that follow "note:"; none where none should.

    One score decides a question: of several baselines that are better, the one is named that catches most in the mean
    over all sets.

    Args:
        found: the verdicts, those on single sets in no group among them.
        deciding: what has a score decide, its name in the place of `{}`.
    """
    by_task = {task: [each for each in found if each.area.task == task] for task in SOUGHT}
    return {
        task: _advice_on(of_task, deciding)
        for task, of_task in by_task.items()
        if any(each.baseline_should_decide for each in of_task)
    }


def _advice_on(found: Sequence[Verdict], deciding: str) -> tuple[str, str]:
    advised, sets = [each for each in found if each.baseline_should_decide], verdicts_on_sets(found)
    caught = {
        name: round(math.fsum(each.shares.get(name, 0.0) for each in sets), 9)
        for name in {each.best for each in advised if each.best is not None}
    }
    best = min(caught, key=lambda name: (-caught[name], name))
    fewer = [each.what for each in sets if each.shares.get(best, 1.0) <= (each.caught or 0.0) - MARGIN]
    area = found[0].area
    such = "such samples" if area.protocol == "known" else "kinds that you have none of"  # as those left out of fits
    question, when = ("ood", f"for {such}, ") if area.task == "ood" else ("wrong", "")
    on = _listed([f"{_kind(each)} ({_more_caught(each)})" for each in advised if each.best == best])
    what = deciding.format(f"{question}={best}")
    but = f", and fewer of {_listed(fewer)}" if fewer else ""
    return best, f"in the report {best} catches more of {on}{but}: {when}{what}"


def where_better(score: str, found: Sequence[Verdict]) -> str:
    """On which sets of a report a score has a higher AUROC than the chosen one, as what follows that it is.

    Args:
        score: its name in tables.
        found: the verdicts on one question; what they do not compare is left out, and nothing is said of nothing.
    """
    pairs = {each.what: (each.aurocs.get(score), each.area.value) for each in verdicts_on_sets(found)}
    gains = {
        what: round(own - chosen, 3) for what, (own, chosen) in pairs.items() if own is not None and chosen is not None
    }
    better = [what for what, gain in gains.items() if gain > 0]
    if not better:
        return f"not better{' on any set' if len(gains) > 1 else ''}" if gains else ""
    mean = ", and" if math.fsum(gains.values()) > 0 else ", but not"
    return f"better on {_listed(better)}{f'{mean} in the mean over all sets' if len(gains) > 1 else ''}"


def _more_caught(verdict: Verdict) -> str:
    """What the best baseline catches, and what the chosen score does."""
    best, chosen = (
        count_or_percent(share or 0.0, verdict.area.n_positive) for share in (verdict.best_caught, verdict.caught)
    )
    return f"{best} against {chosen}"


def _gradients(found: Sequence[Verdict], uses: Sequence[Use], without: str | None) -> str:
    """What gradients add to scores without them, and how to do without where that is nothing."""
    if without is None:
        return ""
    ood_first = sorted(found, key=lambda each: each.area.task != "ood")
    kinds = [
        each for each in ood_first if each.what != "all" or len(found) <= len({other.area.task for other in found})
    ]
    # A mean may be nothing because gradients add to one set what they take from another.
    alone = [one for each in kinds if each.gradients != "add" for one in each.sets if one.gradients == "add"]
    added = [
        f"{_points(each.by_gradients.value)} AUROC on {_in_mean(each)}"
        for each in [*(each for each in kinds if each.gradients == "add"), *verdicts_on_sets(alone)]
        if each.by_gradients is not None and each.by_gradients.value is not None
    ]
    nothing, undecided = (
        [_in_mean(each) for each in kinds if each.gradients == word] for word in ("nothing", "undecided")
    )
    parts = [
        *([f"add {_listed(added)}"] if added else []),
        *([f"add nothing on {_listed(nothing)}"] if nothing else []),
        *([f"are not shown to add anything on {_listed(undecided)}"] if undecided else []),
    ]
    if not parts:
        return ""
    said = f"Gradients {_listed(parts)}."
    spared = not any(each.needs_gradients for each in uses) or not (added or undecided)
    return f"{said} {without}" if spared else said


def _points(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else "less than 0.01"


def verdict_rows(found: Sequence[Verdict]) -> dict[str, Verdict]:
    """The rows of a table of verdicts by name: each OOD set, each of the groups of several, and wrong predictions."""
    groups = [each for each in found if each.area.task == "ood"]
    rows = {one.what: one for each in groups for one in (each.sets or (each,))}
    rows |= {f"{each.what}, mean": each for each in groups if len(each.sets) > 1}
    return rows | {each.what: each for each in found if each.area.task != "ood"}


def verdicts_on_sets(found: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts on single OOD sets, each once, and on wrong predictions."""
    return [each for each in verdict_rows(found).values() if not each.sets]


def _kind(verdict: Verdict) -> str:
    """How a sentence calls the samples of a verdict, which may be a group of sets."""
    if not is_group(verdict.area.dataset):
        return verdict.what
    return f"{'' if verdict.what == 'all' else 'the '}{verdict.what} sets"


def _in_mean(verdict: Verdict) -> str:
    """As `_kind`, of a group of several sets that it is their mean."""
    return f"{_kind(verdict)} in the mean" if len(verdict.sets) > 1 else _kind(verdict)


def _listed(parts: Sequence[str]) -> str:
    """Parts with commas, and "and" before the last one."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
