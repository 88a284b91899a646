"""What a judge has said beside what people have said of the same: pairs, by target, of one version of the judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from spanwise.collector.records import Feedback, Target
from spanwise.collector.statistics._agreement import Agreement, Value, agreement
from spanwise.collector.statistics._newest import newest
from spanwise.collector.statistics._tally import UNPARSED

DRAWN = "drawn"  # the metadata of a vote on a case that was drawn: {"probability": …}
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Voted:
    """One target with the judge's feedback and people's: `judged` and `people` are their values.

    `probability` is that of the case to be drawn, None where no vote tells.
    """

    target: Target
    judge: Feedback
    votes: tuple[Feedback, ...]
    judged: Value
    people: Value
    probability: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A judge's version against people. Of all targets with votes each is in `pairs`, or counted once in the rest:

    `undecided` (people differ evenly), `failed` and `skipped` (the judge's outcome), `unjudged` (this version of the
    judge has not spoken). `among` is how often two people agree who voted on the same target, None without any such.
    """

    version: str | None
    pairs: tuple[Voted, ...]
    agreement: Agreement
    undecided: int = 0
    failed: int = 0
    skipped: int = 0
    unjudged: tuple[Target, ...] = ()
    among: float | None = None


def _outcome(judgement: Feedback) -> str:
    """Return the outcome of a judgement. One that could not be parsed says nothing that people could agree with."""
    return "error" if judgement.label == UNPARSED else judgement.outcome


def check(judgements: Iterable[Feedback], votes: Iterable[Feedback], version: str | None = None) -> Checked:
    """Pair by target. Of the judge its newest version counts, or the one that is named; of a person the newest vote."""
    said = list(judgements)
    if version is None and said:
        version = max(said, key=lambda row: row.created_ns).version
    judged = {row.target: row for row in newest(row for row in said if row.version == version)}
    by_target = _by_target(votes)
    decided = {target: value for target, rows in by_target.items() if (value := decision(rows)) is not None}
    pairs = [
        Voted(
            target=target,
            judge=judged[target],
            votes=tuple(by_target[target]),
            judged=value_of(judged[target]),
            people=people,
            probability=_probability(by_target[target]),
        )
        for target, people in decided.items()
        if target in judged and _outcome(judged[target]) == "score"
    ]
    outcomes = Counter(_outcome(judged[target]) for target in decided if target in judged)
    return Checked(
        version=version,
        pairs=tuple(pairs),
        agreement=agreement([(pair.judged, pair.people) for pair in pairs]),
        undecided=len(by_target) - len(decided),
        failed=outcomes["error"],
        skipped=outcomes["skip"],
        unjudged=tuple(target for target in decided if target not in judged),
        among=_among(by_target),
    )


def value_of(feedback: Feedback) -> Value:
    """A score as a number, else the label: "yes" and "no" are 1 and 0. Of an outcome "score"."""
    if feedback.score is not None:
        return float(feedback.score)
    return _WORDS.get(str(feedback.label).lower(), str(feedback.label))


def decision(votes: Sequence[Feedback]) -> Value | None:
    """What people say together: what most say; where none has most, the mean of grades, None of yes and no or words."""
    counted = Counter(map(value_of, votes))
    (first, most), *others = counted.most_common(2)
    if not others or others[0][1] < most:
        return first
    numbers = [value for value in counted.elements() if isinstance(value, float)]
    graded = len(numbers) == len(votes) and not {*numbers} <= {0.0, 1.0}
    return fmean(numbers) if graded else None


def _by_target(votes: Iterable[Feedback]) -> Mapping[Target, list[Feedback]]:
    by_target: dict[Target, list[Feedback]] = {}
    for vote in newest(votes):
        if vote.outcome == "score":
            by_target.setdefault(vote.target, []).append(vote)
    return by_target


def _probability(votes: Sequence[Feedback]) -> float | None:
    """Of several drawings the likeliest."""
    told = [drawn.get("probability") for vote in votes if isinstance(drawn := vote.metadata.get(DRAWN), Mapping)]
    known = [float(p) for p in told if isinstance(p, int | float) and not isinstance(p, bool) and 0 < p <= 1]
    return max(known, default=None)


def _among(by_target: Mapping[Target, Sequence[Feedback]]) -> float | None:
    alike = [value_of(one) == value_of(other) for rows in by_target.values() for one, other in combinations(rows, 2)]
    return fmean(alike) if alike else None
