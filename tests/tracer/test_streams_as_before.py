"""A traced stream behaves as the original, whatever its consumer does, and its span says what happened."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.trace import StatusCode

from spanwise.tracer import current_run, trace
from spanwise.tracer.otel.trace_context import get_current
from spanwise.tracer.testing import Spans, capture_spans


class Boom(Exception):
    pass


class Step(NamedTuple):
    """One `yield`: what it gives, and what the generator does when something is thrown in or it is closed there."""

    value: Any
    thrown: str  # goes on, raises, returns, passes
    closed: str  # passes, returns, raises


class Seen:
    """What a generator saw, and in which runs its code ran."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.runs: set[str] = set()

    def note(self, *what: Any) -> None:
        self.log.append(what)
        self.runs.add(current_run().span_id)

    def reaction(self, error: BaseException, how: str) -> bool:
        """Whether to return; raises where the script says so."""
        self.note("thrown", type(error).__name__)
        if how == "raises":
            raise Boom("instead") from error
        if how == "passes":
            raise error
        return how == "returns"


Script = tuple[list[Step], str]  # the steps, then: returns or raises


def original(script: Script, seen: Seen) -> Generator[Any, Any, str]:
    steps, end = script
    try:
        for step in steps:
            try:
                seen.note("got", (yield step.value))
            except GeneratorExit as error:
                if seen.reaction(error, step.closed):
                    return "closed"
            except Exception as error:
                if seen.reaction(error, step.thrown):
                    return "early"
    finally:
        seen.note("finally")
    if end == "raises":
        raise Boom("at the end")
    return "done"


async def original_async(script: Script, seen: Seen) -> AsyncGenerator[Any, Any]:
    steps, end = script
    try:
        for step in steps:
            await asyncio.sleep(0)
            try:
                seen.note("got", (yield step.value))
            except GeneratorExit as error:
                if seen.reaction(error, step.closed):
                    return
            except Exception as error:
                if seen.reaction(error, step.thrown):
                    return
    finally:
        seen.note("finally")
    if end == "raises":
        raise Boom("at the end")


values = st.integers(0, 9) | st.text("aé", max_size=2) | st.none() | st.lists(st.integers(0, 9), max_size=2)
ends = st.sampled_from(["returns", "raises"])
steps = st.builds(
    Step,
    values,
    st.sampled_from(["goes on", "raises", "returns", "passes"]),
    st.sampled_from(["passes", "passes", "returns", "raises"]),
)
scripts = st.tuples(st.lists(steps, max_size=4), ends)
does = st.one_of(
    st.just(("next", None)),
    st.just(("next", None)),
    st.tuples(st.just("send"), st.none() | st.integers(0, 9)),
    st.tuples(st.just("throw"), st.sampled_from([Boom, ValueError, StopIteration, StopAsyncIteration])),
    st.just(("close", None)),
)
sequences = st.lists(does, max_size=7)


def outcome(step: Callable[[], Any]) -> tuple[str, Any]:
    """What one action of the consumer came to."""
    try:
        return "gave", step()
    except StopIteration as stop:
        return "ended", stop.value
    except Exception as error:
        return "raised", (type(error), str(error))


async def outcome_async(step: Callable[[], Awaitable[Any]]) -> tuple[str, Any]:
    try:
        return "gave", await step()
    except StopAsyncIteration:
        return "ended", None
    except Exception as error:
        return "raised", (type(error), str(error))


def act(stream: Any, action: tuple[str, Any]) -> tuple[str, Any]:
    name, value = action
    acts = {
        "next": lambda: next(stream),
        "send": lambda: stream.send(value),
        "throw": lambda: stream.throw(value("in")),
        "close": lambda: stream.close(),
    }
    return outcome(acts[name])


async def act_async(stream: Any, action: tuple[str, Any]) -> tuple[str, Any]:
    name, value = action
    acts = {
        "next": lambda: anext(stream),
        "send": lambda: stream.asend(value),
        "throw": lambda: stream.athrow(value("in")),
        "close": lambda: stream.aclose(),
    }
    return await outcome_async(acts[name])


def consumed(make: Any, script: Script, actions: list[tuple[str, Any]]) -> tuple[list[Any], Seen]:
    seen, before = Seen(), get_current()
    stream = make(script, seen)
    outcomes = []
    for action in actions:
        outcomes.append(act(stream, action))
        assert get_current() is before
    del stream
    gc.collect(0)
    return outcomes, seen


def consumed_async(make: Any, script: Script, actions: list[tuple[str, Any]]) -> tuple[list[Any], Seen]:
    seen = Seen()

    async def main() -> list[Any]:
        stream, before = make(script, seen), get_current()
        outcomes = []
        for action in actions:
            outcomes.append(await act_async(stream, action))
            assert get_current() is before
        del stream
        for _ in range(5):  # the loop closes what was forgotten
            await asyncio.sleep(0)
        return outcomes

    return asyncio.run(main()), seen


