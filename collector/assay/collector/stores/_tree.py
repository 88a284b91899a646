"""The runs of a trace as a tree: depth-first, children below their parents by start time, each run once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from assay.collector.records import Branch, Status


class Line(NamedTuple):
    """What of a run is needed to place it."""

    span_id: str
    parent_id: str | None
    name: str
    kind: str
    status: Status
    start_ns: int
    end_ns: int


class Placed(NamedTuple):
    """A run in the order of the tree."""

    position: int
    depth: int
    line: Line


def in_order(lines: Sequence[Line]) -> list[Placed]:
    """Without recursion: parents that form a ring do not hide their runs."""
    return [Placed(position, depth, line) for position, (line, depth) in enumerate(_walk(lines))]


def branch(placed: Placed, known: set[str], feedback: int = 0, failed: int = 0) -> Branch:
    """The record of a run in its place; `known` are the ids of all runs of the trace."""
    line = placed.line
    return Branch(
        **line._asdict(),
        position=placed.position,
        depth=placed.depth,
        lost_parent=line.parent_id is not None and line.parent_id not in known,
        feedback=feedback,
        failed=failed,
    )


def _walk(lines: Sequence[Line]) -> Iterator[tuple[Line, int]]:
    known = {line.span_id for line in lines}
    children: dict[str | None, list[Line]] = defaultdict(list)
    latest_first = sorted(lines, key=lambda line: (line.start_ns, line.end_ns), reverse=True)
    for line in latest_first:
        children[line.parent_id if line.parent_id in known else None].append(line)
    seen: set[str] = set()
    for start in (children[None], latest_first):
        stack = [(line, 0) for line in start if line.span_id not in seen]
        while stack:
            line, depth = stack.pop()
            if line.span_id in seen:
                continue
            seen.add(line.span_id)
            yield line, depth
            stack += [(child, depth + 1) for child in children[line.span_id]]
