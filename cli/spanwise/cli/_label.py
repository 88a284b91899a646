"""One case after the other for a person to vote on: what is shown, which keys there are, what they do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import typer
from rich.console import Console
from rich.text import Text

from spanwise.cli._common import harmless
from spanwise.collector.records import Document, Feedback, Target
from spanwise.collector.statistics import DRAWN, Drawn, Sample
from spanwise.collector.stores import Store
from spanwise.collector.terminal import cut

if TYPE_CHECKING:
    from spanwise.collector.records import Case

Worth = float | bool | str  # of a vote: a score, or a label

LONGEST = 4_000  # characters of one value that are shown
SHOWN = ("history", "inputs", "documents", "outputs", "reference_outputs")
_YES_NO: Mapping[str, tuple[str, Worth]] = {"y": ("yes", True), "n": ("no", False)}


@dataclass(frozen=True, slots=True)
class Keys:
    """Which key is which vote: {key: (word, worth)}; `s` skips, `b` goes back, `q` ends."""

    votes: Mapping[str, tuple[str, Worth]]

    def __str__(self) -> str:
        words = [f"{key} {word}" if key != word else key for key, (word, _) in self.votes.items()]
        return " · ".join([*words, "s skip", "b back", "q quit"])


def keys_of(scores: Mapping[str | int, Any] | None) -> Keys:
    """The keys for the labels of a scale with what they are worth: y and n for two, a digit for each of more.

    Raises `ValueError` for more than nine.
    """
    if scores is None or all(isinstance(worth, bool) for worth in scores.values()):
        words = [str(label) for label in scores] if scores else ["yes", "no"]
        return Keys({key: (word, worth) for word, (key, (_, worth)) in zip(words, _YES_NO.items(), strict=True)})
    if len(scores) > 9:
        raise ValueError(f"one key per vote: a scale of {len(scores)} labels has too many for the digits 1 to 9")
    digits = all(isinstance(label, int) and 0 <= label <= 9 for label in scores)
    return Keys(
        {
            str(label) if digits else str(place): (str(label), str(label) if worth is None else worth)
            for place, (label, worth) in enumerate(scores.items(), 1)
        }
    )


class Ballot:
    """A sample on its way past one person. Every vote is stored at once."""

    def __init__(
        self, store: Store, key: str, author: str, sample: Sample, drawn: Mapping[str, Any], out: Console
    ) -> None:
        self._store = store
        self._key = key
        self._author = author
        self._sample = sample
        self._drawn = drawn
        self._out = out
        self.votes: dict[Target, Feedback] = {}

    def hold(self, waiting: Sequence[Drawn], keys: Keys) -> None:
        """Show case after case until each has had its turn, or the person, or the input, ends it."""
        place = 0
        while place < len(waiting):
            shown = waiting[place].target
            if not self._show(shown, f"case {place + 1} of {len(waiting)}"):
                place += 1
                continue
            pressed = self._pressed(keys)
            if pressed == "q":
                return
            if pressed in keys.votes:
                self._keep(waiting[place], keys.votes[pressed][1])
            place = max(0, place - 1) if pressed == "b" else place + 1

    def _pressed(self, keys: Keys) -> str:
        """One of the keys; the end of the input quits."""
        while True:
            self._out.print(Text(f"{keys}: "), end="")
            pressed = key_pressed()
            self._out.print(Text(pressed if pressed.isprintable() else ""))
            if pressed in keys.votes or pressed in ("s", "b", "q"):
                return pressed

    def _keep(self, case: Drawn, worth: Worth) -> None:
        planned = sum(stratum == case.stratum for stratum in self._sample.of.values())
        drawn: dict[str, Any] = {"probability": self._sample.probability(case.stratum, planned), **self._drawn}
        if case.stratum:
            drawn["among"] = case.stratum
        value: dict[str, Any] = {"label": worth} if isinstance(worth, str) else {"score": worth}
        vote = Feedback(
            target=case.target,
            key=self._key,
            source="human",
            author=self._author,
            metadata={DRAWN: drawn},
            **value,
        )
        self._store.add_feedback([vote])
        self.votes[case.target] = vote

    def _show(self, target: Target, title: str) -> bool:
        """Whether there is still something to show."""
        case = case_at(self._store, target)
        if case is None:
            return False
        self._out.rule(Text(f"{title} · {harmless(target.trace_id or target.session_id or '')}"))
        for name in SHOWN:
            if (value := getattr(case, name)) not in (None, (), []):
                self._out.print(Text(name, "bold"))
                self._out.print(Text(cut(harmless(_text(value)), LONGEST)), soft_wrap=True)
        return True


def key_pressed() -> str:
    """The next key of a person at a terminal; of a pipe the next letter that is no white space, "q" at its end."""
    if sys.stdin.isatty():
        pressed: str = typer.getchar()
        return "q" if pressed in ("\x03", "\x04") else pressed.lower()
    while (letter := sys.stdin.read(1)) and letter.isspace():
        pass
    return letter.lower() or "q"


def case_at(store: Store, target: Target) -> Case | None:
    """What an evaluator would see of a target; None where it is no longer there."""
    from spanwise.evaluators import case_of

    if target.trace_id is not None:
        traces = store.many([target.trace_id])
        return case_of(traces[0]) if traces else None
    ids = [trace.trace_id for trace in store.traces(session=target.session_id, limit=200)]
    traces = store.many(ids)
    return case_of(traces) if traces else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple) and value and isinstance(value[0], Document):
        return "\n\n".join(f"[{place}] {document.content}" for place, document in enumerate(value, 1))
    if isinstance(value, list) and all(isinstance(message, dict) and "role" in message for message in value):
        return "\n".join(_turns(value))
    return orjson.dumps(value, default=repr, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


def _turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        yield f"{message['role']}: {content if isinstance(content, str) else _text(content)}"
