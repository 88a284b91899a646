"""Ratings weighted by how likely the judge was to give them: G-Eval (Liu et al. 2023, arXiv 2303.16634, section 2)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import exp
from typing import Any

from spanwise.evaluators.judges._ask import Answer, Token

TOP = 20  # alternatives per token, as many as OpenAI gives
LEAST = 0.01  # labels that are less likely than that are noise
NOTE = "no log-probabilities: the rating is the sampled one"
_PADDING = " \t\r\n\"'`*([{"
_ENDS = " \t\r\n\"'`*)]},.;:"


def probabilities(answer: Answer, labels: Sequence[str | int], field: str = "rating") -> dict[str | int, float] | None:
    """How likely each label was where the reply gives its rating, those under 1 % left out; they add up to 1.

    The rating is the last `field` of the reply's JSON, else the last label that stands in it as a word: what a
    rationale quotes comes before. It may begin within a token, and go over several. None where the reply has no
    log-probabilities, or none of a label.
    """
    at = _place("".join(token.text for token in answer.logprobs), labels, field)
    if at is None:
        return None
    masses: dict[str | int, float] = {}
    for label, probability in _read(answer.logprobs, *at, labels):
        masses[label] = masses.get(label, 0.0) + probability
    kept = {label: mass for label, mass in masses.items() if mass >= LEAST} or masses
    total = sum(kept.values())
    return {label: kept[label] / total for label in labels if label in kept} if total else None


def expected(weights: Mapping[str | int, float], values: Mapping[str | int, float]) -> float:
    """The mean of the labels' values, each as likely as it is."""
    return sum(weight * values[label] for label, weight in weights.items())


def noted(metadata: Mapping[str, Any], weights: Mapping[str | int, float] | None, rating: str | int) -> dict[str, Any]:
    """A judgement's metadata with the labels' probabilities, the rating's as `confidence`; or why there are none."""
    if weights is None:
        return {**metadata, "notes": [*metadata.get("notes", ()), NOTE]}
    likely = {str(label): round(weight, 6) for label, weight in weights.items()}
    return {**metadata, "probabilities": likely, "confidence": round(weights.get(rating, 0.0), 6)}


def _place(text: str, labels: Sequence[str | int], field: str) -> tuple[int, str | int] | None:
    """Where the rating's own characters begin, and which label it is. A quoted key in a text has its quotes escaped."""
    either = "|".join(sorted((re.escape(str(label)) for label in labels), key=len, reverse=True))
    in_json = re.compile(rf'"{re.escape(field)}"\s*:\s*"?\s*({either})(?!\w)', re.IGNORECASE)
    as_word = re.compile(rf"(?<![\w.-])({either})(?!\w|\.\d)", re.IGNORECASE)
    found = [*in_json.finditer(text)] or [*as_word.finditer(text)]
    known = {str(label).lower(): label for label in labels}
    return (found[-1].start(1), known[found[-1][1].lower()]) if found else None


def _read(
    tokens: Sequence[Token], start: int, said: str | int, labels: Sequence[str | int]
) -> Iterator[tuple[str | int, float]]:
    """(label, probability): alternatives at each token of the rating, as long as what was said leads there."""
    path, done, whole = 1.0, "", str(said).lower()
    for token, begins in _from(tokens, start):
        for text, logprob in token.top.items():
            if text != token.text and (label := _meant(done + _bare(text, token.text[:begins]), labels)) is not None:
                yield label, path * exp(logprob)
        path *= exp(min(0.0, token.logprob))
        done += token.text[begins:].lower().strip(_PADDING if not done else "")
        if len(done) >= len(whole):
            break
    yield said, path


def _from(tokens: Sequence[Token], start: int) -> Iterator[tuple[Token, int]]:
    """Tokens from a character on, and where in the first of them that is."""
    end = 0
    for token in tokens:
        begin, end = end, end + len(token.text)
        if end > start:
            yield token, max(0, start - begin)


def _bare(text: str, before: str) -> str:
    """An alternative without what stands before the rating in its place; what follows the rating ends it."""
    bare = text.removeprefix(before).lower().lstrip(_PADDING)
    return re.split(f"[{re.escape(_ENDS)}]", bare, maxsplit=1)[0]


def _meant(text: str, labels: Sequence[str | int]) -> str | int | None:
    """The label that a text is, or the only one that it begins."""
    if not text:
        return None
    exact = [label for label in labels if str(label).lower() == text]
    begun = exact or [label for label in labels if str(label).lower().startswith(text)]
    return begun[0] if len(begun) == 1 else None
