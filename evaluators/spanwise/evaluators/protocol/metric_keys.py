"""Collisions of metric keys: two evaluators under one key would be one mean of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from spanwise.collector.records import Feedback, Target
from spanwise.collector.statistics import TASK_OK
from spanwise.evaluators.protocol._evaluator import Evaluator
from spanwise.evaluators.protocol._outcomes import Nonsense


def check_keys(evaluators: Sequence[Evaluator], recorded: Iterable[Mapping[str, Any]] = ()) -> None:
    """Raise `ValueError` if two evaluators declare the same metric key.

    `recorded` are the evaluators that an experiment has already, as it records them. One of the same key is replaced.
    """
    owners: dict[str, str] = {}
    for evaluator in evaluators:
        for key in dict.fromkeys((evaluator.key, *evaluator.make.keys)):
            if key == TASK_OK:
                raise ValueError(f"{TASK_OK!r} is said of every run anyway: give the evaluator another with key='…'")
            if key in owners:
                raise ValueError(_collision(key, owners[key], evaluator.key))
            owners[key] = evaluator.key
    given = {evaluator.key for evaluator in evaluators}
    for record in recorded:
        for metric in record.get("metrics", ()):
            if record["key"] not in given and metric["key"] in owners:
                raise ValueError(_collision(metric["key"], record["key"], owners[metric["key"]]))


def claim_keys(
    owners: MutableMapping[str, str], evaluator: Evaluator, feedback: list[Feedback], target: Target
) -> list[Feedback]:
    """Return the feedback of an evaluator; an error in its place if one of its keys belongs to another evaluator.

    `owners` maps keys to the evaluators that gave them first, or declare them. Keys that are new are added.
    """
    for one in feedback:
        owner = owners.setdefault(one.key, evaluator.key)
        if owner != evaluator.key:
            collision = f"{evaluator.key!r} returned the key {one.key!r}, which is a key of {owner!r}, too"
            return evaluator.make.failure(target, Nonsense(f"{collision}; {_REMEDY}"))
    return feedback


def declared_keys(evaluators: Iterable[Evaluator]) -> dict[str, str]:
    """Return the declared metric keys, each with the key of its evaluator."""
    return {key: evaluator.key for evaluator in evaluators for key in (evaluator.key, *evaluator.make.keys)}


_REMEDY = "one would overwrite the other: give one of them another key with key='…'"


def _collision(key: str, one: str, other: str) -> str:
    if one == other == key:
        return f"two evaluators have the key {key!r}: {_REMEDY}"
    return f"two evaluators, {one!r} and {other!r}, give the key {key!r}: {_REMEDY}"
