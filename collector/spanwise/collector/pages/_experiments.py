"""Experiments: the list with their results, and one experiment example by example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector.errors import Forbidden, NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.pages.kit import chips, filter_form, metrics, render
from spanwise.collector.pages.kit.judges import of_chips, of_experiment
from spanwise.collector.pages.kit.request import whole
from spanwise.collector.records import Bucket, Example, Experiment, Target, TraceSummary, paged
from spanwise.collector.stores import Checks, Store

PAGE = 50
MOST = 5_000  # traces of one experiment that a page sorts
_LISTED = 100


@dataclass(frozen=True, slots=True)
class Row:
    """One run of the task over one example. `example` is None if the dataset is no longer there."""

    trace: TraceSummary
    example: Example | None
    position: int


def experiments(store: Store, request: Request) -> Response:
    """`GET /experiments?dataset=`."""
    dataset = request.query_params.get("dataset") or None
    listed = store.experiments(dataset=dataset, limit=_LISTED)
    results = aggregates(store, listed)
    checks = Checks(store)
    return render.html(
        request,
        "experiments.html",
        experiments=listed,
        results=results,
        keys=sorted({stats.key for bucket in results.values() for stats in bucket.feedback}),
        dataset=dataset,
        known=metrics.known(reversed(listed)),
        trusts={one.id: checks.said(of_experiment(one)) for one in listed},
        datasets=_datasets(store, listed),
    )


def _datasets(store: Store, listed: Sequence[Experiment]) -> list[str]:
    """Names to choose from: of all datasets, or of those that are listed where the reader may not see them all."""
    try:
        return [known.name for known in store.datasets()]
    except Forbidden:
        return sorted({one.dataset for one in listed})


def aggregates(store: Store, experiments: Sequence[Experiment]) -> dict[str, Bucket]:
    """Counts, latency and feedback per experiment, in one query."""
    if not experiments:
        return {}
    ids = tuple(experiment.id for experiment in experiments)
    buckets = store.aggregate(Filter(experiments=ids), group_by="experiment", newest="all")
    return {bucket.group or "": bucket for bucket in buckets}


def experiment(store: Store, request: Request) -> Response:
    """`GET /experiments/{id or name}?sort=&feedback_key=…&offset=`."""
    asked = store.experiment(request.path_params["experiment_id"])
    query = filter_form.read([*request.query_params.multi_items(), ("experiment", asked.id)], others=("sort", "offset"))
    sort, offset = request.query_params.get("sort", ""), whole(request, "offset") or 0
    rows = ordered(load(store, asked, query.filter), sort)
    shown = rows[offset : offset + PAGE]
    result = aggregates(store, [asked]).get(asked.id)
    beside = chips.by_trace(store, [row.trace for row in shown])
    return render.html(
        request,
        "experiment.html",
        status=422 if query.problems else 200,
        experiment=asked,
        query=query,
        sort=sort,
        rows=shown,
        offset=offset,
        total=len(rows),
        most=MOST,
        page_size=PAGE,
        result=result,
        judges=judges(asked),
        stats=metrics.with_tasks(result) if result else [],
        known=metrics.known([asked]),
        trust=Checks(store).said({**of_chips(beside), **of_experiment(asked)}),
        chips=beside,
        of_whole=chips.latest(store.feedbacks(target=Target(experiment_id=asked.id))),
        others=[other for other in store.experiments(dataset=asked.dataset, limit=20) if other.id != asked.id],
    )


def judges(experiment: Experiment) -> dict[str, float]:
    """What judges were asked and what that cost, as `evaluate()` has recorded it; {} where none was."""
    totals = experiment.metadata.get("totals")
    named = totals.items() if isinstance(totals, Mapping) else ()
    told = {name.removeprefix("judge_"): value for name, value in named if name.startswith("judge_")}
    return {name: value for name, value in told.items() if isinstance(value, int | float)}


def load(store: Store, experiment: Experiment, filter: Filter) -> list[Row]:
    """The traces of an experiment that pass, at most `MOST`, in the dataset's order."""
    traces = islice(paged(partial(store.traces, filter, limit=1000)), MOST)
    examples = known_examples(store, experiment)
    rows = [Row(trace, *examples.get(trace.example_id or "", (None, MOST))) for trace in traces]
    return sorted(rows, key=lambda row: (row.position, row.trace.start_ns))


def labels(experiments: Sequence[Experiment]) -> dict[str, str]:
    """What tells experiments apart, by id: a name, with the beginning of the id where another has the same."""
    names = Counter(experiment.name for experiment in experiments)
    return {one.id: f"{one.name} ({one.id[:8]})" if names[one.name] > 1 else one.name for one in experiments}


def known_examples(store: Store, experiment: Experiment) -> Mapping[str, tuple[Example, int]]:
    """The dataset's examples at the experiment's version with their places, by id; none if it is gone, or not for this
    reader.
    """
    try:
        examples = store.examples(experiment.dataset, experiment.dataset_version)
    except (NotFound, Forbidden):
        return {}
    return {example.id: (example, position) for position, example in enumerate(examples)}


def ordered(rows: list[Row], sort: str) -> list[Row]:
    """Rows by `latency`, `cost`, `tokens` or a feedback key, descending after a "-"; rows without a value come last."""
    name = sort.removeprefix("-")
    if not name:
        return rows
    valued = [(value, row) for row in rows if (value := _sortable(row.trace, name)) is not None]
    without = [row for row in rows if _sortable(row.trace, name) is None]
    valued.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [row for _, row in valued] + without


def _sortable(trace: TraceSummary, name: str) -> tuple[float, str] | None:
    """A value that sorts, scores before labels; None if the trace has none."""
    figures: dict[str, float | None] = {
        "latency": trace.duration_ns,
        "tokens": trace.input_tokens + trace.output_tokens,
        "cost": trace.cost,
    }
    value = figures[name] if name in figures else trace.feedback.get(name)
    if value is None:
        return None
    return (0.0, value) if isinstance(value, str) else (float(value), "")
