"""What is said of a run after it has been stored. Pure; every store of traces does it alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_type_hints

import msgspec

from assay.collector import _wire
from assay.collector.errors import Refused
from assay.collector.records import JSON, Run

FIELDS = "inputs outputs documents model usage cost session_id user_id tags metadata attributes".split()
MERGED = ("metadata", "attributes")
_TYPES = {name: kind for name, kind in get_type_hints(Run).items() if name in FIELDS}


def as_json(fields: Mapping[str, Any]) -> dict[str, JSON]:
    """The fields as plain JSON. Raises `Refused` for one that is not of `FIELDS`, or a value that it cannot have."""
    for name in fields:
        if name not in FIELDS:
            from assay.tracer.hints import did_you_mean  # loads the tracer, which only a mistake should cost

            raise Refused(f"{name!r} of a run cannot be amended{did_you_mean(name, FIELDS)}")
    plain: dict[str, JSON] = _wire.decode(dict[str, Any], _wire.encode(fields))
    _typed(plain)
    return plain


def together(earlier: Mapping[str, JSON], later: Mapping[str, JSON]) -> dict[str, JSON]:
    """What was amended earlier and later as one: the later value of a field, `MERGED` ones key by key."""
    merged = {name: {**earlier[name], **later[name]} for name in MERGED if name in earlier and name in later}
    return {**earlier, **later, **merged}


def amended(run: Run, fields: Mapping[str, JSON]) -> Run:
    """A stored run with fields that came later."""
    values = _typed(fields)
    merged = {name: {**getattr(run, name), **values[name]} for name in MERGED if name in values}
    return replace(run, **{**values, **merged})


def kept(run: Run, fields: Mapping[str, JSON]) -> Run:
    """A later version of a run with what had been amended before it came, but for what it brings itself."""
    values = _typed(fields)
    missing = {name: value for name, value in values.items() if getattr(run, name) in (None, ())}
    merged = {name: {**values[name], **getattr(run, name)} for name in MERGED if name in values}
    return replace(run, **{**missing, **merged})


def _typed(fields: Mapping[str, JSON]) -> dict[str, Any]:
    values = {}
    for name, value in fields.items():
        try:
            values[name] = _wire.convert(value, _TYPES[name])
        except msgspec.ValidationError as error:
            raise Refused(f"{name!r} of a run cannot be {value!r}: {error}") from None
    return values
