"""Tables of the ClickHouse database: definitions for one server and for a cluster, and the schema version.

All tables are append-only for writers: a changed row is inserted again, and the engine keeps the row with the highest
version. Queries read `FINAL`, or the newest rows of few traces. Two collectors never have to lock anything.

A trace id is unique across projects, so the project is not part of any key. Spans and summaries are replaced only
within a partition when parts are merged, but `FINAL` also replaces across partitions. Queries must therefore not have
conditions on `day`, the column of the partition key, because they would hide the newer row of another month. They
filter by `start_ns`, which has a skip index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, get_type_hints

from spanwise.collector.records import OpenRun
from spanwise.collector.stores.queries.feedback_records import FeedbackRow
from spanwise.collector.stores.trace_summary import SummaryRow

SCHEMA_VERSION = 1
TOMBSTONE_DAYS = 8  # a sender's spool keeps undelivered spans for seven days
WAITING_DAYS = 7  # open runs and amendments are kept for this long

# The time of the server in nanoseconds, but at least the column `floor` that the writer sends, plus the position of the
# row in its insert. The server evaluates it during the insert, so its running insert is visible to readers of the feed
_NOW_NS = "toUInt64(toUnixTimestamp64Nano(now64(9)))"
_NUMBER = f"greatest({_NOW_NS}, floor) + rowNumberInBlock()"
_FLOOR = ("floor UInt64 EPHEMERAL 0", "lowest number that the server may assign; sent by the writer, not stored")

Column: TypeAlias = tuple[str, str]  # definition, and comment


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Definition of one table.

    `shard_by` is the sharding expression of the `Distributed` table in a cluster. Without it, every node has all rows.
    """

    name: str
    columns: Sequence[Column]
    order_by: str
    engine: str = "ReplacingMergeTree"
    arguments: str = ""
    primary_key: str | None = None
    partition_by: str | None = None
    ttl: str | None = None
    indexes: Sequence[str] = ()
    rows_per_granule: int = 8192
    bytes_per_granule: int = 1024 * 1024
    shard_by: str | None = "cityHash64(trace_id)"


_DICTIONARY = "LowCardinality(String)"
_TYPES: Mapping[object, str] = {
    str: "String",
    int: "Int64",
    bool: "Bool",
    str | None: "Nullable(String)",
    int | None: "Nullable(Int64)",
    float | None: "Nullable(Float64)",
}


def _derive_columns(record: type, *types: Mapping[str, str], **others: str) -> list[Column]:
    """Return a column for each field of a record, with the type of the field, or with one of `types` and `others`. A
    field with an empty type has no column.
    """
    special = {name: type for some in (*types, others) for name, type in some.items()}
    return [
        (f"{name} {special.get(name) or _TYPES[hint]}", f"`{name}` of `{record.__name__}`")
        for name, hint in get_type_hints(record).items()
        if special.get(name) != ""
    ]


_SPANS = Table(
    name="spans",
    arguments="version",
    # A lookup by trace id is a lookup by primary key. The span id in the primary key would only make the index larger
    order_by="(trace_id, span_id)",
    primary_key="trace_id",
    partition_by="toYYYYMM(day)",
    ttl="day + toIntervalDay(keep_days) DELETE WHERE keep_days > 0",
    indexes=(
        "INDEX by_words words TYPE text(tokenizer = 'splitByNonAlpha', posting_list_codec = 'bitpacking')",
        "INDEX by_response response_id TYPE bloom_filter(0.01) GRANULARITY 1",
    ),
    # Larger blocks compress better; a run is read with its whole block. Measured: 256 KB and ZSTD(1) take 736 bytes a
    # span, 512 KB and ZSTD(3) 600, with the same CPU of inserts and merges
    rows_per_granule=256,
    bytes_per_granule=512 * 1024,
    columns=[
        ("trace_id String", "id of the trace, 32 hexadecimal digits"),
        ("span_id String", "id of the span, 16 hexadecimal digits"),
        ("version UInt128", "rank among all versions of the span: end, size as sent, number of amendments"),
        ("day Date", "day of the first start of the trace, as its summary had it when the span was written"),
        ("keep_days UInt16", "days after `day` until the engine deletes the row; 0: never"),
        ("parent_id Nullable(String)", "id of the parent span"),
        ("name LowCardinality(String)", "name of the run"),
        ("kind LowCardinality(String)", "kind of the run: llm, tool, chain, ..."),
        ("status LowCardinality(String)", "ok, error, cancelled or unset"),
        ("error Nullable(String)", "error message"),
        ("start_ns Int64", "start, nanoseconds since 1970"),
        ("duration_ns Int64", "end minus start"),
        ("end_ns Int64 ALIAS start_ns + duration_ns", "end, nanoseconds since 1970"),
        ("model LowCardinality(Nullable(String))", "model of a call"),
        ("input_tokens Nullable(Int64)", "input tokens of a call"),
        ("output_tokens Nullable(Int64)", "output tokens of a call"),
        ("cost Nullable(Float64)", "cost in US dollars"),
        ("session_id Nullable(String)", "session"),
        ("user_id Nullable(String)", "user"),
        ("size UInt64", "bytes of `payload` before compression"),
        ("project LowCardinality(String)", "project of the span"),
        ("environment LowCardinality(String)", "environment of the span"),
        ("service_version LowCardinality(Nullable(String))", "`service.version` of the resource"),
        ("response_id String", "id that the model gave its response; empty: none"),
        ("extra String", "JSON of the other fields that only summaries read, see `span_rows`; empty: none"),
        ("resource LowCardinality(String)", "JSON of the resource's attributes"),
        ("payload String CODEC(ZSTD(3))", "JSON of the fields of the run that have no column, see `run_codec`"),
        (f"number UInt64 DEFAULT {_NOW_NS} + rowNumberInBlock()", "server's time of this insert: order of arrival"),
        ("words String CODEC(ZSTD(3))", "searchable words of inputs and outputs, see `text_search`"),
    ],
)

