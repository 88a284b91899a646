"""The list of traces: filter form, what happened over time, feedback beside each trace."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector.clocks import AHEAD_NS
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.pages.kit import chart, chips, filter_form, render
from spanwise.collector.pages.kit.judges import of_chips
from spanwise.collector.records import Bucket, OpenRun, TraceSummary
from spanwise.collector.stores import Checks, Store, under_way

PAGE = 50
COUNTED = 30_000  # traces that charts count one by one, where the store has no sums; a tenth of a second
_SHORT = 6 * 3_600 * 10**9
_LONGEST = 366 * 86_400 * 10**9
_LENGTHS = tuple(s * 10**9 for s in (15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800, 2_592_000, 7_776_000))


@dataclass(frozen=True, slots=True)
class Overview:
    """What the charts above the list show: one stretch of time in buckets, and all of it in one."""

    window: chart.Window
    buckets: Sequence[Bucket]
    total: Bucket

    @property
    def cut(self) -> Bucket | None:
        """What is counted first where not all traces were; None if all were."""
        cut = next((bucket for bucket in self.buckets if bucket.newest), None)
        return self.total if cut and self.total.newest else cut


def traces(store: Store, request: Request) -> Response:
    """`GET /`."""
    query = filter_form.read(request.query_params.multi_items(), others=("charts",))
    page = store.traces(query.filter, limit=PAGE, cursor=query.fields.get("cursor"))
    of_traces = chips.by_trace(store, page.items)
    times = stretch(query.filter, page.items) if page.items else None
    waiting = times is not None and "charts" not in request.query_params and late(query.filter, *times)
    return render.html(
        request,
        "traces.html",
        status=422 if query.problems else 200,
        query=query,
        page=page,
        running=running(store, query),
        chips=of_traces,
        columns=chips.columns(of_traces),
        times=times,
        waiting=waiting,
        overview=overview(store, query.filter, *times) if times and not waiting else None,
        trust=Checks(store).said(of_chips(of_traces)) if times and not waiting else {},
        choices=choices(store),
        slowest=max((trace.duration_ns for trace in page), default=0),
        empty=not page.items and not query.fields.get("cursor") and emptiness(store),
    )


def charts(store: Store, request: Request) -> Response:
    """`GET /charts`: the charts of a list alone, over [since, until)."""
    query = filter_form.read(request.query_params.multi_items())
    since, until = query.filter.since_ns, query.filter.until_ns
    if since is None or until is None:
        raise Refused("charts need a stretch of time: since and until")
    judges = of_chips(chips.by_trace(store, store.traces(query.filter, limit=PAGE).items))
    found = overview(store, query.filter, since, until)
    return render.html(request, "charts.html", query=query, overview=found, trust=Checks(store).said(judges))


def running(store: Store, query: filter_form.Query) -> list[OpenRun]:
    """Traces under way of which the list can show nothing yet, on its first page."""
    first = not query.fields.get("cursor") and query.fields.get("traffic") != "judges"
    return under_way(store, query.filter) if first else []


def choices(store: Store) -> dict[str, list[str]]:
    """What the form offers."""
    fields = ("project", "environment", "kind", "name", "model", "feedback")
    return {field: sorted(store.values(field), key=str.lower) for field in fields}


def emptiness(store: Store) -> str:
    """Why a list has nothing: "store" when there are no traces at all, else "filter"."""
    return "filter" if store.traces(limit=1).items else "store"


def late(filter: Filter, since_ns: int, until_ns: int) -> bool:
    """Whether the charts may take so long that the list should not wait for them."""
    return filter.text is not None or (filter.since_ns is not None and until_ns - since_ns > _SHORT)


def overview(store: Store, filter: Filter, since_ns: int, until_ns: int, newest: int = COUNTED) -> Overview | None:
    """Aggregates over a stretch of time, of the newest traces where there are very many; None if nothing passes."""
    view = chart.window(since_ns, until_ns)
    within = replace(filter, since_ns=view.since_ns, until_ns=view.until_ns)
    buckets = store.aggregate(within, bucket_ns=view.width_ns, newest=newest)
    total = store.aggregate(within, newest=newest) if buckets else []
    return Overview(view, chart.filled(buckets, view), total[0]) if total else None


def stretch(filter: Filter, shown: Sequence[TraceSummary]) -> tuple[int, int]:
    """The time that the charts cover: what was asked for, else a round stretch that holds the traces shown.

    It ends now at the latest: a start in the future comes from a wrong clock.
    """
    now = time.time_ns()
    starts = [trace.start_ns for trace in shown if trace.start_ns <= now + AHEAD_NS] or [now]
    until = filter.until_ns or (now if filter.since_ns else min(now, max(starts)))
    if filter.since_ns is not None:
        return filter.since_ns, max(until, filter.since_ns)
    needed = until - min(starts)
    return until - next((length for length in _LENGTHS if length >= needed), _LONGEST), until
