"""Report of `spanwise doctor`: field coverage per sender, hints, and other known problems.

A sender is the combination of a service, its instrumentation (OpenTelemetry's scope) and its SDK. The report reads
the latest traces of each project, up to a total number of spans, so its cost does not depend on the size of the
store.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spanwise.collector.diagnostics import rule_report
from spanwise.collector.errors import StoreError
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, RuleStatus, Run, Trace, TraceSummary
from spanwise.collector.stores import Store
from spanwise.collector.terminal_escaping import escape_line
from spanwise.tracer import attribute_names as names

DEFAULT_SPANS = 5_000  # default number of spans to read
MAX_PROJECTS = 50
BATCH_TRACES, BATCH_SPANS = 50, 200  # traces and spans that are read in one batch, and are in memory together
GRACE_PERIOD_NS = 60 * 10**9  # an incomplete trace is a problem only after this time
LARGE_TRACE_SPANS = 1_000  # larger traces are skipped, unless the span limit of the report is at least as large
MAX_TRACKED_NAMES, MAX_TEXT_LENGTH, MAX_SHOWN_NAMES = (
    500,
    200,
    20,
)  # maximum number of names counted per sender, characters of a name, names reported
RETRIEVAL_KINDS, MODEL_KINDS = ("retriever", "reranker"), ("llm", "embedding")
# field → kinds of runs that should have it (None: all). A run of another kind is counted only if it has the field.
EXPECTED_FIELDS: Mapping[str, tuple[str, ...] | None] = {
    "inputs": None,
    "outputs": None,
    "documents": RETRIEVAL_KINDS,
    "model": MODEL_KINDS,
    "tokens": MODEL_KINDS,
    "session": None,
}
# prefix of attributes with the original value of a corrected time: see `clock_skew`
SENT_TIME_PREFIX = "spanwise.sent."
OWN_PREFIXES = ("spanwise.", "otel.")
_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")


class SenderIdentity(NamedTuple):
    """Service, instrumentation scope and SDK of a sender; "" for unknown parts."""

    service: str
    scope: str
    sdk: str


class FieldCoverage(NamedTuple):
    """Number of runs that have a field, and number of runs that should have it."""

    have: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Statistics of one sender.

    `unread` counts the attributes that map to no field, by name, most frequent first. Numbers within names are
    replaced by N.
    """

    who: SenderIdentity
    spans: int
    traces: int
    kinds: Mapping[str, int]
    shares: Mapping[str, FieldCoverage]  # field of `EXPECTED_FIELDS` → coverage
    unread: Mapping[str, int]
    names: Mapping[str, int] = field(default_factory=dict)  # names of runs without documents, with their number
    awaiting: int = 0  # number of spans whose content has not arrived
    clocks: int = 0  # number of spans whose time was corrected
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderReport:
    """Senders and totals of the traces that were read.

    `whole` is True if the report covers all stored traces that pass the filter. Traces counted in `too_large`
    were skipped for their size. Traces counted in `incomplete` ended a while ago without being complete.
    """

    senders: tuple[Sender, ...]
    spans: int
    traces: int
    whole: bool
    too_large: int = 0
    incomplete: int = 0
    dropped: int = 0


class _SenderCounts:
    """Counters of one sender."""

    def __init__(self) -> None:
        self.traces = set[str]()
        self.have, self.of = Counter[str](), Counter[str]()
        self.kinds, self.unread, self.names = Counter[str](), Counter[str](), Counter[str]()
        self.spans = self.awaiting = self.clocks = 0

    def add(self, run: Run) -> None:
        self.spans += 1
        self.traces.add(run.trace_id)
        self.kinds[run.kind if run.kind in names.KINDS else "unknown"] += 1
        for name, kinds in EXPECTED_FIELDS.items():
            has = _has_field(run, name)
            self.have[name] += has
            self.of[name] += has or kinds is None or run.kind in kinds
        self.awaiting += names.AWAITS in run.attributes
        self.clocks += any(name.startswith(SENT_TIME_PREFIX) for name in run.attributes)
        for name in {
            _NUMBER.sub("N", name[:MAX_TEXT_LENGTH]) for name in run.attributes if not name.startswith(OWN_PREFIXES)
        }:
            _increment(self.unread, name)
        if not run.documents:
            _increment(self.names, run.name)

    def made(self, who: SenderIdentity) -> Sender:
        return Sender(
            who=who,
            spans=self.spans,
            traces=len(self.traces),
            kinds=dict(self.kinds.most_common()),
            shares={name: FieldCoverage(self.have[name], self.of[name]) for name in EXPECTED_FIELDS},
            unread=dict(self.unread.most_common(MAX_SHOWN_NAMES)),
            names=dict(self.names.most_common(MAX_SHOWN_NAMES)),
            awaiting=self.awaiting,
            clocks=self.clocks,
        )


