"""Query results: trace and session summaries, buckets, feedback statistics, pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spanwise.collector.records.json_values import Status

T = TypeVar("T")


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
    complete: bool  # nothing was dropped, and nothing is on its way, as far as anyone can tell
    experiment_id: str | None
    example_id: str | None
    repetition: int = 0
    dropped: int = 0  # spans that their sender has dropped, as far as it could say so
    calls_sent: int = 0  # calls that went out with the trace's context in them, answered here or not
    running: int = 0  # runs that were said to have started and have not ended
    inputs: str = ""  # the beginning of the root's inputs, for display
    outputs: str = ""
    derived: tuple[str, ...] = ()  # "inputs", "outputs": those of these two that come from runs below the root
    feedback: Mapping[str, float | str | None] = field(default_factory=dict)  # newest score (or label) per key
    failed: tuple[str, ...] = ()  # keys whose newest outcome is an error; a key that is nowhere was never tried
    skipped: tuple[str, ...] = ()

    @property
    def latency_ms(self) -> float:
        """From the first start to the last end, as filters have it."""
        return self.duration_ns / 1e6

    @property
    def tokens(self) -> int:
        """Input and output tokens together, as filters have them."""
        return self.input_tokens + self.output_tokens

    @property
    def session(self) -> str | None:
        """Its session's id, as filters have it."""
        return self.session_id

    @property
    def user(self) -> str | None:
        """Its user's id, as filters have it."""
        return self.user_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A run in the tree of its trace, without what it holds. `position` counts from 0, depth-first."""

    span_id: str
    parent_id: str | None
    name: str
    kind: str
    status: Status
    start_ns: int
    end_ns: int
    position: int
    depth: int
    lost_parent: bool  # it has one, which is not here: the run stands as a root
    feedback: int = 0  # on the run and its documents
    failed: int = 0  # of them

    @property
    def duration_ns(self) -> int:
        """Wall time of the span, never negative."""
        return max(0, self.end_ns - self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScores:
    """What came of one run of an experiment, without what it holds: which example, how it ended, newest scores."""

    trace_id: str
    example_id: str | None
    repetition: int
    status: Status  # of the root
    scores: Mapping[str, float | str | None] = field(default_factory=dict)  # (or labels) per key; None: failed, skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """One conversation: the traces that carry the same session id."""

    session_id: str
    project: str
    user_id: str | None
    traces: int
    errors: int
    start_ns: int
    end_ns: int
    input_tokens: int
    output_tokens: int
    cost: float | None

    @property
    def session(self) -> str:
        """Its id, as filters have it."""
        return self.session_id

    @property
    def tokens(self) -> int:
        """Input and output tokens together, as filters have them."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackStats:
    """Aggregate of one key's newest feedbacks, each of which is in exactly one of n, labelled, failed and skipped.

    `mean`, `minimum`, `maximum` are over the n scores, None if n is 0; labels, errors and skips are no zeros.
    `labelled` counts labels without a score, `labels` every label. `passed` is the share of the scores that pass, None
    where passing is not defined; a store knows no thresholds. Where scores are weighted, `mean` and `passed` are
    Σwy/Σw, `effective` is of how many equal weights the mean is as sure, and scores of unknown weight, counted in
    `unweighted`, are left out of all three.
    """

    key: str
    n: int = 0
    mean: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    passed: float | None = None
    labelled: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    failed: int = 0
    skipped: int = 0
    unweighted: int = 0
    effective: float | None = None  # None where every weight is 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Aggregate over the traces that start in [start_ns, start_ns + width_ns).

    Percentiles are the nearest rank (`statistics.percentile`), or within a share `latency_error` of it: of many traces
    they come from a sketch. Feedback counts once per place (`statistics.newest`). `newest`: of the traces that pass the
    newest so many alone were counted, in all buckets together, since there are more; None: all of them.
    """

    start_ns: int
    width_ns: int
    group: str | None = None
    traces: int = 0
    errors: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    latency_error: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    feedback: tuple[FeedbackStats, ...] = ()
    newest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A slice of a longer list, and where the next one begins (None at the end)."""

    items: tuple[T, ...]
    next: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def iterate_pages(ask: Callable[..., Page[T]]) -> Iterator[T]:
    """All items of a list that comes page by page: `ask` takes the cursor by name, None for the first page."""
    cursor: str | None = None
    while True:
        page = ask(cursor=cursor)
        yield from page
        cursor = page.next
        if cursor is None:
            return
