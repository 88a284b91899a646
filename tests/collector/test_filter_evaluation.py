"""Evaluation of filters on single traces, without a store. `test_feed.py` compares it with the SQL of lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collector.making import child, run
from spanwise.collector.errors import Closed, Refused
from spanwise.collector.filter_evaluation import (
    KeyFeedback,
    TraceValues,
    evaluate,
    explain,
    required_values,
    trace_conditions,
)
from spanwise.collector.filters import Filter
from spanwise.collector.request_context import CancellableQuery
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.query import change_feed

VALUES: TraceValues = {
    "name": "answer",
    "kind": "chain",
    "experiment_id": None,
    "start_ns": 0,
    "end_ns": 250_000_000,
    "input_tokens": 3,
    "output_tokens": None,
    "metadata": {"big": 1e20, "sum": 0.1 + 0.2, "negative zero": -0.0, "huge": 2**63, "yes": True, "list": [1]},
    "names": ["answer", "search"],
    "errors": ("", "Timeout: ÄRGER"),
    "feedback": {"good": KeyFeedback("score", 0.5, None, 2), "read": KeyFeedback(total=1)},
    "texts": None,
}


def passes(values: TraceValues = VALUES, **conditions: Any) -> bool | None:
    return evaluate(trace_conditions(Filter(**conditions)), [values])[0]


@pytest.mark.parametrize(
    ("key", "text"),
    [("big", "1.0e+20"), ("sum", "0.3"), ("negative zero", "0.0"), ("huge", "9.22337203685478e+18"), ("yes", "true")],
)
def test_a_number_in_metadata_has_the_text_that_sqlite_gives_it(key: str, text: str) -> None:
    assert passes(metadata={key: text})


def test_a_list_in_metadata_equals_no_text() -> None:
    assert not passes(metadata={"list": "[1]"})
    assert [one.seen for one in explain(trace_conditions(Filter(metadata={"list": "2"})), VALUES)] == ["[1]"]


def test_a_missing_value_passes_no_comparison() -> None:
    assert not passes(tokens=("!=", 1.0))
    assert not passes(feedback=(("other", "!=", 1.0),))
    assert not passes(feedback=(("good", "!=", float("nan")),))
    assert passes(latency_ms=(">=", 250.0))


def test_only_ascii_letters_of_errors_ignore_case() -> None:
    assert passes(error="TIMEOUT")
    assert not passes(error="ärger")
    assert [one.seen for one in explain(trace_conditions(Filter(error="x")), VALUES)] == ["Timeout: ÄRGER"]


def test_feedback_on_documents_counts_as_an_attempt_only() -> None:
    assert passes(missing=("read",))
    assert not passes(untried=("read",))


def test_a_text_is_unknown_only_if_all_other_conditions_hold() -> None:
    assert passes(text="refund") is None
    assert passes(text="refund", name="other") is False
    assert passes(text="...")
    assert passes({**VALUES, "texts": ["refund"]}, text="refund")


def test_rows_are_evaluated_by_the_position_of_their_values() -> None:
    conditions = trace_conditions(Filter(name="a", kind="chain"))
    assert required_values(conditions) == {"name", "kind"}
    rows = [("chain", 1, "a"), ("tool", 1, "a"), ("chain", 1, "b")]
    assert evaluate(conditions, rows, {"kind": 0, "name": 2}) == [True, False, False]


def test_a_dataset_and_an_unknown_comparison_are_refused() -> None:
    with pytest.raises(Refused, match="cannot be filtered by dataset 'd'"):
        trace_conditions(Filter(dataset="d"))
    with pytest.raises(Refused, match="unknown operator '~'"):
        trace_conditions(Filter(cost=("~", 1.0)))  # type: ignore[arg-type]


def test_sqlite_reads_large_values_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_feed, "BATCH_CHARACTERS", 100)
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([run(metadata={"number": number, "text": "x" * 60}) for number in range(9)])
        filters = [Filter(metadata={"number": 4}), Filter(name="answer")]
        heads = store.changes(filters=filters).heads
    assert [head.passes for head in heads] == [(number == 4, True) for number in range(9)]


def test_a_name_beyond_the_limit_of_the_list_is_found_in_the_spans(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        root = run("answer")
        store.append([root, *(child(root, f"step {number}", model=f"m{number}") for number in range(300))])
        filters = [Filter(any_name="step 299"), Filter(any_name="step 300"), Filter(model="m299")]
        assert store.changes(filters=filters).heads[0].passes == (True, False, True)
        assert len(store.traces(filters[0])) == len(store.traces(filters[2])) == 1


def test_a_query_that_is_over_stops_between_two_filters(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([run()])
        with store._traces._file.read() as reader:
            reader.question = query = CancellableQuery("GET /", None)
            results = change_feed.FilterReader(reader, [Filter(name="a")] * 2).read("FROM traces t", ())
            query.leave()
            with pytest.raises(Closed, match="was stopped"):
                list(results)
