"""Feedback as chips: a score, an error and a skip never look alike. And the newest word per key of many feedbacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spanwise.collector import format, statistics
from spanwise.collector.records import Feedback, TraceSummary
from spanwise.collector.stores import Store


@dataclass(frozen=True, slots=True)
class Chip:
    """What a chip shows. `share` in 0…1 fills its bar; None draws no bar."""

    feedback: Feedback
    text: str
    share: float | None
    more: int = 0  # older or other feedbacks under the same key
    judged: bool = False  # whether a model has spoken under the key, if not last

    @property
    def hint(self) -> str:
        """What the pointer sees without opening it."""
        outcome = self.feedback.outcome
        words = self.feedback.error or self.feedback.comment or ""
        return f"{self.feedback.key}: {outcome if outcome != 'score' else self.text}" + (f", {words}" if words else "")


def chip(feedback: Feedback, more: int = 0) -> Chip:
    """Only a score has a value; an error says "error", a skip says "skipped"."""
    if feedback.outcome == "error":
        return Chip(feedback, "error", None, more)
    if feedback.outcome == "skip":
        return Chip(feedback, "skipped", None, more)
    if feedback.score is None:
        return Chip(feedback, feedback.label or "", None, more)
    inside = isinstance(feedback.score, bool) or 0 <= feedback.score <= 1
    text = format.number(feedback.score)
    both = f"{feedback.label} {text}" if feedback.label else text
    return Chip(feedback, both, float(feedback.score) if inside else None, more)


def latest(feedbacks: Iterable[Feedback]) -> dict[str, Chip]:
    """The last word per key, whoever said it, with how many others there are (`statistics.newest` is everybody's)."""
    groups: dict[str, list[Feedback]] = {}
    for feedback in feedbacks:
        groups.setdefault(feedback.key, []).append(feedback)
    last = {key: max(group, key=lambda feedback: feedback.created_ns) for key, group in groups.items()}
    judged = {key for key, group in groups.items() if any(feedback.source == "model" for feedback in group)}
    return {key: replace(chip(last[key], len(groups[key]) - 1), judged=key in judged) for key in sorted(groups)}


def voices(feedbacks: Iterable[Feedback]) -> list[Chip]:
    """Everybody's newest word, by key: people's votes side by side, without an evaluator's older versions."""
    words = statistics.newest(feedbacks)
    return [chip(feedback) for feedback in sorted(words, key=lambda feedback: (feedback.key, feedback.created_ns))]


def by_trace(store: Store, traces: Sequence[TraceSummary]) -> dict[str, dict[str, Chip]]:
    """The newest feedback per trace and key, in one query for all the traces of a page."""
    if not traces:
        return {}
    of_traces: dict[str, list[Feedback]] = {}
    cursor = None
    for _ in range(5):  # at most 5,000 feedbacks on a page
        page = store.feedbacks(trace_ids=tuple(trace.trace_id for trace in traces), limit=1000, cursor=cursor)
        for feedback in page:
            of_traces.setdefault(feedback.target.trace_id or "", []).append(feedback)
        cursor = page.next
        if cursor is None:
            break
    return {trace_id: latest(feedbacks) for trace_id, feedbacks in of_traces.items()}


def columns(chips: Mapping[str, Mapping[str, Chip]], most: int = 5) -> list[str]:
    """The keys that get a column of their own: those on most of the traces."""
    seen = Counter(key for of_trace in chips.values() for key in of_trace)
    return sorted(sorted(seen), key=lambda key: -seen[key])[:most]
