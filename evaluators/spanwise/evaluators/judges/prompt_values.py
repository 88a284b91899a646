"""Case values as prompt text: conversations, documents, run trees and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from spanwise.collector.records import Case, Document, Run, Trace
from spanwise.evaluators.interface import Skip, explain_missing_fields, get_case_field, to_messages, unwrap_single_value
from spanwise.evaluators.judges.untrusted_data import SectionedText, ShortenedText, truncate_middle

_ROLES = frozenset({"user", "assistant", "system", "developer", "tool", "function"})


@dataclass(frozen=True, slots=True)
class LastTurn:
    """Last turn of a conversation: the earlier messages, and the last request."""

    earlier: Sequence[Mapping[str, Any]]
    request: Any


def render_values(case: Case, names: Iterable[str], *, optional: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the named values as texts. `optional` maps fields that may be missing to a replacement text.

    For a conversation, `inputs` is the last turn. The earlier messages precede it unless `names` contains
    `history`. Raises `Skip` if the case lacks a field.
    """
    names = tuple(names)
    values = {name: _get_case_value(case, name) for name in names}
    placeholders = optional or {}
    missing = [name for name, value in values.items() if value is None and name not in placeholders]
    if missing:
        raise Skip(explain_missing_fields(["trace" if name == "trajectory" else name for name in missing], case))
    texts = {name: placeholders[name] if value is None else render_value(value) for name, value in values.items()}
    if "inputs" in texts and "history" not in names:
        before = format_messages(_read_last_turn(case).earlier)
        if before:
            texts["inputs"] = f"Earlier in the conversation:\n{before}\n\nThe last turn:\n{texts['inputs']}"
    return texts


def render_value(value: Any) -> str:
    """Return a value as text for a judge. The prompt truncates values that are too long for one question.

    A text stays unchanged, documents are numbered with their ids, messages become "role: text", all other values
    JSON.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        if all(isinstance(member, Document) for member in value) and (value or isinstance(value, tuple)):
            return _format_documents(value)
        if spoken := read_conversation(value):
            return format_messages(spoken)
    return to_json_text(value)


def read_conversation(value: Any) -> list[dict[str, Any]]:
    """Return the messages if the value is a conversation, else []. They may also be under a dict's only key or its key
    "messages".
    """
    messages = to_messages(unwrap_single_value(value))
    return messages if all(message["role"] in _ROLES for message in messages) else []


def format_messages(spoken: Iterable[Mapping[str, Any]]) -> str:
    """Return messages as lines of "role: text"."""
    return "\n".join(f"{message.get('role')}: {_format_content(message)}" for message in spoken)


def read_full_conversation(case: Case) -> list[Mapping[str, Any]]:
    """Return the complete conversation: earlier messages, last request and answer, without duplicates."""
    turn = _read_last_turn(case)
    ends = (
        ("user", unwrap_single_value(turn.request)),
        ("assistant", unwrap_single_value(_read_last_answer(case.outputs))),
    )
    last = [{"role": role, "content": render_value(content)} for role, content in ends if content is not None]
    return [*turn.earlier, *last]


def _get_case_value(case: Case, name: str) -> Any:
    if name == "trajectory":
        return None if case.trace is None else render_trajectory(case.trace)
    if name == "inputs":
        return _read_last_turn(case).request
    if name == "outputs":
        return _read_last_answer(case.outputs)
    if name == "history":
        return get_case_field(case, "history") or _read_last_turn(case).earlier or None
    return get_case_field(case, name)


def _read_last_turn(case: Case) -> LastTurn:
    """Return the last request and the earlier messages.

    The earlier messages are those of `history`, else those of inputs that are a conversation. The history of a
    session ends with the last request and answer, which are removed.
    """
    inputs, earlier = get_case_field(case, "inputs"), read_conversation(get_case_field(case, "history"))
    spoken = read_conversation(inputs)
    last = max((index for index, message in enumerate(spoken) if message["role"] == "user"), default=-1)
    question = _format_content(spoken[last]) if last >= 0 else inputs
    answer = _read_last_answer(case.outputs)
    if earlier and answer is not None and earlier[-1] == {"role": "assistant", "content": answer}:
        earlier = earlier[:-1]
    if earlier and earlier[-1].get("role") == "user":
        content = earlier[-1].get("content")
        if any(content == request or content == unwrap_single_value(request) for request in (inputs, question)):
            earlier = earlier[:-1]
    return LastTurn(earlier or spoken[: max(last, 0)], question)


def _read_last_answer(outputs: Any) -> Any:
    """Return the assistant's last message if the outputs are messages, else the outputs unchanged."""
    spoken = read_conversation(outputs)
    answers = [message for message in spoken if message["role"] == "assistant"]
    return _format_content(answers[-1]) if answers else outputs


def _format_content(message: Mapping[str, Any]) -> str:
    """Return the text of a message. Other parts are represented by their type, and tool calls by JSON."""
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else [content]
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping):
            text = part.get("text")
            texts.append(text if isinstance(text, str) else f"({part.get('type', 'something else')} left out)")
        elif part is not None:
            texts.append(to_json_text(part))
    calls = message.get("tool_calls") or ()
    texts += [f"(calls {to_json_text(call)})" for call in (calls if isinstance(calls, list | tuple) else [calls])]
    return "\n".join(texts)


