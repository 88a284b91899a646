"""Questions that are the same are asked once: who comes while one is under way waits for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from spanwise.evaluators.judges._ask import Answer
from spanwise.evaluators.protocol import Unjudged


class Flights:
    """Questions under way, by their key. Lives on the judges' loop."""

    def __init__(self) -> None:
        self._under_way: dict[object, asyncio.Future[Answer | Unjudged | None]] = {}

    async def once(self, key: object, ask: Callable[[], Awaitable[Answer]]) -> tuple[Answer, bool]:
        """The answer, and whether it came of somebody else's question. Raises what `ask` raises.

        An error that would meet everybody is everybody's; a budget that is used up, and being cancelled, are not: the
        next one asks.
        """
        while key in self._under_way:
            under_way = self._under_way[key]
            await asyncio.wait([under_way])
            outcome = under_way.result()
            if isinstance(outcome, Answer):
                return outcome, True
            if outcome is not None:
                raise _same(outcome)
        return await self._asked(key, ask), False

    async def _asked(self, key: object, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        mine = self._under_way[key] = asyncio.get_running_loop().create_future()
        outcome: Answer | Unjudged | None = None
        try:
            outcome = answer = await ask()
            return answer
        except Unjudged as error:
            outcome = _same(error)
            raise
        finally:
            del self._under_way[key]
            mine.set_result(outcome)


def _same(error: Unjudged) -> Unjudged:
    """An error of its own for each that waits: feedback adds to it where it came from."""
    another = type(error).__new__(type(error))
    another.args = error.args
    another.__dict__.update(error.__dict__)
    another.metadata = dict(error.metadata)
    another.__cause__ = error.__cause__
    return another
