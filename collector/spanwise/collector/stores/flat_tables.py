"""Flat tables for analysis: name, type, description and source of each column; data frames of their rows.

`store.table_page`, `store.to_pandas`, `spanwise db export` and `spanwise db analyze-copy` all use these definitions. The pages
of a store hold source records, such as runs; the columns of a table read their values from these records.

To add a field of a run to all of them, add one line to `RUNS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from spanwise.collector import record_encoding
from spanwise.collector.errors import Refused, require_extra
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, Document, Example, Experiment, Feedback, Run, TablePage
from spanwise.tracer.suggestions import did_you_mean

if TYPE_CHECKING:
    import pandas


# Flat tables for analysis: name, type, description and source of each column.

# Time columns hold nanoseconds since 1970 in UTC. JSON columns hold JSON text, and null instead of an empty list
ColumnType = Literal["text", "integer", "real", "boolean", "time", "json"]
PAGE_ROWS = 2_000  # rows that data frames and files read at once


class TableSource(Protocol):
    """Store whose flat tables can be read."""

    def table_page(
        self, table: str, filter: Filter | None = None, *, limit: int = 1000, cursor: str | None = None
    ) -> TablePage:
        """Return one page of a flat table. See `TraceStore.table_page`."""


class TraceRecord(NamedTuple):
    """Source of a row of `traces`: the trace summary and the content of its root run."""

    trace_id: str
    project: str
    environment: str
    name: str
    kind: str
    status: str
    error: str | None
    start_ns: int
    end_ns: int
    span_count: int
    error_count: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    session_id: str | None
    user_id: str | None
    experiment_id: str | None
    example_id: str | None
    repetition: int
    complete: bool
    dropped: int
    models: Sequence[str]
    tags: Sequence[str]
    metadata: Mapping[str, JSON]
    root_span_id: str
    inputs: JSON
    outputs: JSON
    scores: Mapping[str, float | str | None]  # newest score or label per key


class DocumentRecord(NamedTuple):
    """Source of a row of `documents`: a document, its position, and the run that retrieved it."""

    run: Run
    position: int
    document: Document


class ExampleRecord(NamedTuple):
    """Source of a row of `examples`: an example of the newest version of a dataset, from `version` on."""

    dataset: str
    version: int
    position: int
    example: Example


class ResultRecord(NamedTuple):
    """Source of a row of `experiment_results`: a trace of an experiment and its newest feedback under one key."""

    trace_id: str
    project: str
    experiment_id: str
    example_id: str | None
    repetition: int
    status: str
    start_ns: int
    end_ns: int
    feedback: Feedback | None  # None if the trace has no feedback
    experiment: Experiment | None = None  # None if the store has no such experiment


class Column(NamedTuple):
    """Column of a table. `read` returns its value from a source record; JSON values are encoded afterwards."""

    name: str
    type: ColumnType
    description: str
    read: Callable[[Any], Any]


class ForeignKey(NamedTuple):
    """Reference of some columns to the key of another table."""

    columns: tuple[str, ...]
    table: str
    key: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Flat table: its columns, and its keys and full-text columns in a copy for analysis."""

    name: str
    description: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()
    searchable: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def make_columns(self, records: Sequence[Any]) -> dict[str, Sequence[JSON]]:
        """Return the values of source records by column name: plain values, JSON as text."""
        return {
            column.name: [_encode_json(column.read(record)) for record in records]
            if column.type == "json"
            else list(map(column.read, records))
            for column in self.columns
        }


def _encode_json(value: JSON) -> str | None:
    return None if value is None else record_encoding.encode(value).decode()


def _latency_ms(record: Any) -> float:
    return max(0, int(record.end_ns) - int(record.start_ns)) / 1e6


def _score(feedback: Feedback | None) -> float | None:
    return None if feedback is None or feedback.score is None else float(feedback.score)


