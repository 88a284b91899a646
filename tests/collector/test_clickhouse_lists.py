"""Lists on ClickHouse while most stored rows are replaced ones, as before the merges of a busy hour."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest

from collector.clickhouse_server import ClickHouseServer
from collector.making import SECOND, child, run
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Run, iterate_pages
from spanwise.collector.stores.clickhouse import ClickHouseTraces

TRACES, DAY = 90, 86_400 * SECOND
START = 1_700_000_000 * SECOND


def make_version(n: int, version: int) -> Run:
    """Return a version of the root of trace `n`. A later one ends later, and starts earlier in every third trace, each
    ninth in another month. All but the last have another name, status and text.
    """
    start = START + n * SECOND - (version * (40 * DAY if n % 9 == 0 else 25 * SECOND) if n % 3 == 0 else 0)
    is_last = version == 3
    return run(
        f"name{n % 2}" if is_last else "draft",
        trace_id=f"{n:032x}",
        span_id=f"{n:016x}",
        status="ok" if is_last else "error",
        error=None if is_last else "a draft",
        start_ns=start,
        end_ns=START + (1000 + 500 * version + n * 37 % 100) * SECOND,
        inputs=("old lithium" if n % 10 else "lithium battery") if is_last else "lithium battery and a draft",
        outputs="battery",
        session_id=f"session{n % 13}",
    )


LAST = [make_version(n, 3) for n in range(TRACES)]


@pytest.fixture(scope="module")
def traces(clickhouse_server: ClickHouseServer) -> Iterator[ClickHouseTraces]:
    with clickhouse_server.database() as url, closing(ClickHouseTraces(url)) as traces:
        for table in ("spans", "traces"):
            traces._db.command(f"SYSTEM STOP MERGES {table}")
        for version in range(4):
            versions = [make_version(n, version) for n in range(TRACES)]
            traces.append([each for root in versions for each in (root, child(root, span_id="c" * 16))])
        [[rows]] = traces._db.query("SELECT count() FROM traces")
        assert rows > 3 * TRACES
        yield traces


def expected(**wanted: Any) -> list[str]:
    """Return the ids of the traces whose last versions have these values, latest start first."""
    chosen = [root for root in LAST if all(getattr(root, name) == value for name, value in wanted.items())]
    return [root.trace_id for root in sorted(chosen, key=lambda root: (root.start_ns, root.trace_id), reverse=True)]


def read(traces: ClickHouseTraces, limit: int, **conditions: Any) -> list[str]:
    """Return the ids of a list, page by page. All pages but the last are full."""
    pages = []
    found = iterate_pages(
        lambda cursor: pages.append(page := traces.traces(limit=limit, cursor=cursor, **conditions)) or page
    )
    ids = [summary.trace_id for summary in found]
    assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    return ids


@pytest.mark.parametrize("limit", [1, 7, 30, 1000])
@pytest.mark.parametrize(
    ("conditions", "wanted"),
    [
        ({}, {}),
        ({"name": "name1"}, {"name": "name1"}),
        ({"status": "ok"}, {"status": "ok"}),
        ({"session": "session5"}, {"session_id": "session5"}),
        ({"text": "lithium"}, {}),
        ({"text": "old"}, {"inputs": "old lithium"}),
        ({"text": '"lithium battery"'}, {"inputs": "lithium battery"}),
        ({"text": "batt* old"}, {"inputs": "old lithium"}),
        ({"excluded": (("name", "draft"),)}, {}),
        ({"excluded": (("any_name", "name0"),)}, {"name": "name1"}),
    ],
    ids=str,
)
def test_lists_have_the_current_rows_alone(
    traces: ClickHouseTraces, limit: int, conditions: dict[str, Any], wanted: dict[str, Any]
) -> None:
    if limit == 1:  # the end of the pages, from which on few traces are left
        [first] = traces.traces(limit=1, **conditions)
        assert first.trace_id == expected(**wanted)[0]
        return
    assert read(traces, limit, **conditions) == expected(**wanted)


@pytest.mark.parametrize("limit", [1, 30])
@pytest.mark.parametrize(
    "conditions",
    [{"name": "draft"}, {"status": "error"}, {"text": "draft"}, {"error": "draft"}, {"text": '"a draft"'}],
    ids=str,
)
def test_what_only_replaced_rows_have_is_in_no_list(
    traces: ClickHouseTraces, limit: int, conditions: dict[str, Any]
) -> None:
    assert read(traces, limit, **conditions) == []


@pytest.mark.parametrize("limit", [7, 1000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_sorted_lists_have_the_current_values(traces: ClickHouseTraces, limit: int, sign: str) -> None:
    rising = sorted(LAST, key=lambda root: ((root.end_ns - root.start_ns) * (-1 if sign else 1), root.trace_id))
    assert read(traces, limit, sort=f"{sign}latency_ms") == [root.trace_id for root in rising]


def test_summaries_show_the_current_rows(traces: ClickHouseTraces) -> None:
    by_id = {root.trace_id: root for root in LAST}
    for summary in traces.traces(limit=TRACES):
        root = by_id[summary.trace_id]
        assert (summary.name, summary.status, summary.start_ns) == (root.name, root.status, root.start_ns)
        assert (summary.inputs, summary.outputs) == (root.inputs, root.outputs)
        assert summary.span_count == 2


@pytest.mark.parametrize("cursor", ["-5.1.x", "1.-5.x", "-5.x", f"{10**30}.1.x", f"1.{10**30}.x", "x"])
def test_a_cursor_of_no_page_is_refused_or_has_no_more(traces: ClickHouseTraces, cursor: str) -> None:
    for read in (traces.traces, traces.sessions, traces.feedbacks, partial(traces.scores, "e")):
        with suppress(Refused):
            read(cursor=cursor)
    for table in ("traces", "runs", "documents", "feedback", "experiment_results"):
        with suppress(Refused):
            traces.list_table_records(table, Filter(), 10, cursor)
