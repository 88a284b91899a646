"""Spans as people and evaluators see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spanwise.collector.records._feedback import Feedback
from spanwise.collector.records._values import JSON, Status


@dataclass(frozen=True, slots=True)
class Document:
    """One piece of retrieved context. Where none was given, `id` and `score` are None."""

    content: str
    id: str | None = None
    score: float | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """A span event, such as an exception (`name == "exception"`)."""

    name: str
    time_ns: int
    attributes: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """A pointer from a span to another span, possibly of another trace."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call. `details` holds finer counts (cache_read, reasoning, …) under OTel GenAI's names."""

    input_tokens: int = 0
    output_tokens: int = 0
    details: Mapping[str, int] = field(default_factory=dict)

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A span as people and evaluators see it. `attributes` holds what no other field has taken."""

    trace_id: str
    span_id: str
    name: str
    parent_id: str | None = None
    kind: str = "chain"  # one of spanwise.tracer's kinds, or "unknown"
    start_ns: int = 0
    end_ns: int = 0
    status: Status = "unset"
    error: str | None = None  # "ValueError: …", None unless status is "error"
    inputs: JSON = None
    outputs: JSON = None
    documents: tuple[Document, ...] = ()
    model: str | None = None
    usage: Usage | None = None
    cost: float | None = None
    attributes: Mapping[str, JSON] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    links: tuple[Link, ...] = ()
    resource: Mapping[str, JSON] = field(default_factory=dict)
    session_id: str | None = None
    user_id: str | None = None
    project: str = "default"
    environment: str = "default"
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    experiment_id: str | None = None
    example_id: str | None = None
    repetition: int = 0

    @property
    def duration_ns(self) -> int:
        """Wall time of the span, never negative."""
        return max(0, self.end_ns - self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run that was said to have started and of which no end has come: it runs, or ended with its process.

    It is no `Run`: in no count, no sum, no list of runs. Its span takes its place.
    """

    trace_id: str
    span_id: str
    name: str
    parent_id: str | None = None
    kind: str = "chain"
    start_ns: int = 0
    local_root: str | None = None  # its process's root of the trace
    project: str = "default"
    environment: str = "default"
    instance: str | None = None  # its process (see `Process`)


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace: its root run, all runs by start time, and all feedback on it or on its spans.

    A run whose parent never arrived is a root too; `root` is then the earliest of them.
    """

    root: Run
    runs: tuple[Run, ...]
    feedback: tuple[Feedback, ...] = ()
    complete: bool = False
    dropped: int = 0  # as in `TraceSummary`
    calls_sent: int = 0
    running: tuple[OpenRun, ...] = ()  # by start time; none of `runs`

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return self.root.trace_id

    def children(self, span_id: str) -> tuple[Run, ...]:
        """The runs right below a span, by start time."""
        return tuple(run for run in self.runs if run.parent_id == span_id)

    @property
    def documents(self) -> tuple[Document, ...]:
        """The retrieved context: documents of the last reranker, else of all retrievers, else of any run.

        A retriever that asks others gives what it has made of theirs: those below it do not count again. Where nobody
        says who retrieves, steps hand the same documents on: each counts once.
        """
        holders = [run for run in self.runs if run.documents]
        rerankers = [run for run in holders if run.kind == "reranker"]
        if rerankers:
            return rerankers[-1].documents
        retrievers = [run for run in holders if run.kind == "retriever"]
        found = [each for run in _outermost(retrievers or holders, self.runs) for each in run.documents]
        return tuple(found) if retrievers else _once(found)


def _once(documents: Sequence[Document]) -> tuple[Document, ...]:
    first: dict[tuple[str | None, str], Document] = {}
    for document in documents:
        first.setdefault((document.id, document.content), document)
    return tuple(first.values())


def _outermost(holders: Sequence[Run], runs: Sequence[Run]) -> Sequence[Run]:
    """Those that are below none of the others; all of them if they go round in a circle."""
    parents, ids = {run.span_id: run.parent_id for run in runs}, {run.span_id for run in holders}
    below: dict[str | None, bool] = {None: False}  # spans that hold nothing: whether a holder is above them
    for run in holders:
        path, above = [], run.parent_id
        while above not in below and above not in ids:
            below[above] = False
            path.append(above)
            above = parents.get(above or "")
        below |= dict.fromkeys(path, above in ids or below[above])
    return [run for run in holders if run.parent_id not in ids and not below[run.parent_id]] or holders
