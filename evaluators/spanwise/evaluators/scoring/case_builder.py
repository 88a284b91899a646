"""Case builder: what evaluators see of a trace, a session, an example or plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    """What evaluators see of a finished trace, of a session (its traces, in any order), or, with None, of values alone.

    - `inputs`, `reference_outputs` and `history` are the example's, as datasets of its `kind` show them ("kv": as they
      are, "llm" and "chat": as texts). Without an example `inputs` are those of the root.
    - `outputs` are those of the root, as `kind` shows them.
    - `documents` are what was retrieved: `()` when a retriever or reranker ran and found nothing. Where none ran, they
      are those that the example brings along, else None.
    - `expected_documents`, `conditions` and `guidelines` are the example's.
    - `metadata` are those of the root and of the example together; where both have a key, the example's counts.
    - Of a session, trace, `inputs`, `outputs` and `documents` are those of the latest turn; `history` is all of its
      turns, as messages.
    - Of a run that was tried again, all is of the attempt that counts: those that had failed are left out of `trace`.
    - `fields`, any of `Case` but None, take precedence, as they are; documents may be texts or dicts. They may also be
      called as Databricks calls its columns (`request`, `response`, `expected_response`, …).

    Raises `TypeError` for a field that there is not, for one that is given twice, and for documents that are none,
    `ValueError` for no trace at all.
    """
    if target is None:
        seen = _trace_fields(None, example, kind)
    elif isinstance(target, Trace):
        seen = _trace_fields(final_attempt(target), example, kind)
    else:
        seen = _session_fields(target, example, kind)
    seen.update(_explicit_fields(fields))
    return Case(example=example, **seen)


def normalize_case(case: Case) -> Case:
    """A case made by hand with its values as evaluators see them in `evaluate()`, and none of the caller's objects."""
    values = ((name, getattr(case, name)) for name in _NORMALIZED_FIELDS)
    changed = {name: seen for name, value in values if (seen := to_plain(value)) is not value}
    return replace(case, **changed) if changed else case


def retrieved_documents(trace: Trace) -> tuple[Document, ...] | None:
    """The retrieved context: `()` when a retrieval ran and found nothing, None when none ran."""
    documents = trace.documents
    if documents:
        return documents
    return () if any(run.kind in RETRIEVAL_KINDS for run in trace.runs) else None


def final_attempt(trace: Trace) -> Trace:
    """A trace without the attempts that had failed before: `evaluate(…, retries=…)` keeps them below its root."""
    if names.ATTEMPT not in trace.root.attributes:
        return trace
    left_out: set[str] = set()
    for run in _runs_from_root(trace):
        if run is not trace.root and (names.ATTEMPT in run.attributes or run.parent_id in left_out):
            left_out.add(run.span_id)
    return replace(trace, runs=tuple(run for run in trace.runs if run.span_id not in left_out))


def _runs_from_root(trace: Trace) -> Iterator[Run]:
    """Runs after the runs that they are below; such as are below nothing that is there come not at all."""
    below: dict[str | None, list[Run]] = {}
    for run in trace.runs:
        below.setdefault(run.parent_id, []).append(run)
    waiting = [trace.root]
    while waiting:
        run = waiting.pop()
        yield run
        waiting += below.pop(run.span_id, [])


def _trace_fields(trace: Trace | None, example: Example | None, kind: str) -> dict[str, Any]:
    seen = _input_fields(trace, example, kind)
    if trace is not None:
        seen["trace"] = trace
        seen["outputs"] = view_outputs(trace.root.outputs, kind)
    if example is not None:
        seen["expected_documents"] = example.expected_documents
        seen["conditions"] = example.conditions
        seen["guidelines"] = example.guidelines
    seen["documents"] = _case_documents(trace, example)
    seen["metadata"] = _merge_metadata(trace, example)
    return seen


