"""Dataset, experiment and comparison pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TypeAlias
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from spanwise.collector import statistics
from spanwise.collector.errors import Forbidden, NotFound, Refused
from spanwise.collector.filters import EXPERIMENT_COLUMNS, Filter, SortOrder, parse_sort
from spanwise.collector.pages.components import feedback_display, filter_form, rendering
from spanwise.collector.pages.components.feedback_display import get_shown_judge_keys
from spanwise.collector.pages.components.filter_form import read_integer
from spanwise.collector.pages.components.svg_charts import LineChart, make_line_chart
from spanwise.collector.records import (
    JSON,
    Bucket,
    Example,
    Experiment,
    FeedbackStats,
    Target,
    TraceSummary,
    iterate_pages,
)
from spanwise.collector.stores import (
    Change,
    ComparisonOptions,
    HistoryPoint,
    JudgeAgreement,
    Store,
    StoredComparison,
    estimate_keys,
    get_judge_keys,
    iterate_examples,
    list_history,
)

_EXAMPLES_PER_PAGE = 50


def datasets(store: Store, request: Request) -> Response:
    """Render the dataset list: `GET /datasets`."""
    sort = request.query_params.get("sort") or None
    links = filter_form.SortLinks(sort or "", lambda order: f"/datasets?{urlencode({'sort': order})}")
    return rendering.render_page(request, "datasets.html", datasets=store.datasets(sort=sort), sort_links=links)


def dataset(store: Store, request: Request) -> Response:
    """Render one dataset: `GET /datasets/{name}?version=&offset=`."""
    name = request.path_params["name"]
    version, offset = read_integer(request, "version"), read_integer(request, "offset") or 0
    dataset = store.dataset(name, version)
    examples = store.examples(name, dataset.version, limit=_EXAMPLES_PER_PAGE, offset=offset)
    return rendering.render_page(
        request,
        "dataset.html",
        dataset=dataset,
        versions=store.versions(name),
        examples=examples,
        offset=offset,
        next=offset + _EXAMPLES_PER_PAGE if offset + len(examples) < dataset.example_count else None,
        previous=max(0, offset - _EXAMPLES_PER_PAGE) if offset else None,
        experiments=store.experiments(dataset=name, limit=20),
    )


ROWS_PER_PAGE = 50
MAX_SORTED_TRACES = 5_000  # traces of one experiment that the page loads and sorts
_MAX_LISTED = 100
_MAX_HISTORY = 30  # experiments of a history chart


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """One run of the task on one example. `example` is None if the dataset no longer exists."""

    trace: TraceSummary
    example: Example | None
    position: int


def experiments(store: Store, request: Request) -> Response:
    """Render the experiment list: `GET /experiments?dataset=&sort=`.

    The store sorts by the columns of experiments; of the numbers of their results, the page sorts what it lists.
    """
    dataset, sort = request.query_params.get("dataset") or None, request.query_params.get("sort") or "-start"
    order = parse_sort(sort, (*EXPERIMENT_COLUMNS, *_RESULT_COLUMNS), feedback=True)
    is_stored = order.column in EXPERIMENT_COLUMNS
    listed = store.experiments(dataset=dataset, sort=sort if is_stored else None, limit=_MAX_LISTED)
    try:
        datasets = [known.name for known in store.datasets()]
    except Forbidden:  # the reader may not list datasets
        datasets = sorted({experiment.dataset for experiment in listed})
    results = aggregate_experiments(store, listed)
    checks = JudgeAgreement(store)
    kept = {"dataset": dataset} if dataset else {}
    return rendering.render_page(
        request,
        "experiments.html",
        experiments=listed if is_stored else sort_experiments(listed, results, order),
        sort=sort,
        sort_links=filter_form.SortLinks(sort, lambda order: f"/experiments?{urlencode({**kept, 'sort': order})}"),
        sorted_newest=None if is_stored or len(listed) < _MAX_LISTED else _MAX_LISTED,
        results=results,
        keys=sorted({stats.key for bucket in results.values() for stats in bucket.feedback}),
        dataset=dataset,
        known=feedback_display.get_metric_info(
            reversed(listed), (stats for result in results.values() for stats in result.feedback)
        ),
        plain=feedback_display.MetricInfo(),
        trusts={experiment.id: checks.said(get_judge_keys(experiment)) for experiment in listed},
        history=load_history(store, dataset) if dataset else {},
        datasets=datasets,
    )


_RESULT_COLUMNS = ("runs", "errors", "p50_ms", "p95_ms", "tokens", "cost")


def sort_experiments(
    experiments: Sequence[Experiment], results: Mapping[str, Bucket], order: SortOrder
) -> list[Experiment]:
    """Return the experiments sorted by a number of their results; those without it come last."""

    def get_value(experiment: Experiment) -> float | None:
        result = results.get(experiment.id)
        if result is None:
            return None
        if order.column == "feedback":
            return next((stats.mean for stats in result.feedback if stats.key == order.key), None)
        numbers = {"runs": result.traces, "tokens": result.input_tokens + result.output_tokens}
        return numbers[order.column] if order.column in numbers else getattr(result, order.column)

    known = [(value, experiment) for experiment in experiments if (value := get_value(experiment)) is not None]
    known.sort(key=itemgetter(0), reverse=order.is_descending)
    return [experiment for _, experiment in known] + [item for item in experiments if get_value(item) is None]


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """Points of one key over a dataset's experiments, and their line chart."""

    points: Sequence[HistoryPoint]
    chart: LineChart


