"""The trace of a judgement: a root of kind evaluator over a run per question, apart from every other trace.

Nothing of the application is above or in it: neither its current span, nor its session, user, tags and baggage. Where
the runs go is the affair of whoever stores the feedback (`Judgements`); else they are delivered like all spans of this
process, if it has a collector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import orjson
from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanContext

from spanwise.collector.dialects import from_readable
from spanwise.collector.records import JSON, Case, Target
from spanwise.evaluators.judges._ask import Answer, Ask
from spanwise.evaluators.judges._prompts import Prompt
from spanwise.evaluators.protocol import Judgements, Skip, Untraced, judging, no_trace, surroundings
from spanwise.tracer import Run, span
from spanwise.tracer import attributes as names
from spanwise.tracer.capture import Captured, capture, has_collector
from spanwise.tracer.spans import apart, current, to_json

JUDGED = ("inputs", "outputs", "reference_outputs")
LONGEST = 4_000  # bytes of each of these on the root: the questions below it have them whole

Exit: TypeAlias = tuple[type[BaseException] | None, BaseException | None, Any]


class Traced:
    """One judgement's trace while it lasts; inside of another judgement, its part of that one's trace. Without an id
    where there is none, as nothing is recorded or kept.
    """

    def __init__(self, evaluator: str, case: Case) -> None:
        known = surroundings()
        self._into: Judgements | None = known.judgements
        self._stack = ExitStack()
        self._captured: Captured | None = None
        self._run: Run | None = None
        self.id: str | None = None  # 32 hex digits
        if current().off or isinstance(self._into, Untraced):
            return
        if known.inside is not None:
            self.id = known.inside.id
            self._run = self._stack.enter_context(span(evaluator, kind="evaluator", inputs=_judged(case)))
            return
        before = attach(apart())
        self._stack.callback(detach, before)
        target = known.target or _target_of(case)
        metadata = {"evaluator": known.evaluator or evaluator, "version": known.version, **_named(target)}
        said = {name: value for name, value in metadata.items() if value is not None}
        captured = capture(evaluator, kind="evaluator", inputs=_judged(case))
        self._captured = self._stack.enter_context(captured)
        self._run, self.id = self._captured.run, self._captured.trace_id
        self._run.set_metadata(said)
        _link(self._run, target, case)
        self._stack.enter_context(judging(inside=self))

    @contextmanager
    def question(self, prompt: Prompt, ask: Ask) -> Iterator[_Question]:
        """The run of one question; what is raised inside is its error."""
        if self._run is None:
            yield _Question(None)
            return
        with span(prompt.id, kind="llm", inputs={"messages": list(ask.messages)}) as run:
            run.set_metadata({"prompt": prompt.label, **({"sample": ask.sample} if ask.sample else {})})
            yield _Question(run)

    def end(self, outputs: JSON, failed: Exit, *, kept: bool) -> bool:
        """End it, and hand it on if it is to be `kept`; whether that was done."""
        if self._run is None:
            return False
        if outputs is not None:
            self._run.set_outputs(outputs)
        self._stack.__exit__(*failed)
        return kept and (self._captured is None or self._handed_on(self._captured))

    def _handed_on(self, captured: Captured) -> bool:
        if self._into is None:
            if not has_collector():  # judged texts would lie in the spool for a collector that nobody has
                return False
            captured.deliver()
            return True
        runs = [from_readable(ended) for ended in captured.spans(0)[0]]
        self._into.add(runs)
        return any(run.parent_id is None for run in runs)


@contextmanager
def together(evaluator: str, case: Case) -> Iterator[None]:
    """Judgements inside are parts of one, as the votes of a panel are."""
    traced = Traced(evaluator, case)
    try:
        yield
    except BaseException as error:
        traced.end(None, (type(error), error, error.__traceback__), kept=not isinstance(error, Skip))
        raise
    traced.end(None, (None, None, None), kept=True)


class _Question:
    """The run of a question, if there is one."""

    def __init__(self, run: Run | None) -> None:
        self._run = run

    def answered(self, answer: Answer) -> None:
        """What came back. A cached answer has cost nothing, and its tokens were counted when they were spent."""
        if self._run is None:
            return
        self._run.set_outputs(answer.text)
        self._run.set_model(answer.model)
        told = {"cached": True} if answer.cached else {}
        if told or answer.notes:
            self._run.set_metadata({**told, **({"notes": list(answer.notes)} if answer.notes else {})})
        if not answer.cached and answer.usage is not None:
            self._spent(answer.usage.input_tokens, answer.usage.output_tokens, answer.cost)

    def failed(self, reply: str | None, spent: Mapping[str, Any]) -> None:
        """What came back that is no answer, if anything, and what that took."""
        if self._run is None:
            return
        if reply is not None:
            self._run.set_outputs(reply)
        self._spent(spent.get("input_tokens"), spent.get("output_tokens"), spent.get("cost"))

    def _spent(self, input_tokens: int | None, output_tokens: int | None, cost: float | None) -> None:
        """Record tokens and cost. Without a cost no price applies, and the model's name must not give one."""
        if self._run is not None:
            self._run.set_usage(input_tokens, output_tokens, cost=cost)
            if cost is None:
                self._run.set_attribute(names.UNPRICED, True)


def _judged(case: Case) -> Mapping[str, JSON]:
    """What was judged, each cut to a length that lists and pages show."""
    values = ((name, getattr(case, name)) for name in JUDGED)
    return {name: orjson.loads(to_json(value, LONGEST)) for name, value in values if value is not None}


def _target_of(case: Case) -> Target | None:
    return Target(trace_id=case.trace.trace_id) if case.trace is not None else None


def _named(target: Target | None) -> Mapping[str, str | None]:
    if target is None or target == no_trace():
        return {}
    return {"judged_trace": target.trace_id, "judged_span": target.span_id, "judged_session": target.session_id}


def _link(run: Run, target: Target | None, case: Case) -> None:
    """Lead to the judged span, else to the root of the judged trace, so far as it is known."""
    root = case.run
    trace_id = target.trace_id if target is not None else None
    if trace_id is None and root is not None:
        trace_id = root.trace_id
    span_id = (target.span_id if target is not None else None) or (root.span_id if root is not None else None)
    if trace_id is not None and span_id is not None:
        run.span.add_link(SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True))