_TRACES = Table(
    name="traces",
    arguments="version",
    order_by="trace_id",
    partition_by="toYYYYMM(day)",
    ttl="day + toIntervalDay(keep_days) DELETE WHERE keep_days > 0",
    indexes=(
        "INDEX by_change change TYPE minmax GRANULARITY 1",
        "INDEX by_start start_ns TYPE minmax GRANULARITY 1",
        "INDEX by_session session_id TYPE bloom_filter(0.01) GRANULARITY 1",
    ),
    # Lists read about fifty rows at random places
    rows_per_granule=256,
    bytes_per_granule=64 * 1024,
    columns=[
        ("trace_id String", "id of the trace"),
        ("version UInt64", "server's time after the spans were inserted and before they were read for this summary"),
        _FLOOR,
        (f"change UInt64 DEFAULT {_NUMBER}", "position in the change feed: server's time of this insert"),
        ("first_number UInt64 EPHEMERAL 0", "`number` of the stored summary; 0: none; not stored"),
        ("number UInt64 DEFAULT if(first_number = 0, change, first_number)", "change number of the first summary"),
        ("day Date", "day of `start_ns`"),
        ("keep_days UInt16", "days after `day` until the engine deletes the row; 0: never"),
        ("checksum UInt64", "sum over the versions of all spans: tells whether this summary includes all of them"),
        ("root String", "span id of the root"),
        *_derive_columns(
            SummaryRow,
            dict.fromkeys(("span_count", "error_count", "size", "dropped", "calls_sent"), "UInt64"),
            dict.fromkeys(("project", "environment", "name", "kind", "status"), _DICTIONARY),
            dict.fromkeys(("names", "kinds", "tags", "agents", "finish_reasons"), f"Array({_DICTIONARY})"),
            complete="Nullable(Int8)",
            metadata=f"Map({_DICTIONARY}, String)",
            models=f"Map({_DICTIONARY}, Tuple(calls Int64, input_tokens Int64, output_tokens Int64, cost Float64))",
            prompts=f"Map({_DICTIONARY}, Array(String))",
            running="",
        ),
        ("metadata_json String", "scalar metadata as JSON; empty: none"),
        ("service_version LowCardinality(Nullable(String))", "`service.version` of the root's resource"),
    ],
)

_FEEDBACK = Table(
    name="feedback",
    arguments="revision, is_deleted",
    order_by="(trace_id, session_id, experiment_id, id)",
    indexes=(
        "INDEX by_number number TYPE minmax GRANULARITY 1",
        "INDEX by_id id TYPE bloom_filter(0.01) GRANULARITY 1",
        "INDEX by_rule rule TYPE set(64) GRANULARITY 1",
        "INDEX by_key key TYPE set(64) GRANULARITY 1",
        "INDEX by_judgement judge_trace_id TYPE bloom_filter(0.01) GRANULARITY 1",
    ),
    rows_per_granule=1024,
    bytes_per_granule=256 * 1024,
    columns=[
        # empty: none. Only feedback without a rule is a change in the feed
        *_derive_columns(
            FeedbackRow,
            dict.fromkeys(("trace_id", "session_id", "experiment_id", "metadata"), "String"),
            dict.fromkeys(("key", "outcome", "source", "rule"), _DICTIONARY),
            claim="Nullable(UInt64)",
        ),
        ("is_deleted UInt8", "1: marker of a deletion, without content"),
        _FLOOR,
        (
            f"number UInt64 DEFAULT {_NUMBER}",
            "server's time of this insert: position in the change feed, and for forwarding",
        ),
        (
            "revision UInt128 DEFAULT bitOr(bitShiftLeft(toUInt128(ifNull(claim, 0)), 64), toUInt128(number))",
            "version of the row: the highest lease number is kept, then the latest insert",
        ),
    ],
)

