"""From claimed rows to jobs: what evaluators are to see is read, in lots of so many bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spanwise.collector.errors import NotFound
from spanwise.collector.records import Case, Decision, Finish, Trace
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors._job import Job, claim_of
from spanwise.evaluators.monitors._load import lots
from spanwise.evaluators.monitors._outcome import Outcome, unchanged
from spanwise.evaluators.monitors._seen import hash_of
from spanwise.evaluators.monitors._targets import case_at
from spanwise.evaluators.monitors._working import Working
from spanwise.evaluators.scoring import case_of, turns_of

Made = Job | Finish


class Loading:
    """`sizes` are bytes of traces, so far as they are known here."""

    def __init__(self, store: Store, sizes: Mapping[str, int]) -> None:
        self._store, self._sizes = store, sizes

    def jobs(self, working: Working, rows: Sequence[Decision], now: float) -> Iterator[Made]:
        """What is to be run, and the ends of claims of which nothing is."""
        wanted = []
        for row in rows:
            if working.to_run(row.states, now) or row.inputs_hash is not None:
                wanted.append(row)
            else:
                yield Outcome(_empty(working, row, now), working.pauses, working.memory, now).finish()
        yield from self._of_traces(working, [row for row in wanted if row.target.trace_id is not None], now)
        for row in wanted:
            if row.target.session_id is not None:
                yield _made(working, row, self._session(row), now)

    def _of_traces(self, working: Working, rows: Sequence[Decision], now: float) -> Iterator[Made]:
        by_trace: dict[str, list[Decision]] = {}
        for row in rows:
            by_trace.setdefault(row.target.trace_id or "", []).append(row)
        for lot in lots((id, self._sizes.get(id)) for id in by_trace):
            traces = {trace.trace_id: trace for trace in self._store.many(lot)}
            for id in lot:
                for row in by_trace[id]:
                    yield _made(working, row, _seen(row, traces.get(id)), now)

    def _session(self, row: Decision) -> Case | str:
        try:
            return case_of(turns_of(row.target.session_id or "", self._store, row.project))
        except NotFound:
            return "the session is not there any more"


def _seen(row: Decision, trace: Trace | None) -> Case | str:
    """What evaluators see; else why there is nothing."""
    if trace is None:
        return "the trace is not there any more"
    try:
        return case_at(row.target, trace) or "its span is not there any more"
    except Exception as error:  # values that nobody foresaw fail alone
        return f"it cannot be shown to evaluators: {type(error).__name__}: {error}"


def _made(working: Working, row: Decision, case: Case | str, now: float) -> Made:
    if isinstance(case, str):
        return Finish(claim=claim_of(row), verdict="failed", reason=case, read_change=row.runs_change)
    hashed = hash_of(case, working.evaluators)
    same = row.inputs_hash in (None, hashed)
    states = row.states if same else {}
    evaluators = working.to_run(states, now)
    job = Job(working.held, row, case, hashed, evaluators, states, working.unpaid(states, now))
    if evaluators:
        return job
    if row.inputs_hash == hashed and len(working.to_run(states, float("inf"))) == 0:
        return unchanged(job)
    return Outcome(job, working.pauses, working.memory, now).finish()


def _empty(working: Working, row: Decision, now: float) -> Job:
    unpaid = working.unpaid(row.states, now)
    return Job(working.held, row, case_of(None), row.inputs_hash or "", (), row.states, unpaid)
