"""The records that travel between stores, API, evaluators and pages: frozen, and without logic beyond their invariants.

Times are integer nanoseconds since the Unix epoch, ids are lower-case hex, costs are US dollars. Every field that holds
user data (`inputs`, `outputs`, `metadata`, …) holds plain JSON values.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

import orjson

T = TypeVar("T")
_STABLE = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY

JSON: TypeAlias = Any  # None, bool, int, float, str, list or dict of these
Status = Literal["unset", "ok", "error"]
Outcome = Literal["score", "error", "skip"]
Source = Literal["code", "model", "human"]
DatasetKind = Literal["kv", "llm", "chat"]
Verdict = Literal["filtered", "sampled_out", "over_budget", "pending", "taken", "done", "error"]


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
    kind: str = "chain"  # one of assay.tracer's kinds, or "unknown"
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
class TraceSummary:
    """One row of a list of traces: the root run's scalars, rolled up over all spans of the trace."""

    trace_id: str
    name: str
    kind: str
    start_ns: int
    duration_ns: int
    status: Status
    error: str | None
    project: str
    environment: str
    span_count: int
    error_count: int  # spans with status "error"
    input_tokens: int
    output_tokens: int
    cost: float | None
    session_id: str | None
    user_id: str | None
    tags: tuple[str, ...]
    complete: bool
    experiment_id: str | None
    example_id: str | None
    repetition: int = 0
    inputs: str = ""  # the beginning of the root's inputs, for display
    outputs: str = ""
    feedback: Mapping[str, float | str | None] = field(default_factory=dict)  # newest score (or label) per key


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a feedback speaks of: a trace, a span, one document of a span, a session or an experiment."""

    trace_id: str | None = None
    span_id: str | None = None
    document: int | None = None  # position in the span's documents
    session_id: str | None = None
    experiment_id: str | None = None

    def __post_init__(self) -> None:
        named = [self.trace_id is not None, self.session_id is not None, self.experiment_id is not None]
        if sum(named) != 1:
            raise ValueError(f"a target is exactly one of a trace, a session or an experiment, not {self!r}")
        if self.span_id is not None and self.trace_id is None:
            raise ValueError(f"a span is named together with its trace, not alone: {self!r}")
        if self.document is not None and self.span_id is None:
            raise ValueError(f"a document is named together with its span: {self!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What an evaluator or a person says of a target under one key: a score, an error or a skip, never two of them.

    `score` is a float or bool, `label` a string; an outcome of "score" has one of them. An error says what happened in
    `error`, a skip says what was missing in `comment`. The `id` derives from (target, key, source, author or
    evaluator + version + rule), so that a repeat overwrites itself and two people's votes do not; it is derived when
    it is first asked for.
    """

    target: Target
    key: str
    score: float | bool | None = None
    label: str | None = None
    comment: str | None = None
    outcome: Outcome = "score"
    error: str | None = None
    source: Source = "code"
    author: str | None = None
    evaluator: str | None = None
    version: str | None = None
    rule: str | None = None
    judge_trace_id: str | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)
    id: str = ""

    def __post_init__(self) -> None:
        if not self.key:
            raise ValueError("a feedback needs a key")
        has_value = self.score is not None or self.label is not None
        if (self.outcome == "score") != has_value:
            raise ValueError(
                f"feedback {self.key!r}: outcome {self.outcome!r} with score {self.score!r}, label {self.label!r}"
            )
        if (self.outcome == "error") != (self.error is not None):
            raise ValueError(f"feedback {self.key!r}: outcome {self.outcome!r} with error {self.error!r}")
        if isinstance(self.score, float) and not isfinite(self.score):
            said = "NaN" if self.score != self.score else repr(self.score)  # neither has a mean, and JSON has neither
            raise ValueError(f"feedback {self.key!r}: {said} is not a score; say outcome='skip' or 'error' instead")
        if not self.id:
            object.__delattr__(self, "id")

    if not TYPE_CHECKING:  # it would make every attribute known

        def __getattr__(self, name: str) -> str:
            """The id, of which most feedback that is only looked at needs none."""
            if name != "id":
                raise AttributeError(f"a feedback has no {name!r}")
            object.__setattr__(self, "id", feedback_id(self))
            return self.id


class _Draft:
    """A feedback whose fields can still be set: a frozen one sets them at ten times the price."""

    __slots__ = Feedback.__slots__


def scored(
    target: Target, key: str, score: float | bool | None, label: str | None = None, comment: str | None = None, *,
    source: Source, evaluator: str, version: str, metadata: Mapping[str, JSON] | None = None,
) -> Feedback:  # fmt: skip
    """An evaluator's feedback from values that are known to be right: a key, and a finite score, a label, or both."""
    made: Any = _Draft()
    made.target, made.key, made.score, made.label, made.comment = target, key, score, label, comment
    made.outcome, made.error, made.source, made.author = "score", None, source, None
    made.evaluator, made.version, made.rule, made.judge_trace_id = evaluator, version, None, None
    made.metadata, made.created_ns = {} if metadata is None else metadata, time.time_ns()
    made.__class__ = Feedback  # the slots are the same
    return cast(Feedback, made)


