"""What endpoints and models refuse: found out once per endpoint and model, and remembered while the process lives.

Only what a call went well without is remembered. An error may name a parameter for another reason, or quote a prompt
that does.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spanwise.collector.records import JSON
from spanwise.evaluators.judges._ask import Ask, Completion
from spanwise.evaluators.judges._schemas import digest

if TYPE_CHECKING:
    from openai import APIStatusError

KNOWN = 256  # pairs of an endpoint and a model
SCHEMAS = 64  # refused ones, of each
MOST_ROOM = 16  # times `max_tokens`, for models that think
MORE_ROOM = 4  # times as many tokens as before
TOP = (20, 5)  # alternatives per token: OpenAI gives 20, some give 5
LEVELS = ("json_schema", "json_object", "words")
LIMITS = ("max_completion_tokens", "max_tokens")

_STATUSES = frozenset({400, 403, 404, 422, 500, 501})  # with which a parameter is refused, by one server or another
_NAMES = {  # what an error may call it, and which parameter that is
    **{name: name for name in (*LIMITS, "temperature", "seed", "logprobs", "top_logprobs", "response_format")},
    "json_schema": "response_format",
    "json_object": "response_format",
    "structured output": "response_format",
    "structured outputs": "response_format",
    "grammar": "response_format",
}
_WORDS = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(_NAMES, key=len, reverse=True))})(?!\w)", re.IGNORECASE)
_INSTEAD = re.compile(r"\buse\b[^.;]*\binstead\b|\binstead of\b", re.IGNORECASE)
_TOO_MUCH = re.compile(
    r"too (?:large|many|long|high|big)|at most|maximum|exceed|context (?:length|size)", re.IGNORECASE
)
_BAD_SCHEMA = re.compile(r"invalid[ _](?:json[ _])?schema|grammar|unsupported (?:keyword|schema)", re.IGNORECASE)
_WITHOUT = {"temperature": "a temperature", "seed": "a seed", "logprobs": "log-probabilities"}


@dataclass(frozen=True, slots=True)
class Form:
    """How a question is put: without which parameters, with the schema at which level, under which limit."""

    limit: str | None = "max_tokens"
    without: frozenset[str] = frozenset()
    level: str = "json_schema"
    top: int = TOP[0]
    room: int = 1
    schemas: tuple[str, ...] = ()  # refused ones, by digest
    schema: str | None = None  # that of this question

    def refused_by(self, error: APIStatusError, sent: Mapping[str, Any]) -> Form | None:
        """The form without what an error names; None if it names nothing that can be left out."""
        name = _named(error, sent) if error.status_code in _STATUSES else None
        if name is None:
            return None
        if name in LIMITS:
            return None if _TOO_MUCH.search(_words(error)) else self._other_limit()
        if name == "response_format":
            return self._lower(bool(_BAD_SCHEMA.search(_words(error))))
        if name == "top_logprobs" and self.top > TOP[-1]:
            return replace(self, top=TOP[-1])
        if name in ("logprobs", "top_logprobs"):
            return replace(self, without=self.without | {"logprobs", "top_logprobs"})
        return replace(self, without=self.without | {name})

    def notes(self, ask: Ask, completion: Completion) -> tuple[str, ...]:
        """What the question went without, in words."""
        left_out = [f"asked without {words}" for name, words in _WITHOUT.items() if self._lacks(name, ask)]
        if ask.logprobs and not self._lacks("logprobs", ask) and not completion.logprobs:
            left_out.append("no log-probabilities came")
        if ask.logprobs > self.top and completion.logprobs:
            left_out.append(f"asked for {self.top} alternatives per token instead of {ask.logprobs}")
        if ask.schema is not None and self.level != LEVELS[0]:
            form = "as json_object" if self.level == "json_object" else "in words alone"
            left_out.append(f"asked for JSON {form}: the schema was refused")
        if self.limit is None:
            left_out.append("asked without a limit of tokens")
        return tuple(left_out)

    def _lacks(self, name: str, ask: Ask) -> bool:
        return name in self.without and (name != "logprobs" or ask.logprobs > 0)

    def _other_limit(self) -> Form:
        tried = self.without & set(LIMITS)
        other = next((name for name in LIMITS if name != self.limit and name not in tried), None)
        return replace(self, limit=other, without=self.without | {self.limit or ""})

    def _lower(self, this_schema: bool) -> Form:
        lower = LEVELS[min(LEVELS.index(self.level) + 1, len(LEVELS) - 1)]
        if this_schema and self.schema and self.level == LEVELS[0]:
            return replace(self, level=lower, schemas=(*self.schemas, self.schema)[-SCHEMAS:])
        return replace(self, level=lower)


class Habits:
    """What is known of one endpoint and model."""

    def __init__(self, base_url: str) -> None:
        host = urlsplit(base_url).hostname or ""
        theirs = host == "api.openai.com" or host.endswith((".openai.azure.com", ".azure.com"))
        self._form = Form(limit=LIMITS[0] if theirs else LIMITS[1])  # servers of others may pass over the newer name
        self._most_room = MOST_ROOM

    @property
    def room(self) -> int:
        """Times `max_tokens`."""
        return self._form.room

    def form(self, schema: Mapping[str, JSON] | None) -> Form:
        """How a question with that schema is put."""
        known = None if schema is None else digest(schema)
        level = LEVELS[1] if known in self._form.schemas and self._form.level == LEVELS[0] else self._form.level
        return replace(self._form, level=level, schema=known)

    def keep(self, form: Form) -> None:
        """A call has gone well in that form."""
        refused = form.schema in form.schemas
        level = self._form.level if refused and form.level == LEVELS[1] else form.level
        lowest = max(level, self._form.level, key=LEVELS.index)
        self._form = replace(
            form,
            level=lowest,
            without=self._form.without | form.without,
            top=min(form.top, self._form.top),
            room=max(form.room, self._form.room),
            schema=None,
        )

    def more_room(self, form: Form) -> bool:
        """Whether the next call has more tokens than one in that form had."""
        room = min(max(self._form.room, form.room * MORE_ROOM), self._most_room)
        self._form = replace(self._form, room=room)
        return room > form.room and form.limit is not None

    def too_much(self, form: Form, error: APIStatusError) -> None:
        """An endpoint that refuses so many tokens is asked for fewer from now on."""
        if form.room > 1 and _TOO_MUCH.search(_words(error)):
            self._most_room = form.room // MORE_ROOM
            self._form = replace(self._form, room=min(self._form.room, self._most_room))


_habits: OrderedDict[tuple[str, str], Habits] = OrderedDict()


def habits_of(base_url: str, model: str) -> Habits:
    """What is known of a model at an endpoint."""
    known = _habits.setdefault((base_url, model), Habits(base_url))
    try:
        _habits.move_to_end((base_url, model))
        if len(_habits) > KNOWN:
            _habits.popitem(last=False)
    except KeyError:  # another thread was first
        pass
    return known


def forget() -> None:
    """All that was found out."""
    _habits.clear()


def _named(error: APIStatusError, sent: Mapping[str, Any]) -> str | None:
    """The parameter that an error names, of those that were sent: in its field `param`, else first in its words."""
    field = str(error.param or "").partition(".")[0]
    if field in sent and field in _NAMES:
        return field
    model = rf"(?<!\w){re.escape(str(sent.get('model')))}(?!\w)"
    words = _INSTEAD.sub(" ", re.sub(model, " ", _words(error)))
    named = (_NAMES[match.group().lower()] for match in _WORDS.finditer(words))
    return next((name for name in named if name in sent), None)


def _words(error: APIStatusError) -> str:
    return f"{error.message} {error.body}"
