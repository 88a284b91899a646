"""Records of data: runs, traces, feedback, amendments; examples, datasets, experiments, evaluation cases."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from spanwise.collector.errors import Refused
from spanwise.collector.records.json_values import JSON, DatasetKind, Outcome, Source, Status, hash_inputs

# Trace records: runs, traces, feedback, amendments and process reports.


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target of feedback: a trace, a span, one document of a span, a session or an experiment.

    Projects may use the same session ids. `project` names the project of a session. Without it, the target is the session
    in any project.
    """

    trace_id: str | None = None
    span_id: str | None = None
    document: int | None = None  # position in the span's documents
    session_id: str | None = None
    experiment_id: str | None = None
    project: str | None = None  # of a session

    def __post_init__(self) -> None:
        named = [self.trace_id is not None, self.session_id is not None, self.experiment_id is not None]
        if sum(named) != 1:
            raise ValueError(f"a target must have exactly one of trace_id, session_id and experiment_id, got {self!r}")
        if self.span_id is not None and self.trace_id is None:
            raise ValueError(f"a target with a span_id needs the trace_id, too, got {self!r}")
        if self.document is not None and self.span_id is None:
            raise ValueError(f"a target with a document needs the span_id, too, got {self!r}")
        if self.project is not None and (self.session_id is None or not self.project):
            raise ValueError(f"a target with a project needs a session_id and a name of the project, got {self!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Score, error or skip of an evaluator or a person on a target, under one key.

    The `score` is a float or bool, `label` a string; an outcome of "score" has at least one of them. An error has its
    message in `error`, and a skip names the missing data in `comment`.

    The `id` is derived from (target, key, source, author or evaluator + version), for feedback of a rule from
    (target, key, source, evaluator, rule). Feedback that is reported again therefore replaces itself, and labels of
    two people are both kept. The id is derived on first use.

    With `claim`, a rule numbers its evaluations of this target. For one (rule, target, evaluator), only the feedback
    with the highest number is valid.
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
    claim: int | None = None
    judge_trace_id: str | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)
    id: str = ""

    def __post_init__(self) -> None:
        if not self.key:
            raise ValueError("the key of feedback must not be empty")
        if type(self.score) not in _PLAIN_SCORE_TYPES:
            object.__setattr__(self, "score", _to_plain_score(self.key, self.score))
        has_value = self.score is not None or self.label is not None
        if (self.outcome == "score") != has_value:
            raise ValueError(
                f"feedback {self.key!r}: outcome {self.outcome!r} with score {self.score!r}, label {self.label!r}"
            )
        if (self.outcome == "error") != (self.error is not None):
            raise ValueError(f"feedback {self.key!r}: outcome {self.outcome!r} with error {self.error!r}")
        if isinstance(self.score, float) and not isfinite(self.score):
            # NaN and infinity have no mean and no JSON form
            shown = "NaN" if self.score != self.score else repr(self.score)
            raise ValueError(
                f"feedback {self.key!r}: the score must be finite, got {shown}; use outcome='skip' or 'error' instead"
            )
        if not self.id:
            object.__delattr__(self, "id")

    if not TYPE_CHECKING:  # because of this method, type checkers would accept every attribute

        def __getattr__(self, name: str) -> str:
            """Return the id, which is derived on first use because most feedback never needs it."""
            if name != "id":
                raise AttributeError(f"a feedback has no {name!r}")
            object.__setattr__(self, "id", feedback_id(self))
            return self.id


_PLAIN_SCORE_TYPES = (bool, float, int, type(None))


def _to_plain_score(key: str, score: Any) -> float | bool:
    """Convert a number of another type, such as a scalar of numpy, to Python's float or bool.

    Raises `ValueError` if the score is not a number.
    """
    item = getattr(score, "item", None)
    try:
        plain = item() if callable(item) else score
        if isinstance(plain, bool):
            return plain
        if not isinstance(plain, str | bytes):
            return float(plain)
    except (TypeError, ValueError):  # an array of several numbers, or no number
        pass
    way_out = "; give a text as the label" if isinstance(score, str) else ""
    raise ValueError(f"feedback {key!r}: the score must be a number or a bool, not {score!r:.100}{way_out}")


