"""Content of GenAI spans in log records, which come before their span or after it, or name a response instead."""

from __future__ import annotations

from hashlib import blake2b

from spanwise.collector.clocks import SENT
from spanwise.collector.dialects._messages import EVENTS, of_event
from spanwise.collector.dialects._raw import RawLog
from spanwise.collector.dialects._values import as_text, count, text
from spanwise.collector.records import JSON, Amendment
from spanwise.tracer import attributes as names


def content(log: RawLog) -> Amendment | None:
    """What a record says of the messages of a call; None if it says nothing, or nobody could say of which call."""
    if log.event not in EVENTS:
        return None
    given, made = of_event(log.event, log.body, log.attributes)
    fields = {"input_messages": given, "output_messages": made}
    key = _key(log)
    said: dict[str, JSON] = {name: {key: messages} for name, messages in fields.items() if messages}
    if not said:
        return None
    if log.trace_id and log.span_id:
        return Amendment(log.trace_id, log.span_id, said)
    response = text(log.attributes.get(names.RESPONSE_ID))
    return Amendment("", "", said, response_id=response) if response else None


def _key(log: RawLog) -> str:
    """A place in the order of a call's messages: the same for a record that is sent again, another for each other."""
    sent = count(log.attributes.get(f"{SENT}created_ns")) or log.time_ns  # in the future they may all be one
    said = as_text([log.event, log.body, {name: log.attributes[name] for name in sorted(log.attributes)}])
    return f"{sent:020d}.{blake2b(said.encode(errors='replace'), digest_size=6).hexdigest()}"
