"""Whether an experiment that is resumed asks for more of the same: more repetitions, a larger limit, added examples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from spanwise.collector.errors import NotFound
from spanwise.collector.records import Example, Experiment
from spanwise.collector.stores import Store
from spanwise.evaluators.datasets import diff, stored_examples
from spanwise.evaluators.engine._source import Source

_UNNAMED = re.compile(r"examples-[0-9a-f]{8}")  # a dataset that is named after its examples
_LISTED = 3  # examples that are named


def shrunk(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of `repetitions`, `limit` and `only` is less than it was, in words."""
    repetitions = then.get("repetitions") or 1, now.get("repetitions") or 1
    limits = then.get("limit"), now.get("limit")
    less = limits[1] is not None and (limits[0] is None or limits[1] < limits[0])
    told = [f"repetitions was {repetitions[0]} and is {repetitions[1]}"] if repetitions[1] < repetitions[0] else []
    told += [f"limit was {limits[0]} and is {limits[1]}"] if less else []
    ids = _ids(then.get("only")), _ids(now.get("only"))
    less = ids[1] is not None and (ids[0] is None or not ids[0] <= ids[1])
    return [*told, f"only was {then.get('only')} and is {now.get('only')}"] if less else told


def _ids(only: str | Sequence[str] | None) -> set[str] | None:
    return None if only is None else {only} if isinstance(only, str) else set(only)


def other_examples(store: Store, earlier: Experiment, source: Source, now: Mapping[str, Any]) -> list[str]:
    """Why the examples are not those of before with some added, in words; [] if they are. Reads both versions."""
    before, after = (earlier.dataset, earlier.dataset_version), (source.name, source.version)
    if before == after:
        return []
    unnamed = all(_UNNAMED.fullmatch(name) for name in (earlier.dataset, source.name))
    if None in (earlier.dataset_version, source.version) or (earlier.dataset != source.name and not unnamed):
        return [f"dataset was {_at(*before)} and is {_at(*after)}"]
    try:
        old, new = (list(stored_examples(store, *version)) for version in (before, after))
    except NotFound as error:
        return [f"its examples are not there to be compared with: {error}"]
    told = _lost(old, new)
    if not told and now.get("limit") is not None:
        told = _of_a_limit(old, new, now)
    return told


def _lost(old: Sequence[Example], new: Sequence[Example]) -> list[str]:
    found = diff(old, new)
    told = [f"example {id} changed ({', '.join(names)})" for id, names in list(found.changed.items())[:_LISTED]]
    told += _more(len(found.changed), "changed")
    told += [f"example {example.id} is gone" for example in found.removed[:_LISTED]]
    return told + _more(len(found.removed), "are gone")


def _more(count: int, what: str) -> list[str]:
    return [f"{count - _LISTED} more {what}"] if count > _LISTED else []


def _of_a_limit(old: Sequence[Example], new: Sequence[Example], now: Mapping[str, Any]) -> list[str]:
    """Why a limit takes others than it took, though the examples are all there."""
    if now.get("seed") is not None:
        return ["the dataset has grown, of which a random sample (seed, limit) is another one"]
    if [example.id for example in old] != [example.id for example in new[: len(old)]]:
        return ["examples were added before others, so that limit takes other ones"]
    return []


def _at(name: str, version: int | None) -> str:
    return repr(name if version is None else f"{name}@{version}")
