"""What else is wrong that a collector knows: drops, clocks, rules that nobody carries out, what was refused."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping

from spanwise.collector import verdicts
from spanwise.collector.errors import StoreError
from spanwise.collector.records import RuleStatus
from spanwise.collector.senders import Seen
from spanwise.collector.stores import Store
from spanwise.collector.terminal import on_a_line

# Counters of a collector's /metrics that stay at zero where all is well, in words
COUNTERS: Mapping[str, str] = {
    "spanwise_dialect_errors_total": "spans or log records read without a dialect that failed on them",
    "spanwise_refused_total": "single spans or log records refused",
    "spanwise_requests_refused_total": "requests answered with an error",
}
RULES, ERRORS = 100, 200  # rules that are looked at; characters of an error


def troubles(store: Store, seen: Seen, numbers: Mapping[str, float]) -> list[str]:
    """In sentences, nothing where nothing is wrong. `numbers`: a collector's, by name with labels; {} of a file."""
    return [*_of_traces(seen), *_of_processes(store), *_of_rules(store), *_of_numbers(numbers)]


def _of_traces(seen: Seen) -> Iterator[str]:
    if seen.dropped:
        yield f"{seen.dropped:,} spans of the traces looked at were dropped by their senders"
    if seen.incomplete:
        yield f"{seen.incomplete:,} of {seen.traces:,} traces are not complete: parts are open, dropped or on their way"
    if seen.too_large:
        yield f"{seen.too_large:,} traces were left out for their size: `spanwise traces show` reads one"
    if clocks := sum(one.clocks for one in seen.senders):
        yield f"{clocks:,} spans bore times that cannot be (a clock more than a day ahead): they were taken back"


def _of_processes(store: Store) -> Iterator[str]:
    dropped = Counter[str]()
    try:
        for process in store.processes(limit=1000):
            dropped.update(process.report.dropped if process.report else {})
    except StoreError as error:
        yield f"what processes dropped cannot be said: {error}"
    for reason, count in dropped.most_common(10):
        yield f"{count:,} spans were dropped by senders, reason {on_a_line(reason, 80)!r}: `spanwise traces reconcile`"


def _of_rules(store: Store) -> Iterator[str]:
    try:
        found = store.status()[:RULES]
    except StoreError as error:
        yield f"what rules do cannot be said: {error}"
        return
    now = time.time_ns()
    for one in found:
        yield from _of_rule(one, now)


def _of_rule(one: RuleStatus, now_ns: int) -> Iterator[str]:
    name = f"rule {on_a_line(one.rule.name, 80)!r}"
    standing, right = verdicts.standing(one, now_ns)
    if not right:
        yield f"{name}: {standing}"
    for why in dict.fromkeys(why for worker in one.workers for why in verdicts.idle(worker, one.rule.name)):
        yield f"{name}: {on_a_line(why, ERRORS)}"
    if one.errors:
        yield f"{name}: last error: {on_a_line(one.errors[0], ERRORS)}"


def _of_numbers(numbers: Mapping[str, float]) -> Iterator[str]:
    for name, value in numbers.items():
        counter, _, labels = name.partition("{")
        if value and counter in COUNTERS:
            yield f"{value:,.0f} {COUNTERS[counter]} since the collector started ({on_a_line(labels.rstrip('}'), 200)})"
