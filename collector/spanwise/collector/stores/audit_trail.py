"""Audit trail: which operations are recorded, with which arguments and actor."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import signature
from typing import Any

import msgspec

from spanwise.collector.records import AuditEvent, Key
from spanwise.collector.request_context import get_current_actor

MAX_CHARS = 1000  # maximum length of the arguments and of a name
# Audited operations of the backends; the combined store audits its own deletions
AUDITED_OPERATIONS = frozenset(
    (
        "save_key delete_dataset delete_rule delete_decisions delete_feedback delete_lease delete_budget set_retention"
    ).split()
)
log = logging.getLogger("spanwise.audit")


def audit_operation(verb: Callable[..., Any], note: Callable[[AuditEvent], None]) -> Callable[..., Any]:
    """Wrap an operation so that it is audited after it has changed something."""
    # Positional-only parameters, which are `self` and the connection, are left out
    whole = signature(verb)
    asked = whole.replace(parameters=[one for one in whole.parameters.values() if one.kind is not one.POSITIONAL_ONLY])

    @wraps(verb)
    def done(*args: Any, **given: Any) -> Any:
        result = verb(*args, **given)
        if result or result is None:
            about = asked.bind(*args, **given).arguments
            note(make_audit_event(verb.__name__, about, 1 if result is None else int(result)))
        return result

    return done


def make_audit_event(action: str, about: Mapping[str, Any], count: int) -> AuditEvent:
    """Return the audit event of an operation, with its significant arguments as JSON. A key's hash is left out."""
    actor = get_current_actor()
    arguments = {name: _describe_value(value) for name, value in about.items()}
    return AuditEvent(
        action=action,
        about=json.dumps(arguments, ensure_ascii=False, default=repr)[:MAX_CHARS],
        count=count,
        key=actor.key,
        name=actor.name[:MAX_CHARS],
        address=actor.address,
    )


def log_audit_event(event: AuditEvent) -> None:
    """Log the event as one line of JSON. ASCII escapes keep client data from ending the line or controlling a
    terminal.
    """
    log.info("%s", json.dumps({"audit": event.action, **msgspec.to_builtins(event)}, ensure_ascii=True))


def _describe_value(value: Any) -> Any:
    """Return the fields of a record that differ from their defaults. Other values are returned unchanged."""
    if isinstance(value, Key):
        return {name: getattr(value, name) for name in ("id", "name", "scopes", "project", "expires_ns")}
    if not is_dataclass(value):
        return value
    said = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
    return {name: given for name, (given, default) in said.items() if given not in (default, {})}