def load_history(store: Store, dataset: str) -> dict[str, KeyHistory]:
    """Return the history of each key that two or more of the newest experiments have."""
    by_key: dict[str, list[HistoryPoint]] = {}
    for point in list_history(store, dataset, limit=_MAX_HISTORY):
        by_key.setdefault(point.key, []).append(point)
    return {
        key: KeyHistory(points, make_line_chart([(point.mean, *(point.interval or (None, None))) for point in points]))
        for key, points in sorted(by_key.items())
        if len(points) > 1
    }


def aggregate_experiments(store: Store, experiments: Sequence[Experiment]) -> dict[str, Bucket]:
    """Return counts, latency and feedback per experiment, in one query."""
    if not experiments:
        return {}
    ids = tuple(experiment.id for experiment in experiments)
    buckets = store.aggregate(Filter(experiments=ids), group_by="experiment", newest="all")
    return {bucket.group or "": bucket for bucket in buckets}


def experiment(store: Store, request: Request) -> Response:
    """Render one experiment: `GET /experiments/{id or name}?sort=&feedback_key=…&offset=`."""
    experiment = store.experiment(request.path_params["experiment_id"])
    query = filter_form.read_query(
        [*request.query_params.multi_items(), ("experiment", experiment.id)], others=("sort", "offset")
    )
    sort, offset = request.query_params.get("sort", ""), read_integer(request, "offset") or 0
    rows = sort_rows(load_rows(store, experiment, query.filter), sort)
    shown = rows[offset : offset + ROWS_PER_PAGE]
    result = aggregate_experiments(store, [experiment]).get(experiment.id)
    chips = feedback_display.load_chips(store, [row.trace for row in shown])
    judged = {**get_shown_judge_keys(chips), **get_judge_keys(experiment)}
    return rendering.render_page(
        request,
        "experiment.html",
        status=422 if query.problems else 200,
        experiment=experiment,
        query=query,
        sort=sort,
        sort_links=filter_form.SortLinks(
            sort, lambda order: query.address(request.url.path, experiment=None, sort=order)
        ),
        rows=shown,
        offset=offset,
        total=len(rows),
        most=MAX_SORTED_TRACES,
        page_size=ROWS_PER_PAGE,
        result=result,
        judges=get_judge_totals(experiment),
        stats=feedback_display.get_stats_with_task_ok(result) if result else [],
        estimates=estimate_keys(store, experiment, result) if result else {},
        judged=judged,
        known=feedback_display.get_metric_info([experiment], result.feedback if result else ()),
        trust=JudgeAgreement(store).said(judged),
        chips=chips,
        of_whole=feedback_display.get_latest_chips(store.feedbacks(target=Target(experiment_id=experiment.id))),
        others=[
            other for other in store.experiments(dataset=experiment.dataset, limit=20) if other.id != experiment.id
        ],
    )


def get_judge_totals(experiment: Experiment) -> dict[str, float]:
    """Return the number and cost of judge calls that `evaluate()` recorded; {} if there were none."""
    totals = experiment.metadata.get("totals")
    items = totals.items() if isinstance(totals, Mapping) else ()
    return {
        name.removeprefix("judge_"): value
        for name, value in items
        if name.startswith("judge_") and isinstance(value, int | float)
    }


def load_rows(store: Store, experiment: Experiment, filter: Filter) -> list[ExperimentRow]:
    """Return the traces of an experiment that pass the filter, at most `MAX_SORTED_TRACES`, in the dataset's order."""
    traces = islice(iterate_pages(partial(store.traces, filter, limit=1000)), MAX_SORTED_TRACES)
    examples = {example.id: (example, position) for position, example in enumerate(iterate_examples(store, experiment))}
    rows = [ExperimentRow(trace, *examples.get(trace.example_id or "", (None, MAX_SORTED_TRACES))) for trace in traces]
    return sorted(rows, key=lambda row: (row.position, row.trace.start_ns))


def label_experiments(experiments: Sequence[Experiment]) -> dict[str, str]:
    """Return unique labels of experiments by id: the name, followed by the beginning of the id if several have this
    name.
    """
    names = Counter(experiment.name for experiment in experiments)
    return {
        experiment.id: f"{experiment.name} ({experiment.id[:8]})" if names[experiment.name] > 1 else experiment.name
        for experiment in experiments
    }


