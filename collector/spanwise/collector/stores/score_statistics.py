"""Statistics over stored scores: agreement of judges with people, and weighted means of rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from spanwise.collector.records import Experiment, Feedback, Rule, Source, Target, iterate_pages
from spanwise.collector.statistics import JudgeCheck, SampledMean, check_judge, estimate_means
from spanwise.collector.stores.control_store import ControlStore
from spanwise.collector.stores.trace_store import TraceStore

MAX_LABELS = 1_000  # maximum number of human labels per key, newest first
_TRACES_PER_QUERY = 100  # traces per query; their ids are part of a URL


class JudgeAgreement:
    """Agreement of judges with human feedback. Each query is sent once, so create one instance per request or table."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._read: dict[str, tuple[list[Feedback], list[Feedback]]] = {}
        self._checked: dict[tuple[str, str | None], JudgeCheck] = {}

    def of(self, key: str, version: str | None = None) -> JudgeCheck:
        """Compare a version of a judge (None: the newest) with human feedback under the same key."""
        if (key, version) not in self._checked:
            if key not in self._read:
                votes = list_human_feedback(self._store, key)
                self._read[key] = list(list_judge_scores(self._store, key, [vote.target for vote in votes])), votes
            self._checked[key, version] = check_judge(*self._read[key], version)
        return self._checked[key, version]

    def said(self, judges: Mapping[str, str | None]) -> dict[str, str]:
        """Return a sentence on the agreement for each judge, given by key and version."""
        return {key: str(self.of(key, version).agreement) for key, version in judges.items()}


def get_judge_keys(experiment: Experiment) -> dict[str, str | None]:
    """Return the keys that judges score, with the judges' versions, from the experiment's list of evaluators."""
    return {
        str(metric["key"]): version if isinstance(version := evaluator.get("version"), str) else None
        for evaluator in experiment.evaluators
        if evaluator.get("source") == "model" and isinstance(metrics := evaluator.get("metrics"), list)
        for metric in metrics
        if isinstance(metric, Mapping) and "key" in metric
    }


def list_human_feedback(store: TraceStore, key: str, most: int = MAX_LABELS) -> list[Feedback]:
    """Return human feedback under a key, newest first."""
    return list(islice(iterate_pages(partial(store.feedbacks, key=key, source="human", limit=MAX_LABELS)), most))


def list_judge_scores(
    store: TraceStore, key: str, targets: Sequence[Target], source: Source = "model"
) -> Iterator[Feedback]:
    """Yield scores of models (or code) under a key on these targets or on other parts of the same traces."""
    traces = list(dict.fromkeys(target.trace_id for target in targets if target.trace_id is not None))
    for start in range(0, len(traces), _TRACES_PER_QUERY):
        ids = tuple(traces[start : start + _TRACES_PER_QUERY])
        yield from iterate_pages(partial(store.feedbacks, key=key, source=source, trace_ids=ids, limit=MAX_LABELS))
    for target in dict.fromkeys(target for target in targets if target.trace_id is None):
        yield from store.feedbacks(key=key, source=source, target=target, limit=MAX_LABELS)


MAX_OUTCOMES = 100_000  # maximum number of outcomes per rule; those of the latest traces are read first
_PAGE_SIZE = 1_000


def summarize_rule(
    store: ControlStore,
    rule: Rule,
    *,
    key: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    most: int = MAX_OUTCOMES,
) -> list[SampledMean]:
    """Return, for each key, the weighted mean of the scores of this version of a rule, with its interval.

    `since_ns` and `until_ns` select traces by start time, so a late score counts for the day of its trace. If there are
    more than `most` outcomes, only those of the latest traces are read.
    """
    ask = partial(store.weighted, rule.name, key=key, version=rule.version, project=rule.project)
    pages = partial(ask, since_ns=since_ns, until_ns=until_ns, limit=min(most, _PAGE_SIZE))
    return estimate_means(islice(iterate_pages(pages), most))
