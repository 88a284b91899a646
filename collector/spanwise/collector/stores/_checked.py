"""How far each judge agrees with people, read from a store: what stands beside its mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from spanwise.collector.records import Feedback, Source, Target, paged
from spanwise.collector.statistics import Checked, check
from spanwise.collector.stores._traces import TraceStore

MOST = 1_000  # votes of a key that are read, newest first
_AT_ONCE = 100  # traces asked for in one question: their ids travel in an address


class Checks:
    """What votes say of judges, each question asked of the store once: made for one request, or one table."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._read: dict[str, tuple[list[Feedback], list[Feedback]]] = {}
        self._checked: dict[tuple[str, str | None], Checked] = {}

    def of(self, key: str, version: str | None = None) -> Checked:
        """One version of a judge (None: the newest) against people's votes under the same key."""
        if (key, version) not in self._checked:
            if key not in self._read:
                votes = votes_of(self._store, key)
                self._read[key] = list(judgements(self._store, key, [vote.target for vote in votes])), votes
            self._checked[key, version] = check(*self._read[key], version)
        return self._checked[key, version]

    def said(self, judges: Mapping[str, str | None]) -> dict[str, str]:
        """Per key of a judge, at a version, the sentence that stands beside its mean."""
        return {key: str(self.of(key, version).agreement) for key, version in judges.items()}


def votes_of(store: TraceStore, key: str, most: int = MOST) -> list[Feedback]:
    """People's feedback under a key, newest first."""
    return list(islice(paged(partial(store.feedbacks, key=key, source="human", limit=MOST)), most))


def judgements(store: TraceStore, key: str, targets: Sequence[Target], source: Source = "model") -> Iterator[Feedback]:
    """What models, or code, have said under a key of these targets, or of other parts of the same traces."""
    traces = list(dict.fromkeys(target.trace_id for target in targets if target.trace_id is not None))
    for place in range(0, len(traces), _AT_ONCE):
        ids = tuple(traces[place : place + _AT_ONCE])
        yield from paged(partial(store.feedbacks, key=key, source=source, trace_ids=ids, limit=MOST))
    for target in dict.fromkeys(target for target in targets if target.trace_id is None):
        yield from store.feedbacks(key=key, source=source, target=target, limit=MOST)