def sort_rows(rows: list[ExperimentRow], sort: str) -> list[ExperimentRow]:
    """Sort rows by `latency`, `cost`, `tokens` or a feedback key, descending after a "-".

    Rows with a label instead of a number follow those with numbers. Rows without a value come last.
    """
    name = sort.removeprefix("-")
    if not name:
        return rows
    values = [(_sort_value(row.trace, name), row) for row in rows]
    is_descending = sort.startswith("-")
    numbers = sorted((pair for pair in values if isinstance(pair[0], float)), key=itemgetter(0), reverse=is_descending)
    labels = sorted((pair for pair in values if isinstance(pair[0], str)), key=itemgetter(0), reverse=is_descending)
    without = [pair for pair in values if pair[0] is None]
    return [row for _, row in numbers + labels + without]


def _sort_value(trace: TraceSummary, name: str) -> float | str | None:
    """Return the number or label to sort by, None if the trace has neither."""
    figures: dict[str, float | None] = {
        "latency": trace.duration_ns,
        "tokens": trace.input_tokens + trace.output_tokens,
        "cost": trace.cost,
    }
    value = figures[name] if name in figures else trace.feedback.get(name)
    return value if value is None or isinstance(value, str) else float(value)


# Renders the analysis of experiments, as the page "analysis" or "flips": the document, and its content security policy
AnalysisRenderer: TypeAlias = Callable[[Sequence[tuple[Store, Experiment]], str], tuple[str, str]]
_MAX_SIDES, _MAX_SHOWN, _MAX_ANALYZED = 10, 50, 50
_MAX_SLICES = 8


@dataclass(frozen=True, slots=True)
class ComparisonSide:
    """One of the compared experiments, with its results and the trace id of each example's first run."""

    experiment: Experiment
    result: Bucket | None
    runs: Mapping[str, str]

    def stats(self, key: str) -> FeedbackStats | None:
        """Return this side's statistics of one key; for `task_ok`, the share of runs whose task ended without error."""
        if self.result is None:
            return None
        if key == statistics.TASK_OK:
            return feedback_display.get_task_ok_stats(self.result)
        return next((stats for stats in self.result.feedback if stats.key == key), None)


@dataclass(frozen=True, slots=True)
class ShownChange:
    """Example whose scores changed, with its changes, and per side the trace of its first repetition.

    The example is None if its dataset no longer exists.
    """

    example_id: str
    example: Example | None
    traces: Sequence[TraceSummary | None]
    changes: Sequence[Change]

    @property
    def keys(self) -> list[str]:
        """Return the keys whose scores changed."""
        return [change.key for change in self.changes]

    @property
    def is_worse(self) -> bool:
        """Return whether the example got worse under a key."""
        return any(change.better is False for change in self.changes)


def compare(store: Store, request: Request) -> Response:
    """Render a comparison: `GET /compare?ids=a,b&key=&primary=&margin=key=0.02`. The first experiment is the baseline."""
    experiments = load_experiments(store, request.query_params.getlist("ids"))
    options, problem = read_comparison_options(request)
    stored = StoredComparison([(store, experiment) for experiment in experiments], options)
    contrasts: list[dict[str, statistics.Contrast]] = []
    try:
        contrasts = stored.contrasts if len(experiments) > 1 else []
    except ValueError as error:
        problem = str(error)
        stored = StoredComparison([(store, experiment) for experiment in experiments])
        contrasts = stored.contrasts
    sides = load_sides(store, stored)
    wanted = request.query_params.get("key") or None
    wanted = wanted if wanted in stored.keys else None
    changes = stored.rank_changes(len(contrasts) - 1) if contrasts else {}
    if wanted is not None:
        changes = {
            id: own for id, every in changes.items() if (own := [change for change in every if change.key == wanted])
        }
    rows = load_shown_changes(store, sides, stored, dict(islice(changes.items(), _MAX_SHOWN)))
    checks = JudgeAgreement(store)
    return rendering.render_page(
        request,
        "compare.html",
        status=422 if problem else 200,
        problem=problem,
        has_analysis=request.app.state.render_analysis is not None,
        options=options,
        sides=sides,
        labels=label_experiments(experiments),
        keys=stored.keys if contrasts else [],
        known={
            **feedback_display.get_metric_info(
                experiments, (stats for side in sides if side.result for stats in side.result.feedback)
            ),
            **{
                key: feedback_display.MetricInfo(rising=False, bounded=False, unit=statistics.MEASURES[key])
                for key in (stored.measures if contrasts else ())
            },
        },
        plain=feedback_display.MetricInfo(),
        wanted=wanted,
        rows=rows,
        differing=len(changes),
        worse=sum(any(change.better is False for change in every) for every in changes.values()),
        family=max((contrast.family for by_key in contrasts for contrast in by_key.values()), default=1),
        examples=len({id for side in sides for id in side.runs}),
        settings=find_differing_settings(experiments),
        contrasts=contrasts,
        slices=[stored.slices(index, _MAX_SLICES) for index in range(len(contrasts))],
        trusts=[checks.said(get_judge_keys(side.experiment)) for side in sides],
        chips=feedback_display.load_chips(store, [trace for row in rows for trace in row.traces if trace]),
        choices=[] if len(sides) > 1 else store.experiments(limit=100),
    )


