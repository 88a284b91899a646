"""From a question to an answer: what surrounds the call of a backend.

Cache, budget, a place in the line, the call with its attempts under one deadline, the reading of the reply, one more
question where it cannot be read; what it has cost is settled, and the answer kept. All of it on the judges' loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from spanwise.collector.records import Usage
from spanwise.evaluators.judges._ask import Answer, Ask, Completion
from spanwise.evaluators.judges._cache import Cache, key_of, path_of
from spanwise.evaluators.judges._flights import Flights
from spanwise.evaluators.judges._loop import kept, on_judges_loop
from spanwise.evaluators.judges._question import Question
from spanwise.evaluators.judges._reading import reading
from spanwise.evaluators.judges._rehearsal import rehearsing
from spanwise.evaluators.protocol import in_thread

if TYPE_CHECKING:
    from spanwise.evaluators.judges._judge import Judge

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    """Return the cached answer, or ask the judge and write its answer to the cache before returning it."""
    found = await _found(cache, key, judge, ask)
    if found is not None:
        return found
    answer, completion = await Question(judge, ask).answer()
    await kept(("put", cache), lambda: _Batches(cache.put_all)).run((key, completion))
    return answer


async def _found(cache: Cache, key: bytes, judge: Judge, ask: Ask) -> Answer | None:
    completion = await kept(("get", cache), lambda: _Batches(cache.get_all)).run((key, judge.max_age))
    return _read(judge, ask, completion) if completion is not None else None


class _Batches(Generic[Item, Result]):
    """Access to a cache file in batches, one thread at a time.

    Everything that arrives while a batch is running forms the next batch: a wave of questions costs one thread and one
    transaction, and a locked file holds up one thread. `call` returns one result per item, in order.
    """

    def __init__(self, call: Callable[[list[Item]], list[Result]]) -> None:
        self._call = call
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def run(self, item: Item) -> Result:
        """Return the result for one item. Raises what the batch raises."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._run_batch(batch)
        finally:
            self._task = None

    async def _run_batch(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await in_thread(lambda: self._call([item for item, _ in batch]))
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():  # its question was cancelled
                future.set_result(result)


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
