"""Scripted judge for tests: replies in a fixed order or from a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import orjson

from spanwise.collector.records import Usage
from spanwise.evaluators.interface import Unjudged
from spanwise.evaluators.judges.llm_client.chat_completions import Ask, Completion
from spanwise.evaluators.judges.llm_client.judge_call import Judge

ScriptedReply: TypeAlias = str | Mapping[str, Any] | BaseException | type[BaseException] | Completion


class ScriptBackend:
    """Backend with scripted replies: a sequence of replies, or a function of the question. It records the questions."""

    model = "scripted"
    where = "a script in this process"

    def __init__(self, *replies: ScriptedReply | Callable[[Ask], ScriptedReply]) -> None:
        only = replies[0] if len(replies) == 1 else None
        self._function = only if callable(only) and not isinstance(only, type) else None
        self._count = len(replies)
        self._replies: Iterator[Any] = iter(replies)
        self._lock = threading.Lock()
        self.asked: list[Ask] = []

    async def complete(self, ask: Ask) -> Completion:
        """Return the next reply, or raise it if it is an exception. Raises `Unjudged` if no reply is left."""
        with self._lock:
            self.asked.append(ask)
            reply = None if self._function else next(self._replies, None)
        return _make_scripted_completion(self._function(ask) if self._function else reply, ask, self._count)


def _make_scripted_completion(reply: ScriptedReply | None, ask: Ask, count: int) -> Completion:
    if reply is None:
        raise Unjudged(f"the script of the judge has no more replies: it had {count}")
    if isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException)):
        raise reply
    if isinstance(reply, Completion):
        return reply
    text = reply if isinstance(reply, str) else orjson.dumps(reply).decode()
    return Completion(text=text, model=ScriptBackend.model, usage=Usage(len(str(ask.messages)) // 4, len(text) // 4))


@dataclass(frozen=True, kw_only=True)
class ScriptedJudge(Judge):
    """Judge with scripted replies."""

    @property
    def asked(self) -> list[Ask]:
        """Return all questions, in order."""
        return cast("ScriptBackend", self.backend).asked


def scripted(*replies: ScriptedReply | Callable[[Ask], ScriptedReply]) -> ScriptedJudge:
    """Return a judge that gives these replies in order. A single function is called with each `Ask` and returns the
    reply.

    A dict becomes a JSON object. A `Completion` is a complete reply with its metadata. An exception is raised.
    `judge.asked` lists the questions. Asking raises `Unjudged` if no reply is left.
    """
    return ScriptedJudge(backend=ScriptBackend(*replies))