def expected(actions: list[tuple[str, Any]], outcomes: list[Any]) -> tuple[list[Any], Any, bool]:
    """From what the original did: the items of the span, its error (... if it was forgotten), whether it was closed."""
    items, started = [], False
    for (name, value), (kind, result) in zip(actions, outcomes, strict=True):
        if not started and name == "send" and value is not None:
            continue  # a TypeError, and nothing has begun
        if not started and name in ("throw", "close"):
            return [], None, True  # over before its code began
        started = True
        if name == "close":
            return (items, None, True) if kind == "gave" else (items, f"{result[0].__name__}: {result[1]}", False)
        if kind == "gave":
            items.append(result)
        elif kind == "ended":
            return items, None, False
        else:
            return items, f"{result[0].__name__}: {result[1]}", False
    return items, ..., True


def at_its_end(script: Script, seen: Seen) -> str | None:
    """What a forgotten generator raised to the collector of garbage that closed it."""
    done = sum(what in ("got", "thrown") for what, *_ in seen.log)
    return "Boom: instead" if done and script[0][done - 1].closed == "raises" else None


def told(spans: Spans) -> tuple[list[Any], str | None, bool]:
    (span,) = spans.spans
    failed = span.status.status_code is StatusCode.ERROR
    attributes = span.attributes or {}
    return (
        json.loads(str(attributes["output.value"])),
        span.status.description if failed else None,
        attributes.get("spanwise.stream.closed", False) is True,
    )


def check(consume: Any, make: Any, script: Script, actions: list[tuple[str, Any]]) -> None:
    outcomes, seen = consume(make, script, actions)
    with capture_spans() as spans:
        traced_outcomes, traced_seen = consume(trace(make), script, actions)
    assert (traced_outcomes, traced_seen.log) == (outcomes, seen.log)
    assert traced_seen.runs <= {f"{spans.spans[0].context.span_id:016x}"}
    items, error, closed = expected(actions, outcomes)
    if error is ...:
        error = at_its_end(script, seen)
        closed = error is None
    assert told(spans) == (items, error, closed)


forgotten = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine method:RuntimeWarning"
)


@pytest.mark.process
@forgotten
@given(scripts, sequences)
@settings(max_examples=150, deadline=None)
def test_a_traced_generator(script: Script, actions: list[tuple[str, Any]]) -> None:
    check(consumed, original, script, actions)


@pytest.mark.process
@forgotten
@given(scripts, sequences)
@settings(max_examples=60, deadline=None)
def test_a_traced_async_generator(script: Script, actions: list[tuple[str, Any]]) -> None:
    check(consumed_async, original_async, script, actions)


@types.coroutine
def pause(value: Any) -> Generator[Any, Any, Any]:
    return (yield value)


async def original_coroutine(script: Script, seen: Seen) -> str:
    steps, end = script
    try:
        for step in steps:
            try:
                seen.note("got", await pause(step.value))
            except GeneratorExit as error:
                if seen.reaction(error, step.closed):
                    return "closed"
            except Exception as error:
                if seen.reaction(error, step.thrown):
                    return "early"
    finally:
        seen.note("finally")
    if end == "raises":
        raise Boom("at the end")
    return "done"


def awaited(function: Any, script: Script, actions: list[tuple[str, Any]]) -> tuple[list[Any], Seen]:
    """As a task does it: all steps in one context of its own, which is left as it was."""
    seen, context, before = Seen(), contextvars.copy_context(), get_current()
    streams = [context.run(function, script, seen).__await__()]
    outcomes = [context.run(act, streams[0], action) for action in actions]
    # What a closed coroutine returns reaches the closer since Python 3.13, though not through a coroutine that awaits it
    for place, (action, _) in enumerate(actions):
        if action == "close" and outcomes[place][0] == "gave":
            outcomes[place] = ("gave", None)
    context.run(streams.clear)
    assert context.run(get_current) is before
    return outcomes, seen


@pytest.mark.process
@forgotten
@pytest.mark.parametrize(
    "decorate", [trace, lambda function: trace(lambda script, seen: function(script, seen))], ids=["async", "deferred"]
)
@given(scripts, sequences)
@settings(max_examples=60, deadline=None)
def test_a_traced_coroutine(decorate: Any, script: Script, actions: list[tuple[str, Any]]) -> None:
    actions = [("next", None), *actions]  # one that is never awaited is warned of
    outcomes, seen = awaited(original_coroutine, script, actions)
    with capture_spans() as spans:
        traced_outcomes, traced_seen = awaited(decorate(original_coroutine), script, actions)
    assert (traced_outcomes, traced_seen.log) == (outcomes, seen.log)
    (span,) = spans.spans
    assert traced_seen.runs == {f"{span.context.span_id:016x}"}
    _, error, closed = expected(actions, outcomes)
    error = at_its_end(script, seen) if error is ... else error
    assert span.status.description == error
    if not (error or closed):
        returned = next(result for kind, result in outcomes if kind == "ended")
        assert (span.attributes or {})["output.value"] == returned
