"""The answer of an evaluation in a few sentences, the same on a terminal, on a page and for a program.

They say which score to use, what it catches, whether gradients are worth their time, and what to do next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from ..baselines import describe_baseline
from ..meta import META, ScoreChoice
from ..store import RunFolder
from .choosing import deployed_protocol, ood_place
from .records import Record, Verdict, is_group
from .score_tables import LOGIT_LR, META_WRONG, MISCLASSIFICATION_MODEL, SCORE_LR

WORDS = {
    META: "the meta model",
    SCORE_LR: "the regression on all scores without gradients",
    LOGIT_LR: "the regression on scores of the logits",
    META_WRONG: "the meta model of wrong predictions",
}
"""What a sentence calls scores that are no baselines."""

WHAT = {"ood": "OOD samples", "misclassification": "wrong predictions"}
"""What is to be found, by task."""

USELESS = 0.6
"""An AUROC below this one is of no use: where an interval reaches neither above chance nor below this, it is open
whether a score finds anything."""

SETS_NAMED = 6
"""So many OOD sets are named in the sentence on what is caught."""


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
class Caught:
    """What the chosen score catches of one set where 5 % of good samples are rejected.

    Attributes:
        what: name of the OOD set, or `wrong predictions`.
        group: the group of the set, None without one.
        share: of the OOD (or wrong) samples that is caught.
    """

    what: str
    group: str | None
    share: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to do with a run.

    Attributes:
        uses: the score to use for each question; those of a bundle.
        caught: what they catch, OOD sets first.
        sentences: the answer as plain text, in order; where there is no verdict, why, and what would do.
        next_command: what to type next, None where there is no verdict.
    """

    uses: Sequence[Use] = ()
    caught: Sequence[Caught] = ()
    sentences: Sequence[str] = ()
    next_command: str | None = None

    @property
    def lines(self) -> list[str]:
        """The sentences, and the next command as the last one: what a terminal and a page show first."""
        return [*self.sentences, *([] if self.next_command is None else [f"Next: {self.next_command}"])]

    def score(self, task: str) -> str | None:
        """The name of the score to use for a task, None without one."""
        return next((each.score for each in self.uses if each.task == task), None)


def score_in_words(name: str) -> str:
    """What a sentence calls a score."""
    return WORDS.get(name) or describe_baseline(name)


def choices_of(run: RunFolder, notes: Mapping[str, Mapping[str, object]]) -> dict[str, ScoreChoice]:
    """By task the choice of the model that a bundle has; `notes` are those of models by their label."""
    protocol = deployed_protocol(run)
    places = {"misclassification": MISCLASSIFICATION_MODEL, **({"ood": ood_place(protocol)} if protocol else {})}
    return {task: ScoreChoice.of_notes(notes[place]) for task, place in places.items() if place in notes}


def bundle_command(run: Path, *, has_code: bool) -> str:
    """The command that packs a run into a file that decides on new samples."""
    return f"gradscore bundle {quote(str(run))} --out scorer.gradscore{' --trust-code' if has_code else ''}"


def answer_of(
    found: Sequence[Verdict],
    records: Sequence[Record],
    *,
    groups: Mapping[str, Sequence[str]],
    choices: Mapping[str, ScoreChoice],
    next_command: str,
    no_verdict: str | None,
) -> Answer:
    """The answer that the verdicts of an evaluation give.

    Args:
        found: the verdicts.
        records: those of the evaluation.
        groups: name of a group of OOD sets -> names of its sets.
        choices: the choice for each task.
        next_command: what to type next where there is a verdict.
        no_verdict: why there is none, None where there is one.
    """
    if no_verdict is not None:
        return Answer(sentences=[f"No verdict: {no_verdict}."])
    tasks = [task for task in WHAT if any(each.area.task == task for each in found)]
    uses = [
        Use(task=task, score=choices[task].score, words=score_in_words(choices[task].score))
        for task in tasks
        if task in choices
    ]
    caught = list(_caught(found, records, groups))
    sentences = [_use(uses), _catches(uses, caught), _gradients(found)]
    return Answer(uses=uses, caught=caught, sentences=[each for each in sentences if each], next_command=next_command)


def _caught(found: Sequence[Verdict], records: Sequence[Record], groups: Mapping[str, Sequence[str]]) -> list[Caught]:
    """Of every OOD set under the protocol of the verdict, and then of wrong predictions."""
    protocols = {each.area.task: each.protocol for each in found}
    group_of = {name: group for group, names in groups.items() if group != "all" for name in names}
    shares = [
        each
        for each in records
        if each.score == "chosen" and each.metric == "fpr95_id_positive" and not is_group(each.dataset)
        and protocols.get(each.task) == each.protocol and each.value is not None
    ]  # fmt: skip
    shares.sort(key=lambda each: each.task != "ood")
    return [
        Caught(
            what=each.dataset if each.task == "ood" else WHAT[each.task],
            group=group_of.get(each.dataset) if each.task == "ood" else None,
            share=1 - (each.value or 0.0),
        )
        for each in shares
    ]


def _use(uses: Sequence[Use]) -> str:
    if not uses:
        return ""
    if len({each.score for each in uses}) == 1:
        return f"Use {uses[0].words} for {' and '.join(WHAT[each.task] for each in uses)}."
    return f"Use {', and '.join(f'{each.words} for {WHAT[each.task]}' for each in uses)}."


def _catches(uses: Sequence[Use], caught: Sequence[Caught]) -> str:
    if not caught:
        return ""
    named = [
        f"{math.floor(100 * each.share)} % of {each.what}{'' if each.group is None else f' ({each.group})'}"
        for each in caught
    ]
    subject = "it catches" if len({each.score for each in uses}) == 1 else "they catch"
    return f"With 5 % of good samples rejected, {subject} {', '.join(named)}."


def _gradients(found: Sequence[Verdict]) -> str:
    """What gradients add to scores without them: to each kind of samples an AUROC, or nothing."""
    parts: dict[str, list[str]] = {}
    for each in found:
        gain = each.by_gradients
        if gain is None or gain.value is None or gain.low is None:
            continue
        name = each.what if each.area.task != "ood" else f"{each.what} sets"
        adds = f"{gain.value:.2f} AUROC" if gain.low > 0 else "nothing"
        parts.setdefault(adds, []).append(name)
    said = [f"{adds} on {', '.join(names)}" for adds, names in parts.items()]
    return f"Gradients add {' and '.join(said)}." if said else ""
