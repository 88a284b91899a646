"""Project-scoped store: the operations that an API key of one project may use.

An operation that cannot be restricted to a project raises `Forbidden`, and so does every operation not listed here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from spanwise.collector.errors import Forbidden, NotFound, TooLarge
from spanwise.collector.filters import Filter, extend_filter, validate_deletion_filter
from spanwise.collector.records import (
    JSON,
    Amendment,
    ChangePage,
    ConditionResult,
    DecisionExplanation,
    Experiment,
    Feedback,
    OpenRun,
    Page,
    Process,
    ProcessReport,
    Rule,
    Run,
    RunScores,
    Target,
    Trace,
    TreeNode,
    feedback_id,
    normalize_feedback,
    normalize_target,
)
from spanwise.collector.stores.capabilities import LazyTrace
from spanwise.collector.stores.control_store import ControlStore
from spanwise.collector.stores.trace_store import TraceStore

log = logging.getLogger("spanwise.collector")
R = TypeVar("R", bound=Run | OpenRun | ProcessReport | Rule | Experiment)
DEFAULT_PROJECT = "default"  # project of records that do not name one
QUERY_SIZE = 500  # maximum number of ids in a query
# Operations that a filter, or the argument `project`, restricts to a project
FILTERED_OPERATIONS = frozenset(("traces", "each", "sessions", "aggregate", "delete"))
PROJECT_ARGUMENT_OPERATIONS = frozenset(
    (
        "experiments running rules settings change_rule delete_rule "
        "cursor decisions delete_decisions claim status weighted"
    ).split()
)


class ProjectScopedStore:
    """Store restricted to one project.

    Methods without a docstring are those of `TraceStore` and `ControlStore`. They behave as if data of other projects
    did not exist.
    """

    def __init__(self, store: Any, project: str) -> None:
        self._store, self.project = store, project
        self.where = f"project {project!r}"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in FILTERED_OPERATIONS:
            return partial(self._filtered, name)
        if name in PROJECT_ARGUMENT_OPERATIONS:
            return partial(self._named, name)
        if hasattr(TraceStore, name) or hasattr(ControlStore, name):
            raise Forbidden(f"the API key is of project {self.project!r}, and {name!r} concerns more than one")
        raise AttributeError(name)

    def _filtered(self, name: str, filter: Filter | None = None, **given: Any) -> Any:
        conditions = {key: given.pop(key) for key in tuple(given) if key in Filter.__dataclass_fields__}
        asked = extend_filter(filter, conditions)
        if name == "delete":  # the caller must give a condition besides the project
            validate_deletion_filter(asked)
        return getattr(self._store, name)(replace(asked, project=self._mine(asked.project)), **given)

    def _named(self, name: str, *args: Any, project: str | None = None, **given: Any) -> Any:
        return getattr(self._store, name)(*args, project=self._mine(project), **given)

    def _mine(self, project: str | None) -> str:
        if project not in (None, DEFAULT_PROJECT, self.project):
            raise Forbidden(f"the API key is of project {self.project!r}, not of {project!r}")
        return self.project

    def owned(self, record: R) -> R:
        """Return the record, assigned to this project if it names none. Raise `Forbidden` for a record of another
        project.
        """
        project = self._mine(record.project)
        return record if record.project == project else replace(record, project=project)

    def foreign(self, trace_ids: Iterable[str | None]) -> frozenset[str]:
        """Return those of the traces that are stored under other projects."""
        ids = sorted({trace_id for trace_id in trace_ids if trace_id})
        found = set[str]()
        for start in range(0, len(ids), QUERY_SIZE):
            some = tuple(ids[start : start + QUERY_SIZE])
            traces = self._store.traces(trace_ids=some, limit=len(some))
            found |= {trace.trace_id for trace in traces if trace.project != self.project}
        return frozenset(found)

    def check(self, trace_ids: Iterable[str | None]) -> None:
        """Raise `Forbidden` for a trace of another project."""
        if foreign := self.foreign(trace_ids):
            raise self.not_mine(min(foreign))

    def not_mine(self, trace_id: str) -> Forbidden:
        """Return the error for a trace of another project."""
        return Forbidden(f"the API key is of project {self.project!r}, to which trace {trace_id!r} does not belong")

    def elsewhere(self, targets: Iterable[Target]) -> frozenset[str]:
        """Return the ids of traces and experiments among the targets that belong to other projects.

        Raise `Forbidden` for a target that belongs to no project, such as a session.
        """
        targets = list(map(normalize_target, targets))
        if any(target.trace_id is None and target.experiment_id is None for target in targets):
            raise self.no_aim()
        return self.foreign(target.trace_id for target in targets) | self.foreign_experiments(
            target.experiment_id for target in targets
        )

    def own_feedback(self, feedback: Sequence[Feedback]) -> list[Feedback]:
        """Return the feedback that this project may give, and log the number of dropped rows.

        Feedback on targets of another project is dropped without an error, which would reveal that the id exists:
        feedback on an unknown id is accepted.
        """
        rows = list(map(normalize_feedback, feedback))
        elsewhere = self.elsewhere(row.target for row in rows)
        kept = [row for row in rows if not {row.target.trace_id, row.target.experiment_id} & elsewhere]
        if len(kept) < len(rows):
            log.warning("dropped %d feedback of project %r on ids of others", len(rows) - len(kept), self.project)
        return list(map(self.spoken, kept))

    def no_aim(self) -> Forbidden:
        """Return the error for a target that belongs to no project."""
        return Forbidden(f"the API key is of project {self.project!r}: it may speak of traces and their spans")

    def spoken(self, row: Feedback) -> Feedback:
        """Return the feedback with an id unique to this project. An id chosen by a client might be in use in another
        project.
        """
        if row.id == feedback_id(row):
            return row
        return replace(row, id=sha256(repr((self.project, row.id)).encode()).hexdigest()[:32])

    # Spans and feedback

    def append(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> None:
        mine = [self.owned(run) for run in runs]
        self.check(run.trace_id for run in mine)
        self.check_experiments(run.experiment_id for run in mine)
        self._store.append(mine, self.own_feedback(feedback))

    def amend(self, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
        [here] = self.add_amendments([Amendment(trace_id, span_id, fields)])
        return here

    def add_amendments(self, amendments: Sequence[Amendment]) -> list[bool]:
        """Amend runs of this project, including those that arrive later."""
        here: list[bool] = self._store.add_amendments(list(map(self.said, amendments)))
        return here

    def said(self, amendment: Amendment) -> Amendment:
        """Return the amendment restricted to runs of this project."""
        return replace(amendment, project=self._mine(amendment.project))

    def add_feedback(self, feedback: Sequence[Feedback]) -> None:
        """Store feedback on traces, their spans and experiments, under ids that no other project has."""
        self._store.add_feedback(self.own_feedback(feedback))

    def feedback(self, target: str | Target, key: str, score: float | bool | None = None, **given: Any) -> Feedback:
        """Store human feedback on traces, their spans and experiments."""
        aim = Target(trace_id=target) if isinstance(target, str) else target
        if self.elsewhere([aim]):
            span_id = given.pop("span_id", None)
            aim = normalize_target(replace(aim, span_id=span_id) if span_id else aim)
            return Feedback(target=aim, key=key, score=score, source="human", **given)
        made: Feedback = self._store.feedback(target, key, score, **given)
        return made

    def feedbacks(self, filter: Filter | None = None, *, target: Target | None = None, **given: Any) -> Page[Feedback]:
        """Return feedback on traces, their spans and experiments."""
        if target is not None and self.elsewhere([target]):
            return Page(items=(), next=None)
        given = given if target is None else {**given, "target": target}
        page: Page[Feedback] = self._filtered("feedbacks", filter, **given)
        return page

    def trace(self, trace_id: str) -> Trace:
        trace: Trace = self._store.trace(trace_id)
        if trace.root.project != self.project:
            raise NotFound(f"there is no trace {trace_id!r} in this store")
        return trace

    def tree(self, trace_id: str, **given: Any) -> Page[TreeNode]:
        self.check_there(trace_id)
        page: Page[TreeNode] = self._store.tree(trace_id, **given)
        return page

    def runs(self, trace_id: str, **given: Any) -> Page[Run]:
        self.check_there(trace_id)
        page: Page[Run] = self._store.runs(trace_id, **given)
        return page

    def run(self, trace_id: str, span_id: str | None = None) -> Run:
        self.check_there(trace_id)
        run: Run = self._store.run(trace_id, span_id)
        return run

    def check_there(self, trace_id: str) -> None:
        """Raise `NotFound` for a trace that is not stored or belongs to another project."""
        root: Run = self._store.run(trace_id)
        if root.project != self.project:
            raise NotFound(f"there is no trace {trace_id!r} in this store")

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        return [trace for trace in self._store.many(trace_ids) if trace.root.project == self.project]

    def unread(self, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
        """Return traces as `StreamingStore.unread` does. Traces of other projects do not count towards the size
        limit.
        """
        try:
            found = self._store.unread(trace_ids)
        except TooLarge:
            found = self._store.unread([trace_id for trace_id in trace_ids if self._is_there(trace_id)])
        return [trace for trace in found if trace.root.project == self.project]

    def _is_there(self, trace_id: str) -> bool:
        with suppress(NotFound):
            self.check_there(trace_id)
            return True
        return False

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        self.check_there(trace_id)
        conditions: list[ConditionResult] = self._store.explain(trace_id, filter)
        return conditions

    def scores(self, experiment_id: str, **given: Any) -> Page[RunScores]:
        self.experiment(experiment_id)
        page: Page[RunScores] = self._store.scores(experiment_id, **given)
        return page

    def values(self, field: str, *, limit: int = 100, project: str | None = None) -> list[str]:
        found: list[str] = self._store.values(field, limit=limit, project=self._mine(project))
        return found

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """Return a page of the change feed. A page may hold fewer heads than `limit`, or none, before the end of the
        feed.
        """
        changes: ChangePage = self._store.changes(after, limit=limit, filters=filters)
        return replace(changes, heads=tuple(head for head in changes.heads if head.project == self.project))

    def add_running(self, runs: Sequence[OpenRun]) -> None:
        mine = [self.owned(run) for run in runs]
        self.check(run.trace_id for run in mine)
        self._store.add_running(mine)

    def add_reports(self, reports: Sequence[ProcessReport]) -> None:
        self._store.add_reports([self.owned(report) for report in reports])

    def processes(self, **given: Any) -> list[Process]:
        return [process for process in self._store.processes(**given) if process.project == self.project]

    # Experiments and rules

    def experiment(self, id_or_name: str) -> Experiment:
        found: Experiment = self._store.experiment(id_or_name)
        if found.project != self.project:
            raise NotFound(f"there is no experiment {id_or_name!r} in this store; `spanwise experiments` lists them")
        return found

    def save_experiment(self, *experiments: Experiment) -> None:
        mine = [self.owned(one) for one in experiments]
        self.check_experiments(one.id for one in mine)
        self._store.save_experiment(*mine)

    def foreign_experiments(self, ids: Iterable[str | None]) -> frozenset[str]:
        """Return those of the experiments that are stored under other projects. An unknown experiment belongs to no
        project.
        """
        return frozenset(id for id in set(ids) if id is not None and self._is_foreign(id))

    def _is_foreign(self, id: str) -> bool:
        try:
            there: Experiment = self._store.experiment(id)
        except NotFound:
            return False
        return there.id == id and there.project != self.project

    def check_experiments(self, ids: Iterable[str | None]) -> None:
        """Raise `Forbidden` for an experiment of another project."""
        if foreign := self.foreign_experiments(ids):
            raise self.not_my_experiment(min(foreign))

    def not_my_experiment(self, id: str) -> Forbidden:
        """Return the error for an experiment of another project."""
        return Forbidden(f"experiment {id!r} belongs to another project than {self.project!r}")

    def change_experiment(self, id: str, **fields: JSON) -> Experiment:
        changed: Experiment = self._store.change_experiment(self.experiment(id).id, **fields)
        return changed

    def delete_experiment(self, id: str) -> bool:
        return bool(self._store.delete_experiment(self.experiment(id).id))

    def save_rule(self, *rules: Rule, owner: str | None = None, activate: bool = False) -> None:
        """Put rules in force. An owner is forbidden, because a rules file may contain rules of several projects."""
        if owner is not None:
            raise Forbidden(f"the API key is of project {self.project!r}, and a file of rules may be of several")
        self._store.save_rule(*[self.owned(rule) for rule in rules], activate=activate)

    def why(self, trace_id: str) -> list[DecisionExplanation]:
        self.check_there(trace_id)
        found: list[DecisionExplanation] = self._store.why(trace_id)
        return found
