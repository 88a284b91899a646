"""How far each judge agrees with people, read from a store: what stands beside its mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from assay.collector.records import Feedback, Target, paged
from assay.collector.statistics import Checked, check
from assay.collector.stores._traces import TraceStore

MOST = 1_000  # votes of a key that are read, newest first
_AT_ONCE = 100  # traces asked for in one question: their ids travel in an address


def checked(store: TraceStore, versions: Mapping[str, str | None]) -> dict[str, Checked]:
    """Per key of a judge, at the version named (None: the newest): its feedback against people's under the same key."""
    return {key: check_of(store, key, version) for key, version in versions.items()}


def check_of(store: TraceStore, key: str, version: str | None = None, votes_under: str | None = None) -> Checked:
    """One judge's key against people's votes under the same key, or under another."""
    votes = votes_of(store, votes_under or key)
    return check(judgements(store, key, [vote.target for vote in votes]), votes, version)


def votes_of(store: TraceStore, key: str, most: int = MOST) -> list[Feedback]:
    """People's feedback under a key, newest first."""
    return list(islice(paged(partial(store.feedbacks, key=key, source="human", limit=MOST)), most))


def judgements(store: TraceStore, key: str, targets: Sequence[Target]) -> Iterator[Feedback]:
    """What models have said under a key of these targets, or of other parts of the same traces."""
    traces = list(dict.fromkeys(target.trace_id for target in targets if target.trace_id is not None))
    for place in range(0, len(traces), _AT_ONCE):
        ids = tuple(traces[place : place + _AT_ONCE])
        yield from paged(partial(store.feedbacks, key=key, source="model", trace_ids=ids, limit=MOST))
    for target in dict.fromkeys(target for target in targets if target.trace_id is None):
        yield from store.feedbacks(key=key, source="model", target=target, limit=MOST)
