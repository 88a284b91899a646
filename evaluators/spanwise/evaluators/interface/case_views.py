"""Copy-on-access views of cases, traces and runs, and the tool calls of a trace.

Plain values are copied. Records (a run with its trace, an example, a document) become views, which copy a field on
first access. Built-in evaluators change nothing, and get the original objects.
"""

from __future__ import annotations

import copy
import datetime
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from typing import Any, ClassVar

import orjson

from spanwise.collector.records import Case, Document, Example, Run, Trace

# Copy-on-access views of cases, traces and runs, so that evaluators cannot change shared data.

IMMUTABLE_TYPES = frozenset({str, int, float, bool, type(None), bytes})  # immutable types, whose values need no copies
_RUN_TYPES = frozenset({"chain", "llm", "retriever", "tool", "embedding", "prompt", "parser"})  # LangSmith's run types


def copy_value(value: Any) -> Any:
    """Return a copy that may be changed without affecting the original.

    Values that cannot be copied are returned as they are.
    """
    try:
        return _copy_container(value)
    except RecursionError:  # the value is nested hundreds of levels deep, or circular
        return value


def _copy_container(value: Any) -> Any:
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if kind is dict:
        return {
            key: member if type(member) in IMMUTABLE_TYPES else _copy_container(member) for key, member in value.items()
        }
    if kind is list:
        return [member if type(member) in IMMUTABLE_TYPES else _copy_container(member) for member in value]
    if kind is tuple:
        return tuple([_copy_container(member) for member in value])
    view = _VIEW_FACTORIES.get(kind)
    return view(value) if view is not None else _deep_copy(value)


def _deep_copy(value: Any) -> Any:
    if isinstance(value, RecordView):
        return value
    try:
        return copy.deepcopy(value)
    except RecursionError:
        raise
    except Exception:  # the value cannot be copied, such as an open file, a lock or a read-only mapping
        return value


class RecordView:
    """View of a record that copies its fields on access. Each subclass also derives from the class of its record."""

    __slots__ = ()
    _record: ClassVar[type]
    _names: ClassVar[frozenset[str]]
    _of: Any

    def __init_subclass__(cls) -> None:
        cls._record = cls.__bases__[1]
        cls._names = frozenset(field.name for field in fields_of(cls._record))
        cls.__dataclass_fields__ = cls._record.__dataclass_fields__  # type: ignore[attr-defined]  # orjson looks here

    def __getattr__(self, name: str) -> Any:  # called only for attributes that are not set yet
        if name not in self._names:
            raise AttributeError(f"a {self._record.__name__.lower()} has no {name!r}", name=name, obj=self)
        value = self._copy_of(name)
        object.__setattr__(self, name, value)
        return value

    def _copy_of(self, name: str) -> Any:
        value = getattr(self._of, name)
        return value if type(value) in IMMUTABLE_TYPES else copy_value(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, self._record):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._names)

    __hash__ = None  # type: ignore[assignment]  # records hold dicts: they have none either


class DocumentView(RecordView, Document):
    """Copy-on-access view of a document."""

    __slots__ = ("_of",)


class ExampleView(RecordView, Example):
    """Copy-on-access view of an example."""

    __slots__ = ("_of",)


class TraceView(RecordView, Trace):
    """Copy-on-access view of a trace."""

    __slots__ = ("_of", "_tree")
    _tree: RunTree

    def _copy_of(self, name: str) -> Any:
        if name == "root":
            return _make_run_view(self._of.root, self._tree)
        if name == "runs":
            of_root = self._of.root
            return tuple([self.root if run is of_root else _make_run_view(run, self._tree) for run in self._of.runs])
        return RecordView._copy_of(self, name)


class CaseView(RecordView, Case):
    """Copy-on-access view of a case."""

    __slots__ = ("_of",)


