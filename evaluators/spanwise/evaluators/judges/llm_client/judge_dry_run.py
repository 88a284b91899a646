"""Dry run of judges: counts and prices questions, and answers them with sample values of their schema.

An estimate takes two dry runs, because further questions may depend on an answer: one always picks the first label of
an enumeration, the other the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from spanwise.collector.records import Usage
from spanwise.evaluators.judges.llm_client.chat_completions import Answer, Ask
from spanwise.evaluators.judges.llm_client.judge_settings import (
    JudgeSettings,
    compute_cost,
    compute_max_cost,
    count_question_bytes,
)

BYTES_PER_TOKEN = 4  # approximate: more for English prose, fewer for JSON and other languages
REPLY_TOKENS = 150  # approximate tokens of a short rationale and a verdict
LIST_LENGTH = 5  # length of lists that the schema does not limit, such as the statements of an answer
MAX_DEPTH = 12  # maximum depth to which a schema is followed, because it may be recursive
_SAMPLE_TEXT = "A statement of about the length that one has."


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunCounts:
    """Counts of a dry run: calls, cached answers, approximate tokens and US dollars, and maximum dollars (None: no
    price).

    The maximum is what a budget reserves: one token per byte of the question, and the longest reply.
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
    """Counter of questions in a dry run. `label` is the index of the label that answers pick: 0 or -1."""

    def __init__(self, label: int = 0) -> None:
        self.counted = DryRunCounts()
        self._label = label

    def answer(self, judge: JudgeSettings, ask: Ask, cached: Answer | None) -> Answer:
        """Return the cached answer, else a sample value of the question's schema."""
        if cached is not None:
            self.counted += DryRunCounts(cached=1)
            return cached
        tokens = -(-count_question_bytes(ask) // BYTES_PER_TOKEN)
        usd = compute_cost(judge, Usage(tokens, REPLY_TOKENS))
        most_usd = compute_max_cost(judge, ask).usd if usd is not None else None
        self.counted += DryRunCounts(calls=1, input_tokens=tokens, usd=usd, usd_at_most=most_usd)
        value = _SAMPLE_TEXT if ask.schema is None else make_sample_value(ask.schema, self._label)
        return Answer(value=value, text=str(value), model=judge.model, usage=Usage(), cost=0.0)


current_dry_run: ContextVar[JudgeDryRun | None] = ContextVar("spanwise-rehearsing", default=None)


@contextmanager
def use_dry_run(dry_run: JudgeDryRun) -> Iterator[None]:
    """Replace all judge calls in a block by answers of the dry run."""
    token = current_dry_run.set(dry_run)
    try:
        yield
    finally:
        current_dry_run.reset(token)


def make_sample_value(schema: Mapping[str, Any], label: int = 0, depth: int = 0) -> Any:
    """Return a sample value of a JSON schema: the first or last label of an enumeration, lists of maximum length."""
    if depth > MAX_DEPTH:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][label]
    for keyword in ("anyOf", "oneOf", "allOf"):
        if schema.get(keyword):
            return make_sample_value(schema[keyword][0], label, depth + 1)
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


def _add_costs(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second
