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
from spanwise.collector.dialects import CONTENT_REFERENCES
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
# prefix of attributes with the original value of a corrected time: see `record_corrections`
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
    referenced: Mapping[str, int] = field(default_factory=dict)  # attribute with the address of content → spans
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
        self.referenced = Counter[str]()
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
        self.referenced.update(name for name in CONTENT_REFERENCES if name in run.attributes)
        self.clocks += any(name.startswith(SENT_TIME_PREFIX) for name in run.attributes)
        for name in {
            _NUMBER.sub("N", name[:MAX_TEXT_LENGTH]) for name in run.attributes if not name.startswith(OWN_PREFIXES)
        }:
            _increment(self.unread, name)
        if not run.documents:
            _increment(self.names, run.name)

    def build(self, who: SenderIdentity) -> Sender:
        return Sender(
            who=who,
            spans=self.spans,
            traces=len(self.traces),
            kinds=dict(self.kinds.most_common()),
            shares={name: FieldCoverage(self.have[name], self.of[name]) for name in EXPECTED_FIELDS},
            unread=dict(self.unread.most_common(MAX_SHOWN_NAMES)),
            names=dict(self.names.most_common(MAX_SHOWN_NAMES)),
            awaiting=self.awaiting,
            referenced=dict(self.referenced),
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
    resource = run.resource
    scope = [_get_text(run.attributes, f"otel.scope.{part}") for part in ("name", "version")]
    if not scope[0] and names.PROJECT in resource:
        scope = ["spanwise"]
    sdk = [_get_text(resource, f"telemetry.sdk.{part}") for part in ("name", "language", "version")]
    return SenderIdentity(
        _get_text(resource, "service.name"), " ".join(filter(None, scope)), " ".join(filter(None, sdk))
    )


def _get_text(values: Mapping[str, JSON], name: str) -> str:
    value = values.get(name)
    return value[:MAX_TEXT_LENGTH] if isinstance(value, str) else ""


def look(store: Store, filter: Filter | None = None, spans: int = DEFAULT_SPANS) -> SenderReport:
    """Read the latest traces that pass a filter, and count them by sender. Each project gets the same share of spans."""
    wanted = filter or Filter()
    projects = [wanted.project] if wanted.project is not None else store.values("project", limit=MAX_PROJECTS)
    share = max(1, spans // max(1, len(projects)))
    counts: dict[SenderIdentity, _SenderCounts] = defaultdict(_SenderCounts)
    reader = _TraceReader(store)
    for project in projects:
        for trace in reader.traces(replace(wanted, project=project), share):
            for run in trace.runs:
                counts[identify_sender(run)].add(run)
    senders = [count.build(identity) for identity, count in counts.items()]
    return reader.make_report(tuple(sorted(senders, key=lambda sender: (-sender.spans, sender.who))))


class _TraceReader:
    """Reader of traces up to a number of spans. It counts what it read and skipped."""

    def __init__(self, store: Store) -> None:
        self.store, self.whole, self.settled = store, True, time.time_ns() - GRACE_PERIOD_NS
        self.spans = self.count = self.too_large = self.incomplete = self.dropped = 0

    def traces(self, filter: Filter, spans: int) -> Iterator[Trace]:
        """Yield the latest traces that pass the filter, up to `spans` spans in total."""
        batch, size, left = list[str](), 0, spans
        for summary in self._summaries(filter, spans):
            if summary.span_count > max(spans, LARGE_TRACE_SPANS):
                self.too_large += 1
                continue
            if summary.span_count > left and left < spans:  # the first trace of a project may exceed its share
                self.whole = False
                break
            left = max(0, left - summary.span_count)
            if batch and (size + summary.span_count > BATCH_SPANS or len(batch) >= BATCH_TRACES):
                yield from self._read(batch)
                batch, size = [], 0
            batch.append(summary.trace_id)
            size += summary.span_count
        yield from self._read(batch)

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

    def make_report(self, senders: tuple[Sender, ...]) -> SenderReport:
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
    "the return value of a retriever is read as documents if it is a list of texts, or of objects with content, id,"
    " score and metadata; otherwise call set_documents(…)"
)
KIND_HINT = "kind='retriever' of @trace and span(), openinference.span.kind=RETRIEVER, gen_ai.operation.name=retrieval"


def advised(senders: Sequence[Sender]) -> tuple[Sender, ...]:
    """Add hints to the senders.

    If one sender of a service has documents, the other senders of that service get no hint about documents.
    """
    services = {sender.who.service for sender in senders if sender.shares["documents"].have}
    return tuple(
        replace(sender, hints=tuple(_sender_hints(sender, sender.who.service in services))) for sender in senders
    )


def _sender_hints(sender: Sender, retrieves: bool) -> Iterator[str]:
    if sender.awaiting:
        yield f"{sender.awaiting:,} spans wait for content that is sent in log records; send these to /v1/logs, too"
    for name, count in sender.referenced.items():
        yield (
            f"the {CONTENT_REFERENCES[name]} of {count:,} spans are stored elsewhere (attribute {name!r}) and are not"
            " fetched, so evaluators cannot read them; to send them in the span, set OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY"
        )
    yield from _document_hints(sender, retrieves)
    for name in ("inputs", "outputs"):
        if _is_mostly_missing(sender, name):
            setting = next(
                (option for scope, option in CONTENT_SETTINGS.items() if f"{sender.who.scope} ".startswith(scope)), None
            )
            yield _missing_text(sender, name) + (f"; to send content, set {setting}" if setting else "")
    for name in ("model", "tokens"):
        if _is_mostly_missing(sender, name):
            streamed = "; streamed responses include them with stream_options={'include_usage': True}"
            yield _missing_text(sender, name) + (streamed if name == "tokens" else "")
    if sender.shares["session"].have == 0 and _matching_names(sender.unread, FIELD_PATTERNS["session"]):
        yield f"no span has a session{_candidate_text(sender, 'session')}; it is read from session.id, gen_ai.conversation.id"
    if 2 * sender.kinds.get("unknown", 0) > sender.spans:
        yield f"{sender.kinds['unknown']:,} of {sender.spans:,} spans have no kind; set it with {KIND_HINT}"


def _document_hints(sender: Sender, retrieves: bool) -> Iterator[str]:
    have, expected = sender.shares["documents"]
    if have < expected:
        yield f"{expected - have:,} of {expected:,} retrieval spans have no documents{_candidate_text(sender, 'documents')}; {DOCUMENTS_HINT}"
    elif not expected and not retrieves and set(sender.kinds) - set(MODEL_KINDS):
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sender.kinds.items())
        named = _matching_names(sender.names, RETRIEVAL_PATTERN)
        suffix = f"; spans named {named} may be retrievals" if named else ""
        yield (
            f"no span is of kind {' or '.join(RETRIEVAL_KINDS)} (kinds: {kinds}), so retrieval evaluators skip:"
            f" no documents{_candidate_text(sender, 'documents')}{suffix}: {KIND_HINT}"
        )


