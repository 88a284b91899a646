"""What each sender's spans hold, and what was read of them by nobody: why an evaluator skips, seen from the data.

A sender is a service, the instrumentation in it (OpenTelemetry's scope) and the SDK below that. Looked at are the
latest traces of each project, so many spans in all: the work is the same for a thousand spans and for a million.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spanwise.collector.errors import StoreError
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON, Run, Trace, TraceSummary
from spanwise.collector.stores import Store
from spanwise.tracer import attributes as names

SPANS = 5_000  # that are looked at, unless more are asked for
PROJECTS = 50
LOT_TRACES, LOT_SPANS = 50, 200  # a lot is what is read in one question, and held at one time
UNDER_WAY_NS = 60 * 10**9  # for so long a trace that is not complete is no trouble
LARGE = 1_000  # spans of a trace that is left out where less is to be looked at
NAMES, LONGEST, SHOWN = 500, 200, 20  # attributes by name: kept per sender, characters, told
RETRIEVING, CALLING = ("retriever", "reranker"), ("llm", "embedding")
# Of which kinds of runs a field is to be expected; of the others it counts where it is there. None: of all
EXPECTED: Mapping[str, tuple[str, ...] | None] = {
    "inputs": None,
    "outputs": None,
    "documents": RETRIEVING,
    "model": CALLING,
    "tokens": CALLING,
    "session": None,
}
AWAITS = "spanwise.awaits"  # content that comes in log records: see `dialects`
SENT = "spanwise.sent."  # what a clock said that cannot be: see `clocks`
OURS = ("spanwise.", "otel.")
_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")


class Who(NamedTuple):
    """A sender, as its spans say; "" for what they do not say."""

    service: str
    scope: str
    sdk: str


class Share(NamedTuple):
    """How many have it, of how many that were to have it."""

    have: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """What was seen of one sender. `unread`: attributes that no field has taken, by name (indices as N), most first."""

    who: Who
    spans: int
    traces: int
    kinds: Mapping[str, int]
    shares: Mapping[str, Share]  # by the fields of `EXPECTED`
    unread: Mapping[str, int]
    names: Mapping[str, int] = field(default_factory=dict)  # of runs that hold no documents, by name
    awaiting: int = 0  # spans whose content has not come yet
    clocks: int = 0  # spans that bore a time that cannot be
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was looked at. `whole`: that is all there is; `too_large`: traces that were left out for their size;
    `incomplete`: traces that ended a while ago and are not.
    """

    senders: tuple[Sender, ...]
    spans: int
    traces: int
    whole: bool
    too_large: int = 0
    incomplete: int = 0
    dropped: int = 0


class _Count:
    """What is counted of one sender."""

    def __init__(self) -> None:
        self.traces = set[str]()
        self.have, self.of = Counter[str](), Counter[str]()
        self.kinds, self.unread, self.names = Counter[str](), Counter[str](), Counter[str]()
        self.spans = self.awaiting = self.clocks = 0

    def add(self, run: Run) -> None:
        self.spans += 1
        self.traces.add(run.trace_id)
        self.kinds[run.kind if run.kind in names.KINDS else "unknown"] += 1
        for name, kinds in EXPECTED.items():
            has = _has(run, name)
            self.have[name] += has
            self.of[name] += has or kinds is None or run.kind in kinds
        self._note(run.attributes)
        if not run.documents:
            _tally(self.names, run.name)

    def _note(self, attributes: Mapping[str, JSON]) -> None:
        self.awaiting += AWAITS in attributes
        self.clocks += any(name.startswith(SENT) for name in attributes)
        for name in {_NUMBER.sub("N", name[:LONGEST]) for name in attributes if not name.startswith(OURS)}:
            _tally(self.unread, name)

    def made(self, who: Who) -> Sender:
        return Sender(
            who=who,
            spans=self.spans,
            traces=len(self.traces),
            kinds=dict(self.kinds.most_common()),
            shares={name: Share(self.have[name], self.of[name]) for name in EXPECTED},
            unread=dict(self.unread.most_common(SHOWN)),
            names=dict(self.names.most_common(SHOWN)),
            awaiting=self.awaiting,
            clocks=self.clocks,
        )


def _tally(counts: Counter[str], name: str) -> None:
    if name in counts or len(counts) < NAMES:
        counts[name] += 1


def _has(run: Run, name: str) -> bool:
    match name:
        case "documents":
            return bool(run.documents)
        case "tokens":
            return run.usage is not None
        case "session":
            return run.session_id is not None
        case _:
            return getattr(run, name) is not None


def who(run: Run) -> Who:
    """Whose span it is. Our own tracer's say no scope, since it is always the same; they name their project."""
    said = run.resource
    scope = [_text(run.attributes, f"otel.scope.{part}") for part in ("name", "version")]
    if not scope[0] and names.PROJECT in said:
        scope = ["spanwise"]
    sdk = [_text(said, f"telemetry.sdk.{part}") for part in ("name", "language", "version")]
    return Who(_text(said, "service.name"), " ".join(filter(None, scope)), " ".join(filter(None, sdk)))


def _text(values: Mapping[str, JSON], name: str) -> str:
    value = values.get(name)
    return value[:LONGEST] if isinstance(value, str) else ""


def look(store: Store, filter: Filter | None = None, spans: int = SPANS) -> Seen:
    """Look at the latest traces that pass, the same share of spans for each project."""
    wanted = filter or Filter()
    projects = [wanted.project] if wanted.project is not None else store.values("project", limit=PROJECTS)
    share = max(1, spans // max(1, len(projects)))
    counts: dict[Who, _Count] = defaultdict(_Count)
    looked = _Looked(store)
    for project in projects:
        for trace in looked.traces(replace(wanted, project=project), share):
            for run in trace.runs:
                counts[who(run)].add(run)
    made = [count.made(one) for one, count in counts.items()]
    return looked.seen(tuple(sorted(made, key=lambda one: (-one.spans, one.who))))


class _Looked:
    """Reads traces within bounds, and keeps what is to be said of the reading."""

    def __init__(self, store: Store) -> None:
        self.store, self.whole, self.settled = store, True, time.time_ns() - UNDER_WAY_NS
        self.spans = self.count = self.too_large = self.incomplete = self.dropped = 0

    def traces(self, filter: Filter, spans: int) -> Iterator[Trace]:
        """The latest traces of a filter, until there are so many spans."""
        lot, size, left = list[str](), 0, spans
        for one in self._summaries(filter, spans):
            if one.span_count > max(spans, LARGE):
                self.too_large += 1
                continue
            if one.span_count > left and left < spans:  # the first of a project may be larger than its share
                self.whole = False
                break
            left = max(0, left - one.span_count)
            if lot and (size + one.span_count > LOT_SPANS or len(lot) >= LOT_TRACES):
                yield from self._read(lot)
                lot, size = [], 0
            lot.append(one.trace_id)
            size += one.span_count
        yield from self._read(lot)

    def _summaries(self, filter: Filter, most: int) -> Iterator[TraceSummary]:
        """As many as could be looked at, if each had one span."""
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

    def seen(self, senders: tuple[Sender, ...]) -> Seen:
        """What came of it."""
        return Seen(
            senders=senders,
            spans=self.spans,
            traces=self.count,
            whole=self.whole and not self.too_large,
            too_large=self.too_large,
            incomplete=self.incomplete,
            dropped=self.dropped,
        )


def stored(store: Store) -> int | None:
    """How many spans are stored; None where that is not for whoever asks."""
    try:
        return store.count()["spans"]
    except StoreError:
        return None
