"""What a model gives for each of several, where one that it cannot take fails alone; pairs of texts as keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from spanwise.evaluators.models._find import NoModel

Asked = TypeVar("Asked", bound=Hashable)
Given = TypeVar("Given")


def each(ask: Callable[[list[Asked]], Sequence[Given]], given: Sequence[Asked]) -> dict[Asked, Given | Exception]:
    """What `ask` gives for each, or why it fails for this one: what fails together is tried in halves.

    Raises `NoModel`, which is nobody's fault among them.
    """
    found: dict[Asked, Given | Exception] = {}
    waiting = [list(dict.fromkeys(given))]
    while waiting:
        part = waiting.pop()
        try:
            found |= dict(zip(part, ask(part), strict=True))
        except NoModel:
            raise
        except Exception as error:
            if len(part) == 1:
                found[part[0]] = error
            else:
                waiting += [part[len(part) // 2 :], part[: len(part) // 2]]
    return found


def joined(one: str, other: str) -> str:
    """A pair as one text, from which it can be told again."""
    return f"{len(one)} {one}{other}"


def parted(text: str) -> tuple[str, str]:
    """The pair of which this was made."""
    length, _, both = text.partition(" ")
    return both[: int(length)], both[int(length) :]