def _increment(counts: Counter[str], name: str) -> None:
    if name in counts or len(counts) < MAX_TRACKED_NAMES:
        counts[name] += 1


def _has_field(run: Run, name: str) -> bool:
    match name:
        case "documents":
            return bool(run.documents)
        case "tokens":
            return run.usage is not None
        case "session":
            return run.session_id is not None
        case _:
            return getattr(run, name) is not None


def identify_sender(run: Run) -> SenderIdentity:
    """Return the sender of a run. Spanwise's own tracer sends no scope; it is recognized by its project attribute."""
    said = run.resource
    scope = [_get_text(run.attributes, f"otel.scope.{part}") for part in ("name", "version")]
    if not scope[0] and names.PROJECT in said:
        scope = ["spanwise"]
    sdk = [_get_text(said, f"telemetry.sdk.{part}") for part in ("name", "language", "version")]
    return SenderIdentity(_get_text(said, "service.name"), " ".join(filter(None, scope)), " ".join(filter(None, sdk)))


def _get_text(values: Mapping[str, JSON], name: str) -> str:
    value = values.get(name)
    return value[:MAX_TEXT_LENGTH] if isinstance(value, str) else ""


def look(store: Store, filter: Filter | None = None, spans: int = DEFAULT_SPANS) -> SenderReport:
    """Read the latest traces that pass a filter, and count them by sender. Each project gets the same share of spans."""
    wanted = filter or Filter()
    projects = [wanted.project] if wanted.project is not None else store.values("project", limit=MAX_PROJECTS)
    share = max(1, spans // max(1, len(projects)))
    counts: dict[SenderIdentity, _SenderCounts] = defaultdict(_SenderCounts)
    looked = _TraceReader(store)
    for project in projects:
        for trace in looked.traces(replace(wanted, project=project), share):
            for run in trace.runs:
                counts[identify_sender(run)].add(run)
    made = [count.made(one) for one, count in counts.items()]
    return looked.seen(tuple(sorted(made, key=lambda one: (-one.spans, one.who))))


class _TraceReader:
    """Reader of traces up to a number of spans. It counts what it read and skipped."""

    def __init__(self, store: Store) -> None:
        self.store, self.whole, self.settled = store, True, time.time_ns() - GRACE_PERIOD_NS
        self.spans = self.count = self.too_large = self.incomplete = self.dropped = 0

    def traces(self, filter: Filter, spans: int) -> Iterator[Trace]:
        """Yield the latest traces that pass the filter, up to `spans` spans in total."""
        lot, size, left = list[str](), 0, spans
        for one in self._summaries(filter, spans):
            if one.span_count > max(spans, LARGE_TRACE_SPANS):
                self.too_large += 1
                continue
            if one.span_count > left and left < spans:  # the first trace of a project may exceed its share
                self.whole = False
                break
            left = max(0, left - one.span_count)
            if lot and (size + one.span_count > BATCH_SPANS or len(lot) >= BATCH_TRACES):
                yield from self._read(lot)
                lot, size = [], 0
            lot.append(one.trace_id)
            size += one.span_count
        yield from self._read(lot)

    def _summaries(self, filter: Filter, most: int) -> Iterator[TraceSummary]:
        """Yield at most `most` trace summaries, latest first. The span limit is enough, as each trace has at least one
        span.
        """
        cursor: str | None = None
        while most > 0:
            page = self.store.traces(filter, limit=min(500, most), cursor=cursor)
            yield from page
            most, cursor = most - len(page), page.next
            if cursor is None:
                return
        self.whole = False

    def _read(self, trace_ids: list[str]) -> Iterator[Trace]:
        for trace in self.store.many(trace_ids) if trace_ids else ():
            self.count += 1
            self.spans += len(trace.runs)
            self.incomplete += not trace.complete and max(run.end_ns for run in trace.runs) < self.settled
            self.dropped += trace.dropped
            yield trace

    def seen(self, senders: tuple[Sender, ...]) -> SenderReport:
        """Return the report on the traces that were read."""
        return SenderReport(
            senders=senders,
            spans=self.spans,
            traces=self.count,
            whole=self.whole and not self.too_large,
            too_large=self.too_large,
            incomplete=self.incomplete,
            dropped=self.dropped,
        )


def count_stored_spans(store: Store) -> int | None:
    """Return the number of stored spans; None if the caller may not see it."""
    try:
        return store.count()["spans"]
    except StoreError:
        return None


MAX_HINT_NAMES = 3  # attribute names listed in one hint
# field → words in attribute names that suggest it
FIELD_PATTERNS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(words, re.IGNORECASE)
    for name, words in {
        "documents": "document|retriev|context|chunk|passage|source|citation",
        "inputs": "input|prompt|query|question|request|message|argument",
        "outputs": "output|completion|response|answer|result|return",
        "model": "model|deployment",
        "tokens": "token|usage",
        "session": "session|conversation|thread|chat_id",
    }.items()
}
RETRIEVAL_PATTERN = re.compile("retriev|search|vector|rerank|lookup", re.IGNORECASE)
# prefix of a scope → setting that makes the instrumentation send content; the first matching prefix applies
CONTENT_SETTINGS: Mapping[str, str] = {
    "opentelemetry.instrumentation.openai_v2": "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true",
    "opentelemetry.instrumentation.": "TRACELOOP_TRACE_CONTENT=true (OpenLLMetry)",
    "opentelemetry.util.genai": "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY",
    "openinference.instrumentation": "OPENINFERENCE_HIDE_INPUTS and OPENINFERENCE_HIDE_OUTPUTS unset",
    "haystack": "HAYSTACK_CONTENT_TRACING_ENABLED=true",
    "pydantic-ai": "InstrumentationSettings(include_content=True)",
    "ai ": "experimental_telemetry: {recordInputs: true, recordOutputs: true}",
    "spanwise": "SPANWISE_CAPTURE=full, and no capture_inputs=False",
}
DOCUMENTS_HINT = (
    "what a retriever returns is read as documents if it is a list of texts, or of objects with content, id, score and"
    " metadata; set_documents(…) says them where they are not what is returned"
)
KIND_HINT = "kind='retriever' of @trace and span(), openinference.span.kind=RETRIEVER, gen_ai.operation.name=retrieval"


