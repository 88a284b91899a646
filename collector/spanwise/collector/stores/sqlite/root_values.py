"""Derived inputs and outputs of roots, for readers that have not read all runs of their traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spanwise.collector.records import JSON, Run
from spanwise.collector.stores.derived_values import Node, derivable_of, find_values, with_values
from spanwise.collector.stores.sqlite._reader import Reader
from spanwise.collector.stores.sqlite._sql import find_many

_NODES = f"SELECT trace, id, {','.join(Node._fields)} FROM spans WHERE trace IN (%s)"


def values_of_roots(reader: Reader, wanted: Mapping[int, tuple[str, tuple[str, ...]]]) -> dict[int, dict[str, JSON]]:
    """Return derived values by trace. `wanted` has the span id of its root and the fields it lacks for each trace."""
    nodes: dict[int, list[tuple[int, Node]]] = {trace: [] for trace in wanted}
    for trace, row, *fields in find_many(reader.db, _NODES, wanted) if wanted else ():
        nodes[trace].append((row, Node(*fields)))
    return {trace: _values(reader, *of_root, nodes[trace]) for trace, of_root in wanted.items()}


def _values(
    reader: Reader, root_id: str, wanted: tuple[str, ...], nodes: Sequence[tuple[int, Node]]
) -> dict[str, JSON]:
    rows = {node.span_id: row for row, node in nodes}

    def read(span_id: str) -> tuple[JSON, JSON]:
        [(_, payload)] = reader.payloads([rows[span_id]])
        return payload.get("inputs"), payload.get("outputs")

    return find_values(root_id, wanted, [node for _, node in nodes], read)


def complete_root_of(reader: Reader, trace: int, root: Run) -> Run:
    """Return the root of the trace with this key, with the values that can be derived."""
    if root.inputs is not None and root.outputs is not None:
        return root
    [count] = reader.db.execute("SELECT span_count FROM traces WHERE id = ?", (trace,)).fetchone()
    wanted = derivable_of(root, count)
    return with_values(root, values_of_roots(reader, {trace: (root.span_id, wanted)})[trace]) if wanted else root