def _format_documents(documents: Sequence[Document]) -> str:
    if not documents:
        return "(no documents)"
    sections = []
    for number, document in enumerate(documents, 1):
        metadata = document.metadata
        ids = dict.fromkeys(filter(None, (document.id, metadata.get("doc_uri"), metadata.get("uri"))))
        header = f" ({', '.join(truncate_middle(str(id), 200) for id in ids)})" if ids else ""
        sections.append(f"[{number}]{header} {document.content}")
    return SectionedText(sections)


MAX_TRAJECTORY_LENGTH = 30_000  # maximum characters of a run tree
# bounds of the length to which inputs, outputs and errors are truncated, in characters
_MIN_VALUE_LENGTH, _MAX_VALUE_LENGTH = 80, 2_000
_MAX_INDENT = 12  # maximum levels of indentation
_MAX_NAME_LENGTH = 200  # maximum characters of a run's name


def render_trajectory(trace: Trace, most: int = MAX_TRAJECTORY_LENGTH) -> str:
    """Return the run tree as text: runs by start time, children indented, with kind, name, inputs, outputs and error.

    Long values are truncated. If there are too many runs, those in the middle are left out, and their number is
    stated. Runs with a missing parent are at the top level, as are runs in a parent cycle. Runs of evaluators are
    left out.
    """
    runs = list(_iterate_depth_first(trace))
    share = min(_MAX_VALUE_LENGTH, max(_MIN_VALUE_LENGTH, most // (3 * max(1, len(runs)))))
    blocks = [_format_run(number, depth, run, share) for number, (depth, run) in enumerate(runs, 1)]
    shown = _fit_blocks(blocks, most)
    left_out = sum(max(0, len(text) - share) for _, run in runs for _, text in _list_run_values(run))
    if len(shown) < len(blocks):
        left_out += sum(map(len, blocks)) - sum(map(len, shown))
    return ShortenedText("\n".join(shown), left_out)


def _iterate_depth_first(trace: Trace) -> Iterator[tuple[int, Run]]:
    """Yield each run once, with its depth: after its parent, and by start time among siblings."""
    runs = sorted(trace.runs, key=lambda run: (run.start_ns, run.span_id))
    span_ids = {run.span_id for run in runs}
    below: dict[str, list[Run]] = {}
    for run in runs:
        below.setdefault(run.parent_id if run.parent_id in span_ids else "", []).append(run)
    waiting = [(0, run) for run in reversed(below.pop("", []))]
    while waiting or below:
        if not waiting:  # the remaining runs form cycles
            first = next(iter(below))
            waiting = [(0, run) for run in reversed(below.pop(first))]
        depth, run = waiting.pop()
        if run.kind == "evaluator":
            removed = [run]
            while removed:
                removed += below.pop(removed.pop().span_id, [])
            continue
        yield depth, run
        waiting += [(depth + 1, under) for under in reversed(below.pop(run.span_id, []))]


def _format_run(number: int, depth: int, run: Run, share: int) -> str:
    indent = "  " * min(depth, _MAX_INDENT)
    deep = f" (level {depth})" if depth > _MAX_INDENT else ""
    lines = [
        f"{number}. {run.kind} {truncate_middle(run.name, _MAX_NAME_LENGTH)!r}{deep}{' failed' if run.status == 'error' else ''}"
    ]
    lines += [f"   {name}: {truncate_middle(text, share)}" for name, text in _list_run_values(run)]
    return "\n".join(f"{indent}{line}" for text in lines for line in text.splitlines())


def _fit_blocks(blocks: list[str], most: int) -> list[str]:
    """Return the first and last blocks that fit, and between them a line with the number of the others."""
    if sum(map(len, blocks)) + len(blocks) <= most or len(blocks) < 3:
        return blocks
    first, last, left = 0, len(blocks), most
    while first < last:
        ahead = first <= len(blocks) - last
        left -= len(blocks[first if ahead else last - 1]) + 1
        if left < 0:
            break
        first, last = (first + 1, last) if ahead else (first, last - 1)
    return [*blocks[:first], f"[… {last - first:,} runs left out …]", *blocks[last:]]


def _list_run_values(run: Run) -> list[tuple[str, str]]:
    """Return (name, text) pairs of a run's inputs, outputs and error."""
    values: tuple[tuple[str, Any], ...] = (("inputs", run.inputs), ("outputs", run.outputs), ("error", run.error))
    return [
        (name, value if isinstance(value, str) else to_json_text(value, indent=False))
        for name, value in values
        if value is not None
    ]


def to_json_text(value: Any, indent: bool = True) -> str:
    """Return a value as JSON, or its `repr` if JSON cannot represent it, such as a cyclic value. Equal values give equal
    texts.
    """
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        return orjson.dumps(value, default=_json_default, option=option).decode()
    except TypeError:  # an unpaired surrogate, a number beyond 64 bits, or a cyclic value
        pass
    try:
        return json.dumps(value, default=_json_default, ensure_ascii=False, indent=2 if indent else None)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return repr(value)
    except Exception:  # nested a thousand levels deep, or a class whose `repr` fails
        return f"(a {type(value).__name__} that cannot be written down)"


def _json_default(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)
