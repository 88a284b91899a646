"""From a question to an answer: what surrounds the call of a backend.

Cache, budget, a place in the line, the call with its attempts under one deadline, the reading of the reply, one more
question where it cannot be read; what it has cost is settled, and the answer kept. All of it on the judges' loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.collector.records import Usage
from assay.evaluators.judges._ask import Answer, Ask, Completion
from assay.evaluators.judges._cache import Cache, key_of, path_of
from assay.evaluators.judges._flights import Flights
from assay.evaluators.judges._loop import kept, on_judges_loop
from assay.evaluators.judges._question import Question
from assay.evaluators.judges._reading import reading
from assay.evaluators.judges._rehearsal import rehearsing
from assay.evaluators.protocol import in_thread

if TYPE_CHECKING:
    from assay.evaluators.judges._judge import Judge


async def answered(judge: Judge, ask: Ask) -> Answer:
    """What a judge answers. Raises `ParseFailure`, other `Unjudged`, and `Skip` when a budget is used up."""
    if rehearsing.get() is None:  # a rehearsal asks nobody, and needs no key
        judge.check()
    return await on_judges_loop(lambda: _answered(judge, ask))


async def _answered(judge: Judge, ask: Ask) -> Answer:
    path = path_of(judge)
    rehearsal = rehearsing.get()
    if path is None and rehearsal is not None:
        return rehearsal.answer(judge, ask, None)
    if path is None:
        return (await Question(judge, ask).answer())[0]
    cache = kept((Cache, path), lambda: Cache(path))
    key = key_of(judge, ask)
    if rehearsal is not None:
        return rehearsal.answer(judge, ask, await _found(cache, key, judge, ask))
    same = (path, key, judge.api_key, judge.deadline, judge.max_age)  # another key may be refused, or be welcome
    answer, of_another = await kept(Flights, Flights).once(same, lambda: _through(cache, key, judge, ask))
    return free(answer) if of_another else answer


async def _through(cache: Cache, key: bytes, judge: Judge, ask: Ask) -> Answer:
    """What the cache holds, else what the judge says, kept before anybody has it."""
    found = await _found(cache, key, judge, ask)
    if found is not None:
        return found
    answer, completion = await Question(judge, ask).answer()
    await _in_turn("put", cache, lambda: cache.put(key, completion))
    return answer


async def _found(cache: Cache, key: bytes, judge: Judge, ask: Ask) -> Answer | None:
    completion: Completion | None = await _in_turn("get", cache, lambda: cache.get(key, judge.max_age))
    return _read(judge, ask, completion) if completion is not None else None


async def _in_turn(what: str, cache: Cache, call: Callable[[], Any]) -> Any:
    """On a thread, one of each kind at a time: a file that is locked holds up one, not one for each question."""
    async with kept((what, cache), asyncio.Lock):
        return await in_thread(call)


def _read(judge: Judge, ask: Ask, completion: Completion) -> Answer | None:
    """A kept reply as an answer; None where it is none any more."""
    try:
        came = reading(ask, completion)
    except Exception:
        return None
    return free(
        Answer(
            value=came.value,
            text=completion.text,
            model=completion.model or judge.model,
            logprobs=completion.logprobs,
            notes=(*completion.notes, *came.notes),
        )
    )


def free(answer: Answer) -> Answer:
    """An answer for which no call was made."""
    return replace(answer, cached=True, calls=0, cost=0.0, usage=Usage())