class _FeedbackDraft:
    """Mutable class with the slots of `Feedback`. Setting fields of the frozen class takes ten times as long."""

    __slots__ = Feedback.__slots__


def make_score(
    target: Target,
    key: str,
    score: float | bool | None,
    label: str | None = None,
    comment: str | None = None,
    *,
    source: Source,
    evaluator: str,
    version: str,
    metadata: Mapping[str, JSON] | None = None,
) -> Feedback:
    """Return an evaluator's feedback without checking the arguments.

    The caller passes valid values: a key, and a finite score, a label, or both.
    """
    made: Any = _FeedbackDraft()
    made.target, made.key, made.score, made.label, made.comment = target, key, score, label, comment
    made.outcome, made.error, made.source, made.author = "score", None, source, None
    made.evaluator, made.version, made.rule, made.judge_trace_id = evaluator, version, None, None
    made.claim = None
    made.metadata, made.created_ns = {} if metadata is None else metadata, time.time_ns()
    made.__class__ = Feedback  # allowed, because both classes have the same slots
    return cast(Feedback, made)


def restore_feedback(
    target: Target,
    id: str,
    key: str,
    score: float | bool | None,
    label: str | None,
    comment: str | None,
    outcome: Outcome,
    error: str | None,
    source: Source,
    author: str | None,
    evaluator: str | None,
    version: str | None,
    rule: str | None,
    claim: int | None,
    judge_trace_id: str | None,
    metadata: Mapping[str, JSON],
    created_ns: int,
) -> Feedback:
    """Return feedback from the stored values. The values are not checked again, which makes this ten times as fast."""
    made: Any = _FeedbackDraft()
    made.target, made.id, made.key, made.score, made.label, made.comment = target, id, key, score, label, comment
    made.outcome, made.error, made.source, made.author = outcome, error, source, author
    made.evaluator, made.version, made.rule, made.judge_trace_id = evaluator, version, rule, judge_trace_id
    made.claim, made.metadata, made.created_ns = claim, metadata, created_ns
    made.__class__ = Feedback  # allowed, because both classes have the same slots
    return cast(Feedback, made)


def normalize_target(target: Target) -> Target:
    """Return a target with normalized ids: lower-case hex digits, without the dashes of a UUID.

    Raises `Refused` for an invalid id of a trace or span.
    """
    if target.trace_id and target.span_id is None and _TRACE_ID.fullmatch(target.trace_id):  # the usual case
        return target
    trace_id = target.trace_id and _normalize_id("trace_id", target.trace_id, 32)
    span_id = target.span_id and _normalize_id("span_id", target.span_id, 16)
    if target.trace_id == "" or target.span_id == "":
        raise Refused(f"{target!r} has an empty id; leave it out or give the id of a trace or span")
    if (trace_id, span_id) == (target.trace_id, target.span_id):
        return target
    return replace(target, trace_id=trace_id, span_id=span_id)


def normalize_feedback(feedback: Feedback) -> Feedback:
    """Return feedback with a normalized target (`normalize_target`).

    An id that is derived from the target is updated.
    """
    target = normalize_target(feedback.target)
    if target is feedback.target:
        return feedback
    derived = feedback.id == feedback_id(feedback)
    return replace(feedback, target=target, id="" if derived else feedback.id)


def assign_session_project(feedback: Feedback, project: str) -> Feedback:
    """Return feedback with the project of its session. Other targets, and sessions with a project, are not changed.

    An id that is derived from the target is updated.
    """
    if feedback.target.session_id is None or feedback.target.project is not None:
        return feedback
    is_derived = feedback.id == feedback_id(feedback)
    target = replace(feedback.target, project=project)
    return replace(feedback, target=target, id="" if is_derived else feedback.id)


