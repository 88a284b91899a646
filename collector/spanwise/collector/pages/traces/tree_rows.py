"""Rows of the run tree: positions on the time axis, totals per subtree, filters, folds, errors, JSON.

The state of the tree is in the address of the page, so that a link shows what its sender saw.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

import orjson
from starlette.datastructures import QueryParams

from spanwise.collector.records import TreeNode

# Runs of a tree that a page has read, kept for the request of its script that follows, so that they are read once.

T = TypeVar("T")
MAX_TREES = 8
MAX_SECONDS = 10.0


class Pickup(Generic[T]):
    """Values that are picked up once, by ticket. Those that nobody picks up in time are dropped."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, tuple[float, str, T]] = OrderedDict()
        self._lock = Lock()

    def leave(self, owner: str, value: T) -> str:
        """Keep a value for one request with the same owner, and return its ticket."""
        ticket = secrets.token_urlsafe(9)
        with self._lock:
            self._values[ticket] = (time.monotonic(), owner, value)
            while (
                len(self._values) > MAX_TREES or next(iter(self._values.values()))[0] < time.monotonic() - MAX_SECONDS
            ):
                self._values.popitem(last=False)
        return ticket

    def take(self, owner: str, ticket: str) -> T | None:
        """Return the value of a ticket, once; None if it is not there, too old, or left for another owner."""
        with self._lock:
            left, kept_for, value = self._values.pop(ticket, (0.0, "", None))
        return value if kept_for == owner and left >= time.monotonic() - MAX_SECONDS else None


# Rows of the run tree: positions on the time axis, totals per subtree, filters, folds, errors, JSON.

ROWS_PER_PAGE = 500  # rows per page of a trace with more than `MAX_WHOLE_ROWS`
MAX_WHOLE_ROWS = 1_000
SCRIPT_ROWS = 60  # rows that a browser with scripts gets, which then fetches all runs and shows those instead
MAX_FOLDS = 50
MAX_FIND_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class TreeQuery:
    """State of the tree in an address: selected run, filter, folded runs; and the list that led to the trace.

    `find` is part of the name of a run.
    """

    run: str | None = None
    find: str = ""
    errors: bool = False
    kinds: tuple[str, ...] = ()
    folds: tuple[str, ...] = ()
    origin: str | None = None  # query string of the list from which the trace was opened (see `trace_overview`)

    @classmethod
    def read(cls, parameters: QueryParams) -> TreeQuery:
        """Read the state from the parameters of an address."""
        folds = tuple(dict.fromkeys(parameters.getlist("fold")))[:MAX_FOLDS]
        kinds = tuple(dict.fromkeys(parameters.getlist("kind")))[:MAX_FOLDS]
        find = parameters.get("find", "")[:MAX_FIND_CHARACTERS]
        return cls(
            parameters.get("run"), find, parameters.get("only") == "errors", kinds, folds, parameters.get("from")
        )

    def pairs(self, **changes: object) -> list[tuple[str, str]]:
        """Return the parameters of this state with some changes."""
        state = replace(self, **changes)  # type: ignore[arg-type]
        pairs = [("run", state.run)] if state.run else []
        pairs += [("only", "errors")] if state.errors else []
        pairs += [("kind", kind) for kind in state.kinds] + [("fold", fold) for fold in state.folds]
        pairs += [("from", state.origin)] if state.origin is not None else []
        return pairs + ([("find", state.find)] if state.find else [])

    def address(self, **changes: object) -> str:
        """Return the query string of this state with some changes."""
        return "?" + urlencode(self.pairs(**changes), errors="replace")

    def toggle(self, name: str, value: str) -> str:
        """Return the address with a kind or a fold added, or removed if it is there."""
        present: tuple[str, ...] = getattr(self, name)
        kept = tuple(item for item in present if item != value)
        return self.address(**{name: kept if value in present else (*present, value)})


