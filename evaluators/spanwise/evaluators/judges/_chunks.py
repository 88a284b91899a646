"""One question per retrieved chunk: which are relevant, and the share of those that are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spanwise.collector.records import Case, Document
from spanwise.evaluators.judges._judge import Judge
from spanwise.evaluators.judges._judgement import Judgement
from spanwise.evaluators.judges._prompts import Prompt
from spanwise.evaluators.judges._rating import rationale_of, scale_of
from spanwise.evaluators.protocol import Skip, Unjudged

SCALE = scale_of(("yes", "no"))
AT_ONCE = 64  # chunks whose questions are in memory together
CHUNK = ("documents", "retrieved_context")  # what a prompt may call the one chunk that it asks about


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said of one chunk: a rating and why, or the error in their place."""

    rating: str | None = None
    rationale: str | None = None
    error: Exception | None = None


async def precision_of(
    evaluator: str,
    judge: Judge,
    prompt: Prompt,
    case: Case,
    chunks: Sequence[Document],
    values: Mapping[str, str],
) -> dict[str, Any]:
    """The share of yes among the chunks that were judged; `values` are those of the prompt but for the chunk.

    `ratings`, `rationales` and `error_messages` of the metadata have one entry per chunk, None where there is none. A
    chunk whose judgement failed, or that has no text, leaves the denominator. Raises `Skip` where there is nothing to
    judge, `Unjudged` when all judgements have failed.
    """
    check_chunks(chunks)
    gate = asyncio.Semaphore(AT_ONCE)
    async with Judgement(evaluator, judge, case) as judgement:
        asked = (_verdict(judgement, prompt, values, chunk.content, gate) for chunk in chunks)
        verdicts = await asyncio.gather(*asked)
        lists = _lists(verdicts)
        ratings = [verdict.rating for verdict in verdicts if verdict.rating is not None]
        if not ratings:
            raise _none_judged(verdicts, lists)
        score = ratings.count("yes") / len(ratings)
        return judgement.row(score, comment=_told(ratings, verdicts), metadata=lists)


def check_prompt(prompt: Prompt) -> None:
    """Raises `ValueError` for a prompt that would ask the same of every chunk."""
    if not set(CHUNK) & set(prompt.asked):
        raise ValueError(f"prompt {prompt.id!r} is asked about one chunk after the other: it has to name {{documents}}")


def check_chunks(documents: Sequence[Document]) -> None:
    """Raises `Skip` where nothing was retrieved, or only documents without their text."""
    if not documents:
        raise Skip("needs documents; none was retrieved")
    if not any(document.content.strip() for document in documents):
        raise Skip(f"needs the content of documents; none of the {len(documents)} has any")


async def _verdict(
    judgement: Judgement, prompt: Prompt, values: Mapping[str, str], text: str, gate: asyncio.Semaphore
) -> Verdict:
    if not text.strip():
        return Verdict(error=Skip("the chunk has no content"))
    try:
        async with gate:
            answer = await judgement.ask(prompt, {**values, **dict.fromkeys(CHUNK, text)}, SCALE.schema)
        return Verdict(str(SCALE.read(answer)[1]), rationale_of(answer))
    except Exception as error:  # of one chunk; the others have theirs
        return Verdict(error=error)


def _lists(verdicts: Sequence[Verdict]) -> dict[str, list[str | None]]:
    return {
        "ratings": [verdict.rating for verdict in verdicts],
        "rationales": [verdict.rationale for verdict in verdicts],
        "error_messages": [None if verdict.error is None else said_of(verdict.error) for verdict in verdicts],
    }


def said_of(error: Exception) -> str:
    """What stands in the place of a judgement that did not come about."""
    return str(error) if isinstance(error, Unjudged | Skip) else f"{type(error).__name__}: {error}"


def _told(ratings: Sequence[str], verdicts: Sequence[Verdict]) -> str:
    failed = len(verdicts) - len(ratings)
    without = f"; {failed} could not be judged" if failed else ""
    return f"yes for {ratings.count('yes')} of {len(ratings)} chunks{without}"


def _none_judged(verdicts: Sequence[Verdict], lists: Mapping[str, Any]) -> Exception:
    """An error that begins as the first one did, or a skip where all are: a budget that is used up."""
    errors = [verdict.error for verdict in verdicts if verdict.error is not None]
    failures = [error for error in errors if not isinstance(error, Skip)]
    told = said_of((failures or errors)[0]) + (f" (none of {len(errors)} chunks was judged)" if errors[1:] else "")
    return Unjudged(told, lists) if failures else Skip(told)
