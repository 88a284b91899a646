"""Rows of spans and summaries: encoding of runs as columns, and decoding of facts, runs and summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from spanwise.collector.filter_evaluation import metadata_as_texts
from spanwise.collector.records import JSON, Run
from spanwise.collector.stores.clickhouse.connection import get_day
from spanwise.collector.stores.clickhouse.text_search import fold_words
from spanwise.collector.stores.run_codec import (
    ALWAYS_SAMPLED,
    SPAN_COLUMN_COUNT,
    Fact,
    RunLabels,
    SamplingInfo,
    SpanCounts,
    encode_amended_run,
    encode_run,
    make_fact,
)
from spanwise.collector.stores.run_codec import decode_run as decode_columns
from spanwise.collector.stores.search_terms import add_leaves
from spanwise.collector.stores.table_rows import clean, dumps, loads
from spanwise.collector.stores.trace_summary import SummaryRow, summarize_trace

# Spans: runs that are encoded and ready to be inserted, and their columns.


class SpanRow(NamedTuple):
    """One encoded run, see `schema`."""

    fact: Fact
    payload: bytes
    resource: str
    words: str
    service_version: str | None
    version: int


MAX_AMENDMENTS = 2**24 - 1


def make_version(fact: Fact, amendments: int = 0) -> int:
    """Return the version of a row, which orders by end, then size as sent, then number of amendments."""
    size = fact.size if fact.sent is None else fact.sent
    return fact.end_ns << 64 | min(size, 2**40 - 1) << 24 | min(amendments, MAX_AMENDMENTS)


class SpanBatch(NamedTuple):
    """Runs of any traces, encoded and ready to be inserted. Can be pickled."""

    trace_ids: Sequence[str]
    rows: Sequence[SpanRow]

    @property
    def bytes(self) -> int:
        """Return the approximate size in memory."""
        return sum(len(row.payload) + len(row.words) + 1000 for row in self.rows)


def encode_runs(runs: Sequence[Run]) -> SpanBatch:
    """Encode runs. Never raises: values that JSON or the database cannot store are repaired."""
    rows = list[SpanRow]()
    resources: dict[int, tuple[str, str | None]] = {}  # equal resources of a request are usually one object
    for run in runs:
        stored, (fact, payload) = encode_run(run)
        resource = resources.get(id(run.resource))
        if resource is None:
            resource = resources[id(run.resource)] = dumps(run.resource), read_service_version(run.resource)
        rows.append(SpanRow(fact, payload, resource[0], _find_words(stored, payload), resource[1], make_version(fact)))
    return SpanBatch([clean(run.trace_id) for run in runs], rows)


def encode_amended_row(run: Run, amended: Mapping[str, JSON], sent: int, amendments: int) -> SpanRow:
    """Return the row of a run with amendments applied; `amended` has their fields, `sent` is the size without them."""
    fact, payload = encode_amended_run(run, amended, sent)
    service_version, version = read_service_version(run.resource), make_version(fact, amendments)
    return SpanRow(fact, payload, dumps(run.resource), _find_words(run, payload), service_version, version)


def _find_words(run: Run, payload: bytes) -> str:
    leaves: dict[str, None] = {}
    add_leaves(leaves, run.inputs, run.outputs, payload)
    return fold_words(leaves)


def get_checksum(versions: Iterable[int]) -> int:
    """Return the sum over the versions of the spans of a trace, as `CHECKSUM` computes it."""
    return sum((version >> 64) * 31 + version for version in versions) % 2**64


CHECKSUM = "sum(toUInt64(bitShiftRight(version, 64)) * 31 + toUInt64(bitAnd(version, toUInt128(18446744073709551615))))"

# The columns of a fact; `extra` has the others. The order is that of the fields of `Fact`
_PLAIN = Fact._fields[:6], Fact._fields[8:SPAN_COLUMN_COUNT]
FACT_COLUMNS = (
    *_PLAIN[0],
    "start_ns",
    "end_ns",
    *_PLAIN[1],
    *("project", "environment", "response_id", "extra", "version", "service_version"),
)


def make_span_columns(
    trace_ids: Sequence[str], rows: Sequence[SpanRow], days: Sequence[int], keep_days: Sequence[int]
) -> dict[str, Sequence[Any]]:
    """Return the columns of rows of `spans`."""
    fields = dict(zip(Fact._fields, zip(*[row.fact for row in rows], strict=True), strict=True))
    return {
        "trace_id": trace_ids,
        **{name: fields[name] for names in _PLAIN for name in names},
        "version": [row.version for row in rows],
        "day": days,
        "keep_days": keep_days,
        "start_ns": fields["start_ns"],
        # a difference of two 64-bit integers overflows as the engine's addition does
        "duration_ns": [
            (end - start + 2**63) % 2**64 - 2**63
            for start, end in zip(fields["start_ns"], fields["end_ns"], strict=True)
        ],
        "project": fields["project"],
        "environment": fields["environment"],
        "response_id": [id or "" for id in fields["response_id"]],
        "extra": [_encode_extra(row.fact) for row in rows],
        "service_version": [row.service_version for row in rows],
        "resource": [row.resource for row in rows],
        "payload": [row.payload for row in rows],
        "words": [row.words for row in rows],
    }


def read_service_version(resource: Mapping[str, JSON]) -> str | None:
    """Return the version of the service in a resource as text, or None."""
    version = resource.get("service.version")
    return version if version is None or isinstance(version, str) else dumps(version)


def _encode_extra(fact: Fact) -> str:
    if fact[17:25] == _USUAL and fact.sent is None and fact.route is None and fact.labels is None:
        return ""
    sampling = None if fact.sampling == ALWAYS_SAMPLED else tuple(fact.sampling)
    counts = fact.counts and tuple(fact.counts)
    labels = fact.labels and tuple(fact.labels)
    return dumps([*fact[17:23], counts, sampling, fact.sent, fact.route, labels])


_USUAL = (None, None, 0, (), None, None, None, ALWAYS_SAMPLED)


def decode_fact(row: Sequence[Any]) -> Fact:
    """Return the fact of a row of `FACT_COLUMNS`."""
    project, environment, response_id, extra = row[15:19]
    if not extra:
        return make_fact((*row[:15], project, environment, *_USUAL, None, response_id or None, None, None))
    experiment_id, example_id, repetition, tags, metadata, local_root, counts, sampling, sent, route, labels = loads(
        extra
    )
    return make_fact(
        (
            *row[:15],
            project,
            environment,
            experiment_id,
            example_id,
            repetition,
            tuple(tags),
            metadata,
            local_root,
            counts and SpanCounts(*counts),
            ALWAYS_SAMPLED if sampling is None else SamplingInfo(*sampling),
            sent,
            response_id or None,
            route,
            labels and RunLabels(labels[0], labels[1], labels[2], tuple(labels[3]), labels[4]),
        )
    )


RUN_COLUMNS = f"trace_id, {', '.join(FACT_COLUMNS[:SPAN_COLUMN_COUNT])}, payload, resource"


def decode_run(row: Sequence[Any]) -> Run:
    """Return the run of a row of `RUN_COLUMNS`."""
    trace_id, *columns, payload, resource = row
    return decode_columns(trace_id, columns, loads(payload), loads(resource))


def decode_amendments(row: Sequence[Any]) -> tuple[int, dict[str, JSON]] | None:
    """Return the size as sent, and the amended fields, of an amended run in a row of `RUN_COLUMNS`; None for others."""
    amended = loads(row[-2]).get("amended")
    return amended and (amended[0], amended[1])


# Summaries.


class Summary(NamedTuple):
    """Summary of a trace, with what its row has besides."""

    row: SummaryRow
    root: str
    service_version: str | None
    checksum: int


def summarize_facts(spans: Iterable[tuple[Fact, int, str | None]]) -> Summary:
    """Return the summary of a trace from its facts in order of arrival, their versions, and the versions of their
    services.
    """
    facts, versions, services = zip(*spans, strict=True)
    row, position, _ = summarize_trace(facts)
    checksum = get_checksum(versions)
    return Summary(row, facts[position].span_id, services[position], checksum)


@lru_cache(maxsize=4096)
def _load_list(text: str | None) -> list[str]:
    """Return a list of names, which is usually that of many traces."""
    return loads(text) if text else []


_CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("names", "kinds", "tags", "agents", "finish_reasons"), _load_list),
    "models": lambda text: {model: tuple(sums) for model, sums in loads(text).items()} if text else {},
    "prompts": lambda text: (
        {name: [version or "" for version in versions] for name, versions in loads(text).items()} if text else {}
    ),
    "metadata": lambda text: metadata_as_texts(loads(text)) if text else {},
}


def make_summary_columns(
    traces: Mapping[str, Summary], numbers: Mapping[str, int], version: int, floor: int, keep: Callable[[str], int]
) -> dict[str, Sequence[Any]]:
    """Return the columns of rows of `traces`.

    `numbers` has the numbers of stored summaries, and `keep` returns the days for which the traces of a project are kept.
    """
    rows = [summary.row for summary in traces.values()]
    columns: dict[str, Sequence[Any]] = {}
    for name, values in zip(SummaryRow._fields, zip(*rows, strict=True), strict=True):
        if name == "metadata":
            columns["metadata_json"] = [value or "" for value in values]
        if name != "running":
            columns[name] = list(map(_CONVERTED[name], values)) if name in _CONVERTED else values
    return {
        "trace_id": list(traces),
        "version": [version] * len(rows),
        "floor": [floor] * len(rows),
        "first_number": [numbers.get(trace_id, 0) for trace_id in traces],
        "day": [get_day(row.start_ns) for row in rows],
        "keep_days": [keep(row.project) for row in rows],
        "root": [summary.root for summary in traces.values()],
        "service_version": [summary.service_version for summary in traces.values()],
        "checksum": [summary.checksum for summary in traces.values()],
        **columns,
    }
