"""Context of a judgement: target, evaluator, repetition, and the buffer for the judge's traces."""

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

    An evaluator returns only after its judgement has ended. The buffer therefore contains every judgement that an
    evaluator's feedback refers to when that feedback is stored. Any thread may add and take.
    """

    def __init__(self) -> None:
        self._finished: deque[Sequence[Run]] = deque()

    def add(self, runs: Sequence[Run]) -> None:
        """Add the runs of one judgement."""
        self._finished.append(runs)

    def take(self) -> list[Run]:
        """Remove and return all runs."""
        runs: list[Run] = []
        while self._finished:
            try:
                runs += self._finished.popleft()
            except IndexError:  # another thread has taken the last runs
                break
        return runs


class DiscardedJudgements(JudgementBuffer):
    """Buffer for judgements whose traces are not stored, for example if no feedback is stored either."""


def make_untraced_target() -> Target:
    """Return the target for feedback on values that belong to no trace."""
    return Target(trace_id=_INVALID_TRACE_ID)


@dataclass(frozen=True, slots=True)
class JudgeContext:
    """Context of a judge call.

    `evaluator` and `version` are those of the feedback, and `target` is its target. `repetition` is the repetition of
    an experiment's run; None if the case provides it. `inside` is the trace of the enclosing judgement. Judge traces
    are added to `judgements`; if it is None, judge spans are sent to the collector like all spans of this process.
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
def use_judge_context(**fields: Any) -> Iterator[None]:
    """Set fields of the `JudgeContext` by name for the block.

    A target without a trace is ignored, so that it does not replace the target of an enclosing context.
    """
    target = fields.get("target")
    if target is not None and target.trace_id == _INVALID_TRACE_ID:
        del fields["target"]
    token = _context_variable.set(replace(_context_variable.get(), **fields))
    try:
        yield
    finally:
        with suppress(ValueError):  # the block may end in another context, if Python closes a discarded coroutine
            _context_variable.reset(token)
