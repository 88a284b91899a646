"""Texts compared with a reference, or checked alone: plain functions, and the evaluators around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from spanwise.evaluators.builtin._patterns import check_seconds, compiled, search
from spanwise.evaluators.builtin._texts import text_of
from spanwise.evaluators.builtin.looping import compression_ratio, repeated_share, unique_sentences
from spanwise.evaluators.builtin.overlap import bleu, bleus, fuzzy, levenshtein, rouge, rouge_parts
from spanwise.evaluators.protocol import Metric, Skip, builtin
from spanwise.evaluators.protocol.standards import OUTCOMES, VALID

__all__ = [
    "Contains",
    "Exact",
    "Length",
    "NotEmpty",
    "Regex",
    "bleu",
    "bleus",
    "compression_ratio",
    "contains",
    "exact",
    "fuzzy",
    "levenshtein",
    "repeated_share",
    "rouge",
    "rouge_parts",
    "search",
    "unique_sentences",
]

Unit = Literal["characters", "words"]


def exact(outputs: Any, reference_outputs: Any) -> float:
    """1.0 if the two are identical: no stripping, no change of case, no Unicode normalisation.

    A difference of types alone is none: a text is compared with a dict, list or number as JSON has it.
    """
    if isinstance(outputs, str) and isinstance(reference_outputs, str):
        return float(outputs == reference_outputs)
    if isinstance(outputs, list | tuple) and isinstance(reference_outputs, list | tuple):
        return float(list(outputs) == list(reference_outputs))  # JSON has no tuples
    numbers = isinstance(outputs, int | float) and isinstance(reference_outputs, int | float)
    if numbers or type(outputs) is type(reference_outputs):
        return float(bool(outputs == reference_outputs))
    if outputs is None:
        return 0.0  # nothing is no text, not even an empty one
    if _says(outputs, reference_outputs) or _says(reference_outputs, outputs):
        return 1.0
    return float(text_of(outputs) == text_of(reference_outputs))


def _says(text: Any, value: Any) -> bool:
    """Whether a text is the JSON of a dict, a list or a number; 4.0 is 4, as columns of numbers with gaps have it."""
    if not isinstance(text, str) or isinstance(value, str | bool) or value is None:
        return False
    if isinstance(value, int | float):
        return text == str(value) or (isinstance(value, float) and value.is_integer() and text == str(int(value)))
    try:
        return bool(orjson.loads(text) == value)
    except orjson.JSONDecodeError:
        return False


def contains(text: str, part: str, *, ignore_case: bool = False) -> bool:
    """Whether `part` is somewhere in `text`."""
    return part.casefold() in text.casefold() if ignore_case else part in text


@builtin(
    "exact",
    metrics=(Metric("exact", primary=True),),
    version="2",
    standards=(VALID, OUTCOMES),
    source="Laminar: exact matcher",
    canonical="equality of strings",
    example='get("exact"), outputs="Hello!", reference_outputs="hello!"',
)
@dataclass(frozen=True, slots=True)
class Exact:
    """1 if the answer is the reference, character by character, else 0.

    Nothing is stripped, folded or normalised. Where both are dicts or lists these are compared as values.
    """

    def __call__(self, outputs: Any, reference_outputs: Any) -> float:
        return exact(outputs, reference_outputs)


@builtin(
    "contains",
    metrics=(Metric("contains", primary=True),),
    standards=(VALID, OUTCOMES),
    source="LangSmith: heuristic evaluators",
    canonical="`in` of Python",
    example='get("contains", ignore_case=True), outputs="It is in PARIS.", reference_outputs=["Paris", "France"]',
)
@dataclass(frozen=True, slots=True)
class Contains:
    """Whether the answer contains `text`, or, where none is given, the reference.

    A list is satisfied by each of its members (`all`, the default) or by one (`match="any"`).
    """

    text: str | tuple[str, ...] | None = None
    ignore_case: bool = False
    match: Literal["all", "any"] = "all"

    def __post_init__(self) -> None:
        if self.text is not None and not all([self.text] if isinstance(self.text, str) else [*self.text, self.text]):
            raise ValueError(f"text {self.text!r} is empty, or holds an empty one: it would be found in every answer")

    def __call__(self, outputs: Any, reference_outputs: Any = None) -> dict[str, Any]:
        parts = self._parts(reference_outputs)
        answer = text_of(outputs)
        missing = [part for part in parts if not contains(answer, part, ignore_case=self.ignore_case)]
        passed = not missing if self.match == "all" else len(missing) < len(parts)
        return {"score": passed, "comment": None if passed else f"not found: {', '.join(map(repr, missing))}"}

    def _parts(self, reference: Any) -> list[str]:
        wanted = reference if self.text is None else self.text
        if wanted is None:
            raise Skip("needs reference_outputs (or the parameter text); the case has none")
        parts = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
        parts = [text_of(part) for part in parts]
        if not parts:
            raise Skip("the reference is an empty list: there is nothing to look for")
        return parts


@builtin(
    "regex",
    metrics=(Metric("regex", primary=True),),
    standards=(VALID,),
    source="Laminar: regex matcher",
    canonical="re.search",
    example='get("regex", pattern=r"Hel+o, \\w+!"), outputs="Hello, world!"',
)
@dataclass(frozen=True, slots=True)
class Regex:
    r"""1 if the pattern is found anywhere in the answer, else 0; `^` and `$` anchor it.

    `flags` are letters as in `(?i)`. A search that takes longer than `seconds` (a pattern that backtracks without end)
    is an error of that case; they are seconds of the process's CPU time, so that a busy machine makes no search fail.
    A pattern that is none is refused when the evaluator is made.
    """

    pattern: str
    flags: str = ""
    seconds: float = 1.0

    def __post_init__(self) -> None:
        compiled(self.pattern, self.flags)
        check_seconds(self.seconds)

    def __call__(self, outputs: Any) -> float:
        return float(search(self.pattern, text_of(outputs), flags=self.flags, seconds=self.seconds) is not None)


@builtin(
    "length",
    metrics=(Metric("length", range=(0.0, float("inf")), primary=True),),
    standards=(VALID,),
    source="LangSmith: heuristic evaluators",
    canonical="len of Python",
    example='get("length", max=4, unit="words"), outputs="one two three four five"',
)
@dataclass(frozen=True, slots=True)
class Length:
    """The length of the answer in characters (code points) or words; with `min` or `max`, whether it is within them."""

    min: int | None = None
    max: int | None = None
    unit: Unit = "characters"

    def __post_init__(self) -> None:
        if self.unit not in ("characters", "words"):
            raise ValueError(f"unit is 'characters' or 'words', not {self.unit!r}")
        for name in ("min", "max"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} is 0 or more, as every length, not {getattr(self, name)!r}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min!r} is above max {self.max!r}")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """A bounded length is a boolean, an unbounded one a number."""
        bounded = self.min is not None or self.max is not None
        return (Metric("length", (0.0, 1.0) if bounded else (0.0, float("inf")), primary=True),)

    def __call__(self, outputs: Any) -> dict[str, Any]:
        text = text_of(outputs)
        length = len(text) if self.unit == "characters" else len(text.split())
        if self.min is None and self.max is None:
            return {"score": length}
        passed = (self.min is None or length >= self.min) and (self.max is None or length <= self.max)
        return {"score": passed, "comment": f"{length} {self.unit}"}


@builtin(
    "not_empty",
    metrics=(Metric("not_empty", primary=True),),
    version="2",
    standards=(VALID,),
    source="LangSmith: heuristic evaluators",
    canonical="str.strip",
    example='get("not_empty"), outputs=" \\n"',
)
@dataclass(frozen=True, slots=True)
class NotEmpty:
    """Whether the answer holds anything but white space.

    None is empty, and so is a list or dict of nothing but empty values. If an answer has one text, as `length`, `exact`
    and `contains` find it, that text counts: `{"answer": ""}` is empty. A run that failed has no answer: it is skipped.
    """

    def __call__(self, outputs: Any = None, run: Any = None) -> bool:
        if outputs is None and (run is None or run.status == "error"):
            raise Skip("needs outputs; " + ("the case has none" if run is None else f"the run failed: {run.error}"))
        if isinstance(outputs, bool | int | float):
            return True
        try:
            return bool(text_of(outputs).strip())
        except ValueError:  # there is no one text in it
            return not _is_empty(outputs)


def _is_empty(value: Any) -> bool:
    """Whether a value holds nothing: no text but white space, in no list and no field."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return all(map(_is_empty, value.values()))
    return value is None or (isinstance(value, list | tuple) and all(map(_is_empty, value)))