def advised(senders: Sequence[Sender]) -> tuple[Sender, ...]:
    """Add hints to the senders.

    If one sender of a service has documents, the other senders of that service get no hint about documents.
    """
    retrieving = {one.who.service for one in senders if one.shares["documents"].have}
    return tuple(replace(one, hints=tuple(_sender_hints(one, one.who.service in retrieving))) for one in senders)


def _sender_hints(one: Sender, retrieves: bool) -> Iterator[str]:
    if one.awaiting:
        yield f"{one.awaiting:,} spans wait for content that comes in log records: send these to /v1/logs, too"
    yield from _document_hints(one, retrieves)
    for name in ("inputs", "outputs"):
        if _is_mostly_missing(one, name):
            need = next((way for scope, way in CONTENT_SETTINGS.items() if f"{one.who.scope} ".startswith(scope)), None)
            yield _missing_text(one, name) + (f"; contents need {need}" if need else "")
    for name in ("model", "tokens"):
        if _is_mostly_missing(one, name):
            streamed = "; streamed answers tell them if asked: stream_options={'include_usage': True}"
            yield _missing_text(one, name) + (streamed if name == "tokens" else "")
    if one.shares["session"].have == 0 and _matching_names(one.unread, FIELD_PATTERNS["session"]):
        yield f"no span has a session{_candidate_text(one, 'session')}; it is read from session.id, gen_ai.conversation.id"
    if 2 * one.kinds.get("unknown", 0) > one.spans:
        yield f"{one.kinds['unknown']:,} of {one.spans:,} spans do not say of which kind they are: {KIND_HINT}"


