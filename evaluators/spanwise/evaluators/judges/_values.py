"""The arguments of prompts as texts, taken from a case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spanwise.collector.records import Case, Document
from spanwise.evaluators.judges._fences import Sections, cut
from spanwise.evaluators.judges._json import as_json
from spanwise.evaluators.judges._trajectory import trajectory
from spanwise.evaluators.protocol import Skip, messages, missing_needs, only, value_of

_ROLES = frozenset({"user", "assistant", "system", "developer", "tool", "function"})


@dataclass(frozen=True, slots=True)
class Turn:
    """The last turn of a conversation: what was said before it, as messages, and what was asked."""

    earlier: Sequence[Mapping[str, Any]]
    asked: Any


def texts_of(case: Case, names: Iterable[str], *, optional: Mapping[str, str] | None = None) -> dict[str, str]:
    """The values of those names as texts; `optional` are words for what may be missing.

    Of a conversation the last turn is `inputs`; what was said before it stands above it, unless `history` is asked for
    as well. Raises `Skip` where the case lacks one.
    """
    names = tuple(names)
    values = {name: _value(case, name) for name in names}
    words = optional or {}
    missing = [name for name, value in values.items() if value is None and name not in words]
    if missing:
        raise Skip(missing_needs(["trace" if name == "trajectory" else name for name in missing], case))
    texts = {name: words[name] if value is None else text_of(value) for name, value in values.items()}
    if "inputs" in texts and "history" not in names:
        texts["inputs"] = _after(_turn(case).earlier, texts["inputs"])
    return texts


def text_of(value: Any) -> str:
    """A value as a judge reads it. A prompt cuts what is too long for one question.

    A text as it is, documents numbered with their ids, messages as "role: text", all else as JSON.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        if all(isinstance(member, Document) for member in value) and (value or isinstance(value, tuple)):
            return _documents(value)
        if spoken := conversation(value):
            return said(spoken)
    return as_json(value)


def conversation(value: Any) -> list[dict[str, Any]]:
    """The messages of a conversation, also below the one key of a dict or below "messages"; [] for anything else."""
    found = messages(only(value))
    return found if all(message["role"] in _ROLES for message in found) else []


def said(spoken: Iterable[Mapping[str, Any]]) -> str:
    """Messages as "role: text", one below the other."""
    return "\n".join(f"{message.get('role')}: {_content(message)}" for message in spoken)


def whole(case: Case) -> list[Mapping[str, Any]]:
    """All that was said: what came before, what was asked last, and the answer; nothing twice."""
    turn = _turn(case)
    ends = (("user", only(turn.asked)), ("assistant", only(_answer(case.outputs))))
    last = [{"role": role, "content": text_of(content)} for role, content in ends if content is not None]
    return [*turn.earlier, *last]


def _value(case: Case, name: str) -> Any:
    if name == "trajectory":
        return None if case.trace is None else trajectory(case.trace)
    if name == "inputs":
        return _turn(case).asked
    if name == "outputs":
        return _answer(case.outputs)
    if name == "history":
        return value_of(case, "history") or _turn(case).earlier or None
    return value_of(case, name)


def _turn(case: Case) -> Turn:
    """What was asked last, and what came before: of a session, whose history ends with both, and of inputs that are a
    conversation themselves.
    """
    inputs, earlier = value_of(case, "inputs"), conversation(value_of(case, "history"))
    spoken = conversation(inputs)
    last = max((place for place, message in enumerate(spoken) if message["role"] == "user"), default=-1)
    asked = _content(spoken[last]) if last >= 0 else inputs
    answer = _answer(case.outputs)
    if earlier and answer is not None and earlier[-1] == {"role": "assistant", "content": answer}:
        earlier = earlier[:-1]
    if earlier and earlier[-1].get("role") == "user" and _same(earlier[-1].get("content"), inputs, asked):
        earlier = earlier[:-1]
    return Turn(earlier or spoken[: max(last, 0)], asked)


def _same(content: Any, *others: Any) -> bool:
    return any(content == other or content == only(other) for other in others)


def _answer(outputs: Any) -> Any:
    """Of outputs that are messages what the assistant said last; anything else as it is."""
    spoken = conversation(outputs)
    answers = [message for message in spoken if message["role"] == "assistant"]
    return _content(answers[-1]) if answers else outputs


def _after(earlier: Iterable[Mapping[str, Any]], asked: str) -> str:
    """What was asked, below what was said before."""
    before = said(earlier)
    return f"Earlier in the conversation:\n{before}\n\nThe last turn:\n{asked}" if before else asked


def _content(message: Mapping[str, Any]) -> str:
    """The words of a message; of one in parts those that are text, and which others there are; the tools it calls."""
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else [content]
    words = [_part(part) for part in parts if part is not None]
    calls = message.get("tool_calls") or ()
    words += [f"(calls {as_json(call)})" for call in (calls if isinstance(calls, list | tuple) else [calls])]
    return "\n".join(words)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        text = part.get("text")
        return text if isinstance(text, str) else f"({part.get('type', 'something else')} left out)"
    return as_json(part)


def _documents(documents: Sequence[Document]) -> str:
    if not documents:
        return "(no documents)"
    return Sections(f"[{place}]{_id(document)} {document.content}" for place, document in enumerate(documents, 1))


def _id(document: Document) -> str:
    named = dict.fromkeys(filter(None, (document.id, document.metadata.get("doc_uri"), document.metadata.get("uri"))))
    return f" ({', '.join(cut(str(name), 200) for name in named)})" if named else ""
