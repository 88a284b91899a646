"""The forms in which evaluators return what they say, led back to the few that feedback is made of.

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
from spanwise.evaluators.protocol._plain import plain

# What LangSmith's dicts may hold beside ours. The ids of runs are read, everything is kept in the metadata.
LANGSMITH = ("correction", "evaluator_info", "feedback_config", "extra", "source_run_id", "target_run_id")
_COMMENTS = ("comment", "reasoning", "reason", "rationale", "explanation")
_BESIDE = ("key", "name", *_COMMENTS)  # one of them tells a result with a `value` from other things that have one
_KEPT = ("score", "value", "label", "metadata", "error", *LANGSMITH)
_SPAN_ID = 16  # hex digits


def items(returned: Any) -> list[Any] | tuple[Any, ...] | None:
    """The values that a list or a dict of `results` holds; None where one value was returned."""
    if isinstance(returned, list | tuple):
        if type(returned) is not list and (hasattr(returned, "_fields") or _is_pair(returned)):
            return None
        return [inner for item in returned for inner in _within(item)] if any(map(_is_several, returned)) else returned
    return _within(returned) if _is_several(returned) else None


def read(value: Any) -> Any:
    """One returned value, as a mapping where it says more than a score or a label; else the value itself."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, str | Real):
        return value
    if _is_missing(value):
        return float("nan")
    if _is_pair(value):
        return {"score": value[0], "comment": value[1]}
    return value if isinstance(value, type) else _of_object(value)


def score_in(value: Any) -> Any:
    """What stands under `score`: models write numbers as texts; any other text is a label."""
    value = read(value)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def label_in(value: Any) -> Any:
    """What stands under `value`; where it is a dict, which LangSmith allows, that as JSON text."""
    return orjson.dumps(plain(value)).decode() if isinstance(value, Mapping) else read(value)


def of_langsmith(value: Mapping[str, Any], target: Target) -> tuple[Target, dict[str, Any]]:
    """What LangSmith's own keys say: of which run of the trace, and what is kept of them."""
    kept = {name: plain(value[name]) for name in LANGSMITH if _is_said(value.get(name))}
    run_id = str(kept.get("target_run_id") or "").replace("-", "")
    if target.trace_id is None or (run_id != target.trace_id and len(run_id) != _SPAN_ID):
        return target, kept
    del kept["target_run_id"]
    return (target if run_id == target.trace_id else Target(trace_id=target.trace_id, span_id=run_id)), kept


def _is_several(value: Any) -> bool:
    return "results" in value if type(value) is dict else isinstance(value, Mapping) and "results" in value


def _within(value: Any) -> list[Any] | tuple[Any, ...]:
    held = value["results"] if _is_several(value) else value
    several = items(held) if held is not value else None
    return [held] if several is None else several


def _is_pair(returned: Any) -> bool:
    """Whether it is a score and why: `(0.5, "because")`."""
    return type(returned) is tuple and len(returned) == 2 and _is_score(returned[0]) and isinstance(returned[1], str)


def _is_score(value: Any) -> bool:
    return isinstance(value, Real | Decimal) or _is_missing(value) or getattr(value, "ndim", None) == 0


def _is_missing(value: Any) -> bool:
    """What pandas has for nothing: `pandas.NA`, `pandas.NaT`."""
    return type(value).__name__ in ("NAType", "NaTType") and type(value).__module__.startswith("pandas.")


def _of_object(value: Any) -> Any:
    """A mapping of what a result object says, such as a pydantic model or a dataclass; anything else as it is."""
    named = any(_is_said(getattr(value, name, None)) for name in _BESIDE)
    if not (_has(value, "score") or (_has(value, "value") and named)):
        return value
    said = {name: getattr(value, name) for name in _KEPT if _is_said(getattr(value, name, None))}
    for name, names in (("key", ("key", "name")), ("comment", _COMMENTS)):
        found = next((given for other in names if _is_said(given := getattr(value, other, None))), None)
        if found is not None:
            said[name] = found
    return said


def _has(value: Any, name: str) -> bool:
    return hasattr(value, name) and not callable(getattr(value, name))


def _is_said(value: Any) -> bool:
    """Whether a field is filled in: LangSmith's are None or an empty dict where they are not."""
    return value is not None and not callable(value) and not (isinstance(value, Mapping) and not value)
