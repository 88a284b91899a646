"""Return values of evaluators in all accepted forms, normalized: LangSmith results, pairs, enums, objects.

Beside our own: LangSmith's `EvaluationResult` and `{"results": […]}`, any object with a score, or with a value and a
reason, a score with its comment as a pair, enums, and what pandas has for nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

import orjson

from spanwise.collector.records import Target
from spanwise.evaluators.interface.value_conversion import to_plain

# What LangSmith's dicts may hold beside ours. The ids of runs are read, everything is kept in the metadata.
LANGSMITH_FIELDS = ("correction", "evaluator_info", "feedback_config", "extra", "source_run_id", "target_run_id")
_COMMENT_FIELDS = ("comment", "reasoning", "reason", "rationale", "explanation")
_RESULT_MARKERS = (
    "key",
    "name",
    *_COMMENT_FIELDS,
)  # one of them tells a result with a `value` from other things that have one
_COPIED_FIELDS = ("score", "value", "label", "metadata", "error", *LANGSMITH_FIELDS)
_SPAN_ID = 16  # hex digits


def unwrap_results(returned: Any) -> list[Any] | tuple[Any, ...] | None:
    """The values that a list or a dict of `results` holds; None where one value was returned."""
    if isinstance(returned, list | tuple):
        if type(returned) is not list and (hasattr(returned, "_fields") or _is_score_comment_pair(returned)):
            return None
        return (
            [inner for item in returned for inner in _unwrap_item(item)]
            if any(map(_has_results, returned))
            else returned
        )
    return _unwrap_item(returned) if _has_results(returned) else None


def normalize_value(value: Any) -> Any:
    """One returned value, as a mapping where it says more than a score or a label; else the value itself."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, str | Real):
        return value
    if _is_pandas_missing(value):
        return float("nan")
    if _is_score_comment_pair(value):
        return {"score": value[0], "comment": value[1]}
    return value if isinstance(value, type) else _read_object(value)


def normalize_score(value: Any) -> Any:
    """What stands under `score`: models write numbers as texts; any other text is a label."""
    value = normalize_value(value)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def normalize_label(value: Any) -> Any:
    """What stands under `value`; where it is a dict, which LangSmith allows, that as JSON text."""
    return orjson.dumps(to_plain(value)).decode() if isinstance(value, Mapping) else normalize_value(value)


def read_langsmith_fields(value: Mapping[str, Any], target: Target) -> tuple[Target, dict[str, Any]]:
    """What LangSmith's own keys say: of which run of the trace, and what is kept of them."""
    kept = {name: to_plain(value[name]) for name in LANGSMITH_FIELDS if _is_set(value.get(name))}
    run_id = str(kept.get("target_run_id") or "").replace("-", "")
    if target.trace_id is None or (run_id != target.trace_id and len(run_id) != _SPAN_ID):
        return target, kept
    del kept["target_run_id"]
    return (target if run_id == target.trace_id else Target(trace_id=target.trace_id, span_id=run_id)), kept


def _has_results(value: Any) -> bool:
    return "results" in value if type(value) is dict else isinstance(value, Mapping) and "results" in value


def _unwrap_item(value: Any) -> list[Any] | tuple[Any, ...]:
    held = value["results"] if _has_results(value) else value
    several = unwrap_results(held) if held is not value else None
    return [held] if several is None else several


def _is_score_comment_pair(returned: Any) -> bool:
    """Whether it is a score and why: `(0.5, "because")`."""
    return type(returned) is tuple and len(returned) == 2 and _is_score(returned[0]) and isinstance(returned[1], str)


def _is_score(value: Any) -> bool:
    return isinstance(value, Real | Decimal) or _is_pandas_missing(value) or getattr(value, "ndim", None) == 0


def _is_pandas_missing(value: Any) -> bool:
    """What pandas has for nothing: `pandas.NA`, `pandas.NaT`."""
    return type(value).__name__ in ("NAType", "NaTType") and type(value).__module__.startswith("pandas.")


def _read_object(value: Any) -> Any:
    """A mapping of what a result object says, such as a pydantic model or a dataclass; anything else as it is."""
    named = any(_is_set(getattr(value, name, None)) for name in _RESULT_MARKERS)
    if not (_has_field(value, "score") or (_has_field(value, "value") and named)):
        return value
    said = {name: getattr(value, name) for name in _COPIED_FIELDS if _is_set(getattr(value, name, None))}
    for name, names in (("key", ("key", "name")), ("comment", _COMMENT_FIELDS)):
        found = next((given for other in names if _is_set(given := getattr(value, other, None))), None)
        if found is not None:
            said[name] = found
    return said


def _has_field(value: Any, name: str) -> bool:
    return hasattr(value, name) and not callable(getattr(value, name))


def _is_set(value: Any) -> bool:
    """Whether a field is filled in: LangSmith's are None or an empty dict where they are not."""
    return value is not None and not callable(value) and not (isinstance(value, Mapping) and not value)
