"""One evaluator by hand: on values, on a case, on a stored trace, or on a session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from os import PathLike
from typing import Any, TypeAlias

from spanwise.collector.records import Case, Example, Feedback, Target, Trace
from spanwise.collector.stores import TraceStore
from spanwise.evaluators.protocol import Evaluator, as_evaluator, finish, no_trace
from spanwise.evaluators.scoring._cases import as_seen, case_of
from spanwise.evaluators.scoring._scoring import of_failed
from spanwise.evaluators.scoring._sessions import turns_of

Where: TypeAlias = "TraceStore | str | PathLike[str] | None"


async def ascore(
    evaluator: Any,
    on: Trace | Case | Sequence[Case] | None = None,
    *,
    example: Example | None = None,
    session: str | None = None,
    store: Where = None,
    **fields: Any,
) -> list[Feedback]:
    """As `score`, from async code."""
    judge = as_evaluator(evaluator)
    if session is not None:
        return await _of_session(judge, on, session, store, example, fields)
    if store is not None:
        raise TypeError("a store is where a session is: score(…, session=id, store=…)")
    if judge.summary:
        return await judge.evaluate_set(_cases(on, fields), no_trace())
    case = _case(on, example, fields)
    target = Target(trace_id=case.trace.trace_id) if case.trace else no_trace()
    if isinstance(on, Trace) and "outputs" not in fields and (skipped := of_failed(judge, case, target)):
        return skipped
    return (await judge.evaluate_batch([case], [target]))[0]


def score(
    evaluator: Any,
    on: Trace | Case | Sequence[Case] | None = None,
    *,
    example: Example | None = None,
    session: str | None = None,
    store: Where = None,
    **fields: Any,
) -> list[Feedback]:
    """What one evaluator says of a trace, a case, or values: `score(get("exact"), outputs="a", reference_outputs="b")`.

    `fields` are those of `Case`, or Databricks' columns (`request`, `response`, …); over a trace they take precedence.
    The evaluator sees them as in `evaluate()`, as plain values: a model as a dict, numpy's numbers as Python's. A
    set-level evaluator takes a list of cases, or a list per field. With `session`, the id of one, it sees the last
    turn, and all turns as `history`; the feedback is about the session. It is read from `store` (None: see
    `spanwise.collector.connect`). Nothing is stored: `store.add_feedback(…)` does that.
    Never raises for what the evaluator does; raises `TypeError` when `evaluator` is none, and for fields that are
    none, `ValueError` for lists of unequal length, `NotFound` for a session without traces.
    """
    return finish(ascore(evaluator, on, example=example, session=session, store=store, **fields))


async def _of_session(
    judge: Evaluator, on: Any, session: str, store: Where, example: Example | None, fields: dict[str, Any]
) -> list[Feedback]:
    if on is not None or judge.summary:
        what = "an evaluator of a set looks at cases" if judge.summary else "a trace or a case stands for itself"
        raise TypeError(f"session={session!r} is what an evaluator of single cases looks at: {what}")
    turns = await asyncio.to_thread(turns_of, session, store)
    target = Target(session_id=session)
    return (await judge.evaluate_batch([as_seen(case_of(turns, example, **fields))], [target]))[0]


def _case(on: Any, example: Example | None, fields: dict[str, Any]) -> Case:
    if isinstance(on, Case):
        return as_seen(on)
    if on is None or isinstance(on, Trace):
        return as_seen(case_of(on, example, **fields))
    raise TypeError(f"an evaluator of single cases looks at a trace, a case or values, not {on!r:.200}")


def _cases(on: Any, columns: dict[str, Any]) -> list[Case]:
    if on is not None:
        return [_case(member, None, {}) for member in ([on] if isinstance(on, Trace | Case) else on)]
    listed = {name: _listed(name, column) for name, column in columns.items() if column is not None}
    lengths = {name: len(column) for name, column in listed.items()}
    if len(set(lengths.values())) > 1:
        counted = ", ".join(f"{count} {name}" for name, count in lengths.items())
        raise ValueError(f"a set has as many of each: {counted} were given")
    rows = zip(*listed.values(), strict=True)
    return [_case(None, None, dict(zip(listed, row, strict=True))) for row in rows]


def _listed(name: str, column: Any) -> list[Any]:
    """A field of many cases. Raises `TypeError` for what is one value, such as a text, or has no order."""
    if isinstance(column, str | bytes | Mapping | Set) or not isinstance(column, Iterable):
        raise TypeError(f"an evaluator of a set takes a list per field, not {name}={column!r:.200}")
    return list(column)