TRACES = Table(
    "traces",
    "One row per trace: the root run's fields and totals over all runs of the trace.",
    (
        Column("trace_id", "text", "id of the trace, 32 hex digits", lambda t: t.trace_id),
        Column("project", "text", "project", lambda t: t.project),
        Column("environment", "text", "environment, such as production", lambda t: t.environment),
        Column("name", "text", "name of the root run", lambda t: t.name),
        Column("kind", "text", "kind of the root run", lambda t: t.kind),
        Column("status", "text", "status of the root run: ok, error, cancelled or unset", lambda t: t.status),
        Column("error", "text", "error of the root run", lambda t: t.error),
        Column("start_time", "time", "first start of a run", lambda t: t.start_ns),
        Column("end_time", "time", "last end of a run", lambda t: t.end_ns),
        Column("latency_ms", "real", "time from the first start to the last end, in milliseconds", _latency_ms),
        Column("span_count", "integer", "number of runs", lambda t: t.span_count),
        Column("error_count", "integer", "number of runs with an error", lambda t: t.error_count),
        Column("input_tokens", "integer", "input tokens of all model calls", lambda t: t.input_tokens),
        Column("output_tokens", "integer", "output tokens of all model calls", lambda t: t.output_tokens),
        Column("cost", "real", "cost in US dollars; null if unknown", lambda t: t.cost),
        Column("session_id", "text", "session", lambda t: t.session_id),
        Column("user_id", "text", "user", lambda t: t.user_id),
        Column("experiment_id", "text", "experiment, for a run of `evaluate()`", lambda t: t.experiment_id),
        Column("example_id", "text", "example of the dataset, for a run of `evaluate()`", lambda t: t.example_id),
        Column("repetition", "integer", "number of the repetition, from 0", lambda t: t.repetition),
        Column("complete", "boolean", "whether all started runs have arrived", lambda t: t.complete),
        Column("dropped", "integer", "runs that the sender dropped and reported", lambda t: t.dropped),
        Column("models", "json", "list of the models that were called", lambda t: list(t.models) or None),
        Column("tags", "json", "list of the tags", lambda t: list(t.tags) or None),
        Column("metadata", "json", "short scalar metadata of the root run, by name", lambda t: t.metadata or None),
        Column("root_span_id", "text", "span id of the root run", lambda t: t.root_span_id),
        Column("inputs", "json", "inputs of the root run, or of the first run below that has any", lambda t: t.inputs),
        Column("outputs", "json", "outputs of the root run, or of the last run below", lambda t: t.outputs),
        Column(
            "scores",
            "json",
            "newest score or label by feedback key; null if the evaluator failed or skipped",
            lambda t: t.scores or None,
        ),
    ),
    key=("trace_id",),
    indexes=(("start_time",), ("project",), ("name",), ("session_id",), ("user_id",), ("experiment_id",)),
    searchable=("name", "error", "inputs", "outputs"),
)

