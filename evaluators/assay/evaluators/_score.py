"""One evaluator by hand: on values, on a case, or on a stored trace."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from assay.collector.records import Case, Example, Feedback, Target, Trace
from assay.evaluators._cases import case_from, case_of
from assay.evaluators._evaluator import Evaluator, as_evaluator

T = TypeVar("T")
NO_TRACE = "0" * 32  # OpenTelemetry's invalid trace id: the feedback speaks of values given by hand


async def ascore(
    evaluator: Any, on: Trace | Case | None = None, *, example: Example | None = None, **fields: Any
) -> list[Feedback]:
    """As `score`, from async code."""
    wrapped = as_evaluator(evaluator)
    case = _case(on, example, fields)
    target = Target(trace_id=case.trace.trace_id if case.trace else NO_TRACE)
    if wrapped.summary:
        return await wrapped.evaluate_set([case], target)
    return (await wrapped.evaluate_batch([case], [target]))[0]


def score(
    evaluator: Any, on: Trace | Case | None = None, *, example: Example | None = None, **fields: Any
) -> list[Feedback]:
    """What one evaluator says of a trace, a case, or values: `score(get("exact"), outputs="a", reference_outputs="b")`.

    `fields` are those of `Case`; over a trace they take precedence. Nothing is stored: `store.add_feedback(…)` does.
    Never raises for what the evaluator does; raises `TypeError` when `evaluator` is none.
    """
    return finish(ascore(evaluator, on, example=example, **fields))


def score_set(evaluator: Any, cases: list[Case], target: Target | None = None) -> list[Feedback]:
    """What a set-level evaluator says of many cases."""
    wrapped: Evaluator = as_evaluator(evaluator)
    return finish(wrapped.evaluate_set(cases, target or Target(trace_id=NO_TRACE)))


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from plain code, also inside a running loop (then on a thread of its own)."""
    if not _in_a_loop():
        return asyncio.run(coroutine)
    result: list[T] = []
    error: list[BaseException] = []

    def work() -> None:
        try:
            result.append(asyncio.run(coroutine))
        except BaseException as raised:
            error.append(raised)

    thread = threading.Thread(target=work, name="assay-score", daemon=True)
    thread.start()
    thread.join()
    if error:
        raise error[0]
    return result[0]


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _case(on: Trace | Case | None, example: Example | None, fields: dict[str, Any]) -> Case:
    if isinstance(on, Case):
        return on
    return case_of(on, example, **fields) if isinstance(on, Trace) else case_from(example, **fields)
