"""Return values of evaluators in all accepted forms, normalized: LangSmith results, pairs, enums, objects.

Besides Spanwise's own forms, these are accepted: LangSmith's `EvaluationResult` and `{"results": […]}`, objects with
a score, objects with a value and a reason, (score, comment) pairs, enums, and the missing values of pandas.
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

# Additional fields of LangSmith's result dicts. `target_run_id` selects the target; all others are kept as metadata.
LANGSMITH_FIELDS = ("correction", "evaluator_info", "feedback_config", "extra", "source_run_id", "target_run_id")
_COMMENT_FIELDS = ("comment", "reasoning", "reason", "rationale", "explanation")
_RESULT_MARKERS = (
    "key",
    "name",
    *_COMMENT_FIELDS,
)  # an object with a `value` is an evaluator's result if it also has one of these fields
_COPIED_FIELDS = ("score", "value", "label", "metadata", "error", *LANGSMITH_FIELDS)
_SPAN_ID = 16  # hex digits of a span id


def unwrap_results(returned: Any) -> list[Any] | tuple[Any, ...] | None:
    """Return the separate results, if the value is a list or a dict with `results`; None for a single value."""
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
    """Return one value as a mapping if it contains more than a score or a label, else the value itself."""
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
    """Return the content of a result's field `score`. Numbers in texts, as models write them, become numbers; other
    texts are labels.
    """
    value = normalize_value(value)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def normalize_label(value: Any) -> Any:
    """Return the content of a result's field `value` as a label. A dict, which LangSmith allows, becomes JSON text."""
    return orjson.dumps(to_plain(value)).decode() if isinstance(value, Mapping) else normalize_value(value)


def read_langsmith_fields(value: Mapping[str, Any], target: Target) -> tuple[Target, dict[str, Any]]:
    """Return the target that LangSmith's `target_run_id` names within the trace, and the LangSmith fields to keep as
    metadata.
    """
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
    """Return whether the value is a score with a comment: `(0.5, "because")`."""
    return type(returned) is tuple and len(returned) == 2 and _is_score(returned[0]) and isinstance(returned[1], str)


def _is_score(value: Any) -> bool:
    return isinstance(value, Real | Decimal) or _is_pandas_missing(value) or getattr(value, "ndim", None) == 0


def _is_pandas_missing(value: Any) -> bool:
    """Return whether the value is `pandas.NA` or `pandas.NaT`."""
    return type(value).__name__ in ("NAType", "NaTType") and type(value).__module__.startswith("pandas.")


def _read_object(value: Any) -> Any:
    """Return the fields of a result object (pydantic model, dataclass) as a mapping; other values unchanged."""
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
    """Return whether a LangSmith field has a value. LangSmith leaves unset fields at None or an empty dict."""
    return value is not None and not callable(value) and not (isinstance(value, Mapping) and not value)
