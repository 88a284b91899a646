"""Feedback as chips: a score, an error and a skip never look alike. And the newest word per key of many feedbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from assay.collector import statistics
from assay.collector.pages import _format
from assay.collector.records import Feedback, TraceSummary
from assay.collector.stores import Store


@dataclass(frozen=True, slots=True)
class Chip:
    """What a chip shows. `share` in 0…1 fills its bar; None draws no bar."""

    feedback: Feedback
    text: str
    share: float | None
    more: int = 0  # older or other feedbacks under the same key

    @property
    def hint(self) -> str:
        """What the pointer sees without opening it."""
        item = self.feedback
        why = item.error or item.comment or ""
        return f"{item.key}: {item.outcome if item.outcome != 'score' else self.text}" + (f", {why}" if why else "")


def chip(feedback: Feedback, more: int = 0) -> Chip:
    """Only a score has a value; an error says "error", a skip says "skipped"."""
    if feedback.outcome == "error":
        return Chip(feedback, "error", None, more)
    if feedback.outcome == "skip":
        return Chip(feedback, "skipped", None, more)
    if feedback.score is None:
        return Chip(feedback, feedback.label or "", None, more)
    inside = isinstance(feedback.score, bool) or 0 <= feedback.score <= 1
    text = _format.number(feedback.score)
    both = f"{feedback.label} {text}" if feedback.label else text
    return Chip(feedback, both, float(feedback.score) if inside else None, more)


def latest(feedback: Iterable[Feedback]) -> dict[str, Chip]:
    """The last word per key, whoever said it, with how many others there are (`statistics.newest` is everybody's)."""
    groups: dict[str, list[Feedback]] = {}
    for item in feedback:
        groups.setdefault(item.key, []).append(item)
    last = {key: max(group, key=lambda item: item.created_ns) for key, group in groups.items()}
    return {key: chip(last[key], len(groups[key]) - 1) for key in sorted(groups)}


def voices(feedback: Iterable[Feedback]) -> list[Chip]:
    """Everybody's newest word, by key: people's votes side by side, without an evaluator's older versions."""
    return [chip(item) for item in sorted(statistics.newest(feedback), key=lambda item: (item.key, item.created_ns))]


def by_trace(store: Store, traces: Sequence[TraceSummary]) -> dict[str, dict[str, Chip]]:
    """The newest feedback per trace and key, in one query for all the traces of a page."""
    if not traces:
        return {}
    by_id: dict[str, list[Feedback]] = {}
    cursor = None
    for _ in range(5):  # at most 5,000 feedbacks on a page
        page = store.feedbacks(trace_ids=tuple(trace.trace_id for trace in traces), limit=1000, cursor=cursor)
        for item in page:
            by_id.setdefault(item.target.trace_id or "", []).append(item)
        cursor = page.next
        if cursor is None:
            break
    return {trace_id: latest(items) for trace_id, items in by_id.items()}


def columns(chips: Mapping[str, Mapping[str, Chip]], most: int = 5) -> list[str]:
    """The keys that get a column of their own: those on most of the traces."""
    seen: dict[str, int] = {}
    for of_trace in chips.values():
        for key in of_trace:
            seen[key] = seen.get(key, 0) + 1
    return sorted(sorted(seen), key=lambda key: -seen[key])[:most]
