"""Claims: splitting a text into statements, and verdicts on statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from spanwise.collector.records import JSON
from spanwise.evaluators.builtin.text_segmentation import split_sentences
from spanwise.evaluators.judges.judgement import Judgement, gather_or_cancel
from spanwise.evaluators.judges.llm_client.chat_completions import Answer, ParseFailure
from spanwise.evaluators.judges.prompt_templates import Prompt

PORTION_LIMITS = 20, 4000  # maximum sentences and characters per call, so that the reply fits into 2,048 tokens
BATCH_SIZE = 15  # statements judged in one call
MAX_STATEMENT_LENGTH = 1000  # maximum characters of a statement
MAX_METADATA_LENGTH = 300  # maximum characters of a statement and of its reason in metadata
STATEMENTS_SCHEMA: Mapping[str, JSON] = {
    "type": "object",
    "properties": {"statements": {"type": "array", "items": {"type": "string"}}},
    "required": ["statements"],
    "additionalProperties": False,
}
VERDICT_SCHEMA: Mapping[str, JSON] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["reason", "verdict"],
    "additionalProperties": False,
}
ValuesFunction: TypeAlias = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Statements:
    """Statements extracted from a text. `left_out` says which part of the text was not judged; it is None if all of it
    was judged.
    """

    texts: tuple[str, ...] = ()
    left_out: str | None = None


@dataclass(frozen=True, slots=True)
class StatementVerdict:
    """Verdict on one statement: `holds` is True for "yes"."""

    statement: str
    holds: bool
    reason: str

    @property
    def metadata(self) -> dict[str, JSON]:
        """Return the verdict as a dict of truncated texts, for the metadata of the feedback."""
        texts = {"statement": self.statement, "verdict": "yes" if self.holds else "no", "reason": self.reason}
        return {name: to_one_line(text, MAX_METADATA_LENGTH) for name, text in texts.items()}


async def extract_statements(
    judgement: Judgement, prompt: Prompt, values: ValuesFunction, text: str, most: int
) -> Statements:
    """Ask the judge to split a text into statements. A blank text has no statements, and the judge is not called.

    The function `values` maps a portion of the text to the values of the prompt's placeholders. A long text is
    split into portions, with one question each. At most `most` sentences and `most` statements are used. Raises
    `ParseFailure` and the other errors of `Judgement.ask`.
    """
    sentences = split_bounded_sentences(text)
    portions = split_portions(text, sentences[:most])
    asked = (judgement.ask(prompt, values(portion), STATEMENTS_SCHEMA) for portion in portions)
    found = [text for answer in await gather_or_cancel(asked) for text in read_text_list(answer, "statements")]
    left_out = None
    if len(sentences) > most or len(found) > most:
        left_out = f"only the beginning was judged, {min(most, len(found))} statements"
        judgement.leave_out("sentences", sum(map(len, sentences[most:])) or sum(map(len, found[most:])))
    return Statements(tuple(found[:most]), left_out)


async def judge_statements(
    judgement: Judgement, prompt: Prompt, statements: Sequence[str], values: ValuesFunction
) -> list[StatementVerdict]:
    """Ask the judge for a verdict on every statement. Return the verdicts in the order of the statements.

    The function `values` maps a numbered list of statements to the values of the prompt's placeholders. The
    numbers are part of the schema, so a reply with missing, extra or duplicate numbers is invalid. Raises
    `ParseFailure` and the other errors of `Judgement.ask`.
    """
    batches = [statements[start : start + BATCH_SIZE] for start in range(0, len(statements), BATCH_SIZE)]
    asked = (_judge_batch(judgement, prompt, batch, values) for batch in batches)
    return [verdict for batch in await gather_or_cancel(asked) for verdict in batch]


def make_numbered_schema(count: int, item: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the schema of an object with `count` items under the keys "1", "2", ….

    A reply with a missing or an additional item violates the schema, so a miscount of the judge is detected.
    """
    numbers = [str(number) for number in range(1, count + 1)]
    return {
        "type": "object",
        "properties": {number: dict(item) for number in numbers},
        "required": list(numbers),
        "additionalProperties": False,
    }


