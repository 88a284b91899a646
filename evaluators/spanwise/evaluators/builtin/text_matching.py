"""Whether answer and context meet a condition in words: AND, OR, NOT, strings and patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spanwise.collector.records import Document
from spanwise.evaluators.builtin._conditions import Condition, parse
from spanwise.evaluators.builtin._texts import text_of
from spanwise.evaluators.builtin._verdicts import family, verdict
from spanwise.evaluators.protocol import Skip, builtin
from spanwise.evaluators.protocol.standards import VALID


def matches(condition: str, text: str, *, seconds: float = 1.0) -> bool:
    """Whether a condition such as `"15,969" AND regexp("[Mm]illion")` holds for a text.

    Raises `ValueError` for a malformed condition, pointing at the column; `TimeoutError` for an endless pattern.
    """
    return parse(condition).holds(text, seconds=seconds)


@builtin(
    "text_matching",
    metrics=family("text_matching"),
    standards=(VALID,),
    source="H2O Eval Studio: text matching",
    canonical="by hand",
    example='get("text_matching"), outputs="15969 million", documents=["It was 15,969 million"], '
    'conditions=\'regexp("15,?969") AND NOT "Real"\'',
)
@dataclass(frozen=True, slots=True)
class TextMatching:
    """Whether the answer, and the retrieved context as a whole, meet the condition.

    A condition joins strings in double quotes and `regexp("…")` by AND, OR and NOT; NOT binds before AND before OR, and
    parentheses group. It comes from the case's `conditions` (a list: all must hold) or from the parameter `condition`.
    The context is all chunks together, one per line; `evaluate_retrieved_context=False` looks at the answer only. Where
    no chunk was retrieved there is no context that could fail: the answer alone decides, and no retrieval is counted.
    `seconds` bound each pattern.
    """

    condition: str | None = None
    evaluate_retrieved_context: bool = True
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.condition is not None:
            parse(self.condition)
        if not self.seconds > 0:
            raise ValueError(f"seconds are more than 0, not {self.seconds!r}")

    def __call__(
        self, outputs: Any, documents: Sequence[Document] | None = None, conditions: Any = None
    ) -> list[dict[str, Any]]:
        wanted = conditions_of(self.condition, conditions)
        answer = all(condition.holds(text_of(outputs), seconds=self.seconds) for condition in wanted)
        context = None
        if documents and self.evaluate_retrieved_context:
            whole = "\n".join(document.content for document in documents)
            context = all(condition.holds(whole, seconds=self.seconds) for condition in wanted)
        return verdict("text_matching", answer, context)


def conditions_of(parameter: str | None, conditions: Any) -> list[Condition]:
    """The parsed conditions of a case. Raises `Skip` when there are none, `ValueError` for what is no condition."""
    if parameter is not None:
        conditions = parameter
    if conditions is None or (isinstance(conditions, str | list | tuple) and not conditions):
        raise Skip("needs conditions; the case has none")
    listed = conditions if isinstance(conditions, list | tuple) else [conditions]
    for condition in listed:
        if not isinstance(condition, str):
            raise ValueError(f'a condition is a string such as \'"a" AND NOT "b"\', not {condition!r:.200}')
    return [parse(condition) for condition in listed]
