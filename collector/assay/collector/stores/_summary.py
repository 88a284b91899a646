"""A rule's means, read from a store: of all that it could have looked at, not only of what it did look at."""

from __future__ import annotations

from functools import partial
from itertools import islice

from assay.collector.records import paged
from assay.collector.statistics import SampledMean, sampled_means
from assay.collector.stores._control import ControlStore

MOST = 20_000  # outcomes of a rule that are read, newest first
_PAGE = 1_000


def summary(
    store: ControlStore,
    rule: str,
    *,
    key: str | None = None,
    version: str | None = None,
    project: str = "default",
    since_ns: int | None = None,
    until_ns: int | None = None,
    most: int = MOST,
) -> list[SampledMean]:
    """Per key the weighted mean of a rule's scores with its interval; of all its versions, or one."""
    ask = partial(store.weighted, rule, key=key, version=version, project=project, limit=_PAGE)
    return sampled_means(islice(paged(partial(ask, since_ns=since_ns, until_ns=until_ns)), most))
