"""How long lists, filters, searches and aggregates take on ClickHouse.

    python benchmarks/clickhouse_queries.py                      # 2,000,000 spans in 400,000 traces
    python benchmarks/clickhouse_queries.py --traces 40000 --rounds 5
    python benchmarks/clickhouse_queries.py --keep FOLDER --only errors    # the rows stay in the folder for the next time

The engine generates the rows itself: five spans per trace, 30 days, 50 names, feedback on a tenth of the traces, 30 words
per span whose frequencies are those of natural text. Each question is asked `--rounds` times, with other values each time.
Printed are the median and the 95th percentile of the time until the answer is decoded, and the CPU of the engine and of
this process per question. Budgets: 150 ms for lists and filters, 500 ms for aggregates over all traces.

The engine is that of the tests (`tests/collector/clickhouse_server.py`), or the server in `SPANWISE_TEST_CLICKHOUSE`,
whose CPU is then unknown.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spanwise.collector.stores.clickhouse import ClickHouseTraces
from spanwise.collector.stores.clickhouse.connection import Connection

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from collector.clickhouse_server import ClickHouseServer

TRACES_PER_INSERT = 20_000
SPANS, DAYS, HOUR_NS, DAY_NS = 5, 30, 3_600 * 10**9, 86_400 * 10**9
START_NS = 1_767_225_600 * 10**9
LISTS_MS, AGGREGATES_MS = 150, 500

_TRACE_ID = "lower(hex(cityHash64({n}, 1))) || lower(hex(cityHash64({n}, 2)))"
_START = "toInt64({start} + ({n} * 7919 % {traces}) * {step})"
# `t` numbers the traces, `n` the spans
_TRACES = """
INSERT INTO traces (trace_id, version, day, root, span_count, error_count, project, environment, name, kind, status,
  error, start_ns, end_ns, input_tokens, output_tokens, cost, session_id, user_id, names, kinds, models, tags, metadata,
  metadata_json, size, complete)
SELECT {trace_id}, 1, toDate(intDiv(start, {day})), '0000000000000000', 5, t % 20 = 0, 'p' || toString(t % 3),
  if(t % 4 = 0, 'staging', 'production'), 'name' || toString(t % 50), 'agent', if(t % 20 = 0, 'error', 'ok'),
  if(t % 20 = 0, 'TimeoutError: no answer in ' || toString(t % 30) || ' s', NULL), {start_ns} AS start,
  start + 1000000 * (cityHash64(t) % 30000), t % 1000, t % 300, (t % 100) / 1000, 's' || toString(intDiv(t, 4)),
  'u' || toString(t % 1000), ['chat', 'search', 'name' || toString(t % 50)], ['agent', 'llm', 'retriever'],
  map('gpt-' || toString(t % 5), (2, t % 1000, t % 300, (t % 100) / 1000)), ['tag' || toString(t % 10)],
  map('tenant', 't' || toString(t % 100)), '{{"tenant":"t' || toString(t % 100) || '"}}', 5000, 1
FROM (SELECT number AS t FROM numbers({first}, {count}))
"""
_WORD = "'W' || lower(base32Encode(toString(toUInt32(exp((cityHash64(n, i) % 1000000) / 1000000. * ln(50000))))))"
_SPANS = """
INSERT INTO spans (trace_id, span_id, version, day, parent_id, name, kind, status, error, start_ns, duration_ns, model,
  input_tokens, output_tokens, cost, size, project, environment, resource, payload, words)
SELECT {trace_id}, leftPad(toString(place), 16, '0'), 1, toDate(intDiv(start, {day})),
  if(place = 0, NULL, '0000000000000000'), if(place = 0, 'name' || toString(t % 50), if(place = 1, 'search', 'chat')),
  if(place = 0, 'agent', 'llm'), if(t % 20 = 0 AND place = 0, 'error', 'ok'),
  if(t % 20 = 0 AND place = 0, 'TimeoutError: no answer in ' || toString(t % 30) || ' s', NULL),
  {start_ns} AS start, 1000000 * (cityHash64(t) % 30000), if(place > 1, 'gpt-' || toString(t % 5), NULL), 100, 20, 0.001,
  1000, 'p' || toString(t % 3), 'production', '{{}}',
  '{{"inputs":"' || arrayStringConcat(picked, ' ') || '","outputs":"an answer"}}',
  ' ' || arrayStringConcat(arrayConcat(picked, if(n % 1000 = 7, ['Wlithium', 'Wbattery'], [])), ' ') || ' '
