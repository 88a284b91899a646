"""A rule's means, read from a store: of all that it could have looked at, not only of what it did look at."""

from __future__ import annotations

from functools import partial
from itertools import islice

from spanwise.collector.records import Rule, paged
from spanwise.collector.statistics import SampledMean, sampled_means
from spanwise.collector.stores._control import ControlStore

MOST = 100_000  # outcomes of a rule that are read, those of the newest traces first
_PAGE = 1_000


def summary(
    store: ControlStore,
    rule: Rule,
    *,
    key: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    most: int = MOST,
) -> list[SampledMean]:
    """Return per key the weighted mean of a rule's scores, of this version, with its interval.

    `since_ns` and `until_ns` select traces by their start, so that a score that was given late counts for its own day.
    Of more than `most` outcomes those of the traces that started last are read.
    """
    ask = partial(store.weighted, rule.name, key=key, version=rule.version, project=rule.project)
    pages = partial(ask, since_ns=since_ns, until_ns=until_ns, limit=min(most, _PAGE))
    return sampled_means(islice(paged(pages), most))
