"""Of feedback that replaces each other, the newest: what counts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from spanwise.collector.records import Feedback


def newest(feedback: Iterable[Feedback]) -> list[Feedback]:
    """The newest feedback of each place, in the order of the first of each; of equally old ones the last given.

    A place is (target, key, source, author, rule): an evaluator's later version takes the place of an older one, while
    people's votes, and two rules under one key, do not hide each other. People without a name are not the same person.
    This is what every aggregate counts: in the terminal, in the engine, in stores and on pages.
    """
    rows = list(feedback)
    if len({row.key for row in rows}) == len(rows):
        return rows
    kept: dict[Hashable, Feedback] = {}
    for row in rows:
        place = place_of(row)
        if place not in kept or kept[place].created_ns <= row.created_ns:
            kept[place] = row
    return list(kept.values())


def place_of(feedback: Feedback) -> Hashable:
    """Where a feedback stands: what is said later in the same place takes its stead (see `newest`)."""
    nobody = nameless(feedback.source, feedback.author)
    return (
        feedback.target,
        feedback.key,
        feedback.source,
        feedback.author,
        feedback.rule,
        feedback.id if nobody else None,
    )


def nameless(source: str, author: str | None) -> bool:
    """Whether a person said it who gave no name, so that nothing else can take its place."""
    return source == "human" and not author
