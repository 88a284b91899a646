"""How far a judge is to be trusted: what it has said beside what people have said of the same cases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, median, variance
from typing import Any

from spanwise.collector import connect
from spanwise.collector.records import Feedback, Target, Trace
from spanwise.collector.statistics import Agreement, Checked, Value, Voted, agreement, check, quantile
from spanwise.collector.stores import Store, judgements, votes_of
from spanwise.evaluators.protocol import Evaluator, as_evaluator, finish
from spanwise.evaluators.scoring._cases import case_of
from spanwise.evaluators.scoring._score import ascore

AT_ONCE = 50  # traces read, and judged, together
_COMPARED = ("inputs", "outputs", "reference_outputs", "history")  # by which a case is known as an example


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """How far the judge is above people on average (`difference`, with its 95 % interval), and on how many cases.

    Of two halves of the cases: how much farther above it is on the second. None where one case, or none, is left.
    """

    what: str
    n: int
    difference: float
    low: float
    high: float

    def __str__(self) -> str:
        there = not self.low <= 0 <= self.high
        said = f"{self.difference:+.2g} ({self.low:+.2g} to {self.high:+.2g}, {self.n} cases)"
        return f"{self.what}: {said}{'' if there else ', no more than chance'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A case on which the judge and people differ. `why` is the judge's rationale, `said` what people wrote."""

    target: Target
    judged: Value
    people: Value
    why: str | None
    said: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One version of a judge against people's votes under `votes_key` (None: votes that were given).

    `agreement` holds the share, kappa with its interval, and the confusion matrix; `differing` the cases where the two
    differ, farthest first. `undecided`, `failed`, `skipped`, `unjudged` and `examples` count the voted targets that are
    not in it: people differ evenly; the judge failed, skipped, or has not spoken; the case is an example of its prompt.
    `among` is the share of pairs of people who agree with each other. `length` and `position` are biases: judges
    tend to like what is long, and what comes first.
    """

    key: str
    version: str | None
    votes_key: str | None
    agreement: Agreement
    differing: tuple[Difference, ...]
    bias: Bias | None
    length: Bias | None
    position: Bias | None
    among: float | None
    undecided: int
    failed: int
    skipped: int
    unjudged: int
    examples: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        confusion = [[*pair, count] for pair, count in self.agreement.confusion.items()]
        return {**asdict(self), "agreement": {**asdict(self.agreement), "confusion": confusion}}

    def __repr__(self) -> str:
        return f"<Calibration {self.key!r} {self.version or ''}: {self.agreement}>"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.key}{f', version {self.version}' if self.version else ''}: {self.agreement}"
        if self.agreement.kappa is not None and self.agreement.low is not None:
            weighted = " (weighted by squared distance)" * self.agreement.weighted
            yield f"κ {self.agreement.kappa:.2f}, 95 %: {self.agreement.low:.2f} to {self.agreement.high:.2f}{weighted}"
        yield from _matrix(self.agreement.confusion)
        yield from (str(bias) for bias in (self.bias, self.length, self.position) if bias)
        if self.among is not None:
            yield f"people agree with each other {self.among:.0%}"
        if self.differing:
            yield f"{len(self.differing)} cases differ: `.differing`"
        counts = {
            "undecided: people differ evenly": self.undecided,
            "the judge failed": self.failed,
            "the judge skipped": self.skipped,
            "not judged by this version": self.unjudged,
            "examples of the prompt": self.examples,
        }
        if left_out := [f"{count} {what}" for what, count in counts.items() if count]:
            yield f"left out: {'; '.join(left_out)}"


def calibrate(
    judge: Any,
    votes: str | Iterable[Feedback] | None = None,
    *,
    store: Store | str | None = None,
    version: str | None = None,
    missing: bool = False,
) -> Calibration:
    """Compare a judge with people, over the cases on which there are votes.

    `judge` is an evaluator, the key of its feedback, or a list of its feedback; `votes` the key of people's feedback
    (None: the judge's own), or a list of feedback. They are paired by target: the same trace, span, session. Of a judge
    the version of the evaluator counts, else the newest, or `version`; so each version has a calibration of its own.
    With `missing` an evaluator judges what it has not, and that is kept. `store`: as `connect()` finds it.

    Raises `ValueError` where there are no votes, or no evaluator to judge what is missing.
    """
    evaluator = None if isinstance(judge, str | list | tuple) else as_evaluator(judge)
    if missing and evaluator is None:
        raise ValueError(f"only an evaluator can judge what is missing, not {judge!r:.100}")
    key = key_of(judge, evaluator)
    votes_key = votes if isinstance(votes, str) else key if votes is None else None
    with opened(store, needed=not isinstance(judge, list | tuple) or votes_key is not None) as at:
        given = votes_in(at, votes, votes_key)
        checked = voted(at, judge, key, given, evaluator, version=version, missing=missing)
        seen = dict(_seen(at, checked.pairs)) if at else {}
    return _calibration(key, votes_key, checked, seen, evaluator)


def key_of(judge: Any, evaluator: Evaluator | None) -> str:
    """The key of a judge's feedback. Raises `ValueError` for a list that is of no key, or of several."""
    if evaluator is not None:
        return evaluator.key
    if isinstance(judge, str):
        return judge
    keys = {row.key for row in judge}
    if len(keys) != 1:
        raise ValueError(f"a judge's feedback has one key, not {sorted(keys)!r:.200}")
    return str(keys.pop())


@contextmanager
def opened(store: Store | str | None, *, needed: bool = True) -> Iterator[Store | None]:
    """The store that is given, or that `connect` finds, which is closed again; None where none is given or needed."""
    if store is not None and not isinstance(store, str):
        yield store
        return
    if store is None and not needed:
        yield None
        return
    found = connect(store)
    try:
        yield found
    finally:
        found.close()


def votes_in(store: Store | None, votes: Any, key: str | None) -> list[Feedback]:
    given = list(votes) if key is None else votes_of(store, key) if store else []
    if not given:
        where = f" under {key!r} in {store.where}" if key and store else ""
        raise ValueError(f"there are no votes of people{where}: `spanwise judges label` asks for some")
    return given


def voted(
    store: Store | None,
    judge: Any,
    key: str,
    votes: Sequence[Feedback],
    evaluator: Evaluator | None,
    *,
    version: str | None,
    missing: bool,
) -> Checked:
    """Votes beside what a judge said of the same: a list of its feedback, else what the store has under its key, and
    with `missing` more of it.
    """
    wanted = version or (evaluator.version if evaluator else None)
    source = evaluator.make.source if evaluator else "model"

    def said() -> Iterable[Feedback]:
        if isinstance(judge, list | tuple):
            return judge
        return judgements(store, key, [vote.target for vote in votes], source) if store else ()

    checked = check(said(), votes, wanted)
    if missing and evaluator and checked.unjudged and store:
        _judge_now(store, evaluator, checked.unjudged)
        checked = check(said(), votes, wanted)
    return checked


def _judge_now(store: Store, evaluator: Evaluator, targets: Sequence[Target]) -> None:
    """Let the judge look at the voted traces that it has not judged, some at a time, and keep what it says."""
    ids = list(dict.fromkeys(target.trace_id for target in targets if target.trace_id and target.span_id is None))
    for place in range(0, len(ids), AT_ONCE):
        store.add_feedback(finish(_all(evaluator, store.many(ids[place : place + AT_ONCE]))))


async def _all(evaluator: Evaluator, traces: Sequence[Trace]) -> list[Feedback]:
    said = await asyncio.gather(*(ascore(evaluator, trace) for trace in traces))
    return [feedback for rows in said for feedback in rows]


def _seen(store: Store, pairs: Sequence[Voted]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Per trace id what an example of a prompt may show of it, and how long its answer is."""
    ids = list(dict.fromkeys(pair.target.trace_id for pair in pairs if pair.target.trace_id))
    for place in range(0, len(ids), AT_ONCE):
        for trace in store.many(ids[place : place + AT_ONCE]):
            case = case_of(trace)
            fields = {name: _text(getattr(case, name)) for name in _COMPARED}
            yield trace.trace_id, {**fields, "length": len(fields["outputs"])}


def _calibration(
    key: str, votes_key: str | None, checked: Checked, seen: Mapping[str, Mapping[str, Any]], judge: Evaluator | None
) -> Calibration:
    shown = [dict(example) for example in getattr(judge.function, "examples", None) or ()] if judge else []
    pairs = [pair for pair in checked.pairs if not _is_example(seen.get(pair.target.trace_id or ""), shown)]
    return Calibration(
        key=key,
        version=checked.version,
        votes_key=votes_key,
        agreement=agreement([(pair.judged, pair.people) for pair in pairs]),
        differing=tuple(_differing(pairs)),
        bias=_bias("the judge above people", [gap for pair in pairs if (gap := _gap(pair)) is not None]),
        length=_by_length(pairs, seen),
        position=_by_position(pairs),
        among=checked.among,
        undecided=checked.undecided,
        failed=checked.failed,
        skipped=checked.skipped,
        unjudged=len(checked.unjudged),
        examples=len(checked.pairs) - len(pairs),
    )


def _is_example(case: Mapping[str, Any] | None, examples: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all that an example shows of what was asked and answered is that of the case."""
    if case is None:
        return False
    shown = ({name: _text(example[name]) for name in _COMPARED if name in example} for example in examples)
    return any(fields and all(case[name] == text for name, text in fields.items()) for fields in shown)


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    return value.strip() if isinstance(value, str) else "" if value is None else repr(value)


def _gap(pair: Voted) -> float | None:
    if isinstance(pair.judged, str) or isinstance(pair.people, str):
        return None
    return pair.judged - pair.people


def _differing(pairs: Sequence[Voted]) -> list[Difference]:
    differing = [pair for pair in pairs if (pair.judged != pair.people if (gap := _gap(pair)) is None else gap)]
    differing.sort(key=lambda pair: -abs(_gap(pair) or 0.0))
    return [
        Difference(
            target=pair.target,
            judged=pair.judged,
            people=pair.people,
            why=pair.judge.comment,
            said="; ".join(vote.comment for vote in pair.votes if vote.comment) or None,
        )
        for pair in differing
    ]


def _bias(what: str, gaps: Sequence[float]) -> Bias | None:
    if len(gaps) < 2:
        return None
    half = quantile(0.975, len(gaps) - 1) * sqrt(variance(gaps) / len(gaps))
    mean = fmean(gaps)
    return Bias(what=what, n=len(gaps), difference=mean, low=mean - half, high=mean + half)


def _by_length(pairs: Sequence[Voted], seen: Mapping[str, Mapping[str, Any]]) -> Bias | None:
    """The longer half of the answers less the shorter."""
    measured = [
        (case["length"], gap)
        for pair in pairs
        if (case := seen.get(pair.target.trace_id or "")) and (gap := _gap(pair)) is not None
    ]
    if not measured:
        return None
    middle = median(length for length, _ in measured)
    what = f"for answers longer than {middle:g} characters"
    return _between(
        what, [g for length, g in measured if length <= middle], [g for length, g in measured if length > middle]
    )


def _by_position(pairs: Sequence[Voted]) -> Bias | None:
    """Of pairwise judges: how much farther above people where the answer was shown first; of documents: later ones."""
    turned = [pair.judge.metadata.get("pairwise") for pair in pairs]
    known = [one["turned"] for one in turned if isinstance(one, Mapping) and "turned" in one]
    if known:
        return _bias("towards the answer shown first", [{"first": 1.0, "second": -1.0}.get(one, 0.0) for one in known])
    placed = [(pair.target.document, gap) for pair in pairs if (gap := _gap(pair)) is not None]
    ranks = [(rank, gap) for rank, gap in placed if rank is not None]
    if not ranks:
        return None
    middle = median(rank for rank, _ in ranks)
    what = f"for documents after the {middle + 1:g}."
    return _between(what, [gap for rank, gap in ranks if rank <= middle], [gap for rank, gap in ranks if rank > middle])


def _between(what: str, first: Sequence[float], second: Sequence[float]) -> Bias | None:
    """The second mean less the first (Welch), with the degrees of freedom of the smaller half."""
    if min(len(first), len(second)) < 2:
        return None
    half = quantile(0.975, min(len(first), len(second)) - 1)
    half *= sqrt(variance(first) / len(first) + variance(second) / len(second))
    mean = fmean(second) - fmean(first)
    return Bias(what=what, n=len(first) + len(second), difference=mean, low=mean - half, high=mean + half)


def _matrix(confusion: Mapping[tuple[Value, Value], int]) -> Iterator[str]:
    """The confusion matrix, a row per value of the judge's."""
    if not confusion:
        return
    values = sorted({value for pair in confusion for value in pair}, key=lambda value: (isinstance(value, str), value))
    names = [value if isinstance(value, str) else f"{value:g}" for value in values]
    width = max(6, *(len(name) + 1 for name in names))
    yield f"{'judge ↓ people →':<18}" + "".join(f"{name:>{width}}" for name in names)
    for name, judged in zip(names, values, strict=True):
        yield f"{name:<18}" + "".join(f"{confusion.get((judged, people), 0):>{width}}" for people in values)