def feedback_id(feedback: Feedback) -> str:
    """32 hex digits over what makes two feedbacks the same one."""
    target = feedback.target
    parts = (
        target.trace_id, target.span_id, target.document, target.session_id, target.experiment_id,
        feedback.key, feedback.source, feedback.author, feedback.evaluator, feedback.version, feedback.rule,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace: its root run, all runs by start time, and all feedback on it or on its spans.

    A run whose parent never arrived is a root too; `root` is then the earliest of them.
    """

    root: Run
    runs: tuple[Run, ...]
    feedback: tuple[Feedback, ...] = ()
    complete: bool = False

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return self.root.trace_id

    def children(self, span_id: str) -> tuple[Run, ...]:
        """The runs right below a span, by start time."""
        return tuple(run for run in self.runs if run.parent_id == span_id)

    @property
    def documents(self) -> tuple[Document, ...]:
        """The retrieved context: documents of the last reranker, else of all retrievers, else of any run."""
        holders = [run for run in self.runs if run.documents]
        rerankers = [run for run in holders if run.kind == "reranker"]
        if rerankers:
            return rerankers[-1].documents
        retrievers = [run for run in holders if run.kind == "retriever"] or holders
        return tuple(document for run in retrievers for document in run.documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row of a dataset. An `id` left empty is derived from the contents (see `example_id`).

    `outputs` and `documents` are what some application has answered and retrieved already: `evaluate()` without a task
    scores them as they are.
    """

    inputs: JSON
    reference_outputs: JSON = None
    expected_documents: tuple[Document, ...] | None = None
    conditions: JSON = None
    guidelines: JSON = None
    categories: tuple[str, ...] = ()
    history: JSON = None
    base_id: str | None = None  # the example that this one is a perturbation of
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    split: str | None = None
    id: str = ""
    outputs: JSON = None
    documents: tuple[Document, ...] | None = None

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", example_id(self))


def example_id(example: Example) -> str:
    """32 hex digits over question and reference, not over metadata, split and given answers."""
    parts = (
        example.inputs, example.reference_outputs, example.expected_documents, example.conditions, example.guidelines,
        example.categories, example.history, example.base_id,
    )  # fmt: skip
    try:
        content = orjson.dumps(parts, default=repr, option=_STABLE)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        content = repr(parts).encode("utf-8", "backslashreplace")
    return hashlib.sha256(content).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What an evaluator's arguments are taken from: one finished run of a task, or one live trace."""

    example: Example | None = None
    trace: Trace | None = None
    inputs: JSON = None
    outputs: JSON = None
    reference_outputs: JSON = None
    documents: tuple[Document, ...] | None = None  # None: no retrieval was captured
    expected_documents: tuple[Document, ...] | None = None
    conditions: JSON = None
    guidelines: JSON = None
    history: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def run(self) -> Run | None:
        """The root run of the trace, if there is a trace."""
        return self.trace.root if self.trace else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A named, versioned list of examples. Version 1 is the first; every change makes a new one."""

    name: str
    version: int = 1
    kind: DatasetKind = "kv"
    schema: Mapping[str, JSON] | None = None  # JSON Schemas under "inputs" and "reference_outputs"
    description: str = ""
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)
    example_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One execution of a task over a dataset's version. Its runs are traces with `experiment_id == id`."""

    id: str
    name: str
    dataset: str
    dataset_version: int | None = None
    project: str = "default"
    status: Literal["running", "finished", "interrupted"] = "running"
    evaluators: tuple[Mapping[str, JSON], ...] = ()  # {"key", "version", "metrics", …} each
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    started_ns: int = field(default_factory=time.time_ns)
    ended_ns: int | None = None
    example_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a monitor evaluates: which evaluators, on which traces, how often, at what cost."""

    name: str
    version: str
    evaluators: tuple[Mapping[str, JSON], ...]
    sample_rate: float = 1.0
    filter: Mapping[str, JSON] = field(default_factory=dict)
    budget: Mapping[str, float] = field(default_factory=dict)  # {"usd_per_day": 5}
    enabled: bool = True
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a rule did with a trace, and why. One per (trace, rule): a later one replaces it."""

    trace_id: str
    rule: str
    rule_version: str
    verdict: Verdict
    reason: str = ""
    probability: float = 1.0  # inclusion probability: head × rule × stratum
    attempts: int = 0
    cost: float | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A named right to do something, held by one process until `expires_ns`."""

    name: str
    holder: str
    expires_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key as it is kept: never the secret, only its SHA-256."""

    id: str
    name: str
    sha256: str
    project: str | None = None  # None: all projects
    scopes: tuple[str, ...] = ("read", "write")
    created_ns: int = field(default_factory=time.time_ns)
    expires_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """A target that waits in an annotation queue for a person's feedback."""

    queue: str
    target: Target
    status: Literal["waiting", "done", "skipped"] = "waiting"
    assignee: str | None = None
    note: str = ""
    created_ns: int = field(default_factory=time.time_ns)
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long, and up to which size on disk, the traces of a project are kept (None: of every project, together)."""

    project: str | None = None
    max_age_ns: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_age_ns", "max_bytes"):
            if (value := getattr(self, name)) is not None and value < 0:  # would give up what is yet to come
                raise ValueError(f"{name} of a retention is {value!r}; it cannot be below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A slice of a longer list, and where the next one begins (None at the end)."""

    items: tuple[T, ...]
    next: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)
