"""The store of a worker that tells its supervisor which targets it holds, before any evaluator sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from spanwise.collector.records import Claim, Decision, Finish, Target, WorkerReport
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors._report import Teller


def telling(store: Store, teller: Teller, idle: Mapping[str, str]) -> Store:
    """The same store. `idle` are rules for which nothing is done, and why: said in this worker's reports, too."""
    return cast(Store, _Telling(store, teller, idle))


class _Telling:
    def __init__(self, store: Store, teller: Teller, idle: Mapping[str, str]) -> None:
        self._store, self._teller, self._idle = store, teller, idle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def save_rule(self, *rules: Any, **options: Any) -> None:
        self._store.save_rule(*rules, **options)
        self._teller.tell("saved")

    def claim(self, rule: str, *arguments: Any, **options: Any) -> list[Decision]:
        rows = self._store.claim(rule, *arguments, **options)
        if rows:
            self._teller.tell("claimed", claims=[_named(row) for row in rows])
        return rows

    def finish(self, *finishes: Finish) -> list[str]:
        came = self._store.finish(*finishes)
        self._teller.tell("finished", claims=[_named(finish.claim) for finish in finishes])
        return came

    def report(self, worker: WorkerReport) -> None:
        idle = worker.data.get("idle")
        mine = {**(idle if isinstance(idle, Mapping) else {}), **self._idle}
        self._store.report(replace(worker, data={**worker.data, "idle": mine}))


def _named(of: Decision | Claim) -> tuple[str, str, str]:
    return of.project, of.rule, _words(of.target)


def _words(target: Target) -> str:
    if target.session_id is not None:
        return f"session {target.session_id}"
    return f"trace {target.trace_id}" + (f", span {target.span_id}" if target.span_id else "")