_AMENDMENTS = Table(
    name="amendments",
    arguments="version",
    order_by="(trace_id, span_id, project, id)",
    ttl=f"toDateTime(intDiv(number, 1000000000)) + toIntervalDay({WAITING_DAYS})",
    rows_per_granule=1024,
    columns=[
        ("trace_id String", "trace of the span; empty: the target is the response with the id `span_id`"),
        ("span_id String", "span, or response id"),
        ("project String", "project whose spans may be amended; empty: any"),
        ("id String", "hash of the fields: the same amendment is stored once"),
        ("fields String", "JSON of the fields"),
        ("applied UInt8", "1: part of a stored span, and its feedback is stored"),
        ("number UInt64", "server's time before this insert: order in which amendments apply"),
        ("version UInt64 DEFAULT 2 * number + applied", "an amendment that arrives again applies again, as the latest"),
    ],
)

_OPEN_RUNS = Table(
    name="open_runs",
    arguments="version, is_deleted",
    order_by="(trace_id, span_id)",
    ttl=f"toDateTime(intDiv(number, 1000000000)) + toIntervalDay({WAITING_DAYS})",
    indexes=("INDEX by_number number TYPE minmax GRANULARITY 1",),
    rows_per_granule=1024,
    columns=[
        *_derive_columns(OpenRun, dict.fromkeys(("kind", "project", "environment"), _DICTIONARY)),
        ("is_deleted UInt8", "1: its span has arrived or will never arrive"),
        ("version UInt8 DEFAULT is_deleted", "an ended run does not open again"),
        _FLOOR,
        (f"number UInt64 DEFAULT {_NUMBER}", "server's time of this insert: position in the change feed"),
    ],
)

_PROCESSES = Table(
    name="processes",
    engine="AggregatingMergeTree",
    order_by="instance",
    shard_by="cityHash64(instance)",
    columns=[
        ("instance String", "`service.instance.id` of the process"),
        ("stored SimpleAggregateFunction(sum, UInt64)", "spans of the process that were ever stored"),
        ("seen_ns SimpleAggregateFunction(max, Int64)", "last time at which spans or a report arrived"),
        (
            "sender SimpleAggregateFunction(max, Tuple(progress UInt64, seen_ns Int64, data String))",
            "service, project, environment and process id as JSON; those of the latest report, else of the latest spans",
        ),
        (
            "report SimpleAggregateFunction(max, Tuple(progress UInt64, reported_ns Int64, data String))",
            "counts of the latest report as JSON; the progress of counts tells which report is later; empty: none",
        ),
    ],
)

_TOMBSTONES = Table(
    name="tombstones",
    order_by="trace_id",
    ttl=f"deleted + toIntervalDay({TOMBSTONE_DAYS})",
    rows_per_granule=1024,
    columns=[
        ("trace_id String", "deleted trace: spans and feedback that arrive later are not stored"),
        ("deleted DateTime DEFAULT now()", "server's time of the deletion"),
        ("batch String", "id of the deletion"),
    ],
)

_PENDING = Table(
    name="pending_summaries",
    arguments="number, is_done",
    order_by="trace_id",
    columns=[
        ("trace_id String", "large trace with spans that its summary does not include yet"),
        ("is_done UInt8", "1: the summary was written"),
        _FLOOR,
        (f"number UInt64 DEFAULT {_NUMBER}", "server's time of this insert"),
    ],
)

_DESTINATIONS = Table(
    name="destinations",
    shard_by=None,
    order_by="(project, destination)",
    columns=[
        ("project String", "project"),
        ("destination String", "destination whose spans have continued a call of the project"),
        ("seen DateTime DEFAULT now()", "server's time of the insert"),
    ],
)

_OUTLETS = Table(
    name="outlets",
    shard_by=None,
    engine="AggregatingMergeTree",
    order_by="(name, url)",
    columns=[
        ("name String", "name of the target of forwarding"),
        ("url String", "address; the one that was opened last is in use"),
        ("opened_ns SimpleAggregateFunction(max, UInt64)", "time at which it was opened last"),
        ("cursor SimpleAggregateFunction(max, UInt64)", "number of the last feedback that was sent or dropped"),
        ("sent SimpleAggregateFunction(sum, UInt64)", "feedback sent"),
        ("dropped SimpleAggregateFunction(sum, UInt64)", "feedback dropped"),
        (
            "status SimpleAggregateFunction(max, Tuple(updated_ns UInt64, error Nullable(String)))",
            "time of the last attempt, and its error",
        ),
    ],
)

