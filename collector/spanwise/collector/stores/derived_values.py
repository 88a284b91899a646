"""Inputs and outputs of a root that has none of its own: those of the first and the last run below it.

Some SDKs (OpenAI Agents, Logfire) record content only on the calls inside a trace. Stores fill in these values when
they read a root, so that lists, pages, exports and evaluators see the same; what is stored stays as it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from spanwise.collector.records import JSON, Run
from spanwise.tracer import attributes as names

DERIVED = "spanwise.derived"  # attribute of a root: the fields that are derived, such as ["inputs", "outputs"]
AWAITS = "spanwise.awaits"  # attribute: the fields that a dialect expects in other messages
MOST_RUNS = 1_000  # of a trace; the roots of larger traces keep their fields empty
MOST_READ = 16  # runs that are read in search of one value
ASIDE = frozenset(("evaluator", "guardrail"))  # kinds of runs that check a result and do not make it


class Node(NamedTuple):
    """A run's place in the tree of its trace."""

    span_id: str
    parent_id: str | None
    kind: str
    start_ns: int
    end_ns: int


def derivable(
    inputs: JSON, outputs: JSON, attributes: Mapping[str, JSON], *, documents: object, status: str, runs: int
) -> tuple[str, ...]:
    """Return which of `inputs` and `outputs` a root lacks and may get from the other runs of a trace of so many runs.

    Documents are outputs, and so is the None that a function returned. A failed or cancelled root ended without any.
    """
    if (inputs is not None and outputs is not None) or not 1 < runs <= MOST_RUNS:
        return ()
    awaited = attributes.get(AWAITS)
    awaited = awaited if isinstance(awaited, list) else []
    has_inputs = inputs is not None or names.INPUT_VALUE in attributes or "inputs" in awaited
    has_outputs = outputs is not None or bool(documents) or names.OUTPUT_VALUE in attributes or "outputs" in awaited
    wanted = () if has_inputs else ("inputs",)
    return wanted if has_outputs or status in ("error", "cancelled") else (*wanted, "outputs")


def derivable_of(root: Run, runs: int) -> tuple[str, ...]:
    """Return the same of a root that has been read."""
    documents, status = root.documents, root.status
    return derivable(root.inputs, root.outputs, root.attributes, documents=documents, status=status, runs=runs)


def find_values(
    root_id: str, wanted: Iterable[str], runs: Sequence[Node], read: Callable[[str], tuple[JSON, JSON]]
) -> dict[str, JSON]:
    """Return the wanted fields as far as the runs below a root have them.

    `runs` are all runs of the trace; `read` returns inputs and outputs of the run with a span id.
    """
    found = {}
    for field in wanted:
        at = 1 if field == "outputs" else 0
        searched = islice(_below(root_id, runs, latest=field == "outputs"), MOST_READ)
        value = next((value for run in searched if (value := read(run.span_id)[at]) is not None), None)
        if value is not None:
            found[field] = value
    return found


def with_values(root: Run, values: Mapping[str, Any]) -> Run:
    """Return a root with derived values, which its attribute `spanwise.derived` names; the same root without any."""
    return replace(root, **values, attributes={**root.attributes, DERIVED: list(values)}) if values else root


def derived_fields(run: Run) -> tuple[str, ...]:
    """Return which of a run's fields, `inputs` and `outputs`, are derived."""
    fields = run.attributes.get(DERIVED)
    return tuple(field for field in ("inputs", "outputs") if isinstance(fields, list) and field in fields)


def complete_root(root: Run, runs: Sequence[Run]) -> Run:
    """Return the root of a trace, given all of its runs, with the values that can be derived."""
    wanted = derivable_of(root, len(runs))
    if not wanted:
        return root
    by_id = {run.span_id: (run.inputs, run.outputs) for run in runs}
    nodes = [Node(run.span_id, run.parent_id, run.kind, run.start_ns, run.end_ns) for run in runs]
    return with_values(root, find_values(root.span_id, wanted, nodes, by_id.__getitem__))


def _below(root_id: str, runs: Sequence[Node], *, latest: bool) -> Iterator[Node]:
    """The runs below a root, each before its children, the first to start or the last to end first."""
    children: dict[str | None, list[Node]] = {}
    for run in sorted(runs, key=lambda run: (-run.end_ns, -run.start_ns) if latest else (run.start_ns, run.end_ns)):
        if run.kind not in ASIDE and run.span_id != root_id:
            children.setdefault(run.parent_id, []).append(run)
    waiting = children.pop(root_id, [])[::-1]
    while waiting:
        run = waiting.pop()
        yield run
        waiting += children.pop(run.span_id, [])[::-1]
