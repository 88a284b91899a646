"""One evaluator by hand: on values, on a case, or on a stored trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.collector.records import Case, Example, Feedback, Target, Trace
from assay.evaluators.protocol import as_evaluator, finish
from assay.evaluators.scoring._cases import case_of
from assay.evaluators.scoring._scoring import of_failed

NO_TRACE = "0" * 32  # OpenTelemetry's invalid trace id: the feedback speaks of values given by hand


async def ascore(
    evaluator: Any, on: Trace | Case | Sequence[Case] | None = None, *, example: Example | None = None, **fields: Any
) -> list[Feedback]:
    """As `score`, from async code."""
    judge = as_evaluator(evaluator)
    if judge.summary:
        return await judge.evaluate_set(_cases(on, fields), Target(trace_id=NO_TRACE))
    case = _case(on, example, fields)
    target = Target(trace_id=case.trace.trace_id if case.trace else NO_TRACE)
    if isinstance(on, Trace) and "outputs" not in fields and (skipped := of_failed(judge, case, target)):
        return skipped
    return (await judge.evaluate_batch([case], [target]))[0]


def score(
    evaluator: Any, on: Trace | Case | Sequence[Case] | None = None, *, example: Example | None = None, **fields: Any
) -> list[Feedback]:
    """What one evaluator says of a trace, a case, or values: `score(get("exact"), outputs="a", reference_outputs="b")`.

    `fields` are those of `Case`; over a trace they take precedence. A set-level evaluator takes a list of cases, or a
    list per field. Nothing is stored: `store.add_feedback(…)` does that.
    Never raises for what the evaluator does; raises `TypeError` when `evaluator` is none.
    """
    return finish(ascore(evaluator, on, example=example, **fields))


def _case(on: Any, example: Example | None, fields: dict[str, Any]) -> Case:
    if isinstance(on, Case):
        return on
    if on is None or isinstance(on, Trace):
        return case_of(on, example, **fields)
    raise TypeError(f"an evaluator of single cases looks at a trace, a case or values, not {on!r:.200}")


def _cases(on: Any, columns: dict[str, Any]) -> list[Case]:
    if on is not None:
        return [_case(member, None, {}) for member in ([on] if isinstance(on, Trace | Case) else on)]
    rows = zip(*columns.values(), strict=True)
    return [case_of(None, **dict(zip(columns, row, strict=True))) for row in rows]
