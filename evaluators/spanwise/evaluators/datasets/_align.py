"""Which stored example a row is, when the row does not say so: the one that asks the same.

Ids in a store are never changed. They may be of another making than `example_id` (given ones, those of earlier
versions), so examples without an id of their own are matched by what they ask, the first with the first and so on.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from spanwise.collector.records import Example, Numbering, canonical, example_id
from spanwise.collector.stores import ControlStore
from spanwise.evaluators.datasets._write import to_row

PAGE = 5000


def aligned(examples: Sequence[Example], stored: Iterable[Example]) -> list[Example]:
    """The examples, those without a given id under the id of the stored example that asks the same.

    Of several that ask the same those that are equal throughout find each other first, then those of one split, by
    their ids and then in order, then others likewise. What is left over gets an id that no stored example has.
    """
    keys = [example_id(example) for example in examples]
    asking: dict[str, list[int]] = defaultdict(list)  # what is asked without a given id, and where
    for place, (example, key) in enumerate(zip(examples, keys, strict=True)):
        if is_derived(example.id, key):
            asking[key].append(place)
    if not asking:
        return list(examples)
    given = {example.id for example, key in zip(examples, keys, strict=True) if not is_derived(example.id, key)}
    taken, known = _those_that_ask_the_same(stored, asking)
    found: dict[int, str] = {}
    for key, alike in known.items():
        old = {example.id: example for example in alike if example.id not in given}
        found.update(_pairs({place: examples[place] for place in asking[key]}, old))
    numbering = Numbering(taken | given)
    return [
        example
        if example.id in given or found.get(place) == example.id
        else replace(example, id=found[place])
        if place in found
        else numbering.of(replace(example, id=keys[place]))
        for place, example in enumerate(examples)
    ]


def is_derived(id: str, key: str) -> bool:
    """Whether an id is made of its example's inputs: the key itself, or with the number of its occurrence."""
    return id == key or (id.startswith(f"{key}-") and id[len(key) + 1 :].isdecimal())


def stored_examples(
    store: ControlStore, name: str, version: int | None, *, split: str | None = None, page: int = PAGE
) -> Iterator[Example]:
    """The examples of a version, or of a split of it, `page` of them in memory at once."""
    offset = 0
    while examples := store.examples(name, version, split=split, limit=page, offset=offset):
        yield from examples
        offset += len(examples)


def _those_that_ask_the_same(
    stored: Iterable[Example], asking: Container[str]
) -> tuple[set[str], dict[str, list[Example]]]:
    """All ids of a dataset, and those of its examples that ask what some new one asks, by what it is."""
    taken: set[str] = set()
    known: dict[str, list[Example]] = defaultdict(list)
    for example in stored:
        taken.add(example.id)
        if (key := example_id(example)) in asking:
            known[key].append(example)
    return taken, known


def _pairs(new: dict[int, Example], old: dict[str, Example]) -> Mapping[int, str]:
    """The id for each place, of those that belong together. In time proportional to how many there are, even if all
    ask the same.
    """
    if len(new) == len(old) == 1:
        return dict(zip(new, old, strict=True))
    found: dict[int, str] = {}
    for likeness in _LIKENESSES if old else ():
        waiting: dict[object, deque[str]] = defaultdict(deque)
        for example in old.values():
            waiting[likeness(example)].append(example.id)
        for place, example in list(new.items()):
            if ids := waiting.get(likeness(example)):
                found[place] = ids.popleft()
                del old[found[place]], new[place]
    return found


def _id_and_content(example: Example) -> object:
    return example.id, _content(example)


def _content(example: Example) -> object:
    return canonical({name: value for name, value in to_row(example).items() if name != "id"})


def _id_and_split(example: Example) -> object:
    return example.id, example.split


def _split(example: Example) -> object:
    return example.split


def _id(example: Example) -> object:
    return example.id


def _nothing(example: Example) -> object:
    return None


_LIKENESSES = (_id_and_content, _content, _id_and_split, _split, _id, _nothing)