def analysis(store: Store, request: Request) -> Response:
    """Render leaderboards, problems and insights: `GET /analysis?ids=a,b`."""
    return render_analysis_page(store, request, "analysis")


def flips(store: Store, request: Request) -> Response:
    """Render the perturbed cases that flip beside their base cases: `GET /analysis/flips?ids=a,b`."""
    return render_analysis_page(store, request, "flips")


def render_analysis_page(store: Store, request: Request, page: str) -> Response:
    """Render a page of the analysis of experiments. Raises `NotFound` without evaluators and `Refused` without ids."""
    experiments = load_experiments(store, request.query_params.getlist("ids"), most=_MAX_ANALYZED)
    render: AnalysisRenderer | None = request.app.state.render_analysis
    if render is None:
        raise NotFound("this server has no evaluators for the analysis page; start it with `spanwise serve`")
    if not experiments:
        raise Refused(f"the analysis requires experiments: {request.url.path}?ids=ID,ID")
    document, policy = render([(store, experiment) for experiment in experiments], page)
    headers = {**rendering.SECURITY_HEADERS, "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
    return HTMLResponse(document.encode("utf-8", "replace"), headers=headers)


def load_experiments(store: Store, names: Sequence[str], most: int = _MAX_SIDES) -> list[Experiment]:
    """Return the named experiments (by id, prefix of an id, or name). Raises `Refused` for more than `most`."""
    names = [name.strip() for value in names for name in value.split(",") if name.strip()]
    if len(names) > most:
        raise Refused(f"at most {most} experiments can be shown together, got {len(names)}")
    found = [store.experiment(name) for name in dict.fromkeys(names)]
    return list({experiment.id: experiment for experiment in found}.values())


def read_comparison_options(request: Request) -> tuple[ComparisonOptions, str | None]:
    """Return the options in the query `primary=KEY&margin=KEY=NUMBER`, and the problem of invalid ones."""
    query = request.query_params
    primary = [key for key in query.getlist("primary") if key]
    margin: dict[str, float] = {}
    try:
        for text in filter(None, query.getlist("margin")):
            key, _, number = text.rpartition("=")
            if number:
                margin[key] = float(number)
        return ComparisonOptions(primary=primary or None, margin=margin), None
    except ValueError as error:
        return ComparisonOptions(primary=primary or None), f"margin must be KEY=NUMBER: {error}"


def load_sides(store: Store, stored: StoredComparison) -> list[ComparisonSide]:
    """Load the results and first runs of the compared experiments."""
    experiments = [experiment for _, experiment in stored.sides]
    results = aggregate_experiments(store, experiments)
    sides = []
    for experiment, runs in zip(experiments, stored.runs, strict=True):
        first: dict[str, str] = {}
        for run in runs:
            first.setdefault(run.example_id or run.trace_id, run.trace_id)
        sides.append(ComparisonSide(experiment, results.get(experiment.id), first))
    return sides


def find_differing_settings(experiments: Sequence[Experiment]) -> dict[str, list[JSON]]:
    """Return the settings in the experiments' metadata that differ, one value per experiment. Only scalar settings are
    compared.
    """
    names = dict.fromkeys(name for experiment in experiments for name in experiment.metadata)
    values = {name: [experiment.metadata.get(name) for experiment in experiments] for name in names}
    plain = {name: row for name, row in values.items() if not any(isinstance(value, dict | list) for value in row)}
    return {name: row for name, row in plain.items() if any(value != row[0] for value in row)}


def load_shown_changes(
    store: Store, sides: Sequence[ComparisonSide], stored: StoredComparison, changes: Mapping[str, Sequence[Change]]
) -> list[ShownChange]:
    """Load the examples of changes, and their runs on each side."""
    if not changes:
        return []
    ids = [side.runs.get(example_id, "") for example_id in changes for side in sides]
    traces = {trace.trace_id: trace for trace in store.traces(trace_ids=tuple(filter(None, ids)), limit=len(ids))}
    return [
        ShownChange(
            example_id,
            stored.examples.get(example_id),
            [traces.get(side.runs.get(example_id, "")) for side in sides],
            every,
        )
        for example_id, every in changes.items()
    ]
