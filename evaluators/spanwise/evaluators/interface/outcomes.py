"""Outcomes of an evaluator as feedback: a score, a skip or an error; conversion of values to JSON.

Besides Spanwise's own forms, these are accepted: LangSmith's `EvaluationResult` and `{"results": […]}`, objects with
a score, objects with a value and a reason, (score, comment) pairs, enums, and the missing values of pandas.
"""

from __future__ import annotations

import enum
import math
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from math import inf, isfinite
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import JSON, Case, Document, Feedback, Source, Target, make_score
from spanwise.tracer.content.serialization import to_json

# Conversion of values to the form that evaluators see: plain JSON, documents, chat messages, infinite numbers.

MAX_BYTES = 2**26  # maximum bytes of a value for evaluators; the tracer's limit for stored values is separate
MAX_MEMBERS = 2**22  # maximum number of values in containers, over all levels
MIN_INTEGER = -(2**63)  # lowest integer of 64 bits; integers outside this range become text
_JSON_SCALARS = frozenset({str, bool, type(None)})


def to_plain(value: Any) -> JSON:
    """Return a value with only the types of JSON. A trace that is read later has the same types, but may be truncated.

    - Scalars of numpy become numbers; arrays of numpy, tensors and columns of pandas become lists; a DataFrame becomes
      a list with one dict per row.
    - Models, dataclasses and named tuples become dicts. Enums become their values. Sets and tuples become lists. Dates
      and decimals become text.
    - Missing values (`pandas.NA`, NaN) become None. Integers above 64 bits become text. Anything else becomes its
      `repr`.
    """
    kind = type(value)
    if (
        kind in _JSON_SCALARS
        or (kind is float and isfinite(value))
        or (kind is int and MIN_INTEGER <= value < -MIN_INTEGER)
    ):
        return value
    if kind is not dict and hasattr(kind, "tolist"):
        # converting arrays and numpy scalars as a whole is many times faster than item by item
        with suppress(Exception):  # an unrelated method has this name; `to_json` handles the value
            value = value.tolist()
        if type(value) in _JSON_SCALARS:
            return value
    return orjson.loads(to_json(value, MAX_BYTES, MAX_MEMBERS, inf))


CONTENT_FIELDS = ("content", "page_content", "text")
ID_FIELDS = ("id", "doc_uri")


def to_documents(value: Iterable[Any]) -> tuple[Document, ...]:
    """Return documents for a list of strings, dicts or documents.

    Dicts have the fields `content|page_content|text`, `id|doc_uri`, `score` and `metadata`. Raises `TypeError` for a
    value that is not a list, and the errors of `to_document`.
    """
    if isinstance(value, str | Mapping):
        raise TypeError(f"documents must be a list, got {value!r:.200}")
    if type(value) is not tuple:
        return tuple(map(to_document, value))
    for member in value:  # fast path, because retrieval evaluators call this often with the documents of cases
        if type(member) is not Document:
            return tuple(map(to_document, value))
    return value


def to_document(value: Any) -> Document:
    """Return one document. Unknown fields of a dict become metadata.

    If the content is None or "", the document is empty.

    Raises `TypeError` for other types, `ValueError` for a dict with neither a content nor an id field.
    """
    if isinstance(value, Document):
        return value
    if isinstance(value, str):
        return Document(value)
    if isinstance(value, Mapping):
        return _from_mapping(value)
    return _from_object(value)


def _from_object(value: Any) -> Document:
    """Return the document of a LangChain, LlamaIndex or Haystack object."""
    contents = [getattr(value, name) for name in CONTENT_FIELDS if hasattr(value, name)]
    content = next((text for text in contents if text is not None), "" if contents else None)
    if not isinstance(content, str):
        raise TypeError(f"a document must be a string, a dict or a Document, got {value!r:.200}")
    metadata = getattr(value, "metadata", None) or getattr(value, "meta", None) or {}
    id = next((id for name in (*ID_FIELDS, "id_", "node_id") if (id := getattr(value, name, None)) is not None), None)
    return Document(content, None if id is None else str(id), getattr(value, "score", None), dict(metadata))


