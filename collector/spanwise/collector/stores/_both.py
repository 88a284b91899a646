"""Two halves as one store, and everything that crosses from one into the other."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any

from spanwise.collector._acting import ACTING, Actor
from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.filters import EVALUATOR, Filter, askable, combined, deletable
from spanwise.collector.records import AuditEvent, Retention, Target, TraceSummary
from spanwise.collector.stores._audit import VERBS as AUDITED
from spanwise.collector.stores._audit import audited, event, tell
from spanwise.collector.stores._each import each
from spanwise.collector.stores._halves import ControlHalf, Gone, TraceHalf
from spanwise.collector.stores._watched import Watched

log = logging.getLogger("spanwise.collector")
OVER_TRACES = ("traces", "feedbacks", "sessions", "aggregate")  # verbs that take a filter
EXPERIMENTS = 1_000_000  # of one dataset, at most


class Both(Watched):
    """A store of two halves: each verb is that of the half that has it, but for those that concern both.

    Across its halves a store promises order and idempotence, never one transaction. The order is such that whatever
    a crash leaves behind is found by doing the same again:

    - Deleting (and pruning): first the control half forgets decisions and queues' items about some traces, then the
      trace half removes these traces. After a crash in between the traces still pass, and are deleted next time. What
      passes at the first step goes, even if it is scored before the second.
    - Deleting an experiment: its traces, then the feedback on it, last its record, by which it is found again. With
      feedback go the traces of the evaluators that gave it.
    - Finishing a claim: first its feedback, which bears the claim's number, then the decision. After a crash in between
      the claim still stands, and the same finish again, or that of the next claim, puts both right.
    - Deciding: what is about deleted traces is left out before. One that is deleted between leaves a row, which goes
      when its claim is finished.
    - A condition on a dataset is looked up first, as the ids of its experiments: what is saved meanwhile is not seen.
    """

    def __init__(self, traces: TraceHalf, control: ControlHalf) -> None:
        self._traces, self._control = traces, control
        for half in (control, traces):
            for name in dir(half):
                if not name.startswith("_") and not hasattr(type(self), name):
                    verb = getattr(half, name)  # once, so that a verb costs nothing more
                    verb = audited(verb, self._note) if name in AUDITED else verb
                    setattr(self, name, self._over_datasets(verb) if name in OVER_TRACES else verb)

    @property
    def where(self) -> str:
        """Where the halves are."""
        return " and ".join(dict.fromkeys((self._traces.where, self._control.where)))

    def __enter__(self) -> Both:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is queued, then let go. Closing twice is harmless."""
        self._traces.close()
        self._control.close()

    def delete(self, filter: Filter | None = None, **conditions: object) -> int:
        """Remove the traces that pass, with all that speaks of them; returns how many traces."""
        asked = combined(filter, conditions)
        wanted = self._resolved(deletable(asked))
        return self._removed("delete", {"filter": asked}, wanted)

    def _removed(self, action: str, about: Mapping[str, Any], filter: Filter) -> int:
        """Remove what passes, and write down that this was done: also where it ended halfway."""
        going: list[int] = []
        try:
            return self._traces.remove(self._forgotten(filter, going))
        finally:
            if going:
                self._note(event(action, about, sum(going)))

    def _note(self, event: AuditEvent) -> None:
        """Write down what was done. It has been done: that this cannot be kept undoes nothing, and is said."""
        tell(event)
        try:
            self._control.note(event)
        except StoreError as error:
            log.error("what was done is in the log alone, for it could not be kept: %s", error)

    def each(self, filter: Filter | None = None, **conditions: object) -> Iterator[TraceSummary]:
        """All traces that pass, page by page: see `TraceStore`."""
        return each(self._traces.traces, self._resolved(askable(combined(filter, conditions))))

    def _forgotten(self, filter: Filter, going: list[int]) -> Iterator[Gone]:
        """What passes, lot by lot, each forgotten by the control half before it is given out to be removed. `going`
        takes how many traces each lot is that has been forgotten.

        Each lot is looked for where the one before ended, and once all are through, from the beginning again, until
        nothing passes: some may have begun to behind the look. What comes meanwhile stays, or it might never end.
        """
        upto = self._traces.newest()
        while gone := self._traces.passing(filter, upto=upto):
            while gone:
                self._control.forget(gone)
                going.append(len(gone.traces))
                yield gone
                gone = self._traces.passing(filter, gone.next, upto) if gone.next is not None else None

    def prune(self, rule: Retention) -> int:
        """Delete what is older, or takes more room, than a rule allows; returns how many traces that was."""
        return sum(self._removed("prune", {"rule": rule}, expired) for expired in self._traces.expire(rule))

    def prune_by_rules(self) -> None:
        """Do what the rules say that are kept."""
        before = ACTING.set(Actor("", "retention", f"process {os.getpid()}"))
        try:
            for rule in self._control.retention():
                self.prune(rule)
        finally:
            ACTING.reset(before)

    def delete_experiment(self, id: str) -> bool:
        """Remove an experiment with its traces and the feedback on it; False if there was none."""
        if not id:  # as a condition it would mean all traces that belong to none
            raise Refused("an experiment is deleted by its id, and an id is not empty")
        self.delete(experiment=id)
        while page := self._traces.feedbacks(target=Target(experiment_id=id), limit=1000):
            judgements = tuple({feedback.judge_trace_id for feedback in page if feedback.judge_trace_id})
            if judgements:
                self.delete(trace_ids=judgements, kind=EVALUATOR, experiment="")
            self._traces.delete_feedback([feedback.id for feedback in page])
        deleted = self._control.delete_experiment(id)
        if deleted:
            self._note(event("delete_experiment", {"id": id}, 1))
        return deleted

    def delete_key(self, id: str) -> bool:
        """Revoke a key; its name is written down, which nobody could look up any more."""
        keys = self._control.keys()
        named = {key.id: key.name for key in keys}
        deleted = self._control.delete_key(id)
        if deleted:
            self._note(event("delete_key", {"id": id, "name": named.get(id)}, 1))
        return deleted

    def _over_datasets(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """A verb over the traces that pass, which may also be asked for those of a dataset."""
        others = [name for name, one in signature(verb).parameters.items() if one.kind is one.KEYWORD_ONLY]

        @wraps(verb)
        def over(filter: Filter | None = None, **named: Any) -> Any:
            conditions = {name: named.pop(name) for name in list(named) if name not in others}
            return verb(self._resolved(askable(combined(filter, conditions))), **named)

        return over

    def _resolved(self, filter: Filter) -> Filter:
        """The same filter, with its dataset as the experiments over it."""
        if filter.dataset is None:
            return filter
        ids = tuple(
            experiment.id for experiment in self._control.experiments(dataset=filter.dataset, limit=EXPERIMENTS)
        )
        if filter.experiments is not None:
            ids = tuple(id for id in ids if id in filter.experiments)
        return replace(filter, dataset=None, experiments=ids)
