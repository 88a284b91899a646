"""Cases and traces by hand, and a store on a file of its own for every test that asks."""

import asyncio
import os

import pytest

from evaluators.tiny_models import tiny_hhem, tiny_nli, tiny_relevance, tiny_toxicity  # noqa: F401
from spanwise.collector.records import Case, Document, Example, Run, Target, Trace
from spanwise.collector.stores.sqlite import SQLiteStore

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # the oracle must not call home
TRACE_ID = "1" * 32


@pytest.fixture
def target():
    return Target(trace_id=TRACE_ID)


@pytest.fixture
def trace():
    root = Run(
        trace_id=TRACE_ID,
        span_id="a" * 16,
        name="answer",
        inputs={"question": "Why?"},
        outputs="Because.",
        start_ns=0,
        end_ns=2_000_000,
    )
    search = Run(
        trace_id=TRACE_ID,
        span_id="b" * 16,
        parent_id="a" * 16,
        name="search",
        kind="retriever",
        start_ns=1,
        end_ns=2,
        documents=(Document("one", id="d1"), Document("two", id="d2")),
    )
    return Trace(root, (root, search), complete=True)


@pytest.fixture
def failed():
    root = Run(
        trace_id=TRACE_ID, span_id="a" * 16, name="answer", inputs={"q": 1}, status="error", error="ValueError: boom"
    )
    return Case(example=Example(inputs={"q": 1}, reference_outputs="x"), trace=Trace(root, (root,)), inputs={"q": 1})


@pytest.fixture
def run(target):
    """Evaluate one case, as the engine does."""

    def run(evaluator, case):
        return asyncio.run(evaluator.evaluate(case, target))

    return run


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as opened:
        yield opened
