"""Case builder: the view of a trace, session, example or plain values that evaluators get."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import fields as fields_of
from dataclasses import replace
from os import PathLike
from typing import Any

from spanwise.collector import connect
from spanwise.collector.errors import NotFound
from spanwise.collector.records import JSON, Case, Document, Example, Run, Trace
from spanwise.collector.stores import TraceStore
from spanwise.evaluators.datasets import to_messages, unwrap_single_value, view_example, view_outputs
from spanwise.evaluators.interface import DATABRICKS_COLUMNS, to_documents, to_plain
from spanwise.tracer import attribute_names as names

RETRIEVAL_KINDS = frozenset({"retriever", "reranker"})
_CASE_FIELDS = frozenset(field.name for field in fields_of(Case))
_NORMALIZED_FIELDS = ("inputs", "outputs", "reference_outputs", "conditions", "guidelines", "history", "metadata")
_DOCUMENT_FIELDS = frozenset({"documents", "expected_documents"})


def make_case(
    target: Trace | Iterable[Trace] | None, example: Example | None = None, kind: str = "kv", **fields: Any
) -> Case:
    """Return the case that evaluators score. `target` is a finished trace, the traces of a session in any order, or None
    for plain values alone.

    - `inputs`, `reference_outputs` and `history` come from the example, as datasets of its `kind` show them
      ("kv": unchanged, "llm" and "chat": as texts). Without an example, `inputs` are those of the root run.
    - `outputs` are those of the root run, as `kind` shows them.
    - `documents` are the retrieved documents: `()` if a retriever or reranker ran and found nothing. If none
      ran, they are the example's documents, else None.
    - `expected_documents`, `conditions` and `guidelines` come from the example.
    - `metadata` merges that of the root run and that of the example. The example's value wins.
    - For a session, `trace`, `inputs`, `outputs` and `documents` are those of the latest turn. `history` holds
      the messages of all turns.
    - For a run that was retried, only the final attempt counts. `trace` leaves failed attempts out.
    - `fields` override these values if they are not None. They are fields of `Case` or Databricks' column names
      (`request`, `response`, `expected_response`, …). Documents may be texts or dicts.

    Raises `TypeError` for an unknown field, for a field given twice, and for invalid documents. Raises
    `ValueError` for an empty session.
    """
    if target is None:
        case_fields = _trace_fields(None, example, kind)
    elif isinstance(target, Trace):
        case_fields = _trace_fields(final_attempt(target), example, kind)
    else:
        case_fields = _session_fields(target, example, kind)
    case_fields.update(_explicit_fields(fields))
    return Case(example=example, **case_fields)


def normalize_case(case: Case) -> Case:
    """Convert the values of a case to plain values, as `evaluate()` passes them to evaluators. The result shares no
    mutable objects with the caller.
    """
    values = ((name, getattr(case, name)) for name in _NORMALIZED_FIELDS)
    changed = {name: plain for name, value in values if (plain := to_plain(value)) is not value}
    if "outputs" in changed and case.native_outputs is None:
        changed["native_outputs"] = case.outputs
    return replace(case, **changed) if changed else case


def retrieved_documents(trace: Trace) -> tuple[Document, ...] | None:
    """Return the retrieved documents: `()` if a retrieval ran and found nothing, None if none ran."""
    documents = trace.documents
    if documents:
        return documents
    return () if any(run.kind in RETRIEVAL_KINDS for run in trace.runs) else None


def final_attempt(trace: Trace) -> Trace:
    """Return the trace without its failed attempts, which `evaluate(…, retries=…)` keeps below its root run."""
    if names.ATTEMPT not in trace.root.attributes:
        return trace
    children: dict[str | None, list[Run]] = {}
    for run in trace.runs:
        children.setdefault(run.parent_id, []).append(run)
    left_out: set[str] = set()
    waiting = [trace.root]  # visits the runs that are connected to the root, each parent before its children
    while waiting:
        run = waiting.pop()
        if run is not trace.root and (names.ATTEMPT in run.attributes or run.parent_id in left_out):
            left_out.add(run.span_id)
        waiting += children.pop(run.span_id, [])
    return replace(trace, runs=tuple(run for run in trace.runs if run.span_id not in left_out))


def _trace_fields(trace: Trace | None, example: Example | None, kind: str) -> dict[str, Any]:
    fields = _input_fields(trace, example, kind)
    if trace is not None:
        fields["trace"] = trace
        fields["outputs"] = view_outputs(trace.root.outputs, kind)
    if example is not None:
        fields["expected_documents"] = example.expected_documents
        fields["conditions"] = example.conditions
        fields["guidelines"] = example.guidelines
    documents = retrieved_documents(trace) if trace is not None else None
    fields["documents"] = example.documents if documents is None and example is not None else documents
    metadata = trace.root.metadata if trace is not None else {}
    if example is not None and example.metadata:
        metadata = {**metadata, **example.metadata} if metadata else example.metadata
    fields["metadata"] = metadata
    return fields


def _input_fields(trace: Trace | None, example: Example | None, kind: str) -> dict[str, Any]:
    """Return `inputs`, and for an example also `reference_outputs` and `history`. Without an example, the root run
    supplies them.
    """
    if example is not None:
        return view_example(example, kind)
    if trace is None or kind == "kv":
        return {"inputs": trace.root.inputs if trace is not None else None}
    return view_example(Example(inputs=trace.root.inputs, id=trace.trace_id), kind)


def _session_fields(traces: Iterable[Trace], example: Example | None, kind: str) -> dict[str, Any]:
    listed: list[Any] = list(traces) if isinstance(traces, Iterable) else [traces]
    for member in listed:
        if not isinstance(member, Trace):
            raise TypeError(f"a case is built from a trace, the traces of a session, or None, got {member!r:.200}")
    turns = sorted(map(final_attempt, listed), key=lambda trace: trace.root.start_ns)
    if not turns:
        raise ValueError("a session has at least one trace")
    inputs = _trace_fields(turns[-1], None, kind)["inputs"]
    history = [message for turn in turns for message in _turn_messages(turn.root)]
    return {**_trace_fields(turns[-1], example, kind), "inputs": inputs, "history": history}


def _turn_messages(root: Run) -> list[JSON]:
    """Return the messages of one turn: the user's, and the assistant's if it answered."""
    conversation = to_messages(unwrap_single_value(root.inputs))
    question = conversation[-1].get("content") if conversation else unwrap_single_value(root.inputs)
    answer = view_outputs(root.outputs, "chat")
    messages = (("user", question), ("assistant", answer))
    return [{"role": role, "content": content} for role, content in messages if content is not None]


def _explicit_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None. Raises `TypeError` for an unknown field, and for one that is given twice."""
    explicit: dict[str, Any] = {}
    for key, value in fields.items():
        name = DATABRICKS_COLUMNS.get(key, key)
        if name not in _CASE_FIELDS:
            raise TypeError(f"unknown case field {name!r}; expected one of: {', '.join(sorted(_CASE_FIELDS))}")
        if name in explicit:
            raise TypeError(f"{name!r} is given twice: {key!r} is Databricks' name of it")
        if value is not None:
            explicit[name] = to_documents(value) if name in _DOCUMENT_FIELDS else value
    return explicit


MAX_TURNS = 1_000  # maximum traces of a session; of a longer session, the latest are used
PAGE_TRACES = 100


def load_turns(session: str, where: TraceStore | str | PathLike[str] | None, project: str | None = None) -> list[Trace]:
    """Return the traces of a session, oldest first, of one project or of all.

    Only the last trace has all of its runs, as evaluators need it in full. The others have only their root run.
    Raises `NotFound` for a session without traces.
    """
    if where is None or isinstance(where, str | PathLike):
        with closing(connect(where)) as store:
            return load_turns(session, store, project)
    turns: list[Trace] = []
    cursor: str | None = None
    while len(turns) < MAX_TURNS:
        page = where.traces(session=session, project=project, limit=PAGE_TRACES, cursor=cursor)
        traces = where.many([summary.trace_id for summary in page])
        turns += [
            trace if not turns and trace is traces[0] else replace(trace, runs=(trace.root,), feedback=())
            for trace in traces
        ]
        if (cursor := page.next) is None:
            break
    if not turns:
        raise NotFound(f"session {session!r} has no traces in {where.where}")
    return turns[::-1]
