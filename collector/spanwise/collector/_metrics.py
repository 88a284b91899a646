"""The collector's own numbers, in Prometheus' text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping

Labels = tuple[tuple[str, str], ...]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)

HELP = {
    "spanwise_received_total": "Spans or log records that arrived, those included that were refused.",
    "spanwise_stored_total": "Spans or feedbacks that are durable and were acknowledged.",
    "spanwise_refused_total": "Single spans or log records that were refused, by reason.",
    "spanwise_feedback_out_total": "Feedback that a target of --feedback-to has taken.",
    "spanwise_feedback_out_dropped_total": "Feedback that a target will never take, by reason.",
    "spanwise_feedback_out_failures_total": "Tries to send feedback on that a target did not take, by reason.",
    "spanwise_feedback_out_waiting": "Feedback that waits in the store to be sent on.",
    "spanwise_beside_stored_total": "Feedback and content for other spans that spans brought beside their runs, kept.",
    "spanwise_beside_refused_total": "The same, refused, by reason; the spans were kept.",
    "spanwise_passed_over_total": "Log records and metrics that were accepted and not kept: nothing in them is for us.",
    "spanwise_requests_refused_total": "Requests that were answered with an error, by reason.",
    "spanwise_dialect_errors_total": "Spans or log records that were read without a dialect because it failed on them.",
    "spanwise_decoders": "Processes that decode for the server now.",
    "spanwise_decoder_requests_total": "Requests that were decoded in processes of their own.",
    "spanwise_decoder_seconds_total": "CPU seconds that those processes took to decode.",
    "spanwise_decoder_deaths_total": "Processes for decoding that ended on their own, or could not start, by reason.",
    "spanwise_acknowledgement_seconds": "From the last byte of a request to its acknowledgement.",
    "spanwise_commit_seconds": "From a request handed to the store to its being durable: waiting and writing.",
    "spanwise_forwarded_total": "Requests that a target of --forward has taken.",
    "spanwise_forward_rejected_total": "Spans, log records or metrics in them that the target said it rejected.",
    "spanwise_forward_dropped_total": "Requests that were given up for a target, by reason.",
    "spanwise_forward_failures_total": "Times that a target took nothing, by reason; it is tried again.",
    "spanwise_forward_loops_total": "Requests that came back to a collector that has passed them on: they end here.",
    "spanwise_forward_waiting_bytes": "Bytes on disk that wait for a target.",
    "spanwise_forward_waiting_seconds": "How long the oldest of them have been waiting.",
    "spanwise_pending_bytes": "Bytes of requests that are being read, decoded or written.",
    "spanwise_start_time_seconds": "When this process started to serve.",
}


class Histogram:
    """Counts by upper bound, and their sum."""

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(BUCKETS) + 1), 0.0

    def lines(self, name: str, labels: Labels) -> Iterable[str]:
        """Cumulative buckets, sum and count."""
        total = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            total += count
            yield f"{name}_bucket{_braces((*labels, ('le', bound)))} {total}"
        yield f"{name}_sum{_braces(labels)} {self.sum!r}"
        yield f"{name}_count{_braces(labels)} {total}"


class Metrics:
    """Counters, gauges and histograms of one server. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}
        self._gauges: dict[str, dict[Labels, Callable[[], float]]] = {}

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Count up."""
        key = tuple(labels.items())
        with self._lock:
            series = self._counters.setdefault(name, {})
            series[key] = series.get(key, 0) + amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a duration in seconds into a histogram."""
        key = tuple(labels.items())
        with self._lock:
            series = self._histograms.setdefault(name, {})
            histogram = series.get(key) or series.setdefault(key, Histogram())
            histogram.counts[bisect_left(BUCKETS, value)] += 1
            histogram.sum += value

    def gauge(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Have a value read whenever somebody asks."""
        self._gauges.setdefault(name, {})[tuple(labels.items())] = read

    def value(self, name: str, **labels: str) -> float:
        """A counter's value; without labels the sum of its series."""
        series = self._counters.get(name, {})
        return series.get(tuple(labels.items()), 0) if labels else sum(series.values())

    def text(self, extra: Mapping[str, float] | None = None) -> str:
        """Everything, with further gauges."""
        with self._lock:
            lines = [*self._counter_lines(), *self._histogram_lines()]
        lines += self._gauge_lines()
        for name, value in (extra or {}).items():
            lines += [*_head(name, "gauge"), f"{name} {value!r}"]
        return "\n".join(lines) + "\n"

    def _gauge_lines(self) -> Iterable[str]:
        for name, series in self._gauges.items():
            yield from _head(name, "gauge")
            for labels, read in series.items():
                yield f"{name}{_braces(labels)} {read()!r}"

    def _counter_lines(self) -> Iterable[str]:
        for name, series in self._counters.items():
            yield from _head(name, "counter")
            for labels, value in series.items():
                yield f"{name}{_braces(labels)} {value!r}"

    def _histogram_lines(self) -> Iterable[str]:
        for name, series in self._histograms.items():
            yield from _head(name, "histogram")
            for labels, histogram in series.items():
                yield from histogram.lines(name, labels)


def gauge_lines(name: str, help: str, values: Iterable[tuple[Labels, float]]) -> Iterable[str]:
    """One gauge with labels, described."""
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} gauge"
    for labels, value in values:
        yield f"{name}{_braces(labels)} {float(value)!r}"


def _head(name: str, kind: str) -> Iterable[str]:
    if name in HELP:
        yield f"# HELP {name} {HELP[name]}"
    yield f"# TYPE {name} {kind}"


def _braces(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
