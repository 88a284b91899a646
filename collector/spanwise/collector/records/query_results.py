"""Query results: trace and session summaries, buckets, feedback statistics, pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from spanwise.collector.records.json_values import JSON, Status

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """Trace summary: one row of a list of traces, with the root run's fields and totals over all spans of the trace."""

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
    complete: bool  # True if no span was dropped or is still to arrive, as far as known
    experiment_id: str | None
    example_id: str | None
    repetition: int = 0
    dropped: int = 0  # spans that their sender has reported as dropped
    calls_sent: int = 0  # outgoing calls that carried the trace's context, answered or not
    running: int = 0  # runs that were reported as started and have not ended
    # versions by name of the prompts of all runs; None is a prompt without a version, "" a version without a name
    prompts: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    agents: tuple[str, ...] = ()  # names of the agents of all runs
    finish_reasons: tuple[str, ...] = ()  # of all runs
    time_to_first_token_ms: float | None = None  # the longest of all runs
    inputs: str = ""  # beginning of the main text of the root's inputs, such as the question, for display
    outputs: str = ""
    derived: tuple[str, ...] = ()  # "inputs" or "outputs" if that field comes from runs below the root
    feedback: Mapping[str, float | str | None] = field(default_factory=dict)  # newest score (or label) per key
    # keys whose newest outcome is an error; a key in none of the three fields was never evaluated
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def latency_ms(self) -> float:
        """Return the time from the first start to the last end, in milliseconds. Filters use this name."""
        return self.duration_ns / 1e6

    @property
    def tokens(self) -> int:
        """Return the sum of input and output tokens. Filters use this name."""
        return self.input_tokens + self.output_tokens

    @property
    def session(self) -> str | None:
        """Return the session id. Filters use this name."""
        return self.session_id

    @property
    def user(self) -> str | None:
        """Return the user id. Filters use this name."""
        return self.user_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """Run in the tree of its trace, without its content. `position` counts from 0, depth-first."""

    span_id: str
    parent_id: str | None
    name: str
    kind: str
    status: Status
    start_ns: int
    end_ns: int
    position: int
    depth: int
    lost_parent: bool  # True if the parent is not stored; the run is then displayed as a root
    feedback: int = 0  # number of feedback records on the run and its documents
    failed: int = 0  # number of these records that are errors
    input_tokens: int | None = None  # of the run alone; None if it has no usage
    output_tokens: int | None = None
    cost: float | None = None

    @property
    def duration_ns(self) -> int:
        """Return the wall time of the span, which is never negative."""
        return max(0, self.end_ns - self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScores:
    """Result of one run of an experiment, without its content: example, status, newest scores and measures."""

    trace_id: str
    example_id: str | None
    repetition: int
    status: Status  # status of the root run
    # score or label per key; None: failed or skipped
    scores: Mapping[str, float | str | None] = field(default_factory=dict)
    duration_ns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None  # US dollars; None: unknown
    tags: tuple[str, ...] = ()
    models: tuple[str, ...] = ()  # models of the LLM calls


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """Summary of one conversation: the traces that have the same session id."""

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
        """Return the session id. Filters use this name."""
        return self.session_id

    @property
    def tokens(self) -> int:
        """Return the sum of input and output tokens. Filters use this name."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackStats:
    """Aggregate of the newest feedback under one key, on traces and their spans or on documents (`target`).

    Each record counts in exactly one of n, labelled, failed and skipped.

    The fields `mean`, `minimum` and `maximum` are over the n scores, and None if n is 0. Labels, errors and skips do
    not count as zeros. `labelled` counts labels without a score, `labels` every label. `passed` is the share of
    scores that pass. It is None if passing is not defined, as in a store, which does not know the thresholds. If
    `binary`, every score is 0 or 1 (or a boolean), so that the mean is a share.

    If scores are weighted, `mean` and `passed` are Σwy/Σw. `effective` is the effective sample size: the number of
    equally weighted scores whose mean would be as precise. Scores of unknown weight are counted in `unweighted` and
    omitted from `mean`, `passed` and `effective`.

    The scores of rules are weighted by the inverse of their sampling probability. In the buckets of a store, `mean` is
    then that of the rules' scores, with its 95 % interval from `low` to `high`, and `shares` has the weighted share of
    each label with its interval. If all of these scores are of unknown weight, `effective` is 0, and `mean` is plain.
    Buckets of experiments are not weighted.
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
    effective: float | None = None  # None if every weight is 1
    binary: bool = False
    low: float | None = None  # None: not weighted, or the spread of the scores is unknown
    high: float | None = None
    shares: Mapping[str, tuple[float, float | None, float | None]] = field(default_factory=dict)  # only if weighted
    target: Literal["trace", "document"] = "trace"  # "trace" also stands for spans, sessions and experiments


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Aggregate over the traces that start in [start_ns, start_ns + width_ns).

    Percentiles are nearest-rank percentiles (`intervals.percentile`). For many traces they come from a sketch, with a
    relative error of at most `latency_error`. Of the feedback in one slot (`feedback_tally.get_feedback_slot`), the
    latest record counts.

    If too many traces match, only the newest ones are aggregated, and `newest` is their number in all buckets
    together. None means that all matching traces are included.
    """

    start_ns: int
    width_ns: int
    group: str | None = None
    traces: int = 0
    errors: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    latency_error: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    feedback: tuple[FeedbackStats, ...] = ()
    newest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSums:
    """Sums of a rule's weighted scores under one key, over the traces that started in the block at `start_ns`.

    A score y with the sampling probability p has the weight w = 1/p. A cluster is a session, or a trace without one; W
    and Y are its sums of w and w·y. The sums of blocks can be added. A session in several blocks of a window is one
    cluster: the products with its earlier blocks are in the sums of its later ones.

    With a `label`, y is 1 for scores with this label and 0 for all other labelled scores. `left_out` counts scores
    whose sampling probability is unknown. They, `failed` and `skipped` are in no other sum.
    """

    key: str
    label: str | None = None  # None: the scores themselves
    group: str | None = None  # value of the field by which the sums are grouped
    start_ns: int
    n: int = 0
    weight: float = 0.0  # ΣW
    total: float = 0.0  # ΣY
    weight_squares: float = 0.0  # ΣW²
    products: float = 0.0  # ΣWY
    total_squares: float = 0.0  # ΣY²
    graded: int = 0  # scores other than 0 and 1
    failed: int = 0
    skipped: int = 0
    left_out: int = 0
    left_out_total: float = 0.0  # sum of the scores that are left out, each with weight 1


MAX_UNINDEXED = 1_000  # highest number of `Page.unindexed`


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Slice of a longer list, and the cursor of the next slice (None at the end).

    `unindexed` is the number of traces, at most `MAX_UNINDEXED`, that meet all conditions except `text` and that the
    full-text index does not cover yet. `newest` is set if a list of traces was too long to be sorted: it was then sorted among
    this number of its newest traces.
    """

    items: tuple[T, ...]
    next: str | None = None
    unindexed: int = 0
    newest: int | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage:
    """Slice of a flat table: the values of each column by name, and the cursor of the next slice (None at the end)."""

    columns: Mapping[str, Sequence[JSON]]
    next: str | None = None

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values()), ()))


def iterate_pages(ask: Callable[..., Page[T]]) -> Iterator[T]:
    """Yield all items of a paginated list. `ask` returns a page for the keyword argument `cursor`, which is None at
    first.
    """
    cursor: str | None = None
    while True:
        page = ask(cursor=cursor)
        yield from page
        cursor = page.next
        if cursor is None:
            return


def split_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    batch = list[T]()
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
