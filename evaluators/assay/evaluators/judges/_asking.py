"""From a question to an answer: what surrounds the call of a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.evaluators.judges._ask import Answer, Ask
from assay.evaluators.judges._reading import read

if TYPE_CHECKING:
    from assay.evaluators.judges._judge import Judge


async def answered(judge: Judge, ask: Ask) -> Answer:
    """What a judge answers. Raises `ParseFailure`, other `Unjudged`, and `Skip` when a budget is used up."""
    completion = await judge.answering.complete(ask)
    return Answer(
        value=read(ask, completion),
        text=completion.text,
        model=completion.model or judge.model,
        usage=completion.usage,
        logprobs=completion.logprobs,
        notes=completion.notes,
    )
