"""Audit trail: which operations are recorded, with which arguments and actor."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Signature, signature
from typing import Any

import msgspec

from spanwise.collector.records import AuditEvent, Key
from spanwise.collector.request_context import get_current_actor

MAX_CHARS = 1000  # characters of what was meant, and of a name
# Verbs of the halves of a store; `Both` writes down what its own delete
AUDITED_OPERATIONS = frozenset(
    (
        "save_key delete_dataset delete_rule delete_decisions delete_feedback delete_lease delete_budget set_retention"
    ).split()
)
log = logging.getLogger("spanwise.audit")


def audit_operation(verb: Callable[..., Any], note: Callable[[AuditEvent], None]) -> Callable[..., Any]:
    """A verb that is written down once it has done something; one that found nothing to do is not."""
    asked = _get_call_signature(verb)

    @wraps(verb)
    def done(*args: Any, **given: Any) -> Any:
        result = verb(*args, **given)
        if result or result is None:
            about = asked.bind(*args, **given).arguments
            note(make_audit_event(verb.__name__, about, 1 if result is None else int(result)))
        return result

    return done


def _get_call_signature(verb: Callable[..., Any]) -> Signature:
    """How a verb is called; before the slash stand what it is a method of and its connection."""
    whole = signature(verb)
    return whole.replace(parameters=[one for one in whole.parameters.values() if one.kind is not one.POSITIONAL_ONLY])


def make_audit_event(action: str, about: Mapping[str, Any], count: int) -> AuditEvent:
    """What is written down: of arguments those that say something, as JSON; of a key not its hash."""
    actor = get_current_actor()
    return AuditEvent(
        action=action,
        about=_to_text(about)[:MAX_CHARS],
        count=count,
        key=actor.key,
        name=actor.name[:MAX_CHARS],
        address=actor.address,
    )


def log_audit_event(event: AuditEvent) -> None:
    """One line of JSON in the log, in which nothing that was sent can end the line or speak to a terminal."""
    log.info("%s", json.dumps({"audit": event.action, **msgspec.to_builtins(event)}, ensure_ascii=True))


def _to_text(about: Mapping[str, Any]) -> str:
    said = {name: _describe_value(value) for name, value in about.items()}
    return json.dumps(said, ensure_ascii=False, default=repr)


def _describe_value(value: Any) -> Any:
    """Of a record the fields that say something."""
    if isinstance(value, Key):
        return {name: getattr(value, name) for name in ("id", "name", "scopes", "project", "expires_ns")}
    if not is_dataclass(value):
        return value
    said = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
    return {name: given for name, (given, default) in said.items() if given not in (default, {})}
