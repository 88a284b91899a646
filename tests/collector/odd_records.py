"""A store with odd contents, for tests of flat tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from collector.making import SECOND, START, child, run
from spanwise.collector.records import Document, Event, Example, Experiment, Feedback, Link, Run, Target, Usage
from spanwise.collector.stores.sqlite import SQLiteStore

FORMULA = '=HYPERLINK("http://evil.example","total")'
HUGE = 10**30


def odd_runs() -> list[Run]:
    """Return runs whose fields have unicode, lone surrogates, NaN, huge integers, nested JSON and nothing at all."""
    plain = run("plain", trace_id="1" * 32, start_ns=START, inputs="why?", outputs=None)
    odd = run(
        'nämé, "quoted"\r\n\x00\ud800 😀',
        trace_id="2" * 32,
        start_ns=START + SECOND,
        status="error",
        error=FORMULA,
        inputs={"nan": float("nan"), "huge": HUGE, "deep": [[{"a": [None, True, 1.5]}]], "text": "a\nb\\n"},
        outputs=["\ud800", ""],
        usage=Usage(3, 4, {"cache_read": 2**40}),
        cost=0.5,
        model="",
        prompt_name="select",
        prompt_version="1.0",
        agent_name=FORMULA,
        finish_reasons=("stop", "a,b"),
        time_to_first_token_ms=0.25,
        tools=({"name": "search"},),
        user_id=FORMULA,
        session_id="s, 1",
        project="p",
        tags=("a,b", "=1+1"),
        metadata={"select": 1, "text": "x"},
        attributes={"k": [1, 2]},
        events=(Event("exception", START, {"a": 1}),),
        links=(Link("3" * 32, "4" * 16, {}),),
        resource={"service.name": "shop"},
        documents=(Document("d\n1", "id", 0.5, {"m": 1}), Document("", None, None, {})),
    )
    retriever = child(
        odd, kind="retriever", project="p", documents=(Document("=1+1", "2", 1.0, {}),), inputs="zebra\nquagga"
    )
    first = run("empty", trace_id="3" * 32, start_ns=0, end_ns=0, inputs={}, outputs=[])
    judge = run("judge", trace_id="4" * 32, kind="evaluator", inputs="hidden")
    trial = run("task", trace_id="5" * 32, project="p", experiment_id="e" * 32, example_id="x1", inputs={"q": 1})
    untried = run("task", trace_id="6" * 32, experiment_id="f" * 32, example_id="x2")
    return [plain, odd, retriever, first, judge, trial, untried]


def odd_feedback() -> list[Feedback]:
    """Return feedback of all outcomes on all kinds of targets."""
    odd = Target(trace_id="2" * 32)
    return [
        Feedback(target=odd, key="order", score=True, comment=FORMULA, metadata={"n": 1}, created_ns=START),
        Feedback(target=odd, key="select", label="ja\n", source="human", author="änn", created_ns=START + 1),
        Feedback(target=odd, key="from", outcome="error", error="no", source="model", created_ns=START + 2),
        Feedback(target=Target(session_id="s, 1"), key="group", score=0.25, created_ns=START + 3),
        Feedback(target=Target(experiment_id="e" * 32), key="mean", score=1, created_ns=START + 4),
        Feedback(target=Target(trace_id="9" * 32), key="early", score=1, created_ns=START + 5),
        Feedback(target=Target(trace_id="4" * 32), key="of a judge", score=1, created_ns=START + 6),
        Feedback(target=Target(trace_id="5" * 32), key="exact", score=1.0, created_ns=START + 7),
        Feedback(target=Target(trace_id="5" * 32), key="tone", label="kind", created_ns=START + 8),
    ]


def fill(path: Path) -> None:
    """Write the odd records to a new store."""
    with SQLiteStore(path) as store:
        store.append(odd_runs(), odd_feedback())
        examples = [Example(inputs={"q": 1}, id="x1", reference_outputs="=2"), Example(inputs="\ud800", id="x2")]
        store.save_examples("faq", examples)
        store.save_examples("faq", [Example(inputs={"q": 2}, id="x1", categories=("c",))])
        store.save_examples("other", [Example(inputs=None, id="y", metadata={"huge": HUGE})])
        store.save_experiment(
            Experiment(id="e" * 32, name="first", dataset="faq", dataset_version=1, project="p", status="finished")
        )
    # no trace becomes complete during a test, because nothing has arrived for a long time
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE traces SET updated_ns = 0")
        db.commit()