FROM (
  SELECT number AS n, intDiv(number, 5) AS t, number % 5 AS place, arrayMap(i -> {word}, range(30)) AS picked
  FROM numbers({first} * 5, {count} * 5)
)
"""
_FEEDBACK = """
INSERT INTO feedback (id, trace_id, key, score, outcome, source, rule, created_ns)
SELECT 'f' || toString(t), {trace_id}, 'key' || toString(t % 4), (cityHash64(t) % 100) / 100, 'score', 'model', '', {start_ns}
FROM (SELECT number * 10 AS t FROM numbers(intDiv({first}, 10), intDiv({count}, 10)))
"""


def fill(db: Connection, traces: int) -> None:
    """Insert the rows, partition by partition would take longer: each insert covers all days."""
    step = DAYS * DAY_NS // traces
    for first in range(0, traces, TRACES_PER_INSERT):
        count = min(TRACES_PER_INSERT, traces - first)
        for sql in (_TRACES, _SPANS, _FEEDBACK):
            values = {"first": first, "count": count, "day": DAY_NS, "word": _WORD}
            start = _START.format(start=START_NS, n="t", traces=traces, step=step)
            db.command(sql.format(trace_id=_TRACE_ID.format(n="t"), start_ns=start, **values))


def make_questions(store: ClickHouseTraces) -> dict[str, tuple[float, Callable[[int], Any]]]:
    """Return by name the budget in milliseconds, and the question for a round."""
    lists: dict[str, Callable[[int], Any]] = {
        "latest 50 traces": lambda n: store.traces(),
        "second page": lambda n: store.traces(cursor=f"{START_NS + (DAYS - n % 20 - 1) * DAY_NS}.f"),
        "one project and name": lambda n: store.traces(project=f"p{n % 3}", name=f"name{n % 50}"),
        "one hour": lambda n: store.traces(since_ns=START_NS + n * HOUR_NS, until_ns=START_NS + (n + 1) * HOUR_NS),
        "a tag": lambda n: store.traces(tags=f"tag{n % 10}"),
        "metadata": lambda n: store.traces(metadata={"tenant": f"t{n}"}),
        "a session": lambda n: store.traces(session=f"s{n * 17}"),
        "a user": lambda n: store.traces(user=f"u{n * 17}"),
        "errors": lambda n: store.traces(status="error"),
        "words of an error": lambda n: store.traces(error=f"timeout {n % 30}"),
        "slow traces": lambda n: store.traces(latency_ms=(">", 29_900.0 - n)),
        "a model": lambda n: store.traces(model=f"gpt-{n % 5}"),
        "a name of any run": lambda n: store.traces(any_name="search", project=f"p{n % 3}"),
        "a low score": lambda n: store.traces(feedback=(f"key{n % 4}", "<", 0.05)),
        "no score": lambda n: store.traces(missing=f"key{n % 4}"),
        "a rare word": lambda n: store.traces(text="lithium"),
        "a frequent word": lambda n: store.traces(text="ge"),
        "beginning of a word": lambda n: store.traces(text="lith*"),
        "two words": lambda n: store.traces(text="lithium battery project"[: 15 + n % 2]),
        "a phrase": lambda n: store.traces(text='"lithium battery"'),
        "sorted by latency": lambda n: store.traces(sort="-latency_ms", project=f"p{n % 3}"),
        "sorted by a score": lambda n: store.traces(sort=f"-feedback.key{n % 4}", project=f"p{n % 3}"),
        "sessions": lambda n: store.sessions(project=f"p{n % 3}"),
        "known names": lambda n: store.values("name"),
        "known values of a project": lambda n: store.values("tag", project=f"p{n % 3}"),
        "a whole trace": lambda n: store.trace(store.traces(limit=1, name=f"name{n % 50}").items[0].trace_id),
    }
    sums: dict[str, Callable[[int], Any]] = {
        "hours": lambda n: store.aggregate(bucket_ns=HOUR_NS),
        "hours of a project": lambda n: store.aggregate(bucket_ns=HOUR_NS, project=f"p{n % 3}"),
        "all time": lambda n: store.aggregate(),
        "by name": lambda n: store.aggregate(group_by="name"),
        "by model and day": lambda n: store.aggregate(group_by="model", bucket_ns=DAY_NS),
        "by error": lambda n: store.aggregate(group_by="error"),
    }
    return {
        **{name: (LISTS_MS, ask) for name, ask in lists.items()},
        **{f"aggregate: {name}": (AGGREGATES_MS, ask) for name, ask in sums.items()},
    }


def engine_seconds(server: ClickHouseServer) -> float:
    """Return the CPU seconds of the engine's process; 0 for a real server."""
    if not server.can_be_killed:
        return 0.0
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--keep", metavar="FOLDER", help="data folder of the engine, used again and not deleted")
    parser.add_argument("--only", default="", help="ask the questions whose names contain this")
    options = parser.parse_args()
    if options.keep:
        Path(options.keep).mkdir(parents=True, exist_ok=True)
    server = ClickHouseServer(kept=options.keep)
    try:
        with kept_database(server, options.traces) if options.keep else server.database() as url:
            store, db = ClickHouseTraces(url), Connection(url)
            began = time.perf_counter()
            if not store.count()["traces"]:
                fill(db, options.traces)
            print(f"{options.traces * SPANS:,} spans in {time.perf_counter() - began:.0f} s: {store.count()}")
            print(f"{'':32}{'median':>10}{'p95':>10}{'budget':>10}{'engine':>10}{'collector':>11}   milliseconds")
            for name, (budget, ask) in make_questions(store).items():
                if options.only in name:
                    measure(name, budget, ask, options.rounds, server)
            store.close()
    finally:
        server.stop()


@contextmanager
def kept_database(server: ClickHouseServer, traces: int) -> Iterator[str]:
    """Yield the address of a database that stays in the data folder, one for each number of traces."""
    server.execute(f"CREATE DATABASE IF NOT EXISTS kept_{traces}")
    yield server.url(f"kept_{traces}")


def measure(name: str, budget: float, ask: Callable[[int], Any], rounds: int, server: ClickHouseServer) -> None:
    """Ask a question several times, and print its times. The first time warms caches."""
    ask(rounds)
    times, engine, own = [], engine_seconds(server), time.process_time()
    for n in range(rounds):
        began = time.perf_counter()
        ask(n)
        times.append((time.perf_counter() - began) * 1e3)
    cpu, own_cpu = (
        (after - before) * 1e3 / rounds
        for after, before in ((engine_seconds(server), engine), (time.process_time(), own))
    )
    times.sort()
    median, p95 = times[len(times) // 2], times[min(len(times) - 1, int(len(times) * 0.95))]
    mark = "" if p95 <= budget else "   over budget"
    print(f"{name:32}{median:10.1f}{p95:10.1f}{budget:10.0f}{cpu:10.1f}{own_cpu:11.1f}{mark}", flush=True)


if __name__ == "__main__":
    main()
