"""Trace list page: filter form, charts over time, feedback per trace."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from spanwise.collector.errors import Refused
from spanwise.collector.filters import EVALUATOR_KIND, TRACE_COLUMNS, Filter
from spanwise.collector.pages.components import feedback_display, filter_form, preferences, rendering, svg_charts
from spanwise.collector.pages.components.feedback_display import get_shown_judge_keys
from spanwise.collector.pages.traces.trace_overview import load_panel
from spanwise.collector.record_corrections import MAX_CLOCK_SKEW_NS
from spanwise.collector.records import Bucket, OpenRun, Page, TraceSummary
from spanwise.collector.stores import JudgeAgreement, Store, list_open_traces

TRACES_PER_PAGE = 50
MAX_SCORE_COLUMNS = 4  # the style sheet hides some of them where the window is narrow
MAX_EXACT_MATCHES = 1_000  # matches that are counted one by one if rollups do not apply
MAX_COUNTED_TRACES = 30_000  # maximum number of traces that charts read if rollups do not apply; takes about 0.1 s
MAX_SHOWN_GROUPS = 12
PART_HEADER = "spanwise-part"  # names the part of the page that a script shows
MAX_OFFERED_VALUES = 1_000  # feedback keys or metadata keys among which an unknown condition is searched
MAX_TERM_CHARACTERS = 400  # longest term of the filter line that is completed
_COMPARISON = re.compile(r"[<>=!]")
_SHORT_PERIOD_NS = 6 * 3_600 * 10**9
_MAX_PERIOD_NS = 366 * 86_400 * 10**9
_PERIODS_NS = tuple(s * 10**9 for s in (15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800, 2_592_000, 7_776_000))


@dataclass(frozen=True, slots=True)
class Overview:
    """Data of the charts above the list: a time range, its buckets, and their total."""

    window: svg_charts.Window
    buckets: Sequence[Bucket]
    total: Bucket
    # totals of the groups with the most traces, and their buckets; {} without a field to group by
    groups: Mapping[str, tuple[Bucket, Sequence[Bucket]]] = field(default_factory=dict)
    group_count: int = 0

    @property
    def cut(self) -> Bucket | None:
        """Return the bucket whose `newest` says how many traces were counted; None if all traces were counted.

        It is the total if the total is limited to the newest traces as well, otherwise the first limited bucket.
        """
        cut = next((bucket for bucket in self.buckets if bucket.newest), None)
        return self.total if cut and self.total.newest else cut


def traces(store: Store, request: Request) -> Response:
    """Render the trace list: `GET /traces`, with its side panel: `GET /traces?panel={trace_id}`.

    A request with the header `Spanwise-Part: panel` gets only the panel.
    """
    query = filter_form.read_query(
        request.query_params.multi_items(),
        others=("charts", "panel"),
        zone=preferences.read_preferences(request).time_zone,
    )
    panel_id = request.query_params.get("panel")
    panel = load_panel(store, panel_id, raw=preferences.is_raw(request)) if panel_id else None
    if request.headers.get(PART_HEADER) == "panel" and panel is not None:
        return rendering.render_page(request, "panel.html", query=query, panel=panel)
    sort, query = filter_form.read_sort(query, TRACE_COLUMNS, feedback=True)
    page = store.traces(query.filter, sort=sort, limit=TRACES_PER_PAGE, cursor=query.fields.get("cursor"))
    feedback = feedback_display.load_feedback(store, page.items)
    chips = {trace_id: own.chips for trace_id, own in feedback.items()}
    open_runs = list_open_runs(store, query)
    starts = {trace.trace_id: trace.start_ns for trace in page}
    times = choose_period(query.filter, page.items) if page.items else None
    waiting = times is not None and "charts" not in request.query_params and is_slow(query.filter, *times)
    overview = None
    if times and not waiting:
        overview = load_overview(store, query.filter, *times, group_by=query.fields.get("group_by"))
    return rendering.render_page(
        request,
        "traces.html",
        status=422 if query.problems else 200,
        query=query,
        page=page,
        panel=panel,
        sort=sort or "",
        sort_links=filter_form.SortLinks(sort or "-start", lambda order: query.address(sort=order)),
        matches=count_matches(store, query, page, overview),
        running=[run for run in open_runs if run.trace_id not in starts],
        # a run that began before all runs that have ended is the root of its trace
        titles={run.trace_id: run.name for run in open_runs if run.start_ns <= starts.get(run.trace_id, run.start_ns)},
        feedback=feedback,
        score_keys=feedback_display.choose_columns(chips, MAX_SCORE_COLUMNS),
        times=times,
        waiting=waiting,
        overview=overview,
        trust=JudgeAgreement(store).said(get_shown_judge_keys(chips)) if times and not waiting else {},
        choices=load_choices(store, query.fields.get("project")),
        empty=get_empty_reason(store, query) if not page.items and not query.fields.get("cursor") else "",
        offers=make_offers(store, query) if query.unknown or not page.items else [],
    )


def charts(store: Store, request: Request) -> Response:
    """Render the charts alone, for [since, until): `GET /charts`."""
    query = filter_form.read_query(request.query_params.multi_items())
    since, until = query.filter.since_ns, query.filter.until_ns
    if since is None or until is None:
        raise Refused("charts need a time range: set since and until")
    judges = get_shown_judge_keys(
        feedback_display.load_chips(store, store.traces(query.filter, limit=TRACES_PER_PAGE).items)
    )
    overview = load_overview(store, query.filter, since, until, group_by=query.fields.get("group_by"))
    return rendering.render_page(
        request, "charts.html", query=query, overview=overview, trust=JudgeAgreement(store).said(judges)
    )


def suggestions(store: Store, request: Request) -> Response:
    """Return what could complete a term of the filter line: `GET /traces/suggestions?term=&project=`."""
    typed = request.query_params.get("term", "")[:MAX_TERM_CHARACTERS]
    found = filter_form.suggest(store, typed, request.query_params.get("project") or None)
    return JSONResponse([{"text": item.text, "hint": item.hint} for item in found], headers=rendering.SECURITY_HEADERS)


def list_open_runs(store: Store, query: filter_form.FilterQuery) -> list[OpenRun]:
    """Return traces in progress that are not in the list yet. Only the first page of the list shows them."""
    first = not query.fields.get("cursor") and query.fields.get("traffic") != "judges"
    return list_open_traces(store, query.filter) if first else []


def load_choices(store: Store, project: str | None) -> dict[str, list[str]]:
    """Return the choices that the filter form offers. The keys of feedback are those of the project."""
    fields = (
        *("project", "environment", "kind", "name", "model"),
        *("prompt", "prompt_version", "agent", "finish_reason"),
    )
    choices = {field: sorted(store.values(field), key=str.lower) for field in fields}
    return choices | {"feedback": sorted(store.values("feedback", project=project), key=str.lower)}


def get_empty_reason(store: Store, query: filter_form.FilterQuery) -> str:
    """Return the reason for an empty list: "store" if there are no traces at all, "judges" if only evaluators' own
    traces match, else "filter".
    """
    if not store.traces(limit=1).items:
        return "store"
    if query.filter.leaves_out_judgements and store.traces(replace(query.filter, kind=EVALUATOR_KIND), limit=1).items:
        return "judges"
    return "filter"


def make_offers(store: Store, query: filter_form.FilterQuery) -> list[tuple[str, str]]:
    """Return labels and URLs of queries that were perhaps meant.

    An unknown condition may be a feedback key or a metadata key. A searched word may be a user, a session or a tag.
    """
    project = query.fields.get("project") or None
    items = [item for item in query.items if item[0] not in ("cursor", "text")]
    words = [item for item in query.items if item[0] == "text"]
    offers = []
    for name, value in query.unknown:
        term = f"{name}={value}" if value else name
        key = _COMPARISON.split(term, maxsplit=1)[0]
        comparison = term.removeprefix(key)
        pairs = {
            "feedback": ("feedback", key + comparison),
            "metadata": (f"metadata.{key}", comparison.removeprefix("=")),
        }
        for kind, pair in pairs.items():
            is_possible = comparison.startswith("=") or (kind == "feedback" and comparison)
            if is_possible and key in store.values(kind, limit=MAX_OFFERED_VALUES, project=project):
                address = filter_form.build_address(filter_form.TRACE_LIST, [*items, *words, pair])
                offers.append((f"Filter by {kind}.{key}{comparison}", address))
    if text := (query.filter.text or "").strip('"'):
        named = {"user": Filter(user=text), "session": Filter(session=text), "tag": Filter(tags=(text,))}
        for name, filter in named.items():
            if not store.traces(replace(filter, project=project), limit=1).items:
                continue
            if name == "user":
                offers.append((f"Show user {text}", f"/users/{rendering.quote_segment(text)}"))
            address = filter_form.build_address(filter_form.TRACE_LIST, [*items, (name, text)])
            offers.append((f"Show traces with {name}={text}", address))
    return offers


def count_matches(
    store: Store, query: filter_form.FilterQuery, page: Page[TraceSummary], overview: Overview | None
) -> str:
    """Return how many traces match, for display. The charts know it if the filter has a time range; otherwise counts
    that would need many rows end at `MAX_EXACT_MATCHES`.
    """
    if page.next is None and not query.fields.get("cursor"):
        return f"{len(page)} match" + ("es" if len(page) == 1 else "") if page.items else ""
    if overview and query.filter.since_ns is not None:
        total: Bucket | None = overview.total
    else:
        total = next(iter(store.aggregate(query.filter, newest=MAX_EXACT_MATCHES)), None)
    if total is None:
        return ""
    return f"more than {total.newest:,} match" if total.newest else f"{total.traces:,} match"


def is_slow(filter: Filter, since_ns: int, until_ns: int) -> bool:
    """Return whether the charts may take so long that the list is rendered without them."""
    return filter.text is not None or (filter.since_ns is not None and until_ns - since_ns > _SHORT_PERIOD_NS)


def load_overview(
    store: Store,
    filter: Filter,
    since_ns: int,
    until_ns: int,
    newest: int = MAX_COUNTED_TRACES,
    group_by: str | None = None,
) -> Overview | None:
    """Aggregate a time range for the charts, and the largest groups in it; None if no trace passes the filter.

    If the filter cannot be answered from rollups, only the `newest` traces are counted.
    """
    view = svg_charts.choose_window(since_ns, until_ns)
    # a filter with a time range counts the traces that the list has, not those of whole buckets
    within = replace(filter, since_ns=view.since_ns, until_ns=view.until_ns) if filter.since_ns is None else filter
    buckets = store.aggregate(within, bucket_ns=view.width_ns, newest=newest)
    total = store.aggregate(within, newest=newest) if buckets else []
    if not total:
        return None
    overview = Overview(view, svg_charts.fill_buckets(buckets, view), total[0])
    if group_by is None:
        return overview
    totals = sorted(store.aggregate(within, group_by=group_by, newest=newest), key=lambda group: -group.traces)
    largest = totals[:MAX_SHOWN_GROUPS]
    series: dict[str | None, list[Bucket]] = {group.group: [] for group in largest}
    with suppress(Refused):  # so many groups that their buckets exceed the limit of an answer: no bars
        for bucket in store.aggregate(within, bucket_ns=view.width_ns, group_by=group_by, newest=newest):
            if bucket.group in series:
                series[bucket.group].append(bucket)
    groups = {
        group.group or "none": (
            group,
            svg_charts.fill_buckets(series[group.group], view) if series[group.group] else (),
        )
        for group in largest
    }
    return replace(overview, groups=groups, group_count=len(totals))


def choose_period(filter: Filter, shown: Sequence[TraceSummary]) -> tuple[int, int]:
    """Return the time range of the charts: the requested one, else a round range that covers the shown traces.

    The range never ends after the present time, because a start in the future comes from a wrong clock.
    """
    now = time.time_ns()
    starts = [trace.start_ns for trace in shown if trace.start_ns <= now + MAX_CLOCK_SKEW_NS] or [now]
    until = filter.until_ns or (now if filter.since_ns else min(now, max(starts)))
    if filter.since_ns is not None:
        return filter.since_ns, max(until, filter.since_ns)
    needed = until - min(starts)
    return until - next((length for length in _PERIODS_NS if length >= needed), _MAX_PERIOD_NS), until
