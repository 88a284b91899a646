"""Whether a generation went into a loop."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from spanwise.evaluators.builtin._repeats import longest_repeat
from spanwise.evaluators.builtin._sentences import sentences
from spanwise.evaluators.builtin._texts import text_of
from spanwise.evaluators.protocol import Metric, Skip, builtin
from spanwise.evaluators.protocol.standards import SECURE, VALID

SHORTEST = 10  # characters of a sentence that counts


def unique_sentences(text: str, *, shortest: int = SHORTEST) -> float:
    """Distinct over all sentences, of those with at least `shortest` characters. Raises `Skip` without any."""
    counted = [sentence for sentence in sentences(text) if len(sentence) >= shortest]
    if not counted:
        raise Skip(f"no sentence has {shortest} characters or more")
    return len(set(counted)) / len(counted)


def repeated_share(text: str) -> float:
    """Length × count of the longest part that comes at least twice without overlaps, over the length of the text."""
    if not text:
        raise Skip("the text is empty")
    repeat = longest_repeat(text)
    return len(repeat.text) * repeat.count / len(text)


def compression_ratio(text: str) -> float:
    """Bytes after zlib at level 9 over bytes before (UTF-8); above 1 for short texts."""
    raw = text.encode("utf-8", "surrogatepass")
    if not raw:
        raise Skip("the text is empty")
    return len(zlib.compress(raw, 9)) / len(raw)


@builtin(
    "looping",
    metrics=(
        Metric("looping_unique_sentences", threshold=0.75, primary=True),
        Metric("looping_longest_repeat", threshold=0.75, higher_is_better=False),
        Metric("looping_compression", (0.0, float("inf")), threshold=0.75),
    ),
    standards=(SECURE, VALID),
    source="H2O Eval Studio: looping detection",
    canonical="zlib; brute force",
    example='get("looping"), outputs="I am sorry, I cannot. " * 20',
)
@dataclass(frozen=True, slots=True)
class Looping:
    """Three signs of a loop in the answer.

    Unique sentences: distinct over all sentences, leaving out those shorter than `shortest` characters in both. Longest
    repeat: length × count of the longest part that comes at least twice, over the length of the text; occurrences do
    not overlap, so that it lies in [0, 1] and is near 1 for a loop; among equally long parts the most frequent counts.
    Compression: bytes after zlib (level 9) over bytes before; short texts give more than 1.
    """

    shortest: int = SHORTEST

    def __post_init__(self) -> None:
        if self.shortest < 1:
            raise ValueError(f"shortest is 1 character or more, not {self.shortest!r}")

    def __call__(self, outputs: Any) -> list[dict[str, Any]]:
        text = text_of(outputs)
        if not text:
            raise Skip("the answer is empty")
        repeat = longest_repeat(text)
        shown = {"repeat": repeat.text[:200], "count": repeat.count}
        return [
            self._unique(text),
            {"key": "looping_longest_repeat", "score": len(repeat.text) * repeat.count / len(text), "metadata": shown},
            {"key": "looping_compression", "score": compression_ratio(text)},
        ]

    def _unique(self, text: str) -> dict[str, Any]:
        try:
            score: float | None = unique_sentences(text, shortest=self.shortest)
        except Skip as why:
            return {"key": "looping_unique_sentences", "score": None, "comment": str(why)}
        return {"key": "looping_unique_sentences", "score": score}
