"""A judge that says what a test has written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import orjson

from assay.collector.records import Usage
from assay.evaluators.judges._ask import Ask, Completion
from assay.evaluators.judges._judge import Judge

Said: TypeAlias = str | Mapping[str, Any] | BaseException | Completion


class _Script:
    """Gives replies in order, or those of a function of the question; keeps what it was asked."""

    model = "scripted"
    where = "a script in this process"

    def __init__(self, replies: Iterable[Said] | Callable[[Ask], Said]) -> None:
        self._next = replies if callable(replies) else iter(replies)
        self.asked: list[Ask] = []

    async def complete(self, ask: Ask) -> Completion:
        self.asked.append(ask)
        said = self._next(ask) if callable(self._next) else next(self._next)
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, Completion):
            return said
        text = said if isinstance(said, str) else orjson.dumps(said).decode()
        return Completion(text=text, model=self.model, usage=Usage(len(str(ask.messages)) // 4, len(text) // 4))


def scripted(*replies: Said | Callable[[Ask], Said]) -> Judge:
    """A judge that gives these replies in their order (an exception is raised), or what one function of the `Ask` says.

    A dict is a JSON object. `judge.backend.asked` lists what it was asked.
    """
    script: Any = replies[0] if len(replies) == 1 and callable(replies[0]) else replies
    return Judge(model="scripted", backend=_Script(script))
