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
    """The runs of judgements that have ended, until somebody stores them with the feedback that leads to them.

    An evaluator returns after its judgement has ended: who takes what is here whenever feedback is stored has all that
    this feedback leads to. Any thread may add and take.
    """

    def __init__(self) -> None:
        self._ended: deque[Sequence[Run]] = deque()

    def add(self, runs: Sequence[Run]) -> None:
        """Keep the runs of one judgement."""
        self._ended.append(runs)

    def take(self) -> list[Run]:
        """Everything that is there, which then is there no more."""
        taken: list[Run] = []
        while self._ended:
            try:
                taken += self._ended.popleft()
            except IndexError:  # another thread was faster
                break
        return taken


class DiscardedJudgements(JudgementBuffer):
    """Where judgements are to leave no trace, such as where nothing is stored that could lead to it."""


def make_untraced_target() -> Target:
    """What feedback is about that speaks of values given by hand."""
    return Target(trace_id=_INVALID_TRACE_ID)


@dataclass(frozen=True, slots=True)
class JudgeContext:
    """What is known to whom a judge cannot ask.

    `judgements` None: they go the way of every span of this process, to the collector. `evaluator` and `version` are
    those of the feedback, `target` what it is about; `repetition` is that of an experiment's run, None where the case
    tells it. `inside` is the trace of a judgement of which those inside are parts.
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
    """Let judges inside know more: `Surroundings` by name. A target that is no trace hides none that is known."""
    target = known.get("target")
    if target is not None and target.trace_id == _INVALID_TRACE_ID:
        del known["target"]
    token = _context_variable.set(replace(_context_variable.get(), **known))
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that is thrown away is closed in whatever context
            _context_variable.reset(token)
