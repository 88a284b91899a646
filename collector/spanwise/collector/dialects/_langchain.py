"""Messages as LangChain writes its objects: `langchain_core/load/serializable.py`, and `langchain_core/outputs`."""

from __future__ import annotations

from spanwise.collector.records import JSON

ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}  # the others are called as everywhere
PARTS = ("name", "tool_calls", "tool_call_id")  # of a message, where they hold something


def given(value: JSON) -> list[JSON] | None:
    """The messages of `{"messages": [[…]]}`, which a chat model is asked with; None for anything else."""
    asked = value.get("messages") if isinstance(value, dict) else None
    return _messages(asked[0]) if isinstance(asked, list) and len(asked) == 1 else None


def made(value: JSON) -> list[JSON] | None:
    """The messages of `{"generations": [[{"message": …}]]}`, one for each choice; None for anything else."""
    generations = value.get("generations") if isinstance(value, dict) else None
    if not isinstance(generations, list) or len(generations) != 1 or not isinstance(generations[0], list):
        return None
    return _messages([one.get("message") if isinstance(one, dict) else None for one in generations[0]])


def _messages(written: JSON) -> list[JSON] | None:
    if not isinstance(written, list):
        return None
    messages = [_message(one) for one in written]
    return messages if messages and all(messages) else None


def _message(written: JSON) -> JSON:
    fields = written.get("kwargs") if isinstance(written, dict) and "lc" in written else None
    if not isinstance(fields, dict) or "content" not in fields:
        return None
    kind = fields.get("type")
    role = ROLES.get(kind, kind) if isinstance(kind, str) else "user"
    return {"role": role, "content": fields["content"], **{part: fields[part] for part in PARTS if fields.get(part)}}
