"""Feedback display: chips, metric units and directions, keys scored by judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spanwise.collector import formatting, statistics
from spanwise.collector.records import Bucket, Experiment, Feedback, FeedbackStats, TraceSummary
from spanwise.collector.statistics import TASK_OK
from spanwise.collector.stores import Store, list_metrics

MAX_CHIP_CHARACTERS = 200  # of a label on a chip
MAX_HINT_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class FeedbackChip:
    """Chip that shows one feedback. `share` in 0…1 fills its bar; None draws no bar. A long label is cut."""

    feedback: Feedback
    text: str
    share: float | None
    more: int = 0  # number of other feedback rows under the same key
    judged: bool = False  # True if a judge has scored this key, even if the latest feedback is by a person

    @property
    def hint(self) -> str:
        """Return the tooltip text."""
        outcome = self.feedback.outcome
        detail = self.feedback.error or self.feedback.comment or ""
        hint = f"{self.feedback.key}: {outcome if outcome != 'score' else self.text}" + (
            f", {detail}" if detail else ""
        )
        return _cut(hint, MAX_HINT_CHARACTERS)


_YES_NO = {"true": "yes", "false": "no"}  # labels of booleans as evaluators write them, by their lower case


def format_label(label: str) -> str:
    """Return a label as pages show it: "yes" and "no" for booleans, however an evaluator wrote them."""
    return _YES_NO.get(label.strip().lower(), label)


def make_chip(feedback: Feedback, more: int = 0) -> FeedbackChip:
    """Return the chip of a feedback: its score or label, "error", or "skipped"."""
    if feedback.outcome == "error":
        return FeedbackChip(feedback, "error", None, more)
    if feedback.outcome == "skip":
        return FeedbackChip(feedback, "skipped", None, more)
    label = _cut(format_label(feedback.label or ""), MAX_CHIP_CHARACTERS)
    if feedback.score is None:
        return FeedbackChip(feedback, label, None, more)
    has_bar = isinstance(feedback.score, bool) or 0 <= feedback.score <= 1
    if isinstance(feedback.score, bool):
        number = "yes" if feedback.score else "no"
    else:
        number = formatting.number(feedback.score)
    text = f"{label} {number}" if label and label != number else number
    return FeedbackChip(feedback, text, float(feedback.score) if has_bar else None, more)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def get_latest_chips(feedbacks: Iterable[Feedback]) -> dict[str, FeedbackChip]:
    """Return a chip per key: the latest feedback by any author, and the number of other feedback rows.

    In contrast, `statistics.select_latest` selects the latest feedback of every author.
    """
    groups: dict[str, list[Feedback]] = {}
    for feedback in feedbacks:
        groups.setdefault(feedback.key, []).append(feedback)
    chips = {}
    for key, group in sorted(groups.items()):
        chip = make_chip(max(group, key=lambda feedback: feedback.created_ns), len(group) - 1)
        chips[key] = replace(chip, judged=any(feedback.source == "model" for feedback in group))
    return chips


def get_author_chips(feedbacks: Iterable[Feedback]) -> list[FeedbackChip]:
    """Return a chip for the latest feedback of every author on every key, sorted by key.

    Labels of several people are all shown, but only the newest version of an evaluator.
    """
    latest = statistics.select_latest(feedbacks)
    return [
        make_chip(feedback) for feedback in sorted(latest, key=lambda feedback: (feedback.key, feedback.created_ns))
    ]


@dataclass(frozen=True, slots=True)
class DocumentFeedback:
    """Scores of the documents of a trace under one key."""

    key: str
    documents: int
    mean: float | None  # None if all evaluations failed or were skipped, or gave only labels

    @property
    def text(self) -> str:
        """Return the mean and the number of documents."""
        count = f"{self.documents} document" + ("s" if self.documents != 1 else "")
        return count if self.mean is None else f"mean {formatting.number(self.mean)} of {count}"


@dataclass(frozen=True, slots=True)
class TraceFeedback:
    """Feedback on one trace in a list: a chip per key of the trace and its spans, and the scores of its documents."""

    chips: Mapping[str, FeedbackChip]
    documents: Sequence[DocumentFeedback]

    def hidden_counts(self, columns: Sequence[str]) -> list[int]:
        """Return how many entries are not visible beside 4, 2, 1 and 0 columns of scores."""
        total = len(self.chips) + len(self.documents)
        return [total - sum(key in self.chips for key in columns[:shown]) for shown in (4, 2, 1, 0)]


def summarize_documents(feedbacks: Iterable[Feedback]) -> list[DocumentFeedback]:
    """Return the mean of the latest scores of documents per key, and the number of documents."""
    by_key: dict[str, list[Feedback]] = {}
    for feedback in statistics.select_latest(item for item in feedbacks if item.target.document is not None):
        by_key.setdefault(feedback.key, []).append(feedback)
    found = []
    for key, group in sorted(by_key.items()):
        scores = [float(feedback.score) for feedback in group if feedback.score is not None]
        documents = len({(feedback.target.span_id, feedback.target.document) for feedback in group})
        found.append(DocumentFeedback(key, documents, sum(scores) / len(scores) if scores else None))
    return found


def load_feedback(store: Store, traces: Sequence[TraceSummary]) -> dict[str, TraceFeedback]:
    """Load the latest feedback per trace and key, in one query for all traces of a page."""
    return {
        trace_id: TraceFeedback(
            get_latest_chips(item for item in feedbacks if item.target.document is None),
            summarize_documents(feedbacks),
        )
        for trace_id, feedbacks in _load_by_trace(store, traces).items()
    }


def load_chips(store: Store, traces: Sequence[TraceSummary]) -> dict[str, dict[str, FeedbackChip]]:
    """Load the latest feedback on each trace and its spans per key. Feedback on documents is left out."""
    return {
        trace_id: get_latest_chips(item for item in feedbacks if item.target.document is None)
        for trace_id, feedbacks in _load_by_trace(store, traces).items()
    }


def _load_by_trace(store: Store, traces: Sequence[TraceSummary]) -> dict[str, list[Feedback]]:
    if not traces:
        return {}
    by_trace: dict[str, list[Feedback]] = {}
    cursor = None
    for _ in range(5):  # five requests of 1,000: at most 5,000 feedback rows per page
        page = store.feedbacks(trace_ids=tuple(trace.trace_id for trace in traces), limit=1000, cursor=cursor)
        for feedback in page:
            by_trace.setdefault(feedback.target.trace_id or "", []).append(feedback)
        cursor = page.next
        if cursor is None:
            break
    return by_trace


def choose_columns(chips: Mapping[str, Mapping[str, FeedbackChip]], most: int = 5) -> list[str]:
    """Return the `most` most frequent keys of the traces, which get columns of their own."""
    counts = Counter(key for chips_of_trace in chips.values() for key in chips_of_trace)
    return sorted(sorted(counts), key=lambda key: -counts[key])[:most]


def get_shown_judge_keys(chips: Mapping[str, Mapping[str, FeedbackChip]]) -> dict[str, str | None]:
    """Return the keys that judges have scored on the shown traces, each with None, which means
    the newest version.
    """
    return {key: None for chips_of_trace in chips.values() for key, chip in chips_of_trace.items() if chip.judged}


MAX_NAME_LENGTH = 100  # maximum characters of a display name
_UNITS = {"latency": "s", "cost": "$"}  # evaluator id → unit; other scores are plain numbers


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """Declared properties of a feedback key.

    `bounded` means that its scores are in 0…1, so that a bar is meaningful. `unit` is "s", "$", "%" for means of
    scores that are all 0 or 1, or "". `name` is the display name, or "".
    """

    rising: bool = True
    bounded: bool = True
    unit: str = ""
    name: str = ""

    def number(self, value: float | bool) -> str:
        """Format a score in its unit."""
        if self.unit == "s":
            return formatting.duration(float(value) * 1e9)
        if self.unit == "%":
            return formatting.percent(float(value), 1)
        return formatting.cost(float(value)) if self.unit == "$" else formatting.number(value)

    def signed(self, difference: float) -> str:
        """Format a difference in the unit, always with its sign."""
        if self.unit == "%":
            return formatting.points(difference)
        sign = formatting.signed(difference)
        return sign if sign == "±0" or not self.unit else sign[0] + self.number(abs(difference))

    def score(self, value: float | bool, text: str) -> str:
        """Format a single score: in its unit, or as `text` if it has none or only means are shares."""
        return self.number(value) if self.unit in ("s", "$") else text


TASK_OK_INFO = MetricInfo(unit="%")


def get_metric_info(experiments: Iterable[Experiment], results: Iterable[FeedbackStats]) -> dict[str, MetricInfo]:
    """Return the declared properties by key; the last experiment that declares a key wins.

    Keys without a unit whose scores in all `results` are 0 or 1 have the unit "%".
    """
    found = {TASK_OK: TASK_OK_INFO}
    for experiment in experiments:
        for key, recorded in list_metrics(experiment).items():
            ends, name = recorded.metric.get("range"), recorded.metric.get("display_name")
            found[key] = MetricInfo(
                rising=recorded.is_rising,
                bounded=not isinstance(ends, list) or (len(ends) == 2 and ends[0] == 0 and ends[1] == 1),
                unit=_UNITS.get(recorded.evaluator_id, ""),
                name=name[:MAX_NAME_LENGTH] if isinstance(name, str) else "",
            )
    binary: dict[str, bool] = {}
    for stats in results:
        if stats.n:
            binary[stats.key] = binary.get(stats.key, True) and stats.binary
    for key in (key for key, is_binary in binary.items() if is_binary):
        info = found.get(key, MetricInfo())
        found[key] = info if info.unit else replace(info, unit="%")
    return found


def get_stats_with_task_ok(result: Bucket) -> list[FeedbackStats]:
    """Return the statistics of an experiment by key; if a task failed, `task_ok` comes first."""
    others = sorted((stats for stats in result.feedback if stats.key != TASK_OK), key=lambda stats: stats.key)
    return [get_task_ok_stats(result), *others] if result.errors else others


def get_task_ok_stats(result: Bucket) -> FeedbackStats:
    """Return the share of an experiment's runs whose task ended without error, as statistics of a key."""
    share = 1 - result.errors / result.traces if result.traces else None
    return FeedbackStats(key=TASK_OK, n=result.traces, mean=share, minimum=0.0, maximum=1.0, binary=True)
