"""Review of an agent's session: failed model and tool runs, tool calls without a result, a missing final answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spanwise.collector.records import OpenRun, Run, Trace
from spanwise.evaluators.interface.tool_calls import (
    extract_tool_calls,
    find_unanswered_calls,
    get_tool_name,
    iterate_ancestors,
    map_parents,
    select_agent_runs,
)
from spanwise.tracer import attribute_names as names

MAX_MESSAGE_LENGTH = 300  # in characters
_RUN_NAMES = {"llm": "model run", "tool": "tool run"}


@dataclass(frozen=True, slots=True)
class SessionProblem:
    """Problem of an agent's session, with the trace id and the span id of its run.

    `kind` is "failed_run", "no_result" or "no_answer".
    """

    kind: str
    message: str
    run: str
    trace_id: str
    span_id: str

    def to_dict(self) -> dict[str, str]:
        """Return plain values for metadata."""
        return asdict(self)


def review_session(trace: Trace, outputs: Any) -> list[SessionProblem]:
    """Return the problems of the agent's session in a trace. `outputs` is its final answer, or None if it is unknown."""
    return [*_find_failed_runs(trace), *_find_calls_without_result(trace), *_find_missing_answer(trace, outputs)]


def _make_problem(kind: str, message: str, run: Run | OpenRun) -> SessionProblem:
    return SessionProblem(kind, message[:MAX_MESSAGE_LENGTH], run.name[:MAX_MESSAGE_LENGTH], run.trace_id, run.span_id)


def _find_failed_runs(trace: Trace) -> Iterator[SessionProblem]:
    """Yield failed model and tool runs. A failed run inside another run of the same call is not reported again."""
    runs = select_agent_runs(trace)
    parents = map_parents(runs)
    for run in runs:
        if _has_failed(run) and not any(_is_same_call(run, above) for above in iterate_ancestors(run, parents)):
            error = run.error or "no message"
            yield _make_problem("failed_run", f"{_RUN_NAMES[run.kind]} {run.name!r} failed: {error}", run)


def _has_failed(run: Run) -> bool:
    return run.kind in _RUN_NAMES and run.status == "error"


def _is_same_call(run: Run, above: Run) -> bool:
    """Return whether a failed run repeats a failed run above it, as the span of a client library does."""
    if not _has_failed(above) or above.kind != run.kind:
        return False
    return run.kind == "llm" or get_tool_name(run) == get_tool_name(above)


def _find_calls_without_result(trace: Trace) -> Iterator[SessionProblem]:
    """Yield tool runs that have not ended, and tool calls of models that were not answered."""
    open_names: Counter[str] = Counter()
    for run in trace.running:
        if run.kind == "tool":
            open_names[run.name] += 1
            yield _make_problem("no_result", f"tool run {run.name!r} has not ended", run)
    for call in find_unanswered_calls(trace):
        if open_names[call.name]:
            open_names[call.name] -= 1
        else:
            yield _make_problem("no_result", f"tool call {call.name!r} has no result", call.run)


def _find_missing_answer(trace: Trace, outputs: Any) -> Iterator[SessionProblem]:
    if outputs is not None or has_returned_null(trace):
        is_missing = not _is_answer(outputs)
    else:
        is_missing = trace.root.status == "error" or _ends_without_reply(trace)
    if is_missing:
        yield _make_problem("no_answer", "the session has no final answer", trace.root)


def has_returned_null(trace: Trace) -> bool:
    """Return whether the agent returned None, in contrast to an answer that was not recorded."""
    return trace.root.attributes.get(names.OUTPUT_VALUE) == "null"


def _is_answer(outputs: Any) -> bool:
    """Return whether outputs contain more than empty texts. Artifacts alone are an answer."""
    if isinstance(outputs, Mapping) and "artifacts" in outputs and len(outputs) > 1:
        outputs = {name: value for name, value in outputs.items() if name != "artifacts"}
    return _has_content(outputs)


def _has_content(value: Any) -> bool:
    """Return whether a value contains anything but None, blank texts and empty containers."""
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, Mapping):
            waiting += inner.values()
        elif isinstance(inner, list | tuple):
            waiting += inner
        elif inner is not None and not (isinstance(inner, str) and not inner.strip()):
            return True
    return False


def _ends_without_reply(trace: Trace) -> bool:
    """Return whether the last recorded reply of a model is blank or requests tools. False if no reply was recorded."""
    replies = [run for run in select_agent_runs(trace) if run.kind == "llm" and run.outputs is not None]
    if not replies:
        return False
    last = max(replies, key=lambda run: run.end_ns)
    return not _has_content(last.outputs) or bool(extract_tool_calls(Trace(last, (last,))))