class ShownRow(NamedTuple):
    """Place of a shown run among all runs. With `context`, it is shown only because a run below it passes the filter."""

    place: int
    folded: bool = False
    context: bool = False


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One run in the tree. `left` and `width` are percentages of the trace's duration.

    `tokens` and `cost` are totals of the run and of all runs below it. `folded` and `context` are as in `ShownRow`.
    """

    run: TreeNode
    left: float
    width: float
    tokens: int = 0
    cost: float | None = None
    below: int = 0  # number of runs below it
    folded: bool = False
    context: bool = False
    is_open: bool = False  # True if the run has not ended: its bar grows until now


@dataclass(frozen=True, slots=True)
class TreeView:
    """Rows of one page of the tree. Positions of rows count from 1."""

    rows: Sequence[TreeRow]
    query: TreeQuery
    first: int
    total: int
    next: str | None  # first run of the next page
    kinds: Sequence[tuple[str, int]]
    errors: Sequence[str]  # span ids, in the order of the tree
    previous_error: str | None = None
    next_error: str | None = None


def build_tree(
    nodes: Sequence[TreeNode],
    query: TreeQuery,
    selected: str,
    start_ns: int,
    end_ns: int,
    open_ids: Container[str] = (),
    *,
    with_scripts: bool = False,
) -> TreeView:
    """Return the page of the tree that contains the selected run. It has few rows for a browser `with_scripts`.

    `nodes` are in depth-first order. `open_ids` are the span ids of those that have not ended.
    """
    at = next((place for place, node in enumerate(nodes) if node.span_id == selected), 0)
    places = select_rows(nodes, query, at)
    errors = [place for place, node in enumerate(nodes) if node.status == "error"]
    size = ROWS_PER_PAGE if len(nodes) > MAX_WHOLE_ROWS else max(1, len(places))
    size = SCRIPT_ROWS if with_scripts else size
    index = next((index for index, row in enumerate(places) if row.place == at), 0)
    first = index - index % size
    return TreeView(
        rows=place_rows(nodes, start_ns, end_ns, places[first : first + size], open_ids),
        query=query,
        first=first + 1,
        total=len(places),
        next=nodes[places[first + size].place].span_id if first + size < len(places) else None,
        kinds=Counter(node.kind for node in nodes).most_common(12),
        errors=[nodes[error].span_id for error in errors],
        previous_error=next((nodes[error].span_id for error in reversed(errors) if error < at), None),
        next_error=next((nodes[error].span_id for error in errors if error > at), None),
    )


def place_rows(
    nodes: Sequence[TreeNode],
    start_ns: int,
    end_ns: int,
    shown: Sequence[ShownRow] | None = None,
    open_ids: Container[str] = (),
) -> list[TreeRow]:
    """Return a row per shown run, by default per run, with its position in the time range of the trace."""
    length = max(1, end_ns - start_ns)
    totals = sum_subtrees(nodes)
    rows = []
    for row in shown if shown is not None else [ShownRow(place) for place in range(len(nodes))]:
        node, (tokens, cost, below) = nodes[row.place], totals[row.place]
        left, width = 100 * (node.start_ns - start_ns) / length, 100 * node.duration_ns / length
        is_open = node.span_id in open_ids
        rows.append(
            TreeRow(node, round(left, 2), round(width, 2), tokens, cost, below, row.folded, row.context, is_open)
        )
    return rows


def sum_subtrees(nodes: Sequence[TreeNode]) -> list[tuple[int, float | None, int]]:
    """Return tokens, cost and number of runs below, for each run.

    Tokens and cost include the run and the runs below it. Those of a run count only if no run below it has any,
    because agents and chains repeat the usage of their model calls.
    """
    tokens, cost, count = dict[int, int](), dict[int, float](), dict[int, int]()  # below the next run above, by depth
    totals: list[tuple[int, float | None, int]] = []
    for node in reversed(nodes):
        depth = node.depth
        total = tokens.pop(depth + 1, 0) or (node.input_tokens or 0) + (node.output_tokens or 0)
        spent, below = cost.pop(depth + 1, None), count.pop(depth + 1, 0)
        spent = node.cost if spent is None else spent
        if total:
            tokens[depth] = tokens.get(depth, 0) + total
        if spent is not None:
            cost[depth] = cost.get(depth, 0.0) + spent
        count[depth] = count.get(depth, 0) + below + 1
        totals.append((total, spent, below))
    return totals[::-1]


def select_rows(nodes: Sequence[TreeNode], query: TreeQuery, selected: int) -> list[ShownRow]:
    """Return the rows that pass the filter, with the rows above them, and without those below folded rows.

    Rows above the selected one are never folded. A search looks into folded rows, too.
    """
    if not (query.find or query.errors or query.kinds or query.folds):
        return [ShownRow(place) for place in range(len(nodes))]
    parents = _find_parents(nodes)
    path: set[int] = set()
    above = parents[selected] if nodes else -1
    while above >= 0:
        path.add(above)
        above = parents[above]
    context: dict[int, bool] = {}  # place of a shown row → whether only a row below it passes the filter
    for place, node in enumerate(nodes):
        if not passes_filter(node, query):
            continue
        context[place] = False
        above = parents[place]
        while above >= 0 and above not in context:
            context[above] = True
            above = parents[above]
    folds, fold_depth = set(() if query.find else query.folds), None
    shown = []
    for place, node in enumerate(nodes):
        if fold_depth is not None and node.depth > fold_depth:
            continue
        has_children = place + 1 < len(nodes) and nodes[place + 1].depth > node.depth
        folded = has_children and node.span_id in folds and place not in path
        fold_depth = node.depth if folded else None
        if place in context:
            shown.append(ShownRow(place, folded, context[place]))
    return shown


def _find_parents(nodes: Sequence[TreeNode]) -> list[int]:
    """Return the place of the parent of each run, -1 for roots."""
    parents, open_rows = list[int](), list[int]()
    for place, node in enumerate(nodes):
        while open_rows and nodes[open_rows[-1]].depth >= node.depth:
            open_rows.pop()
        parents.append(open_rows[-1] if open_rows else -1)
        open_rows.append(place)
    return parents


def passes_filter(node: TreeNode, query: TreeQuery) -> bool:
    """Return whether a run passes the filter of the tree."""
    return (
        (not query.errors or node.status == "error")
        and (not query.kinds or node.kind in query.kinds)
        and query.find.strip().lower() in node.name.lower()
    )


def find_origins(nodes: Sequence[TreeNode]) -> dict[str, TreeNode]:
    """Return the run where the error of each failed run began: the last failed run at every level below it.

    Failed runs below which no run has failed are left out.
    """
    failed: dict[str | None, TreeNode] = {}  # by span id: the last failed run right below
    for node in nodes:
        if node.status == "error" and (node.parent_id not in failed or node.end_ns >= failed[node.parent_id].end_ns):
            failed[node.parent_id] = node
    origins: dict[str, TreeNode] = {}
    for node in reversed(nodes):  # runs below come before those above
        if node.status == "error" and (below := failed.get(node.span_id)) is not None and below is not node:
            origins[node.span_id] = origins.get(below.span_id, below)
    return origins


_STATUSES = ("unset", "ok", "error", "cancelled")  # numbered as in scripts/tree/data.ts


def encode_tree(
    nodes: Sequence[TreeNode],
    total: int,
    start_ns: int,
    duration_ns: int,
    open_ids: Container[str],
    clean_name: Callable[[str], str],
) -> bytes:
    """Return the runs as JSON for the script of the tree: one list per field, with an item per run.

    Times are in nanoseconds from the start of the trace. Tokens, cost and the number of runs below are totals of
    `sum_subtrees`. Names and kinds are indexes of lists of distinct texts. `total` counts all runs of the trace.
    """
    totals = sum_subtrees(nodes)
    names, kinds = dict[str, int](), dict[str, int]()
    rows = {
        "ids": [node.span_id.encode("utf-8", "replace").decode() for node in nodes],
        "name": [names.setdefault(node.name, len(names)) for node in nodes],
        "kind": [kinds.setdefault(node.kind, len(kinds)) for node in nodes],
        "depth": [node.depth for node in nodes],
        "start": [node.start_ns - start_ns for node in nodes],
        "took": [node.duration_ns for node in nodes],
        "status": [_STATUSES.index(node.status) for node in nodes],
        "open": [place for place, node in enumerate(nodes) if node.span_id in open_ids],
        "orphans": [place for place, node in enumerate(nodes) if node.lost_parent],
        "feedback": [(place, node.feedback, node.failed) for place, node in enumerate(nodes) if node.feedback],
        "tokens": [tokens for tokens, _, _ in totals],
        "cost": [cost for _, cost, _ in totals],
        "below": [below for _, _, below in totals],
        "origins": {span_id: origin.span_id for span_id, origin in find_origins(nodes).items()},
    }
    texts = {"names": list(map(clean_name, names)), "kinds": list(map(clean_name, kinds))}
    return orjson.dumps({**rows, **texts, "total": total, "length": duration_ns})
