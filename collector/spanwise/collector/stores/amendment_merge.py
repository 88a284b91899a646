"""Merging of amendments into runs, before and after the run arrives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, get_type_hints

import msgspec

from spanwise.collector import record_encoding
from spanwise.collector.errors import Refused
from spanwise.collector.records import JSON, Feedback, Run, Target

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