class RunView(RecordView, Run):
    """Copy-on-access view of a run that also has LangSmith's attributes: `child_runs`, `run_type`, `start_time`, …

    As in LangSmith, a root run has its trace id as its id. Any other run has its span id.
    """

    __slots__ = ("_of", "_tree")
    _tree: RunTree

    @property
    def id(self) -> str:
        """Return the run's id in the form that `target_run_id` accepts."""
        return self._tree.id_of(self._of)

    @property
    def child_runs(self) -> list[RunView]:
        """Return the direct children, by start time."""
        return [_make_run_view(run, self._tree) for run in self._tree.below(self._of)]

    @property
    def child_run_ids(self) -> list[str]:
        """Return the ids of the direct children."""
        return [self._tree.id_of(run) for run in self._tree.below(self._of)]

    @property
    def parent_run_id(self) -> str | None:
        """Return the id of the parent run, None at the root."""
        return self._tree.parent_id_of(self._of)

    @property
    def run_type(self) -> str:
        """Return the run's kind under LangSmith's name; "chain" for kinds that LangSmith lacks."""
        return self.kind if self.kind in _RUN_TYPES else "chain"

    @property
    def start_time(self) -> datetime.datetime:
        """Return the start in UTC."""
        return _to_datetime(self.start_ns)

    @property
    def end_time(self) -> datetime.datetime | None:
        """Return the end in UTC; None while the run is open."""
        return _to_datetime(self.end_ns) if self.end_ns else None

    @property
    def latency(self) -> float | None:
        """Return the seconds from start to end; None while the run is open."""
        return self.duration_ns / 1e9 if self.end_ns else None

    @property
    def reference_example_id(self) -> str | None:
        """Return the id of the run's example."""
        return self.example_id

    @property
    def extra(self) -> dict[str, Any]:
        """Return the metadata under LangSmith's name."""
        return {"metadata": self.metadata}

    @property
    def prompt_tokens(self) -> int | None:
        """Return the input tokens of the run itself, without its children."""
        return self._of.usage.input_tokens if self._of.usage else None

    @property
    def completion_tokens(self) -> int | None:
        """Return the output tokens of the run itself, without its children."""
        return self._of.usage.output_tokens if self._of.usage else None

    @property
    def total_tokens(self) -> int | None:
        """Return the tokens of the run itself, without its children."""
        return self._of.usage.total_tokens if self._of.usage else None


class RunTree:
    """Parent-child index of the runs of a trace, built on first use."""

    __slots__ = ("_below", "_trace")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._below: dict[str | None, list[Run]] | None = None

    def below(self, run: Run) -> list[Run]:
        """Return the direct children of a run, by start time."""
        if self._below is None:
            self._below = {}
            for member in self._trace.runs:
                self._below.setdefault(member.parent_id, []).append(member)
        return self._below.get(run.span_id, [])

    def id_of(self, run: Run) -> str:
        """Return LangSmith's id of a run."""
        return run.trace_id if run.span_id == self._trace.root.span_id else run.span_id

    def parent_id_of(self, run: Run) -> str | None:
        """Return LangSmith's id of the parent run."""
        return run.trace_id if run.parent_id == self._trace.root.span_id else run.parent_id


def make_case_view(case: Case) -> Case:
    """Return a copy-on-access view of a case."""
    return case if isinstance(case, RecordView) else _make_view(CaseView, case)


def make_langsmith_example(case: Case) -> Example | None:
    """Return the example of a case in LangSmith's form, with the reference under `outputs`."""
    if case.example is None:
        return None
    example: Example = _make_view(ExampleView, case.example)
    object.__setattr__(example, "outputs", example.reference_outputs)
    return example


def _make_view(kind: Any, record: Any) -> Any:
    view = object.__new__(kind)
    object.__setattr__(view, "_of", record)
    return view


def _make_trace_view(trace: Trace) -> Any:
    view = _make_view(TraceView, trace)
    object.__setattr__(view, "_tree", RunTree(trace))
    return view


def _make_run_view(run: Run, tree: RunTree) -> Any:
    view = _make_view(RunView, run)
    object.__setattr__(view, "_tree", tree)
    return view


