"""Agent evaluators: tool calls, trajectory, spans, step limit, sanity of artifacts and sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from spanwise.collector.record_corrections import present_names
from spanwise.collector.records import JSON, OpenRun, Run, Status, Trace
from spanwise.evaluators.builtin.artifacts import (
    Artifact,
    ArtifactDirectory,
    check_artifact,
    check_expectations,
    find_artifacts,
)
from spanwise.evaluators.interface import Metric, Skip, register_builtin
from spanwise.evaluators.interface.case_views import (
    ToolCall,
    extract_tool_calls,
    find_unanswered_calls,
    get_tool_name,
    iterate_ancestors,
    map_parents,
    parse_arguments,
    select_agent_runs,
)
from spanwise.evaluators.interface.evaluator_spec import OUTCOMES, SECURE, TRANSPARENT, VALID
from spanwise.tracer import attribute_names as names
from spanwise.tracer.suggestions import did_you_mean

# Review of an agent's session: failed model and tool runs, tool calls without a result, a missing final answer.

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


# Agent evaluators: tool calls, trajectory, spans, step limit and sanity of artifacts.

MatchMode = Literal["strict", "unordered", "subset", "superset", "ordered"]
MadeCall: TypeAlias = tuple[str, list[Any]]  # tool name and possible arguments
ExpectedCall: TypeAlias = tuple[str, Any]  # tool name and arguments; None matches any
CallComparison: TypeAlias = Callable[[Any, Any], bool]
NO_CALLS = "the trace has neither spans of tools nor messages of models, so that its tool calls are unknown"
MAX_SESSION_PROBLEMS = 100  # in the metadata of a feedback
MATCH_MODES = ("strict", "unordered", "subset", "superset", "ordered")


@register_builtin(
    "tool_calls",
    metrics=(
        Metric("tool_calls", primary=True),
        Metric("tool_calls_precision"),
        Metric("tool_calls_recall"),
    ),
    standards=(VALID, OUTCOMES, TRANSPARENT),
    source="common practice (agent evaluation)",
    canonical="by hand",
    example='get_evaluator("tool_calls", expected=["search", {"name": "send", "arguments": {"to": "ann"}}]), trace',
)
@dataclass(frozen=True, slots=True)
class ToolCalls:
    """True if the agent called the expected tools, with precision and recall of the calls.

    Calls are read from spans of kind "tool" and from the replies of model runs (OpenAI, Anthropic, Gemini, GenAI,
    LangChain). A call that has both counts once. Calls are ordered by the start of their spans; without a span, by
    the end of the model run. A trace with neither tool spans nor recorded replies is skipped.

    Expected calls come from `expected` or the reference (a list, or its field "tool_calls"). Each is a name or
    `{"name": …, "arguments": {…}}`. `match` is one of:

    - "strict": the same calls in the same order
    - "unordered": the same calls in any order
    - "ordered": the expected calls in their order, with others in between; if none is expected, no calls
    - "superset": all expected calls, and possibly more
    - "subset": only expected calls

    Arguments are compared if they are given. Other arguments may have any value unless `all_arguments`. Precision and
    recall count each call once.
    """

    expected: Sequence[Any] | None = None
    match: MatchMode = "ordered"
    all_arguments: bool = False

    def __post_init__(self) -> None:
        _check_match(self.match, self.expected)
        for call in self.expected or ():
            _parse_call(call)

    def __call__(self, trace: Trace, reference_outputs: Any = None) -> list[dict[str, Any]]:
        wanted = [_parse_call(call) for call in _expected_items(self.expected, reference_outputs, "tool_calls")]
        if (calls := extract_tool_calls(trace)) is None:
            raise Skip(NO_CALLS)
        made = [(call.name, call.arguments) for call in calls]
        hits = self._hits(made, wanted)
        passed = _sequences_match(made, wanted, self.match, self._same, hits)
        called = ", ".join(name for name, _ in made)[:1000] or "no tool"
        return [
            {"key": "tool_calls", "score": passed, "comment": f"called {called}"},
            {"key": "tool_calls_precision", "score": hits / len(made) if made else (0.0 if wanted else 1.0)},
            {"key": "tool_calls_recall", "score": hits / len(wanted) if wanted else 1.0},
        ]

    def _hits(self, made: list[MadeCall], wanted: list[ExpectedCall]) -> int:
        """Return the number of expected calls that were made.

        Expected calls with arguments are matched first, those without take the remaining calls of the tool.
        """
        hits = 0
        for name in {name for name, _ in wanted}:
            calls = [call for call in made if call[0] == name]
            strict = [each for each in wanted if each[0] == name and each[1] is not None]
            loose = sum(each == (name, None) for each in wanted)
            hits += min(len(calls), _maximum_matching(calls, strict, self._same) + loose)
        return hits

    def _same(self, made: MadeCall, wanted: ExpectedCall) -> bool:
        if made[0] != wanted[0] or wanted[1] is None:
            return made[0] == wanted[0]
        return any(self._same_arguments(arguments, wanted[1]) for arguments in made[1])

    def _same_arguments(self, made: Any, wanted: Any) -> bool:
        if self.all_arguments or not isinstance(wanted, Mapping) or not isinstance(made, Mapping):
            return bool(made == wanted)
        return all(name in made and made[name] == value for name, value in wanted.items())


@register_builtin(
    "trajectory_match",
    metrics=(Metric("trajectory_match", primary=True),),
    standards=(VALID, OUTCOMES, TRANSPARENT),
    source="common practice (agent evaluation)",
    canonical="by hand",
    example='get_evaluator("trajectory_match", expected=["search", "send"], match="ordered"), trace',
)
@dataclass(frozen=True, slots=True)
class TrajectoryMatch:
    """True if the steps of the trace, the names of its spans by start time, are the expected ones.

    Expected steps come from `expected` or the reference (a list, or its field "trajectory"). `kinds` restricts the
    steps to spans of these kinds. The root is not a step. Steps of kind "tool" are the tool calls that `tool_calls`
    reads, by the tools' names. `match` works as in `tool_calls`. With `kinds=["tool"]` a trace whose tool calls are
    unknown is skipped.
    """

    expected: Sequence[str] | None = None
    match: MatchMode = "strict"
    kinds: Sequence[str] | None = None

    def __post_init__(self) -> None:
        _check_match(self.match, self.expected)
        _check_kinds(self.kinds)

    def __call__(self, trace: Trace, reference_outputs: Any = None) -> dict[str, Any]:
        wanted = [str(step) for step in _expected_items(self.expected, reference_outputs, "trajectory")]
        if self.kinds is not None and set(self.kinds) == {"tool"} and extract_tool_calls(trace) is None:
            raise Skip(NO_CALLS)
        taken = _trace_steps(trace, self.kinds)
        hits = (Counter(taken) & Counter(wanted)).total()
        passed = _sequences_match(taken, wanted, self.match, str.__eq__, hits)
        return {"score": passed, "comment": " → ".join(taken)[:1000] or "no steps"}


@register_builtin(
    "has_span",
    metrics=(Metric("has_span", primary=True),),
    standards=(VALID, TRANSPARENT),
    source="pydantic-evals: HasMatchingSpan",
    canonical="by hand",
    example='get_evaluator("has_span", kind="tool", name="search", max_seconds=5), trace',
)
@dataclass(frozen=True, slots=True)
class HasSpan:
    """True if the trace has spans that match all given criteria; `at_least` and `at_most` bound their number.

    The values of `name` and `kind` must be equal, those of `attributes` and `inputs` field by field. `status` is
    "ok", "error", "cancelled" or "unset". `max_seconds` and `min_seconds` bound the duration.
    """

    name: str | None = None
    kind: str | None = None
    status: Status | None = None
    attributes: Mapping[str, JSON] = field(default_factory=dict)
    inputs: Mapping[str, JSON] = field(default_factory=dict)
    min_seconds: float = 0.0
    max_seconds: float = float("inf")
    at_least: int = 1
    at_most: int | None = None

    def __post_init__(self) -> None:
        if self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least {self.at_least!r} is above at_most {self.at_most!r}")
        if self.at_least < 0:
            raise ValueError(f"at_least is 0 or more, not {self.at_least!r}")
        if not 0 <= self.min_seconds <= self.max_seconds:
            raise ValueError(f"min_seconds {self.min_seconds!r} is from 0 to max_seconds {self.max_seconds!r}")
        _check_kinds(None if self.kind is None else (self.kind,))

    def __call__(self, trace: Trace) -> dict[str, Any]:
        count = sum(map(self._matches, trace.runs))
        passed = count >= self.at_least and (self.at_most is None or count <= self.at_most)
        return {"score": passed, "comment": f"{count} matching spans"}

    def _matches(self, run: Run) -> bool:
        wanted = (("name", self.name), ("kind", self.kind), ("status", self.status))
        if any(value is not None and getattr(run, field) != value for field, value in wanted):
            return False
        given = run.inputs if isinstance(run.inputs, Mapping) else {}
        same = all(run.attributes.get(name) == value for name, value in present_names(self.attributes).items())
        same = same and all(name in given and given[name] == value for name, value in self.inputs.items())
        return same and self.min_seconds <= run.duration_ns / 1e9 <= self.max_seconds


@register_builtin(
    "step_limit",
    metrics=(Metric("step_limit", primary=True),),
    standards=(VALID, SECURE),
    source="common practice (agent evaluation)",
    canonical="by hand",
    example='get_evaluator("step_limit", limit=5), trace',
)
@dataclass(frozen=True, slots=True)
class StepLimit:
    """True if the run took at most `limit` steps: spans below the root, of the given `kinds` (None: all).

    Steps of kind "tool" are the tool calls that `tool_calls` reads.
    """

    limit: int
    kinds: Sequence[str] | None = ("tool", "llm")

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"limit is 0 or more, not {self.limit!r}")
        _check_kinds(self.kinds)

    def __call__(self, trace: Trace) -> dict[str, Any]:
        count = len(_trace_steps(trace, self.kinds))
        return {"score": count <= self.limit, "comment": f"{count} steps"}


@register_builtin(
    "agent_sanity",
    metrics=(Metric("agent_sanity", threshold=0.75, primary=True),),
    version="2",
    standards=(SECURE, VALID),
    source="H2O Eval Studio: agent sanity check",
    canonical="by hand",
    example='get_evaluator("agent_sanity"), outputs={"artifacts": [{"path": "a.json", "content": "[1]"}, '
    '{"path": "b.json", "content": "[1"}]}',
)
@dataclass(frozen=True, slots=True)
class AgentSanity:
    """Share of an agent's artifacts that pass all checks; 0 if it left none. Also reviews the agent's session.

    Artifacts are the outputs' field "artifacts" (or the outputs, if they are a list): dicts with "path" and
    "content", a dict of contents by path, or paths alone. With `directory`, all files below it are artifacts too.
    Each must not be empty, and `.json` and `.jsonl` must be JSON. An expected artifact that is missing counts as
    failed. `expectations` adds checks by path:

    - "kind": "file" or "dir"
    - "min_bytes": minimum size
    - "contains": texts that the file must contain
    - "fields": values that a JSON file must have, by name or dotted path
    - "entries": names that the directory must contain
    - "pages": minimum number of pages of a PDF

    Only regular files and folders below `directory` are opened, wherever names and links lead. If an answer names
    files and there is no `directory`, the case is skipped. More than `max_artifacts` entries, or more than
    `max_bytes` in all artifacts of a case together, are an error.

    If the case has a trace, the session is reviewed, too. The metadata `session_problems` lists failed model and tool
    runs ("failed_run"), tool calls without a result ("no_result") and a missing final answer ("no_answer"). Each has
    the `trace_id` and `span_id` of its run. They do not change the score. Without outputs and `directory`, the case
    is skipped, and the skip has these problems.
    """

    expectations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    directory: str | None = None
    max_artifacts: int = 1000
    max_bytes: int = 20_000_000

    def __post_init__(self) -> None:
        check_expectations(self.expectations)
        if self.directory == "":
            raise ValueError("directory is a path, not ''; the current one is '.'")
        for name in ("max_artifacts", "max_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more, not {getattr(self, name)!r}")

    def __call__(self, outputs: Any = None, trace: Trace | None = None) -> dict[str, Any]:
        if trace is None:
            return self._check_artifacts(outputs, trace)
        try:
            row = self._check_artifacts(outputs, trace)
        except Skip as skip:
            row = {"comment": str(skip)}  # still a skip, but with the problems of the session
        problems = review_session(trace, outputs)
        comments = [row["comment"], *(problem.message for problem in problems)]
        listed = [problem.to_dict() for problem in problems[:MAX_SESSION_PROBLEMS]]
        return {
            **row,
            "comment": "; ".join(filter(None, comments))[:1000] or None,
            "metadata": {**row.get("metadata", {}), "session_problems": listed},
        }

    def _check_artifacts(self, outputs: Any, trace: Trace | None) -> dict[str, Any]:
        """Return the share of sound artifacts with the problems of the others. Raises `Skip` if nothing is known about
        the artifacts.
        """
        if outputs is None and self.directory is None and not (trace and has_returned_null(trace)):
            has_failed = trace is not None and trace.root.status == "error"
            raise Skip(f"needs outputs; {'the run failed' if has_failed else 'the case has none'}")
        below = ArtifactDirectory(self.directory, self.max_artifacts, self.max_bytes)
        artifacts = self._artifacts(outputs, below)
        expected = {below.normal(path): wanted for path, wanted in self.expectations.items()}
        checked = [
            (each.path, check_artifact(each, expected.get(below.normal(each.path), {}), below)) for each in artifacts
        ]
        failed = [(path, problems) for path, problems in checked if problems]
        if not artifacts:
            return {"score": 0.0, "comment": "the agent left no artifacts"}
        shown = "; ".join(f"{path}: {', '.join(problems)}" for path, problems in failed[:100])
        metadata = {"artifacts": len(artifacts), "failed": len(failed), "problems": dict(failed[:100])}
        return {"score": 1 - len(failed) / len(artifacts), "comment": shown[:1000] or None, "metadata": metadata}

    def _artifacts(self, outputs: Any, below: ArtifactDirectory) -> list[Artifact]:
        """Return the artifacts that the answer names, those in the directory, and the expected ones."""
        named = find_artifacts(outputs)
        if len(named) > self.max_artifacts:
            raise ValueError(f"the answer names {len(named):,} artifacts: give a larger max_artifacts")
        unseen = [artifact.path for artifact in named if artifact.content is None]
        if unseen and self.directory is None:
            raise Skip(
                f"the answer names files ({', '.join(map(repr, unseen)):.200}) without their content, and files are "
                "opened only below a given directory: get_evaluator('agent_sanity', directory=…)"
            )
        known = {below.normal(artifact.path) for artifact in named}
        further = dict.fromkeys(map(below.normal, [*below.files(), *self.expectations]))
        return named + [Artifact(path) for path in further if path not in known]


def _trace_steps(trace: Trace, kinds: Sequence[str] | None) -> list[str]:
    """Return the names of the steps below the root, by start time: spans of the kinds, and tool calls."""
    root = trace.root.span_id
    spans = [run for run in trace.runs if run.kind != "tool" and (kinds is None or run.kind in kinds)]
    calls: list[ToolCall] = [] if kinds is not None and "tool" not in kinds else extract_tool_calls(trace) or []
    steps = [(run.start_ns, run.name) for run in spans if run.span_id != root]
    steps += [(call.time_ns, call.name) for call in calls if call.run.kind != "tool" or call.run.span_id != root]
    return [name for _, name in sorted(steps, key=lambda step: step[0])]


def _expected_items(parameter: Sequence[Any] | None, reference: Any, name: str) -> Sequence[Any]:
    if parameter is not None:
        return parameter
    listed = reference.get(name) if isinstance(reference, Mapping) else reference
    if not isinstance(listed, list | tuple):
        raise Skip(f"needs reference_outputs with {name!r} (or the parameter expected); the case has none")
    return listed


def _parse_call(call: Any) -> tuple[str, Any]:
    if isinstance(call, str):
        return call, None
    if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping):  # OpenAI's format of tool calls
        call = call["function"]
    if isinstance(call, Mapping) and isinstance(call.get("name"), str):
        return call["name"], parse_arguments(call.get("arguments", call.get("args")))
    raise ValueError(f"an expected tool call is a name or {{'name': …, 'arguments': {{…}}}}, not {call!r:.200}")


def _maximum_matching(made: Sequence[Any], wanted: Sequence[Any], same: CallComparison) -> int:
    """Return the size of a maximum matching between expected and made calls, computed with augmenting paths."""
    taken: dict[int, int] = {}  # index of the expected call, by index of the made call
    given: dict[int, int] = {}  # index of the made call, by index of the expected call
    for start in range(len(wanted)):
        path = _augmenting_path(start, made, wanted, same, taken)
        place: int | None = next(reversed(path), None) if path else None
        while place is not None:
            index = path[place]
            before = given.get(index)
            taken[place], given[index] = index, place
            place = before
    return len(taken)


def _augmenting_path(
    start: int, made: Sequence[Any], wanted: Sequence[Any], same: CallComparison, taken: Mapping[int, int]
) -> dict[int, int]:
    """Return an augmenting path from made calls to expected ones; {} if there is none.

    The last made call of the path is not matched yet.
    """
    path: dict[int, int] = {}
    waiting = [start]
    while waiting:
        index = waiting.pop()
        for place, call in enumerate(made):
            if place in path or not same(call, wanted[index]):
                continue
            path[place] = index
            if place not in taken:
                return path
            waiting.append(taken[place])
    return {}


def _sequences_match(
    made: Sequence[Any], wanted: Sequence[Any], match: MatchMode, same: CallComparison, hits: int
) -> bool:
    """Return whether the steps match; `hits` is the size of the matching of made and expected steps."""
    if match == "strict":
        return len(made) == len(wanted) and all(map(same, made, wanted))
    if match == "ordered" and not wanted:  # an empty list means that no call is expected
        return not made
    if match == "ordered":
        remaining = iter(made)
        return all(any(same(call, each) for call in remaining) for each in wanted)
    if match == "superset":
        return hits == len(wanted)
    if match == "subset":
        return hits == len(made)
    return hits == len(wanted) == len(made)


def _check_match(match: str, expected: Sequence[Any] | None) -> None:
    if isinstance(expected, str):
        raise ValueError(f"expected must be a list, as in expected=[{expected!r}], not {expected!r}")
    if match not in MATCH_MODES:
        raise ValueError(f"unknown match {match!r}; expected one of: {', '.join(MATCH_MODES)}")


def _check_kinds(kinds: Sequence[str] | None) -> None:
    """Raise `ValueError` for an unknown kind of spans: a misspelt kind would match nothing, and so pass."""
    if kinds is not None and not kinds:
        raise ValueError("kinds must be None (for all), or name at least one of " + ", ".join(map(repr, names.KINDS)))
    for kind in kinds or ():
        if kind not in names.KINDS and (hint := did_you_mean(kind, names.KINDS)):
            raise ValueError(f"unknown kind of spans {kind!r}{hint}")
