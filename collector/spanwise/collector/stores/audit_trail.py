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
    "save_key delete_dataset delete_rule delete_decisions delete_feedback delete_lease delete_budget set_retention".split()
)
log = logging.getLogger("spanwise.audit")


def audit_operation(operation: Callable[..., Any], record: Callable[[AuditEvent], None]) -> Callable[..., Any]:
    """Wrap an operation so that it is audited after it has changed something."""
    # Positional-only parameters, which are `self` and the connection, are left out
    full = signature(operation)
    parameters = [
        parameter for parameter in full.parameters.values() if parameter.kind is not parameter.POSITIONAL_ONLY
    ]
    audited = full.replace(parameters=parameters)

    @wraps(operation)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = operation(*args, **kwargs)
        if result or result is None:
            about = audited.bind(*args, **kwargs).arguments
            record(make_audit_event(operation.__name__, about, 1 if result is None else int(result)))
        return result

    return call


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
    values = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
    return {name: item for name, (item, default) in values.items() if item not in (default, {})}