RUNS = Table(
    "runs",
    "One row per run (span), with its content.",
    (
        Column("trace_id", "text", "trace", lambda run: run.trace_id),
        Column("span_id", "text", "id of the run in its trace, 16 hex digits", lambda run: run.span_id),
        Column("parent_id", "text", "span id of the parent; null for a root", lambda run: run.parent_id),
        Column("name", "text", "name of the run", lambda run: run.name),
        Column("kind", "text", "kind: llm, tool, retriever, chain, …", lambda run: run.kind),
        Column("status", "text", "ok, error, cancelled or unset", lambda run: run.status),
        Column("error", "text", "error, such as `ValueError: no`", lambda run: run.error),
        Column("start_time", "time", "start", lambda run: run.start_ns),
        Column("end_time", "time", "end", lambda run: run.end_ns),
        Column("latency_ms", "real", "duration in milliseconds", _latency_ms),
        Column("model", "text", "model of the call", lambda run: run.model),
        Column("input_tokens", "integer", "input tokens", lambda run: run.usage and run.usage.input_tokens),
        Column("output_tokens", "integer", "output tokens", lambda run: run.usage and run.usage.output_tokens),
        Column(
            "usage_details",
            "json",
            "further token counts by name",
            lambda run: run.usage and (run.usage.details or None),
        ),
        Column("cost", "real", "cost in US dollars; null if unknown", lambda run: run.cost),
        Column("prompt_name", "text", "name of the prompt", lambda run: run.prompt_name),
        Column("prompt_version", "text", "version of the prompt", lambda run: run.prompt_version),
        Column("agent_name", "text", "name of the agent", lambda run: run.agent_name),
        Column(
            "finish_reasons",
            "json",
            "list of the reasons why the model stopped",
            lambda run: list(run.finish_reasons) or None,
        ),
        Column(
            "time_to_first_token_ms",
            "real",
            "milliseconds from the start of a streamed model call to its first token",
            lambda run: run.time_to_first_token_ms,
        ),
        Column("tools", "json", "list of the tools offered to the model", lambda run: list(run.tools) or None),
        Column("session_id", "text", "session", lambda run: run.session_id),
        Column("user_id", "text", "user", lambda run: run.user_id),
        Column("project", "text", "project", lambda run: run.project),
        Column("environment", "text", "environment", lambda run: run.environment),
        Column(
            "service",
            "text",
            "`service.name` of the sending process",
            lambda run: _text(run.resource.get("service.name")),
        ),
        Column(
            "experiment_id", "text", "experiment, for the root of a run of `evaluate()`", lambda run: run.experiment_id
        ),
        Column("example_id", "text", "example of the dataset", lambda run: run.example_id),
        Column("repetition", "integer", "number of the repetition, from 0", lambda run: run.repetition),
        Column("inputs", "json", "inputs", lambda run: run.inputs),
        Column("outputs", "json", "outputs", lambda run: run.outputs),
        Column("document_count", "integer", "number of retrieved documents", lambda run: len(run.documents)),
        Column("tags", "json", "list of the tags", lambda run: list(run.tags) or None),
        Column("metadata", "json", "metadata, by name", lambda run: run.metadata or None),
        Column("attributes", "json", "attributes that no other column represents", lambda run: run.attributes or None),
        Column("events", "json", "list of the span events", lambda run: run.events or None),
        Column("links", "json", "list of the links to other spans", lambda run: run.links or None),
    ),
    key=("trace_id", "span_id"),
    foreign_keys=(ForeignKey(("trace_id",), "traces", ("trace_id",)),),
    indexes=(("start_time",), ("name",), ("kind",), ("model",)),
    searchable=("name", "error", "inputs", "outputs"),
)

DOCUMENTS = Table(
    "documents",
    "One row per retrieved document of a run.",
    (
        Column("trace_id", "text", "trace", lambda d: d.run.trace_id),
        Column("span_id", "text", "run that retrieved the document", lambda d: d.run.span_id),
        Column("position", "integer", "position in the list of the run, from 0", lambda d: d.position),
        Column(
            "document_id", "text", "id of the document; null if the retriever gave none", lambda d: _text(d.document.id)
        ),
        Column(
            "score",
            "real",
            "score of the retriever; null if it gave none",
            lambda d: None if d.document.score is None else float(d.document.score),
        ),
        Column("content", "text", "text of the document", lambda d: _text(d.document.content)),
        Column("metadata", "json", "metadata of the document, by name", lambda d: d.document.metadata or None),
        Column("run_name", "text", "name of the run", lambda d: d.run.name),
        Column("run_kind", "text", "kind of the run, such as retriever or reranker", lambda d: d.run.kind),
    ),
    key=("trace_id", "span_id", "position"),
    foreign_keys=(
        ForeignKey(("trace_id",), "traces", ("trace_id",)),
        ForeignKey(("trace_id", "span_id"), "runs", ("trace_id", "span_id")),
    ),
    indexes=(("document_id",),),
    searchable=("content",),
)

