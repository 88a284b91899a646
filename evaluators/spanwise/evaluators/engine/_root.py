"""A traced task's own span is the root of its run, here as in production."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spanwise.collector.records import JSON, Run
from spanwise.tracer import attributes as names

_COUNTS = (names.SPANS_STARTED, names.SPANS_OPEN, names.SPANS_DROPPED, names.CALLS_SENT)


def own_root(
    runs: Sequence[Run], around: Run, *, as_returned: bool = True, wrapped: bool = False
) -> tuple[tuple[Run, ...], Run]:
    """The runs of a traced task and their root: its own span, in place of the one that was opened `around` it.

    That one stays where the task has no finished span of its own that can stand for the run: it opened none, or several
    (a wrapper that tries again), was not over in time, or came to another end: it succeeded where the run did not, or
    failed where a wrapper answered in its stead. With `wrapped`, it also stays where a wrapper returned something else.

    The root's outputs are what the task's span says. Where that is only another form of what the run came to, with
    `as_returned` False (a stream, joined), and where it says nothing, they are those of the span around.
    """
    below = [run for run in runs if run.parent_id == around.span_id]
    if len(below) != 1 or not _stands_for(below[0], around, wrapped):
        return tuple(runs), around
    own = below[0]
    counts = {name: around.attributes[name] for name in _COUNTS if name in around.attributes}
    root = replace(
        own,
        parent_id=None,
        outputs=own.outputs if as_returned and own.outputs is not None else around.outputs,
        attributes={**own.attributes, names.LOCAL_ROOT: around.span_id, **counts},
        experiment_id=around.experiment_id,
        example_id=around.example_id,
        repetition=around.repetition,
    )
    root = _counted_without(around, root, root.span_id)
    kept = tuple(
        root if run is own else _counted_without(around, run, root.span_id) for run in runs if run is not around
    )
    return kept, root


def said_none(runs: tuple[Run, ...], root: Run) -> tuple[tuple[Run, ...], Run]:
    """The runs of a task that returned None, and their root, which says so even where contents are not recorded."""
    if names.OUTPUT_VALUE in root.attributes:
        return runs, root
    said = replace(root, attributes={**root.attributes, names.OUTPUT_VALUE: "null"})
    return tuple(said if run is root else run for run in runs), said


def _stands_for(own: Run, around: Run, wrapped: bool) -> bool:
    in_time = names.LOCAL_ROOT not in own.attributes  # a span that ends after its local root names it
    said_so = not wrapped or own.outputs in (None, around.outputs)
    return in_time and said_so and (around.status == "error") == (own.status == "error")


def _counted_without(around: Run, run: Run, root_id: str) -> Run:
    """A run whose counts, if it bears any, are those of a process without the span around, and named after the root."""
    attributes = run.attributes
    if attributes.get(names.LOCAL_ROOT) != around.span_id:
        return run
    started = attributes.get(names.SPANS_STARTED)
    moved: dict[str, JSON] = {names.LOCAL_ROOT: root_id}
    if isinstance(started, int):
        moved[names.SPANS_STARTED] = started - 1
    return replace(run, attributes={**attributes, **moved})
