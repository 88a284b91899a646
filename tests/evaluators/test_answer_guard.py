"""`@guard`: evaluators that run before an answer is returned, in shadow mode and enforced."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from integration.serving import environment
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import GuardDecision, Skip, evaluator, get_evaluator, guard, scripted
from spanwise.evaluators.scoring import answer_guard
from spanwise.tracer import current_run, span, trace
from spanwise.tracer.testing import capture_spans


@pytest.fixture(autouse=True)
def nothing_is_sent():
    with capture_spans():
        yield


@evaluator(key="clean")
def clean(outputs: str) -> bool:
    return "secret" not in outputs


@evaluator(key="short", threshold=0.5)
def short(outputs: str) -> float:
    return 1 / len(outputs)


@evaluator(key="aclean")
async def aclean(outputs: str) -> bool:
    await asyncio.sleep(0)
    return "secret" not in outputs


@evaluator(key="broken")
def broken(outputs: str) -> bool:
    raise ValueError("no")


@evaluator(key="unsure")
def unsure(outputs: str) -> float:
    return 0.3


@evaluator(key="slow")
def slow(outputs: str) -> bool:
    time.sleep(5)
    return False


@evaluator(key="aslow")
async def aslow(outputs: str) -> bool:
    await asyncio.sleep(60)
    return False


def told(captured: Any) -> dict[str, Any]:
    """Label, else outcome, of each feedback by key."""
    found = {}
    for event in captured.feedback:
        given = event.attributes
        found[given["gen_ai.evaluation.name"]] = given.get(
            "gen_ai.evaluation.score.label",
            given.get("spanwise.feedback.outcome", given.get("gen_ai.evaluation.score.value")),
        )
    return found


def test_in_shadow_mode_the_answer_passes_and_the_decision_is_recorded():
    @trace
    @guard(clean, on_fail="…")
    def answer(question: str) -> str:
        return question

    with capture_spans() as captured:
        assert answer("a secret") == "a secret"
        assert answer("fine") == "fine"
    labels = [event.attributes.get("gen_ai.evaluation.score.label") for event in captured.feedback]
    assert labels == [None, "would_block", None, "pass"]
    first, second, *_ = captured.feedback
    assert first.attributes["gen_ai.evaluation.name"] == "clean"
    assert first.attributes["spanwise.feedback.evaluator"] == "clean"
    assert second.attributes["gen_ai.evaluation.score.value"] == 0.0
    assert second.attributes["gen_ai.evaluation.explanation"] == "clean: False"
    (root, _) = captured.spans
    assert (second.trace_id, second.span_id) == (root.context.trace_id, root.context.span_id)


class Refused(Exception):
    pass


def describe(decision: GuardDecision) -> str:
    return f"{decision.verdict} {decision.reason} {decision.inputs} {decision.outputs} {len(decision.feedback)}"


def test_a_blocked_answer_is_replaced_by_a_value_a_call_or_an_exception():
    def answer(question: str, more: str = "x") -> str:
        return question

    def enforced(on_fail: Any) -> Any:
        return guard(clean, on_fail=on_fail, shadow=False)(answer)

    assert enforced("…")("a secret") == "…"
    assert enforced(None)("a secret") is None
    assert enforced(describe)("a secret") == ("block clean: False {'question': 'a secret', 'more': 'x'} a secret 1")
    with pytest.raises(Refused, match="clean: False"):
        enforced(Refused)("a secret")
    own = Refused("own")
    for _ in range(3):
        with pytest.raises(Refused, match="own") as caught:
            enforced(own)("a secret")
        assert len(inspect.getinnerframes(caught.tb)) < 8  # frames of earlier calls are not collected
    assert enforced("…")("fine") == "fine"


@pytest.mark.parametrize(
    ("evaluators", "text", "verdict"),
    [
        ([clean], "fine", "pass"),
        ([clean], "secret", "block"),
        ([short], "a", "pass"),
        ([short], "aaa", "block"),
        ([clean, short], "a", "pass"),
        ([clean, short], "aaa", "block"),
        ([broken], "a", "error"),
        ([broken, clean], "a", "error"),
        ([broken, clean], "secret", "block"),
        ([unsure], "a", "skip"),
        ([unsure, clean], "a", "pass"),
        ([aclean], "secret", "block"),
        ([aclean, clean], "a", "pass"),
        ([get_evaluator("pii")], "mail ann@example.com", "block"),
        ([lambda documents: True], "a", "skip"),
        ([clean, aslow], "a", "error"),
        ([slow], "a", "error"),
        ([slow, clean], "secret", "block"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
def test_verdicts_of_each_kind_of_function(evaluators, text, verdict, is_async, is_stream):
    options = {"on_fail": "…", "shadow": False, "timeout": 0.3 if slow in evaluators or aslow in evaluators else 5}

    @guard(*evaluators, name="g", **options)
    async def coroutine(text):
        return text

    @guard(*evaluators, name="g", **options)
    def plain(text):
        return text

    @guard(*evaluators, name="g", **options)
    def stream(text):
        yield from text

    @guard(*evaluators, name="g", **options)
    async def async_stream(text):
        for letter in text:
            yield letter

    async def read(text):
        return "".join([item async for item in async_stream(text)])

    with capture_spans() as captured:
        if is_stream:
            given = asyncio.run(read(text)) if is_async else "".join(stream(text))
        else:
            given = asyncio.run(coroutine(text)) if is_async else plain(text)
    assert given == ("…" if verdict == "block" else text)
    assert told(captured)["guard:g"] == verdict


def test_a_time_limit_lets_the_answer_pass_and_says_so():
    guarded = guard(slow, on_fail="…", shadow=False, timeout=0.2)(lambda: "a")
    began = time.monotonic()
    with capture_spans() as captured:
        assert guarded() == "a"
    assert time.monotonic() - began < 3
    [decision] = captured.feedback
    assert decision.attributes["spanwise.feedback.error"] == "slow took more than 0.2 s; the answer passed"


def test_a_blocking_evaluator_leaves_the_event_loop_free():
    @guard(slow, on_fail="…", shadow=False, timeout=0.5)
    async def answer():
        return "a"

    async def main():
        ticks = 0
        task = asyncio.create_task(answer())
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(main()) > 5


def test_kinds_of_functions_stay_as_they_are():
    @guard(clean, on_fail="…")
    async def coroutine() -> str:
        """Say something."""
        return "a"

    @guard(clean, on_fail="…")
    def stream():
        yield "a"

    @guard(clean, on_fail="…")
    async def async_stream():
        yield "a"

    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(stream)
    assert inspect.isasyncgenfunction(async_stream)
    assert (coroutine.__name__, coroutine.__doc__) == ("coroutine", "Say something.")


def test_methods_are_guarded():
    class Bot:
        @guard(clean, on_fail="…", shadow=False)
        def own(self, text):
            return text

        @guard(clean, on_fail="…", shadow=False)
        @staticmethod
        def static(text):
            return text

        @guard(clean, on_fail=describe, shadow=False)
        @classmethod
        def of_class(cls, text):
            return text

    assert (Bot().own("secret"), Bot.static("secret"), Bot().own("a")) == ("…", "…", "a")
    assert Bot.of_class("secret") == "block clean: False {'text': 'secret'} secret 1"


def test_an_exception_of_the_function_is_its_own():
    @guard(clean, on_fail="…", shadow=False)
    def answer():
        raise KeyError("own")

    with capture_spans() as captured, pytest.raises(KeyError, match="own"):
        answer()
    assert captured.feedback == []


def test_guards_nest_and_stack():
    @guard(clean, on_fail="inner", shadow=False)
    def inner(text):
        return text

    @guard(short, on_fail="outer", shadow=False)
    @guard(clean, on_fail="…", shadow=False, name="first")
    def outer(text):
        return inner(text) + "secret"

    with capture_spans() as captured:
        assert outer("secret") == "…"
    assert told(captured) == {
        "clean": 0.0,
        "guard:inner": "block",
        "guard:first": "block",
        "short": 1.0,
        "guard:outer": "pass",
    }


def test_an_evaluator_may_call_a_guarded_function():
    checked = guard(clean, on_fail=False, shadow=False)(lambda text: text)
    nested = evaluator(key="nested")(lambda outputs: checked(outputs) != False)  # noqa: E712
    guarded = guard(nested, on_fail="…", shadow=False)(lambda text: text)
    assert (guarded("fine"), guarded("secret")) == ("fine", "…")


def test_shadow_streams_pass_at_once_and_are_decided_at_their_end():
    seen = []

    @trace
    @guard(clean, on_fail="…")
    def stream():
        for letter in ("sec", "ret"):
            seen.append(letter)
            yield letter
        return 7

    with capture_spans() as captured:
        items = stream()
        assert next(items) == "sec"
        assert seen == ["sec"]
        assert list(items) == ["ret"]
    assert told(captured)["guard:stream"] == "would_block"


def test_an_evaluator_that_is_named_twice_is_asked_twice():
    with capture_spans() as captured:
        assert guard(clean, clean, on_fail="…", shadow=False, timeout=60)(lambda: "secret")() == "…"
        assert asyncio.run(guard(aclean, aclean, on_fail="…", shadow=False, timeout=60)(aanswer)()) == "…"
    assert len(captured.feedback) == 6


async def aanswer():
    return "secret"


def test_without_an_asyncio_loop_a_coroutine_is_guarded_on_its_thread():
    call = guard(clean, on_fail="…", shadow=False)(aanswer)()
    with pytest.raises(StopIteration) as end:
        call.send(None)  # as trio does
    assert end.value.value == "…"


def test_where_no_thread_can_start_the_answer_passes(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(answer_guard, "_pools", [])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with capture_spans(threads=False) as captured:
        assert guard(clean, on_fail="…", shadow=False, timeout=60, name="g")(lambda: "secret")() == "secret"
    assert told(captured)["guard:g"] == "error"


def test_what_is_sent_and_thrown_into_a_generator_arrives():
    @guard(clean, on_fail="…")
    def echo():
        try:
            sent = yield "a"
            yield sent
        except KeyError:
            yield "caught"
        return "end"

    items = echo()
    assert (next(items), items.send("b")) == ("a", "b")
    with pytest.raises(StopIteration) as end:
        next(items)
    assert end.value.value == "end"
    items = echo()
    next(items)
    assert items.throw(KeyError()) == "caught"

    @guard(clean, on_fail="…")
    async def async_echo():
        try:
            sent = yield "a"
            yield sent
        except KeyError:
            yield "caught"

    async def drive():
        items = async_echo()
        first = [await anext(items), await items.asend("b"), await anext(items, "end")]
        items = async_echo()
        await anext(items)
        return [*first, await items.athrow(KeyError())]

    assert asyncio.run(drive()) == ["a", "b", "end", "caught"]


@pytest.mark.parametrize("shadow", [True, False])
def test_a_stream_that_is_closed_early_has_no_decision_in_shadow_mode(shadow):
    closed = []

    @guard(clean, on_fail="…", shadow=shadow)
    def stream():
        try:
            yield "a"
            yield "b"
        finally:
            closed.append(True)

    @guard(clean, on_fail="…", shadow=shadow, name="stream")
    async def async_stream():
        try:
            yield "a"
            yield "b"
        finally:
            closed.append(True)

    async def close():
        items = async_stream()
        await anext(items)
        await items.aclose()

    for act in (lambda: (items := stream(), next(items), items.close()), lambda: asyncio.run(close())):
        with capture_spans() as captured:
            act()
        assert told(captured)["guard:stream"] == ("skip" if shadow else "pass")
    assert closed == [True, True]


def test_items_of_a_stream_are_a_text_a_list_or_what_reduce_makes_of_them():
    given = []
    look = evaluator(key="look")(lambda outputs: given.append(outputs) or True)
    list(guard(look, on_fail="…")(lambda: (yield from ("a", "b")))())
    list(guard(look, on_fail="…")(lambda: (yield from (1, 2)))())
    list(guard(look, on_fail="…", reduce=sum)(lambda: (yield from (1, 2)))())
    assert given == ["ab", [1, 2], 3]
    with capture_spans() as captured:
        assert list(guard(look, on_fail="…", reduce=sum, name="g", shadow=False)(lambda: (yield "x"))()) == ["x"]
    assert told(captured) == {"guard:g": "error"}


def test_a_returned_stream_and_an_endless_one_pass_without_a_decision(monkeypatch):
    with capture_spans() as captured:
        assert list(guard(clean, on_fail="…", name="g", shadow=False)(lambda: iter(["secret"]))()) == ["secret"]
    assert told(captured) == {"guard:g": "skip"}
    with capture_spans() as captured:
        assert (
            asyncio.run(guard(aclean, on_fail="…", name="g", shadow=False)(lambda: asyncio.sleep(0, "secret"))())
            == "secret"
        )
    assert told(captured) == {"guard:g": "skip"}
    monkeypatch.setattr(answer_guard, "MAX_STREAM_ITEMS", 10)

    async def letters():
        for letter in "x" * 50:
            yield letter

    async def read(stream):
        return [item async for item in stream]

    for shadow in (True, False):
        with capture_spans() as captured:
            guarded = guard(clean, on_fail="…", name="g", shadow=shadow)
            assert list(guarded(lambda: (yield from "x" * 50))()) == ["x"] * 50
            assert asyncio.run(read(guarded(letters)())) == ["x"] * 50
        assert [event.attributes["spanwise.feedback.outcome"] for event in captured.feedback] == ["skip", "skip"]
    with capture_spans() as captured:
        assert len(list(guard(clean, on_fail="…", name="g")(lambda: (yield from "x" * 50))())) == 50
    assert told(captured) == {"guard:g": "skip"}


def test_a_function_that_is_not_traced_gets_a_run_of_its_own():
    with capture_spans() as captured:
        guard(clean, on_fail="…")(lambda text: text)("secret")
    [run] = captured.spans
    assert run.name == "guard <lambda>"
    assert all(event.span_id == run.context.span_id for event in captured.feedback)


def test_the_run_of_the_caller_is_current_in_evaluators_and_gets_the_decision():
    seen = []
    look = evaluator(key="look")(lambda outputs: seen.append(current_run().trace_id) or True)

    @guard(look, on_fail="…")
    def answer():
        return "a"

    with capture_spans() as captured, span("root") as run:
        answer()
    assert seen == [run.trace_id]
    assert {f"{event.trace_id:032x}" for event in captured.feedback} == {run.trace_id}
    assert [each.name for each in captured.spans] == ["root"]


def test_a_judge_is_a_guard(monkeypatch):
    from spanwise.evaluators import Judge, judge

    asked = Judge(backend=scripted('{"rationale": "rude", "rating": "no"}').backend)
    polite = judge("polite", "Is it polite?\n{outputs}", scale=("yes", "no"), judge=asked)
    with capture_spans() as captured:
        assert guard(polite, on_fail="…", shadow=False, name="g", timeout=30)(lambda: "a")() == "…"
    assert told(captured)["guard:g"] == "block"


def test_a_skip_passes_with_its_reason():
    @evaluator(key="skips")
    def skips(outputs: str) -> bool:
        raise Skip("nothing to see")

    with capture_spans() as captured:
        assert guard(skips, on_fail="…", shadow=False, name="g")(lambda: "a")() == "a"
    assert told(captured) == {"skips": "skip", "guard:g": "skip"}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_evaluator_that_ends_the_process_ends_nothing(stop):
    @evaluator(key="ends")
    def ends(outputs: str) -> bool:
        raise stop

    for _ in range(3):
        assert guard(ends, on_fail="…", shadow=False)(lambda: "a")() == "a"


def test_an_async_on_fail_is_awaited_and_a_cancelled_call_is_cancelled():
    async def replace(decision: GuardDecision) -> str:
        return decision.verdict

    @guard(aclean, on_fail=replace, shadow=False)
    async def answer(text):
        return text

    assert asyncio.run(answer("secret")) == "block"

    @guard(aslow, on_fail="…", timeout=60)
    async def waiting():
        return "a"

    async def main():
        task = asyncio.create_task(waiting())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_many_threads_get_their_own_decisions():
    guarded = guard(clean, on_fail="…", shadow=False, timeout=60)(lambda text: text)
    texts = [f"{'secret' if number % 3 == 0 else 'fine'} {number}" for number in range(300)]
    with ThreadPoolExecutor(24) as pool:
        given = list(pool.map(guarded, texts))
    assert given == ["…" if "secret" in text else text for text in texts]


def test_hanging_evaluators_take_no_more_than_the_pool(monkeypatch):
    monkeypatch.setattr(answer_guard, "MAX_THREADS", 4)
    monkeypatch.setattr(answer_guard, "_pools", [])
    go = threading.Event()
    hangs = evaluator(key="hangs")(lambda outputs: go.wait(60))
    guarded = guard(hangs, on_fail="…", shadow=False, timeout=0.05)(lambda: "a")
    assert [guarded() for _ in range(12)] == ["a"] * 12
    assert answer_guard._pools[-1].threads == 4
    go.set()


@pytest.mark.process
def test_a_forked_child_guards_too():
    guarded = guard(clean, on_fail="…", shadow=False, timeout=30)(lambda text: text)
    assert guarded("secret") == "…"
    child = os.fork()
    if child == 0:
        os._exit(0 if guarded("secret") == "…" and guarded("a") == "a" else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.process
def test_a_hanging_evaluator_does_not_delay_the_exit():
    code = (
        "import time\nfrom spanwise.evaluators import evaluator, guard\n"
        "hangs = evaluator(key='hangs')(lambda outputs: time.sleep(600))\n"
        "print(guard(hangs, on_fail='…', timeout=0.1)(lambda: 'a')())"
    )
    env = {**os.environ, "SPANWISE_DISABLED": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert done.stdout == "a\n", done.stderr


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: guard(on_fail="…"), TypeError, "needs an evaluator"),
        (lambda: guard(clean, on_fail="…", timeout=0), ValueError, "timeout must be a number of seconds > 0, got 0"),
        (lambda: guard(clean, on_fail="…", timeout=True), ValueError, "got True"),
        (lambda: guard(5, on_fail="…"), TypeError, "5"),
        (lambda: guard(clean, on_fail="…")(dict), TypeError, "takes a function or a method"),
        (lambda: guard(clean, on_fail="…")(5), TypeError, "takes a function or a method, got 5"),
        (lambda: guard(evaluator(summary=True)(lambda outputs: 1.0), on_fail="…"), TypeError, "scores a set of cases"),
    ],
)
def test_what_cannot_guard_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


CLIENT = """
from spanwise.evaluators import evaluator, guard
from spanwise.tracer import flush, trace