FEEDBACK = Table(
    "feedback",
    "One row per score, label, error or skip of an evaluator or a person, also superseded ones.",
    (
        Column("id", "text", "id of the feedback", lambda f: f.id),
        Column(
            "trace_id", "text", "trace; null for feedback on a session or an experiment", lambda f: f.target.trace_id
        ),
        Column("span_id", "text", "run; null for feedback on the trace", lambda f: f.target.span_id),
        Column(
            "document",
            "integer",
            "position of the document of the run; null for other targets",
            lambda f: f.target.document,
        ),
        Column("session_id", "text", "session, for feedback on a session", lambda f: f.target.session_id),
        Column("experiment_id", "text", "experiment, for feedback on an experiment", lambda f: f.target.experiment_id),
        Column("project", "text", "project of the session; null for other targets", lambda f: f.target.project),
        Column("key", "text", "key, such as correctness", lambda f: f.key),
        Column("score", "real", "score; 1 and 0 for booleans", _score),
        Column("is_boolean", "boolean", "whether the score is a boolean", lambda f: isinstance(f.score, bool)),
        Column("label", "text", "label", lambda f: f.label),
        Column("comment", "text", "comment, or the reason of a judge", lambda f: f.comment),
        Column("outcome", "text", "score, error or skip", lambda f: f.outcome),
        Column("error", "text", "error of the evaluator", lambda f: f.error),
        Column("source", "text", "code, model or human", lambda f: f.source),
        Column("author", "text", "person, for human feedback", lambda f: f.author),
        Column("evaluator", "text", "name of the evaluator", lambda f: f.evaluator),
        Column("version", "text", "version of the evaluator", lambda f: f.version),
        Column("rule", "text", "monitoring rule", lambda f: f.rule),
        Column("judge_trace_id", "text", "trace of the judge", lambda f: f.judge_trace_id),
        Column("metadata", "json", "metadata, by name", lambda f: f.metadata or None),
        Column("created_time", "time", "time of the feedback", lambda f: f.created_ns),
    ),
    key=("id",),
    foreign_keys=(ForeignKey(("trace_id",), "traces", ("trace_id",)),),
    indexes=(("trace_id",), ("key",)),
    searchable=("comment", "label", "error"),
)

EXAMPLES = Table(
    "examples",
    "One row per example of the newest version of each dataset.",
    (
        Column("dataset", "text", "name of the dataset", lambda e: e.dataset),
        Column("example_id", "text", "id of the example", lambda e: e.example.id),
        Column(
            "version", "integer", "version of the dataset since which the example has this content", lambda e: e.version
        ),
        Column("position", "integer", "position in the dataset, from 0, with gaps", lambda e: e.position),
        Column("split", "text", "split", lambda e: e.example.split),
        Column("inputs", "json", "inputs", lambda e: e.example.inputs),
        Column("reference_outputs", "json", "reference outputs", lambda e: e.example.reference_outputs),
        Column("outputs", "json", "existing outputs of an application", lambda e: e.example.outputs),
        Column("documents", "json", "existing retrieved documents", lambda e: e.example.documents),
        Column(
            "expected_documents", "json", "documents that should be retrieved", lambda e: e.example.expected_documents
        ),
        Column("conditions", "json", "conditions that the answer must meet", lambda e: e.example.conditions),
        Column("guidelines", "json", "guidelines for judges", lambda e: e.example.guidelines),
        Column("history", "json", "preceding turns of a conversation", lambda e: e.example.history),
        Column("categories", "json", "list of categories", lambda e: e.example.categories or None),
        Column("base_id", "text", "example that this one is a perturbation of", lambda e: e.example.base_id),
        Column("evaluators", "json", "list of the evaluators of this example", lambda e: e.example.evaluators or None),
        Column("metadata", "json", "metadata, by name", lambda e: e.example.metadata or None),
    ),
    key=("dataset", "example_id"),
    searchable=("inputs", "reference_outputs"),
)

EXPERIMENT_RESULTS = Table(
    "experiment_results",
    "One row per run of an experiment and feedback key, with the newest feedback. A run without feedback has one row.",
    (
        Column("experiment_id", "text", "id of the experiment", lambda r: r.experiment_id),
        Column("experiment", "text", "name of the experiment", lambda r: r.experiment and r.experiment.name),
        Column("dataset", "text", "dataset", lambda r: r.experiment and r.experiment.dataset),
        Column(
            "dataset_version",
            "integer",
            "version of the dataset",
            lambda r: r.experiment and r.experiment.dataset_version,
        ),
        Column("project", "text", "project of the run", lambda r: r.project),
        Column("example_id", "text", "example", lambda r: r.example_id),
        Column("repetition", "integer", "number of the repetition, from 0", lambda r: r.repetition),
        Column("trace_id", "text", "trace of the run", lambda r: r.trace_id),
        Column("status", "text", "status of the root run", lambda r: r.status),
        Column("latency_ms", "real", "latency of the run in milliseconds", _latency_ms),
        Column("key", "text", "feedback key; null for a run without feedback", lambda r: r.feedback and r.feedback.key),
        Column("score", "real", "newest score; 1 and 0 for booleans", lambda r: _score(r.feedback)),
        Column("label", "text", "newest label", lambda r: r.feedback and r.feedback.label),
        Column("outcome", "text", "score, error or skip", lambda r: r.feedback and r.feedback.outcome),
        Column("comment", "text", "comment, or the reason of a judge", lambda r: r.feedback and r.feedback.comment),
        Column("error", "text", "error of the evaluator", lambda r: r.feedback and r.feedback.error),
        Column("feedback_id", "text", "feedback", lambda r: r.feedback and r.feedback.id),
    ),
    foreign_keys=(
        ForeignKey(("trace_id",), "traces", ("trace_id",)),
        ForeignKey(("feedback_id",), "feedback", ("id",)),
    ),
    indexes=(("experiment_id", "key"), ("trace_id",), ("example_id",)),
)


