"""Dry run of judges: questions are counted and priced, and answered with values made from their schema.

An answer is made of the question's schema. Of the labels of an enumeration one rehearsal says the first throughout,
another the last: what is asked next may depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spanwise.collector.records import Usage
from spanwise.evaluators.judges.llm_client.chat_completions import Answer, Ask
from spanwise.evaluators.judges.llm_client.judge_budget import compute_cost, compute_max_cost, count_question_bytes

if TYPE_CHECKING:
    from spanwise.evaluators.judges.llm_client.judge_settings import Judge


BYTES_PER_TOKEN = 4  # about: English prose has more, JSON and other languages have fewer
REPLY_TOKENS = 150  # tokens, about: a short rationale and a verdict
LIST_LENGTH = 5  # of a list whose length the schema leaves open, such as the statements of an answer
MAX_DEPTH = 12  # levels of a schema, which may contain itself
_SAMPLE_TEXT = "A statement of about the length that one has."


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunCounts:
    """Questions: calls and answers from the cache; tokens and US dollars about, and dollars at most (None: no price).

    At most is what a budget reserves: as many tokens as the question has bytes, and a reply as long as it may be.
    """

    calls: int = 0
    cached: int = 0
    input_tokens: int = 0
    usd: float | None = 0.0
    usd_at_most: float | None = 0.0

    def __add__(self, other: DryRunCounts) -> DryRunCounts:
        return DryRunCounts(
            calls=self.calls + other.calls,
            cached=self.cached + other.cached,
            input_tokens=self.input_tokens + other.input_tokens,
            usd=_add_costs(self.usd, other.usd),
            usd_at_most=_add_costs(self.usd_at_most, other.usd_at_most),
        )


class JudgeDryRun:
    """Counts what is asked inside. `label` is the place in enumerations of what it says: 0 or -1."""

    def __init__(self, label: int = 0) -> None:
        self.counted = DryRunCounts()
        self._label = label

    def answer(self, judge: Judge, ask: Ask, found: Answer | None) -> Answer:
        """What the cache has found, else something of the form that was asked for."""
        if found is not None:
            self.counted += DryRunCounts(cached=1)
            return found
        tokens = -(-count_question_bytes(ask) // BYTES_PER_TOKEN)
        usd = compute_cost(judge, Usage(tokens, REPLY_TOKENS))
        most_usd = compute_max_cost(judge, ask).usd if usd is not None else None
        self.counted += DryRunCounts(calls=1, input_tokens=tokens, usd=usd, usd_at_most=most_usd)
        value = _SAMPLE_TEXT if ask.schema is None else make_sample_value(ask.schema, self._label)
        return Answer(value=value, text=str(value), model=judge.model, usage=Usage(), cost=0.0)


current_dry_run: ContextVar[JudgeDryRun | None] = ContextVar("spanwise-rehearsing", default=None)


@contextmanager
def use_dry_run(rehearsal: JudgeDryRun) -> Iterator[None]:
    """Nobody is asked inside."""
    token = current_dry_run.set(rehearsal)
    try:
        yield
    finally:
        current_dry_run.reset(token)


def make_sample_value(schema: Mapping[str, Any], label: int = 0, depth: int = 0) -> Any:
    """Something that a JSON schema describes: of an enumeration the first or the last, of lists the longest."""
    if depth > MAX_DEPTH:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][label]
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return make_sample_value(schema[several][0], label, depth + 1)
    return _make_sample_of_type(schema, label, depth + 1)


def _make_sample_of_type(schema: Mapping[str, Any], label: int, depth: int) -> Any:
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list | tuple) and kind else kind
    if kind == "object":
        return {name: make_sample_value(each, label, depth) for name, each in (schema.get("properties") or {}).items()}
    if kind == "array":
        length = schema.get("maxItems") or max(LIST_LENGTH, schema.get("minItems") or 0)
        return [
            make_sample_value(schema.get("items") or {"type": "string"}, label, depth)
            for _ in range(min(length, 1_000))
        ]
    if kind in ("number", "integer"):
        return schema.get("minimum", schema.get("maximum", 1))
    return {"boolean": label == 0, "null": None}.get(kind, _SAMPLE_TEXT)


def _add_costs(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
