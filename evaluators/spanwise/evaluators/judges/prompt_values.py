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
    """The last turn of a conversation: what was said before it, as messages, and what was asked."""

    earlier: Sequence[Mapping[str, Any]]
    asked: Any


def render_values(case: Case, names: Iterable[str], *, optional: Mapping[str, str] | None = None) -> dict[str, str]:
    """The values of those names as texts; `optional` are words for what may be missing.

    Of a conversation the last turn is `inputs`; what was said before it stands above it, unless `history` is asked for
    as well. Raises `Skip` where the case lacks one.
    """
    names = tuple(names)
    values = {name: _get_case_value(case, name) for name in names}
    words = optional or {}
    missing = [name for name, value in values.items() if value is None and name not in words]
    if missing:
        raise Skip(explain_missing_fields(["trace" if name == "trajectory" else name for name in missing], case))
    texts = {name: words[name] if value is None else render_value(value) for name, value in values.items()}
    if "inputs" in texts and "history" not in names:
        texts["inputs"] = _prepend_history(_read_last_turn(case).earlier, texts["inputs"])
    return texts


def render_value(value: Any) -> str:
    """A value as a judge reads it. A prompt cuts what is too long for one question.

    A text as it is, documents numbered with their ids, messages as "role: text", all else as JSON.
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
    """The messages of a conversation, also below the one key of a dict or below "messages"; [] for anything else."""
    found = to_messages(unwrap_single_value(value))
    return found if all(message["role"] in _ROLES for message in found) else []


def format_messages(spoken: Iterable[Mapping[str, Any]]) -> str:
    """Messages as "role: text", one below the other."""
    return "\n".join(f"{message.get('role')}: {_format_content(message)}" for message in spoken)


def read_full_conversation(case: Case) -> list[Mapping[str, Any]]:
    """All that was said: what came before, what was asked last, and the answer; nothing twice."""
    turn = _read_last_turn(case)
    ends = (
        ("user", unwrap_single_value(turn.asked)),
        ("assistant", unwrap_single_value(_read_last_answer(case.outputs))),
    )
    last = [{"role": role, "content": render_value(content)} for role, content in ends if content is not None]
    return [*turn.earlier, *last]


def _get_case_value(case: Case, name: str) -> Any:
    if name == "trajectory":
        return None if case.trace is None else render_trajectory(case.trace)
    if name == "inputs":
        return _read_last_turn(case).asked
    if name == "outputs":
        return _read_last_answer(case.outputs)
    if name == "history":
        return get_case_field(case, "history") or _read_last_turn(case).earlier or None
    return get_case_field(case, name)


def _read_last_turn(case: Case) -> LastTurn:
    """What was asked last, and what came before: of a session, whose history ends with both, and of inputs that are a
    conversation themselves.
    """
    inputs, earlier = get_case_field(case, "inputs"), read_conversation(get_case_field(case, "history"))
    spoken = read_conversation(inputs)
    last = max((place for place, message in enumerate(spoken) if message["role"] == "user"), default=-1)
    asked = _format_content(spoken[last]) if last >= 0 else inputs
    answer = _read_last_answer(case.outputs)
    if earlier and answer is not None and earlier[-1] == {"role": "assistant", "content": answer}:
        earlier = earlier[:-1]
    if earlier and earlier[-1].get("role") == "user" and _is_same_content(earlier[-1].get("content"), inputs, asked):
        earlier = earlier[:-1]
    return LastTurn(earlier or spoken[: max(last, 0)], asked)


def _is_same_content(content: Any, *others: Any) -> bool:
    return any(content == other or content == unwrap_single_value(other) for other in others)


def _read_last_answer(outputs: Any) -> Any:
    """Of outputs that are messages what the assistant said last; anything else as it is."""
    spoken = read_conversation(outputs)
    answers = [message for message in spoken if message["role"] == "assistant"]
    return _format_content(answers[-1]) if answers else outputs


def _prepend_history(earlier: Iterable[Mapping[str, Any]], asked: str) -> str:
    """What was asked, below what was said before."""
    before = format_messages(earlier)
    return f"Earlier in the conversation:\n{before}\n\nThe last turn:\n{asked}" if before else asked


def _format_content(message: Mapping[str, Any]) -> str:
    """The words of a message; of one in parts those that are text, and which others there are; the tools it calls."""
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else [content]
    words = [_format_content_part(part) for part in parts if part is not None]
    calls = message.get("tool_calls") or ()
    words += [f"(calls {to_json_text(call)})" for call in (calls if isinstance(calls, list | tuple) else [calls])]
    return "\n".join(words)


def _format_content_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        text = part.get("text")
        return text if isinstance(text, str) else f"({part.get('type', 'something else')} left out)"
    return to_json_text(part)


def _format_documents(documents: Sequence[Document]) -> str:
    if not documents:
        return "(no documents)"
    return SectionedText(
        f"[{place}]{_format_document_id(document)} {document.content}" for place, document in enumerate(documents, 1)
    )


def _format_document_id(document: Document) -> str:
    named = dict.fromkeys(filter(None, (document.id, document.metadata.get("doc_uri"), document.metadata.get("uri"))))
    return f" ({', '.join(truncate_middle(str(name), 200) for name in named)})" if named else ""


MAX_TRAJECTORY_LENGTH = 30_000  # characters of a run tree
_MIN_VALUE_LENGTH, _MAX_VALUE_LENGTH = 80, 2_000  # characters of what went into a run, of what came out, of its error
_MAX_INDENT = 12  # levels that are shown by indentation
_MAX_NAME_LENGTH = 200  # characters of a run's name


def render_trajectory(trace: Trace, most: int = MAX_TRAJECTORY_LENGTH) -> str:
    """Which runs a trace has, by start time, the deeper ones indented below those that called them: kind, name, inputs,
    outputs, error. Long values are cut; of many runs those in the middle are left out, and counted.

    Runs whose parent is not there stand at the top, as do those that are below each other in a circle. Runs of
    evaluators are left out.
    """
    runs = list(_iterate_depth_first(trace))
    share = min(_MAX_VALUE_LENGTH, max(_MIN_VALUE_LENGTH, most // (3 * max(1, len(runs)))))
    blocks = [_format_run(number, depth, run, share) for number, (depth, run) in enumerate(runs, 1)]
    kept = _fit_blocks(blocks, most)
    left_out = sum(max(0, len(text) - share) for _, run in runs for _, text in _list_run_values(run))
    if len(kept) < len(blocks):
        left_out += sum(map(len, blocks)) - sum(map(len, kept))
    return ShortenedText("\n".join(kept), left_out)


def _iterate_depth_first(trace: Trace) -> Iterator[tuple[int, Run]]:
    """Each run once, with its depth: after the run that it is below, and by start time among those beside it."""
    runs = sorted(trace.runs, key=lambda run: (run.start_ns, run.span_id))
    there = {run.span_id for run in runs}
    below: dict[str, list[Run]] = {}
    for run in runs:
        below.setdefault(run.parent_id if run.parent_id in there else "", []).append(run)
    waiting = [(0, run) for run in reversed(below.pop("", []))]
    while waiting or below:
        if not waiting:  # all that is left is below itself
            first = next(iter(below))
            waiting = [(0, run) for run in reversed(below.pop(first))]
        depth, run = waiting.pop()
        if run.kind == "evaluator":
            _remove_descendants(run, below)
            continue
        yield depth, run
        waiting += [(depth + 1, under) for under in reversed(below.pop(run.span_id, []))]


def _remove_descendants(run: Run, below: dict[str, list[Run]]) -> None:
    """Take out of `below` all that is below a run."""
    waiting = [run]
    while waiting:
        waiting += below.pop(waiting.pop().span_id, [])


def _format_run(number: int, depth: int, run: Run, share: int) -> str:
    indent = "  " * min(depth, _MAX_INDENT)
    deep = f" (level {depth})" if depth > _MAX_INDENT else ""
    lines = [
        f"{number}. {run.kind} {truncate_middle(run.name, _MAX_NAME_LENGTH)!r}{deep}{' failed' if run.status == 'error' else ''}"
    ]
    lines += [f"   {name}: {truncate_middle(text, share)}" for name, text in _list_run_values(run)]
    return "\n".join(f"{indent}{line}" for text in lines for line in text.splitlines())


def _fit_blocks(blocks: list[str], most: int) -> list[str]:
    """The first and the last blocks that have room, and between them how many have not."""
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
    """Return (name, text) of what went into a run, of what came out and of its error."""
    values: tuple[tuple[str, Any], ...] = (("inputs", run.inputs), ("outputs", run.outputs), ("error", run.error))
    return [
        (name, value if isinstance(value, str) else to_json_text(value, indent=False))
        for name, value in values
        if value is not None
    ]


def to_json_text(value: Any, indent: bool = True) -> str:
    """A value as JSON; where it is none (it holds itself, say) as Python shows it. Equal values give equal texts."""
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        return orjson.dumps(value, default=_json_default, option=option).decode()
    except TypeError:  # half of a surrogate pair, a number beyond 64 bits, a value that holds itself
        pass
    try:
        return json.dumps(value, default=_json_default, ensure_ascii=False, indent=2 if indent else None)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return repr(value)
    except Exception:  # nested a thousand levels deep, or of somebody's own
        return f"(a {type(value).__name__} that cannot be written down)"


def _json_default(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)
