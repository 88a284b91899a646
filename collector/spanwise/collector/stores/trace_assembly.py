"""Assembly of traces: amendments merged into runs, the tree of runs, derived inputs and outputs of the root."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, cast, get_type_hints

import msgspec

from spanwise.collector import record_encoding
from spanwise.collector.content import summarize
from spanwise.collector.errors import Refused
from spanwise.collector.records import JSON, Feedback, Run, Status, Target, TreeNode, make_fast_constructor
from spanwise.tracer import attribute_names as names

# Merging of amendments into runs, before and after the run arrives.

# Messages arrive one by one, in any order, each under its own key. Sorted by key, they become the inputs and outputs
# of a run that has none itself
MESSAGE_FIELDS = {"input_messages": "inputs", "output_messages": "outputs"}
# Feedback on the run, each record under a key of its own: its fields without target and id. It becomes feedback on the
# span as soon as the run is stored, and is no field of the run
FEEDBACK_FIELD = "feedback"
MERGED_FIELDS = ("metadata", "attributes", FEEDBACK_FIELD, *MESSAGE_FIELDS)
AMENDABLE_FIELDS = (
    *"inputs outputs documents model usage cost session_id user_id tags metadata attributes".split(),
    *"prompt_name prompt_version agent_name finish_reasons time_to_first_token_ms tools".split(),
    *MESSAGE_FIELDS,
    FEEDBACK_FIELD,
)
MAX_COUNT = 2**63 - 1  # highest integer that SQLite can store
_TYPES: dict[str, Any] = {
    **{name: kind for name, kind in get_type_hints(Run).items() if name in AMENDABLE_FIELDS},
    **dict.fromkeys(MESSAGE_FIELDS, dict[str, list[Any]]),
    FEEDBACK_FIELD: dict[str, dict[str, Any]],
}


def encode_fields(fields: Mapping[str, Any]) -> dict[str, JSON]:
    """Return the fields as plain JSON. Raise `Refused` for a field not in `AMENDABLE_FIELDS` or an invalid value."""
    for name in fields:
        if name not in AMENDABLE_FIELDS:
            from spanwise.tracer.suggestions import did_you_mean  # imported here, because it loads the tracer

            raise Refused(f"{name!r} of a run cannot be amended{did_you_mean(name, AMENDABLE_FIELDS)}")
    plain: dict[str, JSON] = record_encoding.decode(dict[str, Any], record_encoding.encode(fields))
    _convert_fields(plain)
    if FEEDBACK_FIELD in plain:
        make_feedback(Target(trace_id="0" * 32), plain[FEEDBACK_FIELD])
    _check_counts(plain)
    return plain


def _check_counts(fields: Mapping[str, Any]) -> None:
    """Raise `Refused` for integers beyond 64 bits. SQLite would store one as text, and reading the run would then
    fail.
    """
    usage = fields.get("usage") or {}
    counts = {**usage, **usage.get("details", {}), "cost": fields.get("cost")}
    for name, number in counts.items():
        if isinstance(number, int) and abs(number) > MAX_COUNT:
            raise Refused(f"{name!r} of a run must be at most {MAX_COUNT}, got {number!r}")


def merge_fields(*amendments: Mapping[str, JSON]) -> dict[str, JSON]:
    """Merge amendments in their order. The last value of a field wins; `MERGED_FIELDS` are merged key by key."""
    merged: dict[str, JSON] = {}
    for fields in amendments:
        for name, value in fields.items():
            if name not in MERGED_FIELDS:
                merged[name] = value
            elif name in merged:
                merged[name].update(value)
            else:
                merged[name] = dict(value)
    return merged


def apply_amendment(run: Run, fields: Mapping[str, JSON], before: Mapping[str, JSON] = MappingProxyType({})) -> Run:
    """Return a stored run with an amendment applied. `before` holds earlier amendments that the run already
    contains.
    """
    values = _convert_fields(fields)
    values.pop(FEEDBACK_FIELD, None)
    for name, field in MESSAGE_FIELDS.items():
        earlier, later = before.get(name) or {}, values.pop(name, None)
        if later and field not in values and getattr(run, field) in (None, _join_messages(earlier)):
            values[field] = _join_messages({**earlier, **later})
    merged = {name: {**getattr(run, name), **values[name]} for name in MERGED_FIELDS if name in values}
    return replace(run, **{**values, **merged})


def reapply_amendments(run: Run, fields: Mapping[str, JSON]) -> Run:
    """Return a new version of a run with earlier amendments, except for fields that the new version sets itself."""
    values = _convert_fields(fields)
    joined = {field: _join_messages(values.pop(name)) for name, field in MESSAGE_FIELDS.items() if name in values}
    missing = {name: value for name, value in (joined | values).items() if getattr(run, name) in (None, ())}
    merged = {name: {**values[name], **getattr(run, name)} for name in MERGED_FIELDS if name in values}
    return replace(run, **{**missing, **merged})


def make_feedback(target: Target, records: Mapping[str, Mapping[str, JSON]]) -> list[Feedback]:
    """Return the records of the field "feedback" as feedback on a target. Raise `Refused` for an invalid one."""
    try:
        plain = {"target": record_encoding.decode(dict[str, Any], record_encoding.encode(target)), "id": ""}
        return [record_encoding.convert({**fields, **plain}, Feedback) for fields in records.values()]
    except (ValueError, TypeError) as error:
        raise Refused(f"invalid feedback in an amendment: {error}") from None


def _join_messages(messages: Mapping[str, list[JSON]]) -> list[JSON] | None:
    """Return all messages in the order of their keys."""
    return [message for key in sorted(messages) for message in messages[key]] or None


def _convert_fields(fields: Mapping[str, JSON]) -> dict[str, Any]:
    values = {}
    for name, value in fields.items():
        try:
            values[name] = record_encoding.convert(value, _TYPES[name])
        except msgspec.ValidationError as error:
            raise Refused(f"{name!r} of a run cannot be set to {value!r}: {error}") from None
    return values


# Run tree of a trace: depth-first order, and root inputs and outputs derived from the runs below.
#
# Some SDKs (OpenAI Agents, Logfire) record content only on the calls inside a trace. Stores fill in these values when
# they read a root, so that lists, pages, exports and evaluators see the same values. The stored data is not changed.


class RunNode(NamedTuple):
    """Fields of a run that determine its position in the tree, or that the tree shows."""

    span_id: str
    parent_id: str | None
    name: str
    kind: str
    status: Status
    start_ns: int
    end_ns: int
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None


_new_node: Callable[..., TreeNode] = make_fast_constructor(TreeNode)


class _NodeDraft:
    """Mutable substitute for `TreeNode`. Setting the fields of a frozen dataclass costs several times as much."""

    __slots__ = TreeNode.__slots__


def make_branch(
    position: int, depth: int, line: RunNode, known: Container[str], feedback: int = 0, failed: int = 0
) -> TreeNode:
    """Return the tree record of a run. `known` holds the ids of all runs of the trace."""
    node: Any = _NodeDraft()
    (
        node.span_id,
        node.parent_id,
        node.name,
        node.kind,
        node.status,
        node.start_ns,
        node.end_ns,
        node.input_tokens,
        node.output_tokens,
        node.cost,
    ) = line
    node.position, node.depth, node.feedback, node.failed = position, depth, feedback, failed
    node.lost_parent = line.parent_id is not None and line.parent_id not in known
    node.__class__ = TreeNode  # both classes have the same slots
    return cast(TreeNode, node)


def walk_tree(lines: Sequence[RunNode]) -> Iterator[tuple[int, RunNode]]:
    """Yield (depth, run) in depth-first order.

    The walk uses no recursion, and includes runs whose parents form a cycle.
    """
    latest_first = sorted(lines, key=attrgetter("start_ns", "end_ns"), reverse=True)
    known = {line.span_id for line in latest_first}
    children: dict[str | None, list[RunNode]] = {}  # runs whose parent is missing have the key None
    for line in latest_first:
        children.setdefault(line.parent_id if line.parent_id in known else None, []).append(line)
    visited: set[str] = set()
    for start in (children.get(None, []), latest_first):
        stack = [(0, line) for line in start if line.span_id not in visited]
        while stack:
            depth, line = stack.pop()
            if line.span_id in visited:
                continue
            visited.add(line.span_id)
            yield depth, line
            if children_of_run := children.get(line.span_id):
                stack += [(depth + 1, child) for child in children_of_run]


DERIVED = "spanwise.derived"  # attribute of a root: names of derived fields, such as ["inputs", "outputs"]
MAX_RUNS = 1_000  # in larger traces, missing fields of the root stay empty
MAX_READS = 16  # maximum number of runs that are searched for one value
NON_RESULT_KINDS = frozenset(("evaluator", "guardrail"))  # kinds of runs that check a result but do not produce it


class DerivationNode(NamedTuple):
    """Fields of a run that place it in the tree of its trace."""

    span_id: str
    parent_id: str | None
    kind: str
    start_ns: int
    end_ns: int


def find_derivable(
    inputs: JSON, outputs: JSON, attributes: Mapping[str, JSON], *, documents: object, status: str, runs: int
) -> tuple[str, ...]:
    """Return which of `inputs` and `outputs` a root lacks and may get from other runs.

    `runs` is the number of runs in the trace. Documents count as outputs, and so does a returned None. A failed or
    cancelled root has no outputs to derive.
    """
    if (inputs is not None and outputs is not None) or not 1 < runs <= MAX_RUNS:
        return ()
    awaited = attributes.get(names.AWAITS)
    awaited = awaited if isinstance(awaited, list) else []
    has_inputs = inputs is not None or names.INPUT_VALUE in attributes or "inputs" in awaited
    has_outputs = outputs is not None or bool(documents) or names.OUTPUT_VALUE in attributes or "outputs" in awaited
    wanted = () if has_inputs else ("inputs",)
    return wanted if has_outputs or status in ("error", "cancelled") else (*wanted, "outputs")


def find_root_derivable(root: Run, runs: int) -> tuple[str, ...]:
    """Return the result of `find_derivable` for a decoded root."""
    documents, status = root.documents, root.status
    return find_derivable(root.inputs, root.outputs, root.attributes, documents=documents, status=status, runs=runs)


def find_derived_values(
    root_id: str, wanted: Iterable[str], runs: Sequence[DerivationNode], read: Callable[[str], tuple[JSON, JSON]]
) -> dict[str, JSON]:
    """Return values for the wanted fields: the first inputs and the last outputs of the runs below a root, if any.

    `runs` are all runs of the trace. `read` returns inputs and outputs of the run with a span id.
    """
    values = {}
    for field in wanted:
        index = 1 if field == "outputs" else 0
        searched = islice(_iterate_descendants(root_id, runs, latest=field == "outputs"), MAX_READS)
        value = next((value for run in searched if (value := read(run.span_id)[index]) is not None), None)
        if value is not None:
            values[field] = value
    return values


def apply_derived_values(root: Run, values: Mapping[str, Any]) -> Run:
    """Return a root with derived values, and with their names in its attribute `spanwise.derived`.

    Without values, return the root unchanged.
    """
    return replace(root, **values, attributes={**root.attributes, DERIVED: list(values)}) if values else root


def derived_fields(run: Run) -> tuple[str, ...]:
    """Return which of `inputs` and `outputs` of a run are derived."""
    fields = run.attributes.get(DERIVED)
    return tuple(field for field in ("inputs", "outputs") if isinstance(fields, list) and field in fields)


def complete_root(root: Run, runs: Sequence[Run]) -> Run:
    """Return the root of a trace with inputs and outputs derived from its other runs. `runs` are all runs of the
    trace.
    """
    wanted = find_root_derivable(root, len(runs))
    if not wanted:
        return root
    by_id = {run.span_id: (run.inputs, run.outputs) for run in runs}
    nodes = [DerivationNode(run.span_id, run.parent_id, run.kind, run.start_ns, run.end_ns) for run in runs]
    return apply_derived_values(root, find_derived_values(root.span_id, wanted, nodes, by_id.__getitem__))


def _iterate_descendants(root_id: str, runs: Sequence[DerivationNode], *, latest: bool) -> Iterator[DerivationNode]:
    """Yield the runs below a root, parents before children, ordered by earliest start or by latest end."""
    children: dict[str | None, list[DerivationNode]] = {}
    for run in sorted(runs, key=lambda run: (-run.end_ns, -run.start_ns) if latest else (run.start_ns, run.end_ns)):
        if run.kind not in NON_RESULT_KINDS and run.span_id != root_id:
            children.setdefault(run.parent_id, []).append(run)
    waiting = children.pop(root_id, [])[::-1]
    while waiting:
        run = waiting.pop()
        yield run
        waiting += children.pop(run.span_id, [])[::-1]


PREVIEW_CHARACTERS = 300  # characters of inputs and outputs in a summary


def make_preview(value: JSON) -> str:
    """Return the beginning of the main text of a value, for summaries of traces."""
    text = summarize(value)
    return text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 1] + "…"
