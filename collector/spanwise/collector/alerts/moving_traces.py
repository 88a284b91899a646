"""Traces that moved the estimate of an alert most."""

from __future__ import annotations

from functools import partial
from heapq import nlargest
from itertools import islice

from spanwise.collector.alert_policy import is_operational, parse_measure
from spanwise.collector.filters import extend_filter
from spanwise.collector.records import Alert, AlertGroup, WeightedScore, iterate_pages
from spanwise.collector.stores import Store, make_version_condition

MAX_TRACES = 10
MAX_SCORES_READ = 20_000  # scores of the window that are read to find the traces, the latest first
_CANDIDATES = 500  # traces of which those of the group are selected


class MovingTraces:
    """Finder of the traces that moved estimates most.

    If many alerts or groups fire at once, the scores of their common window are read once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._window: tuple[object, ...] = ()
        self._scores: list[WeightedScore] = []  # of the window

    def find(self, alert: Alert, group: AlertGroup) -> list[str]:
        """Return up to ten trace ids of an alert's window, those with the largest weight × distance from the mean first.

        Only scores in the direction of the condition count: low ones for `below` and `drop`, high ones for `above`. For a
        measure of traces, these are the latest traces for which it is true.
        """
        store, numbers = self._store, group.numbers
        if is_operational(alert) or numbers.value is None:
            return []
        limits = {"project": alert.project, "since_ns": numbers.since_ns, "until_ns": numbers.until_ns}
        in_group = make_version_condition(alert.by, group.group) if alert.by and group.group is not None else {}
        if alert.measure is not None:
            measure = parse_measure(alert.measure)
            condition = {measure.field: (measure.operator, measure.number)}
            wanted = extend_filter(None, {**alert.filter, **in_group, **limits, **condition})
            return [trace.trace_id for trace in store.traces(wanted, limit=MAX_TRACES)]
        if alert.label is not None:
            operator = "=" if alert.above is not None else "!="
            wanted = extend_filter(None, {**limits, **in_group, "feedback": [f"{alert.key}{operator}{alert.label}"]})
            return [trace.trace_id for trace in store.traces(wanted, limit=MAX_TRACES)]
        sign = 1 if alert.above is not None else -1
        distances: dict[str, float] = {}
        for score in self._read_scores(alert, group):
            if score.trace_id is None or score.score is None or not score.live_probability:
                continue
            distance = sign * (float(score.score) - numbers.value) / score.live_probability
            if distance > 0:
                distances[score.trace_id] = max(distance, distances.get(score.trace_id, 0.0))
        ids = nlargest(_CANDIDATES if in_group else MAX_TRACES, distances, key=lambda id: distances[id])
        if not in_group:
            return ids
        wanted = extend_filter(None, {**in_group, "trace_ids": tuple(ids), "project": alert.project})
        stored = {trace.trace_id for trace in store.traces(wanted, limit=_CANDIDATES)} if ids else set()
        return [id for id in ids if id in stored][:MAX_TRACES]

    def _read_scores(self, alert: Alert, group: AlertGroup) -> list[WeightedScore]:
        """Return the scores of an alert's window, the latest first."""
        assert alert.rule is not None
        version, numbers = group.rule_version or None, group.numbers
        window = alert.project, alert.rule, alert.key, version, numbers.since_ns, numbers.until_ns
        if window != self._window:
            ask = partial(self._store.weighted, alert.rule, key=alert.key, version=version, project=alert.project)
            pages = iterate_pages(partial(ask, since_ns=numbers.since_ns, until_ns=numbers.until_ns, limit=1000))
            self._scores = list(islice(pages, MAX_SCORES_READ))
            self._window = window
        return self._scores