@evaluator(key="clean", version="7")
def clean(outputs):
    return "secret" not in outputs

@evaluator(key="broken")
def broken(outputs):
    raise ValueError("no")

@trace
@guard(clean, broken, on_fail="…", shadow=False)
def answer(question):
    return question

assert (answer("secret"), answer("fine")) == ("…", "fine")
flush()
"""


@pytest.mark.process
def test_decisions_are_feedback_like_any_other(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server:
        env = {**environment(), "SPANWISE_URL": server.url, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, "-c", CLIENT], check=True, timeout=120, env=env)
        blocked, passed = sorted(store.traces(), key=lambda summary: summary.start_ns)
        [found] = store.traces(feedback=("guard:answer", "<", 0.5))
        assert found.trace_id == blocked.trace_id
        by_key = {one.key: one for one in store.feedbacks(trace_ids=(blocked.trace_id,))}
        errors = [one for one in store.feedbacks(trace_ids=(passed.trace_id,)) if one.outcome == "error"]
        root = store.trace(blocked.trace_id).root
    assert root.outputs == "…"  # the span has what the user got
    assert (by_key["clean"].score, by_key["clean"].evaluator, by_key["clean"].version) == (False, "clean", "7")
    assert (by_key["broken"].outcome, by_key["broken"].error) == ("error", "ValueError: no")
    decision = by_key["guard:answer"]
    assert (decision.score, decision.label, decision.comment, decision.source) == (
        False,
        "block",
        "clean: False",
        "code",
    )
    assert decision.target.span_id == root.span_id
    assert decision.metadata["shadow"] is False
    assert {one.key for one in errors} == {"broken", "guard:answer"}
    assert "broken: ValueError: no; the answer passed" in {one.error for one in errors}
