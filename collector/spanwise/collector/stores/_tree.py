"""The runs of a trace as a tree: depth-first, children below their parents by start time, each run once."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from spanwise.collector.records import Branch, Status


class Line(NamedTuple):
    """What of a run is needed to place it."""

    span_id: str
    parent_id: str | None
    name: str
    kind: str
    status: Status
    start_ns: int
    end_ns: int


def branch(position: int, depth: int, line: Line, known: Container[str], feedback: int = 0, failed: int = 0) -> Branch:
    """The record of a run in its place; `known` are the ids of all runs of the trace."""
    return Branch(
        **line._asdict(),
        position=position,
        depth=depth,
        lost_parent=line.parent_id is not None and line.parent_id not in known,
        feedback=feedback,
        failed=failed,
    )


def in_order(lines: Sequence[Line]) -> Iterator[tuple[int, Line]]:
    """Depths and runs. Without recursion: parents that form a ring do not hide their runs."""
    latest_first = sorted(lines, key=attrgetter("start_ns", "end_ns"), reverse=True)
    children = _children(latest_first)
    seen: set[str] = set()
    for start in (children.get(None, []), latest_first):
        stack = [(0, line) for line in start if line.span_id not in seen]
        while stack:
            depth, line = stack.pop()
            if line.span_id in seen:
                continue
            seen.add(line.span_id)
            yield depth, line
            if below := children.get(line.span_id):
                stack += [(depth + 1, child) for child in below]


def _children(lines: Sequence[Line]) -> dict[str | None, list[Line]]:
    """By parent, those whose parent is not there under None."""
    known = {line.span_id for line in lines}
    children: dict[str | None, list[Line]] = {}
    for line in lines:
        children.setdefault(line.parent_id if line.parent_id in known else None, []).append(line)
    return children