def _to_datetime(nanoseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(nanoseconds / 1e9, datetime.UTC)


_VIEW_FACTORIES: Mapping[type, Any] = {
    Case: make_case_view,
    Trace: _make_trace_view,
    Run: lambda run: _make_run_view(run, RunTree(Trace(run, (run,)))),
    Example: lambda example: _make_view(ExampleView, example),
    Document: lambda document: _make_view(DocumentView, document),
}


# Tool calls of a trace, read from tool spans and from the messages of model runs.

# Span attributes that hold a tool's name: OTel GenAI, OpenInference, the AI SDK, Haystack, Traceloop
TOOL_NAME_ATTRIBUTES = tuple(
    "gen_ai.tool.name tool.name ai.toolCall.name haystack.tool.name traceloop.entity.name".split()
)
CALL_ID_ATTRIBUTES = ("gen_ai.tool.call.id", "tool_call.id", "tool.id", "ai.toolCall.id", "tool_call_id")
# prefixes of the span names of tools; the tool's name follows
SPAN_NAME_PREFIXES = ("execute_tool ", "tools/call ", "running tool: ", "Function: ")
LOGFIRE_SPAN_NAME = "Function: {name}"  # Logfire's span name for tools of OpenAI Agents
# Keys of a model's reply whose values contain messages, parts of messages or calls
CONTAINER_KEYS = (
    "choices message messages delta generations generation kwargs data content contents parts blocks output outputs "
    "response candidates replies tool_calls toolCalls raw additional_kwargs"
).split()
CALL_LIST_KEYS = ("tool_calls", "toolCalls")
# LangChain and LlamaIndex repeat the calls in the vendor's format under these keys
DUPLICATE_KEYS = ("raw", "additional_kwargs")
# roles of messages that are not the model's
OTHER_ROLES = frozenset(("user", "human", "system", "developer", "tool", "function", "ipython"))
ARGUMENT_KEYS = ("arguments", "args", "input", "tool_kwargs", "parameters")
CALL_ID_KEYS = ("id", "call_id", "tool_call_id", "toolCallId", "toolUseId")
CALL_TYPES = frozenset(  # values of `type` that mark a call
    "tool_call tool-call tool_use server_tool_use mcp_tool_use server_tool_call function_call custom_tool_call "
    "mcp_call toolCall".split()
)
# keys whose value is an object that represents a call
WRAPPER_KEYS = ("function_call", "functionCall", "toolUse", "tool_call")
# end of the types of calls to hosted tools in OpenAI's Responses API, such as "web_search_call"
HOSTED_CALL_SUFFIX = "_call"
# types of calls with that end whose tool the application runs
CLIENT_CALL_TYPES = frozenset(("tool_call", "function_call", "custom_tool_call"))
TOOL_ROLES = frozenset(("tool", "function", "ipython"))  # roles of messages that hold a tool's result
RESULT_TYPE_SUFFIXES = ("_result", "_output", "_response", "-result")
RESULT_ID_KEYS = ("tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "call_id", "id")
MAX_DEPTH = 16  # maximum nesting of a reply


@dataclass(slots=True)
class ToolCall:
    """Tool call: its name, the possible values of its arguments, its id, and the run from which it was read."""

    name: str
    arguments: list[Any]
    id: str | None
    time_ns: int
    run: Run
    executed: bool = False


def extract_tool_calls(trace: Trace) -> list[ToolCall] | None:
    """Return the tool calls of an agent by start time; None if the trace has neither tool spans nor model messages.

    A call that a model requested and the span of the tool that ran are the same call. They are matched by the call's
    id. Without an id they are matched by name, and if several calls have the same name, by arguments. A call without
    a tool span gets the end time of its model run. Runs below evaluators are left out.
    """
    runs = select_agent_runs(trace)
    spans = [run for run in runs if run.kind == "tool"]
    # the messages of a model run are known if its reply was recorded, or if it failed without a reply
    models = [
        run
        for run in runs
        if run.kind == "llm" and (run.outputs is not None or (run.status == "error" and run.inputs is not None))
    ]
    if not spans and not models:
        return None
    requests = _RequestedCalls(models, runs)
    executed = [call for run in _filter_outermost(spans, runs) if (call := requests.executed(run))]
    requested = [call for call in requests.all if not call.executed]
    return sorted([*requested, *executed], key=lambda call: call.time_ns)


def find_unanswered_calls(trace: Trace) -> list[ToolCall]:
    """Return the tool calls that models requested and that neither a tool span nor a message answers.

    Results are found by the call's id. Calls without an id are answered in order by the results with their name.
    Calls of hosted tools are answered by the model's server.
    """
    requested = [call for call in extract_tool_calls(trace) or () if call.run.kind == "llm"]
    if not requested:
        return []
    ids: set[str] = set()
    # later messages repeat the earlier ones, so the run with most results of a name has all of them
    counts: Counter[str] = Counter()
    for run in select_agent_runs(trace):
        names: Counter[str] = Counter()
        for id, name in _iterate_results([run.inputs, run.outputs]):
            if id:
                ids.add(id)
            elif name:
                names[name] += 1
        counts |= names
    unanswered = []
    for call in requested:
        if call.id is None and counts[call.name] > 0:
            counts[call.name] -= 1
        elif call.id is None or call.id not in ids:
            unanswered.append(call)
    return unanswered


def get_tool_name(run: Run) -> str:
    """Return the name of the tool that a span of kind "tool" ran."""
    name = _read_attribute(run, ("name",)) if run.name == LOGFIRE_SPAN_NAME else None
    name = name or _read_attribute(run, TOOL_NAME_ATTRIBUTES)
    for prefix in SPAN_NAME_PREFIXES:
        if not name and run.name.startswith(prefix) and len(run.name) > len(prefix):
            return run.name[len(prefix) :]
    return name or run.name


def parse_arguments(arguments: Any) -> Any:
    """Parse a tool call's arguments, which models give as JSON text."""
    if not isinstance(arguments, str) or not arguments.lstrip().startswith("{"):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


@dataclass(slots=True)
class _RequestedCalls:
    """Calls that models requested, in order, for matching with tool spans."""

    models: list[Run]
    runs: list[Run]
    all: list[ToolCall] = field(default_factory=list)
    _by_key: dict[tuple[str, ...], list[ToolCall]] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        parents = map_parents(self.runs)
        calls = {run.span_id: list(_iterate_calls(run.outputs)) for run in self.models}
        for run in sorted(self.models, key=lambda run: max(run.start_ns, run.end_ns)):
            if any(calls.get(above.span_id) for above in iterate_ancestors(run, parents)):
                # a run above has calls: LangChain's model run repeats the reply of OpenAI's client run inside it
                continue
            ids: set[str] = set()
            for name, arguments, id in calls[run.span_id]:
                # pydantic-ai requests structured output by such a call
                is_output = name.startswith("final_result") and run.attributes.get("otel.scope.name") == "pydantic-ai"
                if id not in ids and not is_output:
                    self._add(ToolCall(name, [arguments], id, max(run.start_ns, run.end_ns), run))
                ids |= {id} if id else set()

    def _add(self, call: ToolCall) -> None:
        exact = _make_exact_key(call.name, call.arguments[0])
        known = self._by_key.get(("id", call.id), ()) if call.id else ()
        if any(exact == _make_exact_key(other.name, other.arguments[0]) for other in known):
            # a repeated call; other arguments under the same id are another call, because some servers restart ids in
            # each reply
            return
        self.all.append(call)
        for key in (*([("id", call.id)] if call.id else ()), exact, ("name", call.name)):
            self._by_key.setdefault(key, []).append(call)

    def executed(self, run: Run) -> ToolCall | None:
        """Return the call that a tool span executed. Return None if the call is already known, as for a second
        attempt.
        """
        name, arguments, id = get_tool_name(run), [parse_arguments(run.inputs)], _read_call_id(run)
        if isinstance(arguments[0], Mapping) and len(arguments[0]) == 1:
            # the only argument may be a dict that holds all arguments of the request
            inner = parse_arguments(next(iter(arguments[0].values())))
            arguments += [inner] if isinstance(inner, Mapping) else []
        keys: list[tuple[str, ...]] = [("id", id)] if id else []
        exact = [_make_exact_key(name, each) for each in arguments]
        if not id or ("id", id) not in self._by_key:
            keys += [*exact, ("name", name)]
        request = next(filter(None, (self._first(key, run) for key in keys)), None)
        if id:
            if request is None and id in self._ids:
                return None
            self._ids.add(id)
        if request is None:
            return ToolCall(name, arguments, id, run.start_ns, run)
        request.executed = True
        named = _read_attribute(run, TOOL_NAME_ATTRIBUTES) or request.name
        return ToolCall(named, [*arguments, *request.arguments], id or request.id, run.start_ns, run)

    def _first(self, key: tuple[str, ...], run: Run) -> ToolCall | None:
        """Return the first call under a key that has no tool span yet and was requested before this span started."""
        calls = self._by_key.get(key, [])
        while calls and calls[0].executed:
            calls.pop(0)
        return calls[0] if calls and calls[0].run.start_ns <= run.start_ns else None


def select_agent_runs(trace: Trace) -> list[Run]:
    """Return the runs by start time, without evaluator runs and the runs below them."""
    runs, root = sorted(trace.runs, key=lambda run: run.start_ns), trace.root.span_id
    if not any(run.kind == "evaluator" for run in runs):
        return runs
    parents = map_parents(runs)
    return [
        run
        for run in runs
        if all(each.kind != "evaluator" or each.span_id == root for each in (run, *iterate_ancestors(run, parents)))
    ]


def map_parents(runs: list[Run]) -> Mapping[str, Run]:
    """Return the parent run by span id, for all runs whose parent is among them."""
    known = {run.span_id: run for run in runs}
    return {run.span_id: known[run.parent_id] for run in runs if run.parent_id in known}


def iterate_ancestors(run: Run, parents: Mapping[str, Run]) -> Iterator[Run]:
    visited = {run.span_id}
    parent = parents.get(run.span_id)
    while parent is not None and parent.span_id not in visited:
        visited.add(parent.span_id)
        yield parent
        parent = parents.get(parent.span_id)


def _filter_outermost(spans: list[Run], runs: list[Run]) -> Iterator[Run]:
    """Yield tool spans that are not inside another span of the same tool.

    For example, an MCP client opens a span inside the agent's span for the same call.
    """
    parents = map_parents(runs)
    for run in spans:
        name, id = get_tool_name(run), _read_call_id(run)
        same_tool = [
            each for each in iterate_ancestors(run, parents) if each.kind == "tool" and get_tool_name(each) == name
        ]
        if not any(id is None or _read_call_id(each) in (None, id) for each in same_tool):
            yield run


def _read_attribute(run: Run, names: tuple[str, ...]) -> str | None:
    values = (run.attributes.get(name) for name in names)
    return next((value for value in values if isinstance(value, str) and value), None)


def _read_call_id(run: Run) -> str | None:
    """Return the id of the call that a tool span executed. LangChain records it in the message that the tool
    returned.
    """
    if id := _read_attribute(run, CALL_ID_ATTRIBUTES):
        return id
    result = run.outputs if isinstance(run.outputs, Mapping) else {}
    inner = result.get("data")
    id = (inner if isinstance(inner, Mapping) else result).get("tool_call_id")
    return id if isinstance(id, str) and id else None


def _make_exact_key(name: str, arguments: Any) -> tuple[str, ...]:
    try:
        return ("exact", name, orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS, default=str).decode())
    except TypeError:  # the arguments contain values that JSON cannot represent
        return ("exact", name, repr(arguments))


def _iterate_calls(reply: Any, depth: int = 0) -> Iterator[tuple[str, Any, str | None]]:
    """Yield (name, arguments, id) of the tool calls in a model's reply, in the formats of all vendors."""
    if depth > MAX_DEPTH:
        return
    if isinstance(reply, list | tuple):
        for each in reply:
            yield from _iterate_calls(each, depth + 1)
    elif isinstance(reply, Mapping):
        if call := _read_call(reply):
            yield call
            return
        role, kind = reply.get("role"), reply.get("type")
        is_tool_result = isinstance(kind, str) and kind.endswith(("_result", "_output", "_response"))
        is_other_role = isinstance(role, str) and role in OTHER_ROLES
        if not is_other_role and not is_tool_result:
            yield from _iterate_nested_calls(reply, depth)


def _iterate_nested_calls(reply: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any, str | None]]:
    """Yield the calls inside an object. `DUPLICATE_KEYS` are read only if the keys before them contain no calls."""
    has_calls = False
    for key in CONTAINER_KEYS:
        if key not in reply or (has_calls and key in DUPLICATE_KEYS):
            continue
        listed = reply[key] if key in CALL_LIST_KEYS else None
        calls = (
            filter(None, map(_read_list_element, listed))
            if isinstance(listed, list | tuple)
            else _iterate_calls(reply[key], depth + 1)
        )
        for call in calls:
            has_calls = True
            yield call