def _from_mapping(value: Mapping[str, Any]) -> Document:
    content = next((value[name] for name in CONTENT_FIELDS if value.get(name) is not None), "")
    id = next((value[name] for name in ID_FIELDS if value.get(name) is not None), None)
    if not any(name in value for name in (*CONTENT_FIELDS, *ID_FIELDS)):
        raise ValueError(f"a document needs content or an id, got {dict(value)!r:.200}")
    known = {*CONTENT_FIELDS, *ID_FIELDS, "score", "metadata"}
    others = {name: member for name, member in value.items() if name not in known}
    metadata = {**others, **(value.get("metadata") or {})}
    if value.get("doc_uri") is not None:
        metadata["doc_uri"] = value["doc_uri"]
    return Document(str(content), None if id is None else str(id), value.get("score"), metadata)


_ROLES = {"human": "user", "ai": "assistant"}  # LangChain's names of message roles


def to_messages(value: JSON) -> list[dict[str, Any]]:
    """Return messages in OpenAI's format. Accepts that format and LangChain's serialized one; returns [] for other
    values.
    """
    if isinstance(value, Mapping):
        value = value.get("messages", [value])
    if not isinstance(value, list | tuple) or not value:
        return []
    read = [_to_message(item) for item in value]
    return [message for message in read if message] if all(read) else []


def unwrap_single_value(value: JSON) -> JSON:
    """Return the only value of a dict with one key; other values unchanged."""
    return next(iter(value.values())) if isinstance(value, Mapping) and len(value) == 1 else value


def _to_message(value: JSON) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("data"), Mapping):  # LangChain: {"type": "human", "data": {"content": …}}
        value = {"role": value.get("type"), **value["data"]}
    elif isinstance(value.get("kwargs"), Mapping):  # LangChain's constructor form
        name = str((value.get("id") or [""])[-1]).removesuffix("Message").removesuffix("MessageChunk").lower()
        value = {"role": name, **value["kwargs"]}
    role = value.get("role") or value.get("type")
    if not isinstance(role, str) or ("content" not in value and "tool_calls" not in value):
        return None
    keys = ("content", "name", "tool_calls", "tool_call_id")
    return {"role": _ROLES.get(role, role), **{key: value[key] for key in keys if value.get(key) is not None}}


_NUMBER_BY_WORD = {"Infinity": inf, "-Infinity": -inf}
_WORD_BY_NUMBER = {number: word for word, number in _NUMBER_BY_WORD.items()}


