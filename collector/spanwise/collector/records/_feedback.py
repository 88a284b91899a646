"""What evaluators and people say, and of what."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from spanwise.collector.errors import Refused
from spanwise.collector.records._values import JSON, Outcome, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a feedback speaks of: a trace, a span, one document of a span, a session or an experiment."""

    trace_id: str | None = None
    span_id: str | None = None
    document: int | None = None  # position in the span's documents
    session_id: str | None = None
    experiment_id: str | None = None

    def __post_init__(self) -> None:
        named = [self.trace_id is not None, self.session_id is not None, self.experiment_id is not None]
        if sum(named) != 1:
            raise ValueError(f"a target is exactly one of a trace, a session or an experiment, not {self!r}")
        if self.span_id is not None and self.trace_id is None:
            raise ValueError(f"a span is named together with its trace, not alone: {self!r}")
        if self.document is not None and self.span_id is None:
            raise ValueError(f"a document is named together with its span: {self!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What an evaluator or a person says of a target under one key: a score, an error or a skip, never two of them.

    `score` is a float or bool, `label` a string; an outcome of "score" has one of them. An error says what happened in
    `error`, a skip says what was missing in `comment`. The `id` derives from (target, key, source, author or
    evaluator + version), so that a repeat overwrites itself and two people's votes do not; that of a rule's feedback
    from (target, key, source, evaluator, rule). It is derived when it is first asked for.

    `claim` numbers the rule's evaluations of this target; of one (rule, target, evaluator) only what the highest claim
    said stands.
    """

    target: Target
    key: str
    score: float | bool | None = None
    label: str | None = None
    comment: str | None = None
    outcome: Outcome = "score"
    error: str | None = None
    source: Source = "code"
    author: str | None = None
    evaluator: str | None = None
    version: str | None = None
    rule: str | None = None
    claim: int | None = None
    judge_trace_id: str | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)
    id: str = ""

    def __post_init__(self) -> None:
        if not self.key:
            raise ValueError("a feedback needs a key")
        if type(self.score) not in _PLAIN:
            object.__setattr__(self, "score", _plain_score(self.key, self.score))
        has_value = self.score is not None or self.label is not None
        if (self.outcome == "score") != has_value:
            raise ValueError(
                f"feedback {self.key!r}: outcome {self.outcome!r} with score {self.score!r}, label {self.label!r}"
            )
        if (self.outcome == "error") != (self.error is not None):
            raise ValueError(f"feedback {self.key!r}: outcome {self.outcome!r} with error {self.error!r}")
        if isinstance(self.score, float) and not isfinite(self.score):
            shown = "NaN" if self.score != self.score else repr(self.score)  # neither has a mean, and JSON has neither
            raise ValueError(f"feedback {self.key!r}: {shown} is not a score; say outcome='skip' or 'error' instead")
        if not self.id:
            object.__delattr__(self, "id")

    if not TYPE_CHECKING:  # it would make every attribute known

        def __getattr__(self, name: str) -> str:
            """The id, of which most feedback that is only looked at needs none."""
            if name != "id":
                raise AttributeError(f"a feedback has no {name!r}")
            object.__setattr__(self, "id", feedback_id(self))
            return self.id


_PLAIN = (bool, float, int, type(None))


def _plain_score(key: str, score: Any) -> float | bool:
    """Return a number of another type, such as a scalar of numpy, as Python's own. Raises `ValueError`."""
    item = getattr(score, "item", None)
    try:
        plain = item() if callable(item) else score
        if isinstance(plain, bool):
            return plain
        if not isinstance(plain, str | bytes):
            return float(plain)
    except (TypeError, ValueError):  # an array of several numbers, or no number at all
        pass
    way_out = "; give a text as the label" if isinstance(score, str) else ""
    raise ValueError(f"feedback {key!r}: the score must be a number or a bool, not {score!r:.100}{way_out}")


class _Draft:
    """A feedback whose fields can still be set: a frozen one sets them at ten times the price."""

    __slots__ = Feedback.__slots__


def scored(
    target: Target,
    key: str,
    score: float | bool | None,
    label: str | None = None,
    comment: str | None = None,
    *,
    source: Source,
    evaluator: str,
    version: str,
    metadata: Mapping[str, JSON] | None = None,
) -> Feedback:
    """An evaluator's feedback from values that are known to be right: a key, and a finite score, a label, or both."""
    made: Any = _Draft()
    made.target, made.key, made.score, made.label, made.comment = target, key, score, label, comment
    made.outcome, made.error, made.source, made.author = "score", None, source, None
    made.evaluator, made.version, made.rule, made.judge_trace_id = evaluator, version, None, None
    made.claim = None
    made.metadata, made.created_ns = {} if metadata is None else metadata, time.time_ns()
    made.__class__ = Feedback  # the slots are the same
    return cast(Feedback, made)


def restored(
    target: Target,
    id: str,
    key: str,
    score: float | bool | None,
    label: str | None,
    comment: str | None,
    outcome: Outcome,
    error: str | None,
    source: Source,
    author: str | None,
    evaluator: str | None,
    version: str | None,
    rule: str | None,
    claim: int | None,
    judge_trace_id: str | None,
    metadata: Mapping[str, JSON],
    created_ns: int,
) -> Feedback:
    """Feedback that was one when it was stored, and is not looked at again: a tenth of the price."""
    made: Any = _Draft()
    made.target, made.id, made.key, made.score, made.label, made.comment = target, id, key, score, label, comment
    made.outcome, made.error, made.source, made.author = outcome, error, source, author
    made.evaluator, made.version, made.rule, made.judge_trace_id = evaluator, version, rule, judge_trace_id
    made.claim, made.metadata, made.created_ns = claim, metadata, created_ns
    made.__class__ = Feedback  # the slots are the same
    return cast(Feedback, made)


def checked_target(target: Target) -> Target:
    """Return a target with its ids as traces have them: lower-case hex digits, without the dashes of a UUID.

    Raises `Refused` for the id of a trace or span that cannot exist.
    """
    if target.trace_id and target.span_id is None and _TRACE_ID.fullmatch(target.trace_id):  # most are
        return target
    trace_id = target.trace_id and _checked_id("trace_id", target.trace_id, 32)
    span_id = target.span_id and _checked_id("span_id", target.span_id, 16)
    if target.trace_id == "" or target.span_id == "":
        raise Refused(f"{target!r} has an empty id; leave it out or give the id of a trace or span")
    if (trace_id, span_id) == (target.trace_id, target.span_id):
        return target
    return replace(target, trace_id=trace_id, span_id=span_id)


def checked_feedback(feedback: Feedback) -> Feedback:
    """Return feedback on a checked target (`checked_target`); an id that derives from the target follows it."""
    target = checked_target(feedback.target)
    if target is feedback.target:
        return feedback
    derived = feedback.id == feedback_id(feedback)
    return replace(feedback, target=target, id="" if derived else feedback.id)


def _checked_id(name: str, given: str, digits: int) -> str:
    text = given.replace("-", "").lower()
    if len(text) != digits or not _HEX.fullmatch(text) or not text.strip("0"):
        raise Refused(f"{name} must be {digits} hex digits that are not all zeros, got {given!r:.100}")
    return text


_HEX = re.compile(r"[0-9a-f]+")
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")


def feedback_id(feedback: Feedback) -> str:
    """32 hex digits over what makes two feedbacks the same one."""
    target, ruled = feedback.target, feedback.rule is not None
    parts = (
        target.trace_id,
        target.span_id,
        target.document,
        target.session_id,
        target.experiment_id,
        feedback.key,
        feedback.source,
        None if ruled else feedback.author,
        feedback.evaluator,
        None if ruled else feedback.version,
        feedback.rule,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
