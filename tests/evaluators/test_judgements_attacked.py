"""What must not happen to judgements: kills, loops, other people's instrumentation, hostile senders and values."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider

from spanwise.collector.records import Run, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, ascore, evaluate, evaluator, get_evaluator, score
from spanwise.evaluators.interface import JudgementBuffer, use_judge_context
from spanwise.evaluators.judges import Completion, Judge
from spanwise.tracer import current_run, span, trace
from spanwise.tracer.testing import capture_spans

ID = "relevance_to_query"
YES = '{"rationale": "It is.", "rating": "yes"}'
CASE = {"inputs": {"question": "Why?"}, "outputs": "Because."}
ROWS = [{"inputs": {"question": f"Why {n}?"}} for n in range(4)]


def yes(prompt: str) -> str:
    return YES


def answer(question):
    return question


KILLED = """
import time
from spanwise.evaluators import evaluate, get_evaluator

def judge(prompt: str) -> str:
    with open("asked.txt", "a") as asked:
        asked.write("x")
    if "Q5?" in prompt:
        time.sleep(60)
    return '{"rationale": "It is.", "rating": "yes"}'

rows = [{"inputs": {"q": f"Q{n}?"}} for n in range(8)]
evaluate(rows, lambda q: q, [get_evaluator("relevance_to_query", judge=judge)], name="e", store="spanwise.db", progress=False)
"""


@pytest.mark.process
def test_a_kill_in_the_middle_of_a_judgement_leaves_no_feedback_that_leads_nowhere(tmp_path):
    (tmp_path / "script.py").write_text(KILLED)
    process = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline and not _stored(tmp_path, 7):
        time.sleep(0.02)
    process.kill()
    process.wait()
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        links = {feedback.judge_trace_id for feedback in store.feedbacks()}
        assert len(links) == 7
        assert links == {trace.trace_id for trace in store.traces(kind="evaluator")}
        assert Experiment.load(store, "e").summary().judge_calls == 7


def _stored(folder, count):
    """Whether so many judgements are in the file, seen by a reader beside its writer."""
    import sqlite3

    try:
        db = sqlite3.connect(f"file:{folder / 'spanwise.db'}?mode=ro", uri=True)
        try:
            return db.execute("SELECT count(*) FROM feedback").fetchone()[0] >= count
        finally:
            db.close()
    except sqlite3.Error:
        return False


def test_a_judge_asked_inside_an_application_adds_nothing_to_its_trace():
    judge = get_evaluator(ID, judge=yes)

    @trace
    def guarded(question):
        [feedback] = score(judge, inputs=question, outputs="Because.")
        current_run().feedback("relevant", feedback.score)
        return "Because."

    with capture_spans() as spans:
        guarded("Why?")
    app = spans.one("guarded")
    own = [span for span in spans.spans if span.context.trace_id == app.context.trace_id]
    assert own == [app]
    assert len(spans.spans) == 3


def test_an_async_application_goes_on_in_its_own_trace():
    judge = get_evaluator(ID, judge=yes)

    @trace
    async def app():
        await asyncio.gather(ascore(judge, **CASE), ascore(judge, **CASE))
        with span("after"):
            pass

    with capture_spans() as spans:
        asyncio.run(app())
    assert spans.parent("after") == "app"
    assert spans.parent("app") is None
    assert len({one.context.trace_id for one in spans.spans}) == 3


def test_a_task_that_asks_a_judge_itself_keeps_the_judgement_in_the_experiments_store(store):
    judge = get_evaluator(ID, judge=yes)

    def careful(question):
        return score(judge, inputs=question, outputs="Because.")[0].judge_trace_id

    with capture_spans() as spans:
        experiment = evaluate(ROWS, careful, store=store, progress=False)
    assert {row.outputs for row in experiment.rows()} == {one.trace_id for one in store.traces(kind="evaluator")}
    assert spans.names() == []
    assert experiment.summary().tokens == 0


def test_an_evaluator_that_asks_judges_on_threads_of_its_own_loses_none(store):
    judge = get_evaluator(ID, judge=yes)

    @evaluator
    def on_threads(outputs):
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(score(judge, inputs="q", outputs=outputs)[0]))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"score": len(found), "metadata": {"links": [one.judge_trace_id for one in found]}}

    with capture_spans() as spans:
        experiment = evaluate(ROWS[:1], answer, [on_threads], store=store, progress=False)
    [row] = experiment.rows()
    links = row.feedback["on_threads"].metadata["links"]
    kept = {one.trace_id for one in store.traces(kind="evaluator")}
    delivered = {f"{one.context.trace_id:032x}" for one in spans.spans}
    assert len(links) == 3
    assert set(links) == kept | delivered


def test_a_judgement_beside_somebody_elses_opentelemetry_is_in_neither_trace():
    theirs = TracerProvider().get_tracer("theirs")
    judgements = JudgementBuffer()
    with (
        capture_spans() as spans,
        theirs.start_as_current_span("their span") as outer,
        use_judge_context(judgements=judgements),
    ):
        score(get_evaluator(ID, judge=yes), **CASE)
        assert otel.get_current_span() is outer
    runs = judgements.take()
    assert spans.names() == []
    assert {run.trace_id for run in runs}.isdisjoint({f"{outer.get_span_context().trace_id:032x}"})
    assert all("spanwise.foreign.trace_id" not in run.attributes for run in runs)


class _Instrumented:
    """A model whose client makes a span of its own, as an instrumentation does, unless it is told not to."""

    model, where = "instrumented", "a client that somebody has instrumented"

    async def complete(self, ask):
        from opentelemetry.instrumentation.utils import is_instrumentation_enabled

        if is_instrumentation_enabled():
            with span("chat", kind="llm"):
                pass
        return Completion(text=YES)


def test_an_instrumented_client_adds_at_most_a_run_to_the_judgement_and_no_trace(store):
    judge = get_evaluator(ID, judge=Judge(model="m", backend=_Instrumented()))
    with capture_spans() as spans:
        evaluate(ROWS, answer, [judge], store=store, progress=False)
        for _ in range(3):  # what evaluates all that is there comes to an end
            evaluate(list(store.traces(limit=100)), None, [judge], store=store, attach=True, progress=False)
    assert spans.names() == []
    assert len(store.traces(limit=100)) == 4
    assert {one.span_count for one in store.traces(kind="evaluator", limit=100)} <= {2, 3}


def test_evaluators_of_foreign_senders_are_hidden_and_never_judged(store):
    theirs = Run(trace_id="1" * 32, span_id="2" * 16, name="Hallucination", kind="evaluator", inputs="q", outputs="a")
    store.append([theirs])
    assert len(store.traces()) == 0
    attached = evaluate(
        [store.trace("1" * 32)], None, [get_evaluator(ID, judge=yes)], store=store, attach=True, progress=False
    )
    assert attached.summary().runs == 0


@pytest.mark.parametrize(
    "value",
    [
        "\ud800 lone",
        {"deep": [[[[[[]]]]]], "self": "</data>"},
        "x" * 300_000,
        {str(n): n for n in range(3_000)},
        "'; DROP TABLE traces; --\x00",
    ],
    ids=["surrogate", "deep", "long", "wide", "control"],
)
def test_any_value_that_is_judged_can_be_kept(store, value):
    judgements = JudgementBuffer()
    with use_judge_context(judgements=judgements):
        [feedback] = score(get_evaluator(ID, judge=yes), inputs=value, outputs=value)
    store.append(judgements.take(), [replace(feedback, target=Target(trace_id="1" * 32))])
    assert store.trace(feedback.judge_trace_id).root.kind == "evaluator"


class _Broken(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("boom"), _Broken("boom"), SystemExit(3), RecursionError()])
def test_whatever_a_judge_raises_ends_its_trace(error):
    def fails(prompt: str) -> str:
        raise error

    judgements = JudgementBuffer()
    with use_judge_context(judgements=judgements):
        [feedback] = score(get_evaluator(ID, judge=fails), **CASE)
    runs = judgements.take()
    assert feedback.outcome == "error"
    assert [run.status for run in runs] == ["error", "error"]


def test_an_evaluator_that_takes_too_long_leaves_its_trace_and_is_waited_for_by_nobody(store):
    class Slow:
        model, where = "slow", "a slow one"

        async def complete(self, ask):
            await asyncio.sleep(30)

    slow = get_evaluator(ID, judge=Judge(model="m", backend=Slow()), timeout=0.05)
    began = time.monotonic()
    experiment = evaluate(ROWS[:2], answer, [slow], store=store, progress=False)
    assert time.monotonic() - began < 10
    assert experiment.summary()[ID].failed == 2
    assert all(one.status == "error" for one in store.traces(kind="evaluator"))


def test_a_judgement_that_is_thrown_away_breaks_nothing():
    import contextvars

    class Never:
        model, where = "never", "nobody"

        async def complete(self, ask):
            await asyncio.sleep(30)

    asked = ascore(get_evaluator(ID, judge=Judge(model="m", backend=Never())), **CASE)

    async def begin():
        task = asyncio.ensure_future(asked)
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert contextvars.copy_context().run(asyncio.run, begin())
    assert score(get_evaluator(ID, judge=yes), **CASE)[0].score is True