def _iterate_results(messages: Any) -> Iterator[tuple[str | None, str | None]]:
    """Yield (call id, tool name) of the tool results in messages, in the formats of all vendors."""
    waiting: list[Any] = [messages]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, Mapping):
            kind = value.get("type")
            if _read_call(value) is not None:
                if isinstance(kind, str) and kind.endswith(HOSTED_CALL_SUFFIX) and kind not in CLIENT_CALL_TYPES:
                    yield _read_text(value, RESULT_ID_KEYS), None
                continue
            if _is_tool_result(value):
                origin = value.get("origin")  # Haystack
                named = origin if isinstance(origin, Mapping) else value
                yield _read_text(named, RESULT_ID_KEYS), _read_text(named, ("name", "tool_name", "toolName"))
            waiting += value.values()


def _is_tool_result(value: Mapping[str, Any]) -> bool:
    role, kind = value.get("role"), value.get("type")
    if isinstance(role, str) and role in TOOL_ROLES:
        return True
    if isinstance(kind, str) and kind.endswith(RESULT_TYPE_SUFFIXES):
        return True
    # Gemini's results have a name and a response; those of other vendors refer to the call, or to its origin
    is_response = "response" in value and "name" in value
    return is_response or "origin" in value or any(key in value for key in RESULT_ID_KEYS if key != "id")