def _input_fields(trace: Trace | None, example: Example | None, kind: str) -> dict[str, Any]:
    """What was asked, and what should have been answered; for a trace without an example what its root says."""
    if example is not None:
        return view_example(example, kind)
    if trace is None or kind == "kv":
        return {"inputs": trace.root.inputs if trace is not None else None}
    return view_example(Example(inputs=trace.root.inputs, id=trace.trace_id), kind)


def _session_fields(traces: Iterable[Trace], example: Example | None, kind: str) -> dict[str, Any]:
    turns = sorted(map(final_attempt, _check_traces(traces)), key=lambda trace: trace.root.start_ns)
    if not turns:
        raise ValueError("a session has at least one trace")
    asked = _trace_fields(turns[-1], None, kind)["inputs"]
    history = [message for turn in turns for message in _turn_messages(turn.root)]
    return {**_trace_fields(turns[-1], example, kind), "inputs": asked, "history": history}


def _check_traces(traces: Iterable[Any]) -> list[Trace]:
    listed = list(traces) if isinstance(traces, Iterable) else [traces]
    for member in listed:
        if not isinstance(member, Trace):
            raise TypeError(f"a case is made of a trace, of the traces of a session, or of None, not {member!r:.200}")
    return listed


def _turn_messages(root: Run) -> list[JSON]:
    """What was said in one turn: by the user, and by the assistant if it answered."""
    conversation = to_messages(unwrap_single_value(root.inputs))
    asked = conversation[-1].get("content") if conversation else unwrap_single_value(root.inputs)
    answered = view_outputs(root.outputs, "chat")
    spoken = (("user", asked), ("assistant", answered))
    return [{"role": role, "content": content} for role, content in spoken if content is not None]


def _case_documents(trace: Trace | None, example: Example | None) -> tuple[Document, ...] | None:
    documents = retrieved_documents(trace) if trace is not None else None
    return example.documents if documents is None and example is not None else documents


def _merge_metadata(trace: Trace | None, example: Example | None) -> Mapping[str, JSON]:
    of_root = trace.root.metadata if trace is not None else {}
    if example is None or not example.metadata:
        return of_root
    return {**of_root, **example.metadata} if of_root else example.metadata


def _explicit_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are given. Raises `TypeError` for one that there is not, and for one that is given twice."""
    given: dict[str, Any] = {}
    for said, value in fields.items():
        name = DATABRICKS_COLUMNS.get(said, said)
        if name not in _CASE_FIELDS:
            raise TypeError(f"a case has no field {name!r}; it has {', '.join(sorted(_CASE_FIELDS))}")
        if name in given:
            raise TypeError(f"{name!r} is given twice: {said!r} is Databricks' name of it")
        if value is not None:
            given[name] = to_documents(value) if name in _DOCUMENT_FIELDS else value
    return given


MAX_TURNS = 1_000  # of a longer session the latest
PAGE_TRACES = 100


def load_turns(session: str, where: TraceStore | str | PathLike[str] | None, project: str | None = None) -> list[Trace]:
    """The traces of a session (of one project, or of all), first start first; of all but the last, which evaluators
    see whole, the root alone.

    Raises `NotFound` for a session that has none.
    """
    if where is None or isinstance(where, str | PathLike):
        with closing(connect(where)) as store:
            return load_turns(session, store, project)
    turns: list[Trace] = []
    cursor: str | None = None
    while len(turns) < MAX_TURNS:
        page = where.traces(session=session, project=project, limit=PAGE_TRACES, cursor=cursor)
        traces = where.many([summary.trace_id for summary in page])
        turns += [trace if not turns and trace is traces[0] else _keep_root(trace) for trace in traces]
        if (cursor := page.next) is None:
            break
    if not turns:
        raise NotFound(f"session {session!r} has no traces in {where.where}")
    return turns[::-1]


def _keep_root(trace: Trace) -> Trace:
    return replace(trace, runs=(trace.root,), feedback=())