def _normalize_id(name: str, id: str, digits: int) -> str:
    text = id.replace("-", "").lower()
    if len(text) != digits or not _HEX.fullmatch(text) or not text.strip("0"):
        raise Refused(f"{name} must be {digits} hex digits that are not all zeros, got {id!r:.100}")
    return text


_HEX = re.compile(r"[0-9a-f]+")
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")


def feedback_id(feedback: Feedback) -> str:
    """Return the id of feedback: 32 hex digits over the fields that identify it."""
    target, ruled = feedback.target, feedback.rule is not None
    parts: tuple[object, ...] = (
        target.trace_id,
        target.span_id,
        target.document,
        target.session_id,
        target.experiment_id,
        feedback.key,
        feedback.source,
        None if ruled else feedback.author,
        feedback.evaluator,
        None if ruled else feedback.version,
        feedback.rule,
    )
    if target.project is not None:  # the ids of other feedback are those that earlier versions derived
        parts = (*parts, target.project)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Document:
    """Retrieved document. `id` and `score` are None if the retriever gave none."""

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
    """Link from a span to another span, possibly of another trace."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token usage of one model call.

    `details` holds detailed counts (cache_read, reasoning, …) under OTel GenAI's names.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    details: Mapping[str, int] = field(default_factory=dict)

    @property
    def total_tokens(self) -> int:
        """Return the sum of input and output tokens."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run: a span as users and evaluators see it. `attributes` holds the attributes that no other field represents."""

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
    prompt_name: str | None = None
    prompt_version: str | None = None
    agent_name: str | None = None
    finish_reasons: tuple[
        str, ...
    ] = ()  # of a model call: one per answer, without repetition, as the sender names them
    time_to_first_token_ms: float | None = None  # of a streamed model call, from its start
    tools: tuple[JSON, ...] = ()  # definitions of the tools offered to the model, as sent

    @property
    def duration_ns(self) -> int:
        """Return the wall time of the span, which is never negative."""
        return max(0, self.end_ns - self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """Run that was reported as started and has not ended: it is still running, or its process ended before it did.

    An open run is not a `Run` and is not included in any count, total or list of runs. When its span arrives, the
    `Run` replaces it.
    """

    trace_id: str
    span_id: str
    name: str
    parent_id: str | None = None
    kind: str = "chain"
    start_ns: int = 0
    local_root: str | None = None  # span id of the root of its process's part of the trace
    project: str = "default"
    environment: str = "default"
    instance: str | None = None  # instance id of its process (see `Process`)


@dataclass(frozen=True, slots=True)
class Trace:
    """Trace: its root run, all runs by start time, and all feedback on it or on its spans.

    A run whose parent never arrived is a root, too. If there are several roots, `root` is the earliest.
    """

    root: Run
    runs: tuple[Run, ...]
    feedback: tuple[Feedback, ...] = ()
    complete: bool = False
    dropped: int = 0  # as in `TraceSummary`
    calls_sent: int = 0
    running: tuple[OpenRun, ...] = ()  # by start time; not contained in `runs`

    @property
    def trace_id(self) -> str:
        """Return the trace id as 32 hex digits."""
        return self.root.trace_id

    def children(self, span_id: str) -> tuple[Run, ...]:
        """Return the direct children of a span, by start time."""
        return tuple(run for run in self.runs if run.parent_id == span_id)

    @property
    def documents(self) -> tuple[Document, ...]:
        """Return the retrieved documents: those of the last reranker, else of all retrievers, else of any run.

        A retriever below another retriever does not count, because the outer one returns its own selection. If no run
        is a retriever or reranker, several runs may pass on the same documents. Each document then counts once.
        """
        holders = [run for run in self.runs if run.documents]
        rerankers = [run for run in holders if run.kind == "reranker"]
        if rerankers:
            return rerankers[-1].documents
        retrievers = [run for run in holders if run.kind == "retriever"]
        found = [each for run in _outermost_runs(retrievers or holders, self.runs) for each in run.documents]
        if retrievers:
            return tuple(found)
        first: dict[tuple[str | None, str], Document] = {}
        for document in found:
            first.setdefault((document.id, document.content), document)
        return tuple(first.values())


def _outermost_runs(holders: Sequence[Run], runs: Sequence[Run]) -> Sequence[Run]:
    """Return the runs that are not below another of the given runs, or all of them if the parents form a cycle."""
    parents, ids = {run.span_id: run.parent_id for run in runs}, {run.span_id for run in holders}
    # span id of a run without documents → whether a run with documents is above it
    below: dict[str | None, bool] = {None: False}
    for run in holders:
        path, above = [], run.parent_id
        while above not in below and above not in ids:
            below[above] = False
            path.append(above)
            above = parents.get(above or "")
        below |= dict.fromkeys(path, above in ids or below[above])
    return [run for run in holders if run.parent_id not in ids and not below[run.parent_id]] or holders


@dataclass(frozen=True, slots=True)
class Amendment:
    """Fields of a run that arrived in another message than its span. `TraceStore.amend` lists the possible fields.

    If the sender does not know the span, both ids are empty, and `response_id` names a model response. The amended
    run is then the one with this id in the attribute `gen_ai.response.id`. With `project`, only runs of that project
    are amended.
    """

    trace_id: str
    span_id: str
    fields: Mapping[str, JSON]
    response_id: str | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """Counts of all spans of a process since its start, as reported at `reported_ns`. A later report replaces it."""

    instance: str  # `service.instance.id`, unique per process
    reported_ns: int
    started: int = 0
    open: int = 0
    delivered: int = 0  # acknowledged by a collector
    spilled: int = 0  # on disk, to be sent later
    pending: int = 0  # ended but still in memory
    dropped: Mapping[str, int] = field(default_factory=dict)  # by reason
    pid: int | None = None
    service: str | None = None
    project: str = "default"
    environment: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Process as known to a store. `report` is None if the process ended before its first report, or if its SDK sends
    none.
    """

    instance: str
    stored: int  # spans of the process that were ever stored, each counted once, including deleted ones
    seen_ns: int  # time at which the store last received spans or a report of the process
    service: str | None
    project: str
    environment: str
    pid: int | None
    report: ProcessReport | None


P = ParamSpec("P")
R = TypeVar("R")


def make_fast_constructor(record: Callable[P, R]) -> Callable[P, R]:
    """Return a function that creates instances of a frozen dataclass with slots in a fifth of the time.

    The function takes the same arguments as the dataclass. It is fastest if all are given by position, which is
    allowed for keyword-only fields, too. The dataclass must not have a `__post_init__`.

    A frozen dataclass sets each field through `object.__setattr__`. Here, the fields are set on an instance of a
    mutable class with the same slots. The class of the instance is then changed to that of the record.
    """

    def freeze(made: Any) -> None:
        made.__class__ = record

    frozen: Any = record
    same_fields: list[Any] = []
    for one in fields(frozen):
        defaults: dict[str, Any] = {"default": one.default, "default_factory": one.default_factory}
        given = {name: value for name, value in defaults.items() if value is not MISSING}
        same_fields.append((one.name, one.type, field(**given)))
    return make_dataclass(frozen.__name__, same_fields, slots=True, namespace={"__post_init__": freeze})


# Dataset records: examples and their ids, datasets, experiments, evaluation cases.

# Kinds of perturbation, which are the categories of perturbed examples
PERTURBATION_KINDS = (
    "typos",
    "casing",
    "punctuation",
    "contractions",
    "word_order",
    "noise",
    "synonyms",
    "base64",
    "base16",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Row of a dataset. An empty `id` is derived from the inputs and history (see `derive_example_id`).

    `outputs` and `documents` are existing answers and retrieved documents of some application. `evaluate()` without a
    task scores them unchanged. `evaluators` names the evaluators that score the example, by key or registered id; an
    example that names none is scored by all evaluators of the call.
    """

    inputs: JSON
    reference_outputs: JSON = None
    expected_documents: tuple[Document, ...] | None = None
    conditions: JSON = None
    guidelines: JSON = None
    categories: tuple[str, ...] = ()
    history: JSON = None
    base_id: str | None = None  # id of the example that this example is a perturbation of
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    split: str | None = None
    id: str = ""
    outputs: JSON = None
    documents: tuple[Document, ...] | None = None
    evaluators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", derive_example_id(self))


# attribute of a root run that holds its example, if no stored dataset contains it
EXAMPLE_ATTRIBUTE = "spanwise.example"


def derive_example_id(example: Example) -> str:
    """Return the id of an example that has none: a hash of its inputs and history only."""
    return hash_inputs(example.inputs, example.history)


def is_perturbed(example: Example) -> bool:
    """Return whether an example is a perturbation: it has a base, and its last category is the kind of perturbation.

    A variation of an example, which has a reference of its own, has a base but no such category.
    """
    return example.base_id is not None and bool(example.categories)


def find_root_id(example: Example, examples: Mapping[str, Example]) -> str:
    """Return the id at the end of an example's chain of bases, whose examples are given by id.

    It is the last known id if a base was deleted, and the lowest id of a circle.
    """
    path = [example.id]
    while example.base_id is not None:
        if example.base_id in path:
            return min(path[path.index(example.base_id) :])
        path.append(example.base_id)
        if example.base_id not in examples:
            break
        example = examples[example.base_id]
    return path[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Named, versioned list of examples. Versions begin with 1, and every change creates a new version."""

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
    """Execution of a task on one version of a dataset. Its runs are traces with `experiment_id == id`."""

    id: str
    name: str
    dataset: str
    dataset_version: int | None = None
    project: str = "default"
    status: Literal["running", "finished", "interrupted"] = "running"
    evaluators: tuple[Mapping[str, JSON], ...] = ()  # each with "key", "version", "metrics", …
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    started_ns: int = field(default_factory=time.time_ns)
    ended_ns: int | None = None
    example_count: int = 0
    seen_ns: int | None = None  # time of the last heartbeat of the process that runs it


def number_duplicates(examples: Iterable[Example]) -> list[Example]:
    """Return the examples with unique ids. The second with the same id becomes `<id>-2`, the third `<id>-3`.

    An explicit id takes precedence over an equal derived id, whichever comes first. If two explicit ids are equal,
    the later one gets the number.
    """
    listed = list(examples)
    if len({example.id for example in listed}) == len(listed):
        return listed
    derived = [example.id == derive_example_id(example) for example in listed]
    numbering, numbered = ExampleNumbering(), dict[int, Example]()
    for place in sorted(range(len(listed)), key=lambda place: (derived[place], place)):
        numbered[place] = numbering.of(listed[place])
    return [numbered[place] for place in range(len(listed))]


class ExampleNumbering:
    """Assigner of unique example ids. `taken` contains the ids that exist already."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}  # last number given, for ids that occur more than once

    def of(self, example: Example) -> Example:
        """Return the example. If its id is taken, append a number to it."""
        id = example.id
        if id not in self._taken:
            self._taken.add(id)
            return example
        number = self._last.get(id, 1) + 1
        while f"{id}-{number}" in self._taken:
            number += 1
        self._last[id] = number
        self._taken.add(f"{id}-{number}")
        return replace(example, id=f"{id}-{number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Source of an evaluator's arguments: one finished run of a task, one live trace, or a session.

    `spanwise.evaluators.make_case` creates cases and documents the fields.
    """

    example: Example | None = None
    trace: Trace | None = None
    inputs: JSON = None
    outputs: JSON = None
    reference_outputs: JSON = None
    documents: tuple[Document, ...] | None = None  # (): a retrieval found nothing; None: no retrieval ran
    expected_documents: tuple[Document, ...] | None = None
    conditions: JSON = None
    guidelines: JSON = None
    history: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    # object that the task returned, such as a pydantic model; None for stored runs. `outputs` has its JSON form
    native_outputs: object = None

    @property
    def run(self) -> Run | None:
        """Return the root run of the trace, or None without a trace."""
        return self.trace.root if self.trace else None
