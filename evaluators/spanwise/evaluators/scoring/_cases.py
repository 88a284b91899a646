"""The one maker of a `Case`: of a trace, of a session, or of values by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

from spanwise.collector.records import JSON, Case, Document, Example, Run, Trace
from spanwise.evaluators.datasets import messages, only, view, view_outputs
from spanwise.evaluators.protocol import DATABRICKS, documents_of, plain
from spanwise.tracer import attributes as names

RETRIEVAL = frozenset({"retriever", "reranker"})
_FIELDS = frozenset(field.name for field in fields_of(Case))
_VALUES = ("inputs", "outputs", "reference_outputs", "conditions", "guidelines", "history", "metadata")
_LISTS = frozenset({"documents", "expected_documents"})


def case_of(
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
        seen = _of_trace(None, example, kind)
    elif isinstance(target, Trace):
        seen = _of_trace(that_counts(target), example, kind)
    else:
        seen = _of_session(target, example, kind)
    seen.update(_given(fields))
    return Case(example=example, **seen)


def as_seen(case: Case) -> Case:
    """A case made by hand with its values as evaluators see them in `evaluate()`, and none of the caller's objects."""
    values = ((name, getattr(case, name)) for name in _VALUES)
    changed = {name: seen for name, value in values if (seen := plain(value)) is not value}
    return replace(case, **changed) if changed else case


def retrieved(trace: Trace) -> tuple[Document, ...] | None:
    """The retrieved context: `()` when a retrieval ran and found nothing, None when none ran."""
    documents = trace.documents
    if documents:
        return documents
    return () if any(run.kind in RETRIEVAL for run in trace.runs) else None


def that_counts(trace: Trace) -> Trace:
    """A trace without the attempts that had failed before: `evaluate(…, retries=…)` keeps them below its root."""
    if names.ATTEMPT not in trace.root.attributes:
        return trace
    left_out: set[str] = set()
    for run in _from_above(trace):
        if run is not trace.root and (names.ATTEMPT in run.attributes or run.parent_id in left_out):
            left_out.add(run.span_id)
    return replace(trace, runs=tuple(run for run in trace.runs if run.span_id not in left_out))


def _from_above(trace: Trace) -> Iterator[Run]:
    """Runs after the runs that they are below; such as are below nothing that is there come not at all."""
    below: dict[str | None, list[Run]] = {}
    for run in trace.runs:
        below.setdefault(run.parent_id, []).append(run)
    waiting = [trace.root]
    while waiting:
        run = waiting.pop()
        yield run
        waiting += below.pop(run.span_id, [])


def _of_trace(trace: Trace | None, example: Example | None, kind: str) -> dict[str, Any]:
    seen = _asked(trace, example, kind)
    if trace is not None:
        seen["trace"] = trace
        seen["outputs"] = view_outputs(trace.root.outputs, kind)
    if example is not None:
        seen["expected_documents"] = example.expected_documents
        seen["conditions"] = example.conditions
        seen["guidelines"] = example.guidelines
    seen["documents"] = _documents(trace, example)
    seen["metadata"] = _metadata(trace, example)
    return seen


def _asked(trace: Trace | None, example: Example | None, kind: str) -> dict[str, Any]:
    """What was asked, and what should have been answered; for a trace without an example what its root says."""
    if example is not None:
        return view(example, kind)
    if trace is None or kind == "kv":
        return {"inputs": trace.root.inputs if trace is not None else None}
    return view(Example(inputs=trace.root.inputs, id=trace.trace_id), kind)


def _of_session(traces: Iterable[Trace], example: Example | None, kind: str) -> dict[str, Any]:
    turns = sorted(map(that_counts, _checked(traces)), key=lambda trace: trace.root.start_ns)
    if not turns:
        raise ValueError("a session has at least one trace")
    asked = _of_trace(turns[-1], None, kind)["inputs"]
    history = [message for turn in turns for message in _messages(turn.root)]
    return {**_of_trace(turns[-1], example, kind), "inputs": asked, "history": history}


def _checked(traces: Iterable[Any]) -> list[Trace]:
    listed = list(traces) if isinstance(traces, Iterable) else [traces]
    for member in listed:
        if not isinstance(member, Trace):
            raise TypeError(f"a case is made of a trace, of the traces of a session, or of None, not {member!r:.200}")
    return listed


def _messages(root: Run) -> list[JSON]:
    """What was said in one turn: by the user, and by the assistant if it answered."""
    conversation = messages(only(root.inputs))
    asked = conversation[-1].get("content") if conversation else only(root.inputs)
    answered = view_outputs(root.outputs, "chat")
    spoken = (("user", asked), ("assistant", answered))
    return [{"role": role, "content": content} for role, content in spoken if content is not None]


def _documents(trace: Trace | None, example: Example | None) -> tuple[Document, ...] | None:
    documents = retrieved(trace) if trace is not None else None
    return example.documents if documents is None and example is not None else documents


def _metadata(trace: Trace | None, example: Example | None) -> Mapping[str, JSON]:
    of_root = trace.root.metadata if trace is not None else {}
    if example is None or not example.metadata:
        return of_root
    return {**of_root, **example.metadata} if of_root else example.metadata


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are given. Raises `TypeError` for one that there is not, and for one that is given twice."""
    given: dict[str, Any] = {}
    for said, value in fields.items():
        name = DATABRICKS.get(said, said)
        if name not in _FIELDS:
            raise TypeError(f"a case has no field {name!r}; it has {', '.join(sorted(_FIELDS))}")
        if name in given:
            raise TypeError(f"{name!r} is given twice: {said!r} is Databricks' name of it")
        if value is not None:
            given[name] = documents_of(value) if name in _LISTS else value
    return given
