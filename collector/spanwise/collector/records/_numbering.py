"""Examples that ask the same: told apart by their occurrence in what they come in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spanwise.collector.records._dataset import Example, example_id


def distinct(examples: Iterable[Example]) -> list[Example]:
    """The same examples, each with an id of its own: the second that asks the same is `<id>-2`, the third `<id>-3`.

    Ids that were given come first, wherever they stand; of two that are equal the later one gets a number, too.
    """
    listed = list(examples)
    if len({example.id for example in listed}) == len(listed):
        return listed
    derived = [example.id == example_id(example) for example in listed]
    numbering, numbered = Numbering(), dict[int, Example]()
    for place in sorted(range(len(listed)), key=lambda place: (derived[place], place)):
        numbered[place] = numbering.of(listed[place])
    return [numbered[place] for place in range(len(listed))]


class Numbering:
    """Gives examples ids that are not taken yet, one after the other, beside those that are `taken`."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}  # only of ids that came more than once

    def of(self, example: Example) -> Example:
        """The example, with a number after its id if that is taken."""
        id = example.id
        if id not in self._taken:
            self._taken.add(id)
            return example
        number = self._last.get(id, 1) + 1
        while f"{id}-{number}" in self._taken:
            number += 1
        self._last[id] = number
        self._taken.add(f"{id}-{number}")
        return replace(example, id=f"{id}-{number}")