def _document_hints(one: Sender, retrieves: bool) -> Iterator[str]:
    have, of = one.shares["documents"]
    if have < of:
        yield f"{of - have:,} of {of:,} spans that retrieve have no documents{_candidate_text(one, 'documents')}; {DOCUMENTS_HINT}"
    elif not of and not retrieves and set(one.kinds) - set(MODEL_KINDS):
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in one.kinds.items())
        named = _matching_names(one.names, RETRIEVAL_PATTERN)
        like = f"; spans named {named} look like one" if named else ""
        yield (
            f"no span is of kind {' or '.join(RETRIEVAL_KINDS)} (kinds: {kinds}), so that evaluators of retrieval skip:"
            f" no documents{_candidate_text(one, 'documents')}{like}: {KIND_HINT}"
        )


def _is_mostly_missing(one: Sender, name: str) -> bool:
    have, of = one.shares[name]
    return of > 0 and 2 * have < of


def _missing_text(one: Sender, name: str) -> str:
    have, of = one.shares[name]
    return f"{of - have:,} of {of:,} spans have no {name}{_candidate_text(one, name)}"


def _candidate_text(one: Sender, name: str) -> str:
    """Return text that names unread attributes that may hold the field."""
    found = _matching_names(one.unread, FIELD_PATTERNS[name])
    return f"; attributes that nobody reads and that look like it: {found}" if found else ""


def _matching_names(names: Iterable[str], pattern: re.Pattern[str]) -> str:
    return ", ".join(
        repr(escape_line(name, 80)) for name in [one for one in names if pattern.search(one)][:MAX_HINT_NAMES]
    )


# counters of /metrics that stay at zero in normal operation, and their descriptions
ERROR_COUNTERS: Mapping[str, str] = {
    "spanwise_dialect_errors_total": "spans or log records read without a dialect that failed on them",
    "spanwise_refused_total": "single spans or log records refused",
    "spanwise_requests_refused_total": "requests answered with an error",
}
MAX_RULES, MAX_ERROR_LENGTH = 100, 200  # rules to check, and characters of an error


def find_problems(store: Store, seen: SenderReport, numbers: Mapping[str, float]) -> list[str]:
    """Return the known problems as sentences; [] if there are none.

    `numbers` has the metrics of a collector, by name with labels. It is {} for a database file.
    """
    problems = [*_trace_problems(seen), *_process_problems(store), *_rules_problems(store)]
    for name, value in numbers.items():
        counter, _, labels = name.partition("{")
        if value and counter in ERROR_COUNTERS:
            message = f"{value:,.0f} {ERROR_COUNTERS[counter]} since the collector started"
            problems.append(f"{message} ({escape_line(labels.rstrip('}'), 200)})")
    return problems


def _trace_problems(seen: SenderReport) -> Iterator[str]:
    if seen.dropped:
        yield f"{seen.dropped:,} spans of the traces looked at were dropped by their senders"
    if seen.incomplete:
        yield f"{seen.incomplete:,} of {seen.traces:,} traces are not complete: parts are open, dropped or on their way"
    if seen.too_large:
        yield f"{seen.too_large:,} traces were left out for their size: `spanwise traces show` reads one"
    if clocks := sum(one.clocks for one in seen.senders):
        yield f"{clocks:,} spans bore times that cannot be (a clock more than a day ahead): they were taken back"


def _process_problems(store: Store) -> Iterator[str]:
    dropped = Counter[str]()
    try:
        for process in store.processes(limit=1000):
            dropped.update(process.report.dropped if process.report else {})
    except StoreError as error:
        yield f"what processes dropped cannot be said: {error}"
    for reason, count in dropped.most_common(10):
        yield f"{count:,} spans were dropped by senders, reason {escape_line(reason, 80)!r}: `spanwise traces reconcile`"


def _rules_problems(store: Store) -> Iterator[str]:
    try:
        found = store.status()[:MAX_RULES]
    except StoreError as error:
        yield f"what rules do cannot be said: {error}"
        return
    now = time.time_ns()
    for one in found:
        yield from _rule_problems(one, now)


def _rule_problems(one: RuleStatus, now_ns: int) -> Iterator[str]:
    name = f"rule {escape_line(one.rule.name, 80)!r}"
    standing, right = rule_report.standing(one, now_ns)
    if not right:
        yield f"{name}: {standing}"
    for why in dict.fromkeys(why for worker in one.workers for why in rule_report.idle(worker, one.rule.name)):
        yield f"{name}: {escape_line(why, MAX_ERROR_LENGTH)}"
    if one.errors:
        yield f"{name}: last error: {escape_line(one.errors[0], MAX_ERROR_LENGTH)}"
