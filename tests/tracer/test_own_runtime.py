"""The tests' own fixture: what earlier tests have left behind is not theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spanwise.tracer import configuration, configure, flush, process_runtime, trace

from .conftest import Sink


@pytest.fixture(scope="module", autouse=True)
def left_behind() -> Iterator[None]:
    """A set-up as a test of another folder leaves it: alive, with spans for a collector that is gone."""
    runtime = process_runtime.Runtime(configuration.resolve_settings(url="http://127.0.0.1:9"))
    before = process_runtime.replace_runtime(runtime)
    trace(len)("abc")
    assert len(runtime.delivery.queue) or runtime.delivery.tally.spilled
    yield
    process_runtime.replace_runtime(before)


def test_spans_that_another_test_has_left_are_not_flushed_with_ours(sink: Sink) -> None:
    configure(url=sink.url)
    trace(len)("abc")
    assert flush(60)
