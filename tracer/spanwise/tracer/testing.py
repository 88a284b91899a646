"""Test kit: spans in memory, deterministic ids and clock, and a pytest fixture.

from spanwise.tracer.testing import capture_spans, traced

def test_answer(traced):            # a pytest fixture, when imported into a conftest.py
    answer("…")
    assert traced.names() == ["answer", "search"]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from opentelemetry.sdk.trace import ReadableSpan

from spanwise.tracer import attribute_names as names
from spanwise.tracer import configuration, internal_errors, process_runtime
from spanwise.tracer.export.delivery_lifecycle import Delivery, set_thread_context_inheritance
from spanwise.tracer.export.span_encoding import FeedbackEvent
from spanwise.tracer.export.span_queue import FlushResult, SpanAccount
from spanwise.tracer.otel.live_span import Clock

__all__ = ["Spans", "capture_spans", "fixed", "traced"]


class Spans(Delivery):
    """In-memory replacement for delivery."""

    def __init__(self, settings: configuration.Settings) -> None:
        super().__init__(settings)
        self.account = SpanAccount()
        self.ended: list[ReadableSpan] = []
        self.feedback: list[FeedbackEvent] = []

    def begin(self) -> None:
        """Do nothing: there is no delivery thread."""

    def put(self, item: ReadableSpan | FeedbackEvent) -> None:
        """Store an ended span or a feedback event."""
        if isinstance(item, FeedbackEvent):
            self.feedback.append(item)
        else:
            self.ended.append(item)

    def flush(self, timeout: float) -> FlushResult:
        """Return an empty result: nothing is queued."""
        return FlushResult()

    @property
    def spans(self) -> list[ReadableSpan]:
        """Return the ended spans as they would be exported, by start time."""
        finished = (self.finisher.span(span) for span in tuple(self.ended))
        return sorted((span for span in finished if span is not None), key=lambda span: span.start_time or 0)

    def names(self) -> list[str]:
        """Return the names of the ended spans, by start time."""
        return [span.name for span in self.spans]

    def one(self, name: str) -> ReadableSpan:
        """Return the only span of that name. Raises `AssertionError` if there is none or more than one."""
        named = [span for span in self.spans if span.name == name]
        assert len(named) == 1, f"expected one span named {name!r}, found {len(named)}; all spans: {self.names()!r}"
        return named[0]

    def inputs(self, name: str) -> Any:
        """Return the decoded inputs of the only span of that name."""
        return _decode_value(self.one(name), names.INPUT_VALUE, names.INPUT_MIME)

    def outputs(self, name: str) -> Any:
        """Return the decoded outputs of the only span of that name."""
        return _decode_value(self.one(name), names.OUTPUT_VALUE, names.OUTPUT_MIME)

    def parent(self, name: str) -> str | None:
        """Return the name of the parent of the only span of that name, or None for a root."""
        parent = self.one(name).parent
        known = {span.context.span_id: span.name for span in self.spans}
        return None if parent is None else known.get(parent.span_id, f"{parent.span_id:016x}")


def _decode_value(span: ReadableSpan, key: str, mime: str) -> Any:
    attributes = span.attributes or {}
    text = attributes.get(key)
    return orjson.loads(text) if attributes.get(mime) == "application/json" else text  # type: ignore[arg-type]


@contextmanager
def capture_spans(**settings: Any) -> Iterator[Spans]:
    """Keep every span that starts inside the block in memory.

    `settings` are arguments of `configure`. Internal errors are raised.
    """
    runtime = process_runtime.Runtime(configuration.resolve_settings(spill_dir="off", **settings))
    kept = Spans(runtime.settings)
    if runtime.settings.threads:
        set_thread_context_inheritance()
    runtime.delivery = kept
    runtime.spans.set_delivery(kept)
    previous, strict = process_runtime.replace_runtime(runtime), internal_errors.strict
    internal_errors.strict = True
    try:
        yield kept
    finally:
        internal_errors.strict = strict
        process_runtime.replace_runtime(previous)


@contextmanager
def fixed(start_ns: int = 1_700_000_000_000_000_000, step_ns: int = 1_000_000) -> Iterator[None]:
    """Make ids and times deterministic: ids count from 1, and each reading of the clock is one step later than the
    last.
    """
    serial, ticks = itertools.count(1), itertools.count(start_ns, step_ns)
    clock: tuple[Callable[[int], int], Callable[[], int]] = Clock.bits, Clock.now
    Clock.bits, Clock.now = staticmethod(lambda bits: next(serial)), staticmethod(lambda: next(ticks))
    try:
        yield
    finally:
        Clock.bits, Clock.now = staticmethod(clock[0]), staticmethod(clock[1])


try:
    import pytest
except ImportError:  # only the fixture needs pytest
    pass
else:

    @pytest.fixture
    def traced() -> Iterator[Spans]:
        """Provide the spans of the test, kept in memory (a pytest fixture)."""
        with capture_spans() as spans:
            yield spans
