"""Context of a judgement: target, evaluator, repetition, and where the judge's traces are collected."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from spanwise.collector.records import Run, Target

_INVALID_TRACE_ID = "0" * 32  # OpenTelemetry's invalid trace id


class JudgementBuffer:
    """Buffer of the runs of finished judgements until they are stored with the feedback that refers to them.

    An evaluator returns after its judgement has ended. Taking the buffer whenever feedback is stored therefore
    includes every judgement that the feedback refers to. Any thread may add and take.
    """

    def __init__(self) -> None:
        self._ended: deque[Sequence[Run]] = deque()

    def add(self, runs: Sequence[Run]) -> None:
        """Add the runs of one judgement."""
        self._ended.append(runs)

    def take(self) -> list[Run]:
        """Remove and return all runs."""
        taken: list[Run] = []
        while self._ended:
            try:
                taken += self._ended.popleft()
            except IndexError:  # another thread took it
                break
        return taken


class DiscardedJudgements(JudgementBuffer):
    """Buffer for judgements whose traces are not stored, for example if no feedback is stored either."""


def make_untraced_target() -> Target:
    """Return the target of feedback on values without a trace."""
    return Target(trace_id=_INVALID_TRACE_ID)


@dataclass(frozen=True, slots=True)
class JudgeContext:
    """Context of a judge call.

    With `judgements` None, judge spans are sent to the collector like every span of this process. `evaluator` and
    `version` are those of the feedback, `target` its target. `repetition` is that of an experiment's run, None if the
    case provides it. `inside` is the trace of the enclosing judgement.
    """

    judgements: JudgementBuffer | None = None
    evaluator: str | None = None
    version: str | None = None
    target: Target | None = None
    repetition: int | None = None
    inside: Any = None


_context_variable: ContextVar[JudgeContext] = ContextVar("spanwise-judging", default=JudgeContext())  # noqa: B039  # frozen
get_judge_context = _context_variable.get


@contextmanager
def use_judge_context(**known: Any) -> Iterator[None]:
    """Set fields of the `JudgeContext` by name for the block.

    A target without a trace does not replace one with a trace.
    """
    target = known.get("target")
    if target is not None and target.trace_id == _INVALID_TRACE_ID:
        del known["target"]
    token = _context_variable.set(replace(_context_variable.get(), **known))
    try:
        yield
    finally:
        with suppress(ValueError):  # a discarded coroutine may be closed in another context
            _context_variable.reset(token)