def _text(value: JSON) -> str | None:
    """Return a value whose type the sender chose as text."""
    return value if value is None or isinstance(value, str) else _encode_json(value)


TABLES: Mapping[str, Table] = {
    table.name: table for table in (TRACES, RUNS, DOCUMENTS, FEEDBACK, EXAMPLES, EXPERIMENT_RESULTS)
}


def find_table(name: str) -> Table:
    """Return the table with this name. Raise `Refused` if there is none."""
    if name not in TABLES:
        hint = did_you_mean(str(name), list(TABLES), 1)
        raise Refused(f"unknown table {name!r}; expected one of: {', '.join(TABLES)}{hint}")
    return TABLES[name]


def iterate_pages(store: TableSource, table: Table, filter: Filter) -> Iterator[list[Sequence[JSON]]]:
    """Yield the values of the columns of a table, in pages of at most `PAGE_ROWS` rows.

    A column that the store does not know, because it is of another version, has nulls.
    """
    cursor: str | None = None
    while True:
        page = store.table_page(table.name, filter, limit=PAGE_ROWS, cursor=cursor)
        if count := page.count:
            yield [page.columns.get(name) or [None] * count for name in table.names]
        cursor = page.next
        if cursor is None:
            return


# Data frames: rows of flat tables as Arrow batches, and as a pandas DataFrame.

# types of pandas columns; each has a missing value
_PANDAS_TYPES: dict[ColumnType, str] = {
    "text": "string",
    "json": "string",
    "integer": "Int64",
    "real": "float64",
    "boolean": "boolean",
}


def build_frame(store: TableSource, table: str, filter: Filter) -> pandas.DataFrame:
    """Return all rows of a table as a DataFrame; see `TraceStore.to_pandas`."""
    definition = find_table(table)
    return make_frame(definition, iterate_pages(store, definition, filter))


def make_frame(table: Table, pages: Iterable[Sequence[Sequence[JSON]]]) -> pandas.DataFrame:
    """Return a DataFrame of the columns in `pages`, with the types of the table also if there are no rows."""
    with require_extra("frames", "to_pandas"):
        import pandas
    empty: Sequence[Sequence[JSON]] = [()] * len(table.columns)
    frames = []
    # Python objects of only one page exist at a time
    for page in chain([empty], pages):
        columns = {}
        for column, values in zip(table.columns, page, strict=True):
            if column.type == "time":
                columns[column.name] = pandas.Series(pandas.array(values, dtype="Int64")).astype("datetime64[ns, UTC]")
            else:
                columns[column.name] = pandas.Series(values, dtype=_PANDAS_TYPES[column.type])
        frames.append(pandas.DataFrame(columns))
    return pandas.concat(frames, ignore_index=True)


def make_schema(table: Table) -> Any:
    """Return the Arrow schema of a table. The description of each column is its metadata."""
    with require_extra("files", "writing Parquet"):
        import pyarrow
    types: dict[ColumnType, Any] = {
        "text": pyarrow.string(),
        "json": pyarrow.string(),
        "integer": pyarrow.int64(),
        "real": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
        "time": pyarrow.timestamp("ns", tz="UTC"),
    }
    fields = [
        pyarrow.field(column.name, types[column.type], metadata={"description": column.description})
        for column in table.columns
    ]
    return pyarrow.schema(fields, metadata={"description": table.description})


def make_batches(table: Table, pages: Iterable[Sequence[Sequence[JSON]]]) -> Iterator[Any]:
    """Yield an Arrow record batch for each page of columns."""
    import pyarrow

    schema = make_schema(table)
    for page in pages:
        arrays = [pyarrow.array(values, field.type) for values, field in zip(page, schema, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