def read_numbered_items(answer: Answer, count: int, what: str) -> list[Mapping[str, Any]]:
    """Return the items of a reply to `make_numbered_schema`, in order. Raises `ParseFailure` if the numbers are not 1 to
    `count`; the message lists the returned numbers.
    """
    wanted = [str(number) for number in range(1, count + 1)]
    value = answer.value
    if not isinstance(value, Mapping) or set(value) != set(wanted):
        came = f"those of {', '.join(map(str, list(value)[:50])) or 'none'}" if isinstance(value, Mapping) else "a list"
        raise ParseFailure(f"asked for {what} 1 to {count}, got {came}", answer.text)
    if not all(isinstance(value[number], Mapping) for number in wanted):
        raise ParseFailure(f"{what} are objects", answer.text)
    return [value[number] for number in wanted]


def read_verdict(answer: Answer, item: Any, label: str = "verdict") -> bool:
    """Return whether the verdict is yes. Raises `ParseFailure` for any value other than yes and no."""
    verdict = item.get(label) if isinstance(item, Mapping) else None
    if verdict not in ("yes", "no"):
        raise ParseFailure(f'{label} is "yes" or "no", not {verdict!r:.100}', answer.text)
    return bool(verdict == "yes")


def split_bounded_sentences(text: str) -> list[str]:
    """Return the sentences of a text, split further if they are longer than a portion."""
    longest = PORTION_LIMITS[1]
    return [
        sentence[start : start + longest]
        for sentence in split_sentences(text)
        for start in range(0, len(sentence), longest)
    ]


def split_portions(text: str, sentences: Sequence[str]) -> list[str]:
    """Return a short text as the only portion. Split a longer text into portions of as many sentences as fit."""
    if not sentences or (len(sentences) <= PORTION_LIMITS[0] and len(text) <= PORTION_LIMITS[1]):
        return [text] if sentences else []
    return list(_iterate_portions(sentences))


def _iterate_portions(sentences: Sequence[str]) -> Iterator[str]:
    portion: list[str] = []
    for sentence in sentences:
        if portion and (
            len(portion) == PORTION_LIMITS[0] or sum(map(len, portion)) + len(sentence) > PORTION_LIMITS[1]
        ):
            yield "\n".join(portion)
            portion = []
        portion.append(sentence)
    yield "\n".join(portion)


def to_one_line(text: str, longest: int = MAX_STATEMENT_LENGTH) -> str:
    """Join the lines of a text and truncate it, so that a statement cannot add lines to a numbered list."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


async def _judge_batch(
    judgement: Judgement, prompt: Prompt, statements: Sequence[str], values: ValuesFunction
) -> list[StatementVerdict]:
    listed = "\n".join(f"{number}. {statement}" for number, statement in enumerate(statements, 1))
    answer = await judgement.ask(prompt, values(listed), make_numbered_schema(len(statements), VERDICT_SCHEMA))
    items = read_numbered_items(answer, len(statements), "verdicts")
    return [
        StatementVerdict(statement, read_verdict(answer, item), to_one_line(str(item.get("reason") or "")))
        for statement, item in zip(statements, items, strict=True)
    ]


def read_text_list(answer: Answer, name: str, longest: int = MAX_STATEMENT_LENGTH) -> list[str]:
    """Return the list of texts under `name` in a reply, each on one line and truncated. Raises `ParseFailure` for any
    other value.
    """
    texts = answer.value.get(name) if isinstance(answer.value, Mapping) else None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ParseFailure(f'asked for {{"{name}": […]}}, a list of texts', answer.text)
    return [line for text in texts if (line := to_one_line(text, longest))]
