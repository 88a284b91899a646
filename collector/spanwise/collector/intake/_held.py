"""What a key of one project sends, held to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spanwise.collector.dialects import Amendment, LogItem
from spanwise.collector.errors import Forbidden
from spanwise.collector.intake._errors import BesideRefused, ItemRefused
from spanwise.collector.records import Feedback, OpenRun, ProcessReport, Run
from spanwise.collector.stores import Store
from spanwise.collector.stores.project import ProjectStore


def held(store: Store, project: str, items: Sequence[Run | LogItem]) -> tuple[list[Any], list[ItemRefused]]:
    """The items as the project's own, and why others are refused: theirs, or their trace's, is another project."""
    mine: list[Any] = []
    refusals: list[ItemRefused] = []
    for one in weighed(store, project, items):
        (refusals if isinstance(one, ItemRefused) else mine).append(one)
    return mine, refusals


def weighed(store: Store, project: str, items: Sequence[Run | LogItem]) -> list[Any]:
    """Each item as the project's own, or why it is refused."""
    view = ProjectStore(store, project)
    foreign = view.foreign(_trace_id(item) for item in items)
    others = view.foreign_experiments(_experiment_id(item) for item in items)
    beside = isinstance(items[0], Run) if items else False  # what is no run, then, was said beside one
    found: list[Any] = []
    for item in items:
        try:
            if (trace_id := _trace_id(item)) in foreign:
                raise view.not_mine(trace_id or "")
            if (experiment_id := _experiment_id(item)) in others:
                raise view.not_my_experiment(experiment_id or "")
            found.append(_owned(view, item))
        except Forbidden as error:
            if beside and not isinstance(item, Run):
                found.append(BesideRefused("project", str(error)))
            else:
                found.append(ItemRefused("project", str(error), item))
    return found


def _trace_id(item: Run | LogItem) -> str | None:
    if isinstance(item, Feedback):
        return item.target.trace_id
    return item.trace_id if isinstance(item, Run | OpenRun | Amendment) else None


def _experiment_id(item: Run | LogItem) -> str | None:
    if isinstance(item, Feedback):
        return item.target.experiment_id
    return item.experiment_id if isinstance(item, Run) else None


def _owned(view: ProjectStore, item: Run | LogItem) -> Run | LogItem:
    if isinstance(item, Run | OpenRun | ProcessReport):
        return view.owned(item)
    if isinstance(item, Feedback) and item.target.session_id is not None:
        raise view.no_aim()
    if isinstance(item, Amendment):
        return view.said(item)
    return view.spoken(item) if isinstance(item, Feedback) else item
