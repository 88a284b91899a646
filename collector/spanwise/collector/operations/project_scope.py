"""Project-scoped store: the operations that an API key of one project may use.

The column `project` of `spanwise.collector.operations.operation_table` says how each operation is restricted:

- "filter": its filter gets the project.
- "argument": its argument `project` is set.
- "trace": its argument `trace_id` must be a trace of the project.
- "method": a method of `ProjectScopedStore` checks arguments and results.
- "forbidden", the default: it raises `Forbidden`, because it cannot be restricted to a project.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from spanwise.collector.errors import Forbidden, NotFound, TooLarge
from spanwise.collector.filters import Filter, extend_filter, validate_deletion_filter
from spanwise.collector.operations.operation_table import PROJECT_SCOPES
from spanwise.collector.records import (
    JSON,
    Alert,
    Amendment,
    ChangePage,
    Experiment,
    Feedback,
    OpenRun,
    Page,
    Process,
    ProcessReport,
    Rule,
    Run,
    RunScores,
    TablePage,
    Target,
    Trace,
    TraceSummary,
    assign_session_project,
    feedback_id,
    normalize_feedback,
    normalize_target,
)
from spanwise.collector.stores import LazyTrace, Store
from spanwise.collector.stores.flat_tables import EXAMPLES, build_frame, find_table
from spanwise.collector.stores.store_interfaces import make_human_feedback

if TYPE_CHECKING:
    import pandas

log = logging.getLogger("spanwise.collector")
R = TypeVar("R", bound=Run | OpenRun | ProcessReport | Rule | Experiment | Alert)
DEFAULT_PROJECT = "default"  # project of records that do not name one
QUERY_SIZE = 500  # maximum number of ids in a query


class ProjectScopedStore:
    """Store restricted to one project.

    Methods without a docstring are those of `TraceStore` and `ControlStore`. They behave as if data of other projects
    did not exist.
    """

    def __init__(self, store: Any, project: str) -> None:
        self._store, self.project = store, project
        self.where = f"project {project!r}"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        scope = PROJECT_SCOPES.get(name)
        if scope == "filter":
            return partial(self._call_with_filter, name)
        if scope == "argument":
            return partial(self._call_with_project, name)
        if scope == "trace":
            return partial(self._call_on_trace, name)
        if scope is None and not hasattr(Store, name):
            raise AttributeError(name)
        raise self._forbidden(f"the operation {name!r} covers all projects")

    def _forbidden(self, reason: str) -> Forbidden:
        return Forbidden(f"the API key is limited to project {self.project!r}; {reason}")

    def _call_with_filter(self, name: str, /, filter: Filter | None = None, **options: Any) -> Any:
        conditions = {key: options.pop(key) for key in tuple(options) if key in Filter.__dataclass_fields__}
        wanted = extend_filter(filter, conditions)
        if name == "delete":  # the caller must give a condition besides the project
            validate_deletion_filter(wanted)
        return getattr(self._store, name)(
            filter=replace(wanted, project=self._check_project(wanted.project)), **options
        )

    def _call_with_project(self, name: str, /, *args: Any, project: str | None = None, **kwargs: Any) -> Any:
        return getattr(self._store, name)(*args, project=self._check_project(project), **kwargs)

    def _call_on_trace(self, name: str, /, trace_id: str, *args: Any, **kwargs: Any) -> Any:
        self._check_visible(trace_id)
        return getattr(self._store, name)(trace_id, *args, **kwargs)

    def _check_project(self, project: str | None) -> str:
        if project not in (None, DEFAULT_PROJECT, self.project):
            raise self._forbidden(f"it cannot access project {project!r}")
        return self.project

    def _check_visible(self, trace_id: str) -> None:
        """Raise `NotFound` for a trace that is not stored or belongs to another project."""
        root: Run = self._store.run(trace_id)
        if root.project != self.project:
            raise NotFound(f"there is no trace {trace_id!r} in this store")

    # Checks of records, also for ingest

    def assign_project(self, record: R) -> R:
        """Return the record, assigned to this project if it names none. Raise `Forbidden` for a record of another
        project.
        """
        project = self._check_project(record.project)
        return record if record.project == project else replace(record, project=project)

    def foreign_traces(self, trace_ids: Iterable[str | None]) -> frozenset[str]:
        """Return those of the traces that are stored under other projects."""
        ids = sorted({trace_id for trace_id in trace_ids if trace_id})
        foreign = set[str]()
        for start in range(0, len(ids), QUERY_SIZE):
            batch = tuple(ids[start : start + QUERY_SIZE])
            traces = self._store.traces(trace_ids=batch, limit=len(batch))
            foreign |= {trace.trace_id for trace in traces if trace.project != self.project}
        return frozenset(foreign)

    def foreign_experiments(self, ids: Iterable[str | None]) -> frozenset[str]:
        """Return those of the experiments that are stored under other projects. An unknown experiment belongs to no
        project.
        """
        foreign = set[str]()
        for id in {id for id in ids if id is not None}:
            with suppress(NotFound):
                experiment: Experiment = self._store.experiment(id)
                if experiment.id == id and experiment.project != self.project:
                    foreign.add(id)
        return frozenset(foreign)

    def foreign_targets(self, targets: Iterable[Target]) -> frozenset[str]:
        """Return the ids of traces and experiments among the targets that belong to other projects.

        Raise `Forbidden` for a session of another project.
        """
        targets = list(map(normalize_target, targets))
        for target in targets:
            self._check_session(target)
        return self.foreign_traces(target.trace_id for target in targets) | self.foreign_experiments(
            target.experiment_id for target in targets
        )

    def foreign_error(self, kind: str, id: str) -> Forbidden:
        """Return the error for a trace or an experiment of another project."""
        return self._forbidden(f"{kind} {id!r} belongs to another project")

    def _check_session(self, target: Target) -> Target:
        """Return the target; a session is that of this project. Raise `Forbidden` for a session of another project."""
        if target.session_id is None:
            return target
        if target.project not in (None, self.project):
            raise self.foreign_error("session", target.session_id)
        return replace(target, project=self.project)

    def scope_amendment(self, amendment: Amendment) -> Amendment:
        """Return the amendment restricted to runs of this project."""
        return replace(amendment, project=self._check_project(amendment.project))

    def scope_feedback(self, feedback: Feedback) -> Feedback:
        """Return the feedback with an id unique to this project. An id chosen by a client might be in use in another
        project. Raise `Forbidden` for a session of another project.
        """
        self._check_session(feedback.target)
        feedback = assign_session_project(feedback, self.project)
        if feedback.id == feedback_id(feedback):
            return feedback
        return replace(feedback, id=sha256(repr((self.project, feedback.id)).encode()).hexdigest()[:32])

    def _scope_feedback_list(self, feedback: Sequence[Feedback]) -> list[Feedback]:
        """Return the feedback that this project may give, and log the number of dropped rows.

        Feedback on targets of another project is dropped without an error, which would reveal that the id exists:
        feedback on an unknown id is accepted.
        """
        rows = list(map(normalize_feedback, feedback))
        foreign = self.foreign_targets(row.target for row in rows)
        accepted = [row for row in rows if not {row.target.trace_id, row.target.experiment_id} & foreign]
        if dropped := len(rows) - len(accepted):
            log.warning("dropped %d feedback of project %r on targets of other projects", dropped, self.project)
        return list(map(self.scope_feedback, accepted))

    def _check_ids(self, trace_ids: Iterable[str | None] = (), experiment_ids: Iterable[str | None] = ()) -> None:
        """Raise `Forbidden` for a trace or an experiment of another project."""
        if foreign := self.foreign_traces(trace_ids):
            raise self.foreign_error("trace", min(foreign))
        if foreign := self.foreign_experiments(experiment_ids):
            raise self.foreign_error("experiment", min(foreign))

    # Operations on spans and feedback

    def append(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> None:
        own = [self.assign_project(run) for run in runs]
        self._check_ids((run.trace_id for run in own), (run.experiment_id for run in own))
        self._store.append(own, self._scope_feedback_list(feedback))

    def amend(self, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
        [is_stored] = self.add_amendments([Amendment(trace_id, span_id, fields)])
        return is_stored

    def add_amendments(self, amendments: Sequence[Amendment]) -> list[bool]:
        """Amend runs of this project, including those that arrive later."""
        is_stored: list[bool] = self._store.add_amendments(list(map(self.scope_amendment, amendments)))
        return is_stored

    def add_feedback(self, feedback: Sequence[Feedback]) -> None:
        """Store feedback on traces, their spans, sessions and experiments, under ids that no other project has."""
        self._store.add_feedback(self._scope_feedback_list(feedback))

    def feedback(self, target: str | Target, key: str, score: float | bool | None = None, **options: Any) -> Feedback:
        """Store human feedback on traces, their spans, sessions and experiments."""
        row = make_human_feedback(target, key, score, **options)
        if self.foreign_targets([row.target]):  # dropped, as in `add_feedback`
            return row
        if row.target.session_id is not None:
            target = self._check_session(row.target)
        stored: Feedback = self._store.feedback(target, key, score, **options)
        return stored

    def feedbacks(
        self, filter: Filter | None = None, *, target: Target | None = None, **options: Any
    ) -> Page[Feedback]:
        """Return feedback on traces, their spans, sessions and experiments."""
        if target is not None and self.foreign_targets([target]):
            return Page(items=(), next=None)
        options = options if target is None else {**options, "target": self._check_session(target)}
        page: Page[Feedback] = self._call_with_filter("feedbacks", filter, **options)
        return page

    def each(self, filter: Filter | None = None, **conditions: object) -> Iterator[TraceSummary]:
        traces: Iterator[TraceSummary] = self._call_with_filter("each", filter, **conditions)
        return traces

    def table_page(self, table: str, filter: Filter | None = None, **options: Any) -> TablePage:
        if find_table(table) is EXAMPLES:
            raise self._forbidden("datasets, and with them the table 'examples', cover all projects")
        page: TablePage = self._call_with_filter("table_page", filter, table=table, **options)
        return page

    def to_pandas(self, table: str, filter: Filter | None = None, **conditions: object) -> pandas.DataFrame:
        return build_frame(self, table, extend_filter(filter, conditions))

    def trace(self, trace_id: str) -> Trace:
        trace: Trace = self._store.trace(trace_id)
        if trace.root.project != self.project:
            raise NotFound(f"there is no trace {trace_id!r} in this store")
        return trace

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        return [trace for trace in self._store.many(trace_ids) if trace.root.project == self.project]

    def load_traces(self, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
        """Return traces as `StreamingStore.load_traces` does. Traces of other projects do not count towards the size
        limit.
        """
        try:
            found = self._store.load_traces(trace_ids)
        except TooLarge:
            visible = []
            for trace_id in trace_ids:
                with suppress(NotFound):
                    self._check_visible(trace_id)
                    visible.append(trace_id)
            found = self._store.load_traces(visible)
        return [trace for trace in found if trace.root.project == self.project]

    def scores(self, experiment_id: str, **options: Any) -> Page[RunScores]:
        self.experiment(experiment_id)
        page: Page[RunScores] = self._store.scores(experiment_id, **options)
        return page

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """Return a page of the change feed. A page may hold fewer heads than `limit`, or none, before the end of the
        feed.
        """
        changes: ChangePage = self._store.changes(after, limit=limit, filters=filters)
        return replace(changes, heads=tuple(head for head in changes.heads if head.project == self.project))

    def add_running(self, runs: Sequence[OpenRun]) -> None:
        own = [self.assign_project(run) for run in runs]
        self._check_ids(run.trace_id for run in own)
        self._store.add_running(own)

    def add_reports(self, reports: Sequence[ProcessReport]) -> None:
        self._store.add_reports([self.assign_project(report) for report in reports])

    def processes(self, **options: Any) -> list[Process]:
        return [process for process in self._store.processes(**options) if process.project == self.project]

    # Operations on experiments and rules

    def experiment(self, id_or_name: str) -> Experiment:
        found: Experiment = self._store.experiment(id_or_name)
        if found.project != self.project:
            raise NotFound(f"there is no experiment {id_or_name!r} in this store; `spanwise experiments` lists them")
        return found

    def save_experiment(self, *experiments: Experiment) -> None:
        own = [self.assign_project(experiment) for experiment in experiments]
        self._check_ids(experiment_ids=(experiment.id for experiment in own))
        self._store.save_experiment(*own)

    def change_experiment(self, id: str, **fields: JSON) -> Experiment:
        changed: Experiment = self._store.change_experiment(self.experiment(id).id, **fields)
        return changed

    def delete_experiment(self, id: str) -> bool:
        return bool(self._store.delete_experiment(self.experiment(id).id))

    def save_alert(self, *alerts: Alert, owner: str | None = None) -> None:
        """Save alerts. An owner is forbidden, because a rules file may contain alerts of several projects."""
        if owner is not None:
            raise self._forbidden(f"the rules file {owner!r} may contain alerts of several projects")
        self._store.save_alert(*map(self.assign_project, alerts))

    def save_rule(self, *rules: Rule, owner: str | None = None, activate: bool = False) -> None:
        """Put rules in force. An owner is forbidden, because a rules file may contain rules of several projects."""
        if owner is not None:
            raise self._forbidden(f"the rules file {owner!r} may contain rules of several projects")
        self._store.save_rule(*map(self.assign_project, rules), activate=activate)