def _read_text(value: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    return next((text for key in keys if isinstance(text := value.get(key), str) and text), None)


def _read_call(value: Mapping[str, Any]) -> tuple[str, Any, str | None] | None:
    """Return the call that an object represents, or None."""
    kind, function = value.get("type"), value.get("function")
    if isinstance(function, Mapping) and "arguments" in function:  # OpenAI Chat Completions
        return _read_call_fields(function, value)
    for key in WRAPPER_KEYS:  # Gemini, Bedrock, Haystack
        if isinstance(inner := value.get(key), Mapping) and not value.get("tool_calls"):
            return _read_call_fields(inner, value)
    is_call = isinstance(kind, str) and kind in CALL_TYPES
    if is_call or "tool_kwargs" in value:  # GenAI, Anthropic, OpenAI's Responses, LangChain, LlamaIndex
        return _read_call_fields(value, value)
    if isinstance(kind, str) and kind.endswith(HOSTED_CALL_SUFFIX) and not kind.startswith("invalid"):
        return _read_call_fields(
            {"name": kind.removesuffix(HOSTED_CALL_SUFFIX), "arguments": value.get("action")}, value
        )
    return None


def _read_list_element(value: Any) -> tuple[str, Any, str | None] | None:
    """Return the call that an element of `tool_calls` represents. There the element needs no `type`."""
    if not isinstance(value, Mapping):
        return None
    function = value.get("function")
    return _read_call(value) or _read_call_fields(function if isinstance(function, Mapping) else value, value)


def _read_call_fields(call: Mapping[str, Any], around: Mapping[str, Any]) -> tuple[str, Any, str | None] | None:
    name = next((call[key] for key in ("name", "tool_name", "toolName") if isinstance(call.get(key), str)), None)
    if not name:
        return None
    arguments = next((call[key] for key in ARGUMENT_KEYS if call.get(key) is not None), None)
    keys = ("call_id", *CALL_ID_KEYS)
    given = (each[key] for each in (around, call) for key in keys if key in each)
    id = next((id for id in given if isinstance(id, str) and id), None)
    return name, parse_arguments(arguments), id