def encode_infinities(value: Any) -> Any:
    """Return the value with infinite numbers replaced by texts, in dicts and lists at any depth."""
    if isinstance(value, float):
        return _WORD_BY_NUMBER.get(value, value)
    if isinstance(value, Mapping):
        return {name: encode_infinities(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = map(encode_infinities, value)
        return tuple(inner) if isinstance(value, tuple) else list(inner)
    return value


def decode_infinity(value: Any) -> Any:
    """Convert the text "Infinity" or "-Infinity" to a number; return other values unchanged."""
    return _NUMBER_BY_WORD.get(value, value) if isinstance(value, str) else value


def to_stored_value(value: Any) -> Any:
    """Return a value in the form in which a store returns it. Values of types that JSON lacks become text."""
    return orjson.loads(orjson.dumps(value, default=_to_json_value, option=orjson.OPT_NON_STR_KEYS))


def _to_json_value(value: Any) -> Any:
    """Convert a value that JSON lacks: scalars and arrays of numpy and similar libraries to numbers and lists, others
    to text.
    """
    if callable(tolist := getattr(value, "tolist", None)):
        return tolist()
    return str(value)


# Outcomes of an evaluator as feedback: return values in all accepted forms become a score, a skip or an error.

RESULT_FIELDS = frozenset(
    "key score value label comment reasoning error metadata target results judge_trace_id".split()
)
# Additional fields of LangSmith's result dicts. `target_run_id` selects the target; all others are kept as metadata.
_LANGSMITH_FIELDS = ("correction", "evaluator_info", "feedback_config", "extra", "source_run_id", "target_run_id")
_COMMENT_FIELDS = ("comment", "reasoning", "reason", "rationale", "explanation")
# an object with a `value` is an evaluator's result if it also has one of these fields
_RESULT_MARKERS = ("key", "name", *_COMMENT_FIELDS)
_COPIED_FIELDS = ("score", "value", "label", "metadata", "error", *_LANGSMITH_FIELDS)
_SPAN_ID = 16  # hex digits of a span id
_ALLOWED_FIELDS = RESULT_FIELDS | frozenset(_LANGSMITH_FIELDS)
FIELD_TYPES: tuple[tuple[str, type], ...] = (("key", str), ("metadata", Mapping), ("target", Target))
SCALAR_TYPES = frozenset({bool, int, float, str})
_NUMBER_TYPES = SCALAR_TYPES - {str}
_REFERENCE_HINT = (  # LangSmith's exports have references under `outputs` without marking them
    "the example has outputs but no reference: if its outputs are the reference, read them with "
    "columns={'outputs': 'reference_outputs'}"
)
TRACEBACK_LIMIT = 8000  # maximum characters of a traceback
_INTERNAL_FILES = {
    str(Path(__file__).with_name(f"{name}.py")) for name in ("evaluator_execution", "sync_bridge", "outcomes")
}


class InvalidResult(SpanwiseError, TypeError):
    """Raised for a returned value that is not a score, label, skip, or list of these."""


class Skip(Exception):
    """Raised inside an evaluator: this case cannot be scored. The message gives the reason. The case counts as
    skipped.
    """


class Unjudged(SpanwiseError):
    """Raised inside an evaluator: the judge gave no valid judgement.

    The feedback contains the message without a traceback, the `metadata` (such as the judge's reply), and the trace
    of the attempt.
    """

    def __init__(self, message: str, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.metadata: Mapping[str, Any] = metadata or {}
        self.judge_trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class FeedbackFactory:
    """Factory of one evaluator's feedback. `renamed` maps the keys that the evaluator returns to the keys that the user
    chose.
    """

    key: str
    keys: tuple[str, ...]
    name: str
    version: str
    source: Source = "code"
    renamed: Mapping[str, str] = field(default_factory=dict)
    details: bool = True  # False: metadata of scores is dropped
    parameters: Mapping[str, Any] = field(default_factory=dict)  # metadata of all feedback: see `format_parameters`

    def feedback(self, target: Target, key: str | None = None, **values: Any) -> Feedback:
        """Return one feedback of this evaluator."""
        return self._make(target, self.key if key is None else self.renamed.get(key, key), **values)

    def skip(self, target: Target, why: str) -> list[Feedback]:
        """Return a skip under every key of the evaluator."""
        return [self._make(target, key, outcome="skip", comment=why) for key in self.keys]

    def failure(self, target: Target, error: BaseException, hint: str = "") -> list[Feedback]:
        """Return an error with its traceback under every key of the evaluator. For a `Skip`, return a skip.

        `hint` is appended to the message.
        """
        if isinstance(error, Skip):
            return self.skip(target, str(error))
        judge_trace_id = None
        if isinstance(error, Unjudged):
            text, metadata = str(error), error.metadata if self.details else {}
            judge_trace_id = error.judge_trace_id
        else:
            message = _read_message(error)
            text = (f"{type(error).__name__}: {message}" if message else type(error).__name__) + hint
            frames = traceback.format_exception(type(error), error, _trim_traceback(error))
            metadata = {"traceback": "".join(frames)[-TRACEBACK_LIMIT:]}
        failed = [self._make(target, key, outcome="error", error=text, metadata=metadata) for key in self.keys]
        return [replace(feedback, judge_trace_id=judge_trace_id) for feedback in failed] if judge_trace_id else failed

    def wrap(self, returned: Any, target: Target) -> list[Feedback]:
        """Return the feedback for a returned value. Raises `InvalidResult`."""
        kind = type(returned)
        if kind is bool or (kind is float and math.isfinite(returned)):  # fast path for the most frequent types
            return [
                make_score(
                    target,
                    self.key,
                    returned,
                    source=self.source,
                    evaluator=self.name,
                    version=self.version,
                    metadata=self.parameters or None,
                )
            ]
        if kind in SCALAR_TYPES or isinstance(returned, float):  # `isinstance` includes numpy's float64
            return [self._from_value(returned, target)]
        if kind is dict and "results" not in returned:
            if _is_score_mapping(returned):
                return [self._from_value(value, target, key) for key, value in returned.items()]
            return [self._from_mapping(returned, target)]
        results = _unwrap_results(returned)
        if results is None:
            return [self._from_item(returned, target)]
        feedback = [self._from_item(item, target) for item in results]
        if not feedback:
            return self.skip(target, "the evaluator returned an empty list")
        return _check_distinct_keys(feedback)

    def _from_item(self, value: Any, target: Target) -> Feedback:
        if type(value) is dict or isinstance(value, Mapping):
            return self._from_mapping(value, target)
        if value is None:
            return self.feedback(target, outcome="skip", comment="the evaluator returned None")
        if isinstance(value, Feedback):
            return replace(
                value,
                evaluator=value.evaluator or self.name,
                version=value.version or self.version,
                metadata={**self.parameters, **value.metadata},
                id="",
            )
        normalized = _normalize_value(value)
        return self._from_value(value, target) if normalized is value else self._from_item(normalized, target)

    def _from_value(
        self,
        value: Any,
        target: Target,
        key: str | None = None,
        comment: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        label: str | None = None,
    ) -> Feedback:
        """Return the feedback for a score or a label. `label` is a label in addition to a score."""
        if key == "":
            raise InvalidResult("the evaluator returned an empty key")
        key = self.key if key is None else self.renamed.get(key, key)
        if isinstance(value, str):
            # `str.__str__` also converts strings of numpy and members of string enums
            score, label = None, str.__str__(value)
        else:
            score = to_number(value)
            if type(score) is float and not math.isfinite(score):
                if math.isnan(score):
                    reason = "the score is NaN: undefined for this case"
                    return self._make(target, key, outcome="skip", comment=reason, metadata=metadata)
                error = f"InvalidResult: the score {score!r} is not finite"
                return self._make(target, key, outcome="error", error=error, metadata=metadata)
        return make_score(
            target,
            key,
            score,
            label,
            comment,
            source=self.source,
            evaluator=self.name,
            version=self.version,
            metadata={**self.parameters, **metadata} if metadata else (self.parameters or None),
        )

    def _from_mapping(self, value: Mapping[str, Any], target: Target) -> Feedback:
        _check_mapping(value)
        feedback = self._from_fields(value, target)
        judge_trace_id = value.get("judge_trace_id")
        return feedback if judge_trace_id is None else replace(feedback, judge_trace_id=str(judge_trace_id))

    def _from_fields(self, value: Mapping[str, Any], target: Target) -> Feedback:
        get = value.get
        key, comment, metadata = get("key"), get("comment") or get("reasoning"), get("metadata") or {}
        target = get("target") or target
        comment = None if comment is None else str(comment)
        if not value.keys().isdisjoint(_LANGSMITH_FIELDS):
            target, langsmith = _read_langsmith_fields(value, target)
            metadata = {**metadata, **langsmith}
        metadata = metadata if self.details else {}
        if (error := get("error")) is not None:
            return self.feedback(target, key, outcome="error", error=str(error), comment=comment, metadata=metadata)
        score, label = get("score"), get("label")
        if type(score) not in _NUMBER_TYPES:
            score = _normalize_score(score)
        if label is None and "value" in value:
            label = value["value"]
            # LangSmith allows a dict, which becomes JSON text
            is_dict = isinstance(label, Mapping)
            label = orjson.dumps(to_plain(label)).decode() if is_dict else _normalize_value(label)
        if score is None:
            score, label = label, None
        if score is None:
            why = comment or "the evaluator gave no score"
            return self.feedback(target, key, outcome="skip", comment=why, metadata=metadata)
        label = label if isinstance(label, str) and not isinstance(score, str) else None
        return self._from_value(score, target, key, comment, metadata, label)

    def _make(self, target: Target, key: str, metadata: Mapping[str, Any] | None = None, **values: Any) -> Feedback:
        fields = {"source": self.source, "evaluator": self.name, "version": self.version, **values}
        return Feedback(target=target, key=key, metadata={**self.parameters, **(metadata or {})}, **fields)


def to_number(value: Any) -> float | bool:
    """Return a plain bool or float for any number, also a scalar of numpy or torch. Raises `InvalidResult`."""
    if type(value) is bool or type(value) is float:
        return value
    if isinstance(value, Real):
        return float(value)
    item = getattr(value, "item", None)
    try:
        plain = item() if callable(item) else float(value)  # Decimal is not a `Real`
    except (TypeError, ValueError) as error:
        raise InvalidResult(
            f"the evaluator returned {value!r:.200}, which is not a score, label, dict or list"
        ) from error
    return plain if isinstance(plain, bool) else float(plain)


def explain_missing_fields(names: list[str], case: Case) -> str:
    """Return the reason why a case cannot be scored."""
    why = f"needs {' and '.join(names)}"
    run = case.run
    if "outputs" in names and run is not None and run.status == "error":
        return f"{why}; the run failed: {run.error or 'no message'}"
    if case.example is None and {"example", "reference_outputs", "expected_documents"} & set(names):
        return f"{why}; the case belongs to no example"
    if "reference_outputs" in names and case.example is not None and case.example.outputs is not None:
        return f"{why}; {_REFERENCE_HINT}"
    return f"{why}; the case has none"


def _read_message(error: BaseException) -> str:
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # `__str__` of a custom exception may fail
        return ""


def _check_mapping(value: Mapping[str, Any]) -> None:
    """Raise `InvalidResult` for a dict with unknown fields, or with field values of a wrong type."""
    if not value.keys() <= _ALLOWED_FIELDS:
        raise InvalidResult(
            f"the evaluator returned a dict with unknown fields: {', '.join(repr(name) for name in value if name not in _ALLOWED_FIELDS)}; "
            f"known fields: {', '.join(sorted(RESULT_FIELDS))}"
        )
    for name, kind in FIELD_TYPES:
        given = value.get(name)
        if given is not None and not isinstance(given, kind):
            raise InvalidResult(
                f"the evaluator returned the {name} {given!r:.200}, which is not a {kind.__name__.lower()}"
            )


def _is_score_mapping(value: Mapping[Any, Any]) -> bool:
    """Return whether a dict maps names to scores.

    All values are numbers, and no key is a result field or a misspelling of one.
    """
    if not value or not _ALLOWED_FIELDS.isdisjoint(value):
        return False
    named = all(isinstance(key, str) and isinstance(score, Real) for key, score in value.items())
    likeness = 0.8 if len(value) == 1 else 0.85  # a dict with a single score is more likely to have a misspelt field
    return named and not any(_is_misspelt(key, likeness) for key in value)


@lru_cache(1024)
def _is_misspelt(key: str, likeness: float) -> bool:
    from difflib import get_close_matches  # imported here because it takes 6 ms

    return bool(get_close_matches(key, RESULT_FIELDS, 1, likeness))


def _trim_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames before the evaluator.

    If the error was raised before the evaluator was called, return the whole traceback.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in _INTERNAL_FILES:
        frames = frames.tb_next
    return frames or error.__traceback__


def _check_distinct_keys(feedback: list[Feedback]) -> list[Feedback]:
    if len({outcome.key for outcome in feedback}) == len(feedback):
        return feedback
    keys = set()
    for outcome in feedback:
        if (outcome.target, outcome.key) in keys:
            raise InvalidResult(
                f"the evaluator returned the key {outcome.key!r} twice: the second would overwrite the first. "
                "Give each result its own key: [{'key': …, 'score': …}, …]; a score with its reason is {'score': …, 'comment': …}"
            )
        keys.add((outcome.target, outcome.key))
    return feedback


def _unwrap_results(returned: Any) -> list[Any] | tuple[Any, ...] | None:
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


def _normalize_value(value: Any) -> Any:
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


def _normalize_score(value: Any) -> Any:
    """Return the content of a result's field `score`. Numbers in texts, as models write them, become numbers; other
    texts are labels.
    """
    value = _normalize_value(value)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _read_langsmith_fields(value: Mapping[str, Any], target: Target) -> tuple[Target, dict[str, Any]]:
    """Return the target that LangSmith's `target_run_id` names within the trace, and the LangSmith fields to keep as
    metadata.
    """
    fields = {name: to_plain(value[name]) for name in _LANGSMITH_FIELDS if _is_set(value.get(name))}
    run_id = str(fields.get("target_run_id") or "").replace("-", "")
    if target.trace_id is None or (run_id != target.trace_id and len(run_id) != _SPAN_ID):
        return target, fields
    del fields["target_run_id"]
    return (target if run_id == target.trace_id else Target(trace_id=target.trace_id, span_id=run_id)), fields


def _has_results(value: Any) -> bool:
    return "results" in value if type(value) is dict else isinstance(value, Mapping) and "results" in value


def _unwrap_item(value: Any) -> list[Any] | tuple[Any, ...]:
    if not _has_results(value):
        return [value]
    inner = value["results"]
    results = _unwrap_results(inner)
    return [inner] if results is None else results


def _is_score_comment_pair(returned: Any) -> bool:
    """Return whether the value is a score with a comment: `(0.5, "because")`."""
    if type(returned) is not tuple or len(returned) != 2 or not isinstance(returned[1], str):
        return False
    score = returned[0]
    return isinstance(score, Real | Decimal) or _is_pandas_missing(score) or getattr(score, "ndim", None) == 0


def _is_pandas_missing(value: Any) -> bool:
    """Return whether the value is `pandas.NA` or `pandas.NaT`."""
    return type(value).__name__ in ("NAType", "NaTType") and type(value).__module__.startswith("pandas.")


def _read_object(value: Any) -> Any:
    """Return the fields of a result object (pydantic model, dataclass) as a mapping; other values unchanged."""
    is_marked = any(_is_set(getattr(value, name, None)) for name in _RESULT_MARKERS)
    if not (_has_field(value, "score") or (_has_field(value, "value") and is_marked)):
        return value
    fields = {name: getattr(value, name) for name in _COPIED_FIELDS if _is_set(getattr(value, name, None))}
    for name, names in (("key", ("key", "name")), ("comment", _COMMENT_FIELDS)):
        content = next((given for other in names if _is_set(given := getattr(value, other, None))), None)
        if content is not None:
            fields[name] = content
    return fields


def _has_field(value: Any, name: str) -> bool:
    return hasattr(value, name) and not callable(getattr(value, name))


def _is_set(value: Any) -> bool:
    """Return whether a LangSmith field has a value. LangSmith leaves unset fields at None or an empty dict."""
    return value is not None and not callable(value) and not (isinstance(value, Mapping) and not value)
