"""The mean that people would have given, of what a store holds: a judge's scores, and votes on some of the cases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Target, paged
from spanwise.collector.statistics import Corrected, Voted, check, corrected_mean, value_of
from spanwise.collector.stores import Store, votes_of
from spanwise.evaluators.protocol import as_evaluator
from spanwise.evaluators.scoring._calibrate import key_of, opened

_PAGE = 5_000
_MOST = 100_000  # votes


def corrected(
    scores: Any,
    votes: str | Iterable[Feedback] | None = None,
    *,
    store: Store | str | None = None,
    where: Filter | None = None,
    version: str | None = None,
    assume_random: bool = False,
) -> Corrected:
    """The mean that people would have given, with its 95 % interval, of all cases that a judge has scored.

    `scores` is the key of the judge's feedback, its evaluator, or a list of its feedback; `votes` the key of people's
    feedback (None: the judge's own), or a list. `where` says which traces (`Filter(experiment=…)`), None all. One
    version of the judge counts, the evaluator's, else the newest. Voted cases are some of the scored ones: votes on
    others are left out, which is said in `notes`.

    Votes that `spanwise judges label` draws carry their probability, and are weighted by it. Raises `ValueError` where
    none does, as people vote on what catches their eye: `assume_random=True` insists that all cases were as likely.
    """
    evaluator = None if isinstance(scores, str | list | tuple) else as_evaluator(scores)
    key = key_of(scores, evaluator)
    votes_key = votes if isinstance(votes, str) else key if votes is None else None
    listed = isinstance(scores, list | tuple)
    with opened(store, needed=not listed or votes_key is not None) as at:
        given = _given(at, votes, votes_key)
        said = iter(sorted(scores, key=_age)) if listed else _scores(at, key, where)
        values, judged = _gathered(said, {vote.target for vote in given}, version or _version(evaluator))
    checked = check(judged, given)
    pairs = checked.pairs
    known = [pair for pair in pairs if pair.probability is not None]
    if not assume_random and len(pairs) < len(values):
        _refuse(len(pairs), len(known))
    random = assume_random or len(pairs) == len(values)
    counting = pairs if random else known
    notes = tuple(_notes(len(given), pairs, counting))
    return replace(corrected_mean(values, [_vote(pair, random) for pair in counting]), notes=notes)


def _age(feedback: Feedback) -> int:
    return -feedback.created_ns


def _version(evaluator: Any) -> str | None:
    return evaluator.version if evaluator else None


def _given(store: Store | None, votes: Any, key: str | None) -> list[Feedback]:
    if key is None:
        return list(votes)
    return votes_of(store, key, most=_MOST) if store else []


def _scores(store: Store | None, key: str, where: Filter | None) -> Iterator[Feedback]:
    ask = partial(store.feedbacks, where, key=key, source="model", limit=_PAGE) if store else None
    return iter(()) if ask is None else paged(ask)


def _gathered(said: Iterator[Feedback], voted: set[Target], version: str | None) -> tuple[list[float], list[Feedback]]:
    """All scores of one version, once per target, and the feedback itself on voted targets. The newest come first.

    Raises `ValueError` for labels, of which there is no mean.
    """
    first = next(said, None)
    if first is None:
        return [], []
    version = first.version if version is None else version
    values: list[float] = []
    judged: list[Feedback] = []
    seen: set[Target] = set()
    for row in chain((first,), said):
        if row.version != version or row.target in seen:
            continue
        seen.add(row.target)
        if row.target in voted:
            judged.append(row)
        if row.outcome == "score":
            values.append(_number(value_of(row), "the judge"))
    return values, judged


def _number(value: float | str, whose: str) -> float:
    if isinstance(value, str):
        raise ValueError(f"labels have no mean: {whose} said {value!r:.100}; a scale says what each is worth")
    return value


def _refuse(pairs: int, known: int) -> None:
    if pairs and not known:
        raise ValueError(
            f"none of {pairs} votes says how likely its case was to be drawn, and people vote on what catches their "
            "eye: let `spanwise judges label` draw, or insist with assume_random=True"
        )


def _notes(given: int, pairs: tuple[Voted, ...], counting: Iterable[Voted]) -> Iterator[str]:
    if lost := len(pairs) - len(list(counting)):
        yield f"{lost} votes without a probability are left out"
    if lost := given - sum(len(pair.votes) for pair in pairs):
        yield f"{lost} votes are on cases that the judge has not scored, undecided, or replaced by later ones"


def _vote(pair: Voted, random: bool) -> tuple[float, float, float]:
    probability = 1.0 if random or pair.probability is None else pair.probability
    return _number(pair.judged, "the judge"), _number(pair.people, "people"), probability