_RETENTION = Table(
    name="retention",
    shard_by=None,
    arguments="version",
    order_by="project",
    columns=[
        ("project String", "project; empty: all projects"),
        ("keep_days UInt16", "days that new rows are kept; 0: forever"),
        ("version UInt64", "server's time"),
    ],
)

_FACTS = Table(
    name="database_facts",
    shard_by=None,
    order_by="(name, value)",
    columns=[
        ("name String", "schema_version, identity, or created_ns (server's time of the creation)"),
        ("value String", "value"),
    ],
)

_OF_TRACES = (_SPANS, _TRACES, _FEEDBACK, _AMENDMENTS, _OPEN_RUNS, _TOMBSTONES, _PENDING)
TABLES: Sequence[Table] = (*_OF_TRACES, _PROCESSES, _DESTINATIONS, _OUTLETS, _RETENTION, _FACTS)

# An acknowledged insert is on disk. The window lets a deduplication token work on tables that are not replicated
_DURABLE = "fsync_after_insert = 1, fsync_part_directory = 1, non_replicated_deduplication_window = 1000"


def create_statements(cluster: str | None = None) -> list[str]:
    """Return the statements that create all tables that do not exist: on one server, or on all nodes of a cluster.

    `cluster` is a name in the servers' configuration, whose macros `{shard}` and `{replica}` must be set. Each sharded
    table `name` is a `Distributed` table over replicated tables `name_local`. Spans and all records about a trace are
    sharded by the trace id, because `FINAL` and summaries need all rows of a trace on one shard.
    """
    if cluster is None:
        return [_create_statement(table) for table in TABLES]
    statements = []
    for table in TABLES:
        if table.shard_by is None:
            statements.append(_create_statement(table, cluster))
            continue
        statements.append(_create_statement(replace(table, name=f"{table.name}_local"), cluster))
        as_local = f"CREATE TABLE IF NOT EXISTS {table.name} ON CLUSTER {cluster} AS {table.name}_local"
        shards = f"{cluster}, currentDatabase(), {table.name}_local, {table.shard_by}"
        statements.append(f"{as_local}\nENGINE = Distributed({shards})")
    return statements


def get_mutation_target(name: str, cluster: str | None) -> str:
    """Return the table of an `ALTER` or `DELETE` statement, with `ON CLUSTER`: a mutation needs the local tables."""
    if cluster is None:
        return name
    is_sharded = next(table.shard_by for table in TABLES if table.name == name)
    return f"{name}{'_local' if is_sharded else ''} ON CLUSTER {cluster}"


def get_column_types(name: str) -> dict[str, str]:
    """Return the types of a table's columns by name, without those that are computed by every query."""
    [table] = [table for table in TABLES if table.name == name]
    columns = (definition.partition(" ") for definition, _ in table.columns)
    return {
        name: _DEFAULT.split(definition, maxsplit=1)[0]
        for name, _, definition in columns
        if " ALIAS " not in definition
    }


_DEFAULT = re.compile(r" (?:DEFAULT|EPHEMERAL|CODEC)\b")


def _create_statement(table: Table, cluster: str | None = None) -> str:
    columns = list[str]()
    for definition, comment in table.columns:
        text = comment.replace("'", "''")
        columns.append(f"{definition} COMMENT '{text}'" + (_LARGE_BLOCKS if " CODEC(" in definition else ""))
    lines = ",\n  ".join([*columns, *table.indexes])
    where, engine, arguments = "", table.engine, table.arguments
    if cluster is not None:
        where = f" ON CLUSTER {cluster}"
        shard = "{shard}" if table.shard_by else "all"
        path = f"'/clickhouse/tables/{shard}/{{database}}/{table.name}', '{{replica}}'"
        engine, arguments = f"Replicated{engine}", f"{path}, {arguments}" if arguments else path
    statement = [
        f"CREATE TABLE IF NOT EXISTS {table.name}{where} (\n  {lines}\n)",
        f"ENGINE = {engine}({arguments})",
    ]
    if table.partition_by:
        statement.append(f"PARTITION BY {table.partition_by}")
    if table.primary_key:
        statement.append(f"PRIMARY KEY {table.primary_key}")
    statement.append(f"ORDER BY {table.order_by}")
    if table.ttl:
        statement.append(f"TTL {table.ttl}")
    granules = f"index_granularity = {table.rows_per_granule}, index_granularity_bytes = {table.bytes_per_granule}"
    statement.append(
        f"SETTINGS {granules}, min_compress_block_size = 16384, default_compression_codec = 'ZSTD(1)', min_bytes_for_wide_part = 67108864, {_DURABLE}"
    )
    return "\n".join(statement)


# Columns with large texts compress better in large blocks. Others are read in small ones, because a lookup by trace id
# reads a block of each part
_LARGE_BLOCKS = " SETTINGS (min_compress_block_size = 262144)"