def _is_mostly_missing(sender: Sender, name: str) -> bool:
    have, expected = sender.shares[name]
    return expected > 0 and 2 * have < expected


def _missing_text(sender: Sender, name: str) -> str:
    have, expected = sender.shares[name]
    return f"{expected - have:,} of {expected:,} spans have no {name}{_candidate_text(sender, name)}"


def _candidate_text(sender: Sender, name: str) -> str:
    """Return text that names unread attributes that may hold the field."""
    candidates = _matching_names(sender.unread, FIELD_PATTERNS[name])
    return f"; unread attributes with similar names: {candidates}" if candidates else ""


def _matching_names(names: Iterable[str], pattern: re.Pattern[str]) -> str:
    matching = [name for name in names if pattern.search(name)]
    return ", ".join(repr(escape_line(name, 80)) for name in matching[:MAX_HINT_NAMES])


# counters of /metrics that stay at zero in normal operation, and their descriptions
ERROR_COUNTERS: Mapping[str, str] = {
    "spanwise_dialect_errors_total": "spans or log records read without a dialect, because it failed on them",
    "spanwise_refused_total": "single spans or log records refused",
    "spanwise_requests_refused_total": "requests answered with an error",
}
MAX_RULES, MAX_ERROR_LENGTH = 100, 200  # rules to check, and characters of an error


def find_problems(store: Store, report: SenderReport, numbers: Mapping[str, float]) -> list[str]:
    """Return the known problems as sentences; [] if there are none.

    `numbers` has the metrics of a collector, by name with labels. It is {} for a database file.
    """
    problems = [*_trace_problems(report), *_process_problems(store), *_rules_problems(store)]
    for name, value in numbers.items():
        counter, _, labels = name.partition("{")
        if value and counter in ERROR_COUNTERS:
            message = f"{value:,.0f} {ERROR_COUNTERS[counter]} since the collector started"
            problems.append(f"{message} ({escape_line(labels.rstrip('}'), 200)})")
    return problems


def _trace_problems(report: SenderReport) -> Iterator[str]:
    if report.dropped:
        yield f"{report.dropped:,} spans of the examined traces were dropped by their senders"
    if report.incomplete:
        yield f"{report.incomplete:,} of {report.traces:,} traces are not complete: spans are open, dropped or still in transit"
    if report.too_large:
        yield f"{report.too_large:,} traces were skipped because of their size; `spanwise traces show` shows one"
    if clocks := sum(sender.clocks for sender in report.senders):
        yield f"{clocks:,} spans had impossible times (a clock more than a day ahead), which were corrected"


def _process_problems(store: Store) -> Iterator[str]:
    dropped = Counter[str]()
    try:
        for process in store.processes(limit=1000):
            dropped.update(process.report.dropped if process.report else {})
    except StoreError as error:
        yield f"the dropped spans of processes cannot be read: {error}"
    for reason, count in dropped.most_common(10):
        yield f"{count:,} spans were dropped by senders, reason {escape_line(reason, 80)!r}: `spanwise traces reconcile`"


def _rules_problems(store: Store) -> Iterator[str]:
    try:
        statuses = store.status()[:MAX_RULES]
    except StoreError as error:
        yield f"the status of the rules cannot be read: {error}"
        return
    now = time.time_ns()
    for status in statuses:
        yield from _rule_problems(status, now)


def _rule_problems(status: RuleStatus, now_ns: int) -> Iterator[str]:
    name = f"rule {escape_line(status.rule.name, 80)!r}"
    standing, is_normal = rule_report.standing(status, now_ns)
    if not is_normal:
        yield f"{name}: {standing}"
    for reason in dict.fromkeys(
        reason for worker in status.workers for reason in rule_report.idle(worker, status.rule.name)
    ):
        yield f"{name}: {escape_line(reason, MAX_ERROR_LENGTH)}"
    if status.errors:
        yield f"{name}: last error: {escape_line(status.errors[0], MAX_ERROR_LENGTH)}"
