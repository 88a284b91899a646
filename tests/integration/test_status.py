"""The status of a run: ok, error, or cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from spanwise.collector.dialects import read_sdk_span
from spanwise.tracer import configure, current_run, process_runtime, span, trace
from spanwise.tracer.testing import Spans
from spanwise.tracer.testing import traced as traced
from spanwise.tracer.trace_capture import capture


def status(traced: Spans, name: str) -> str:
    return read_sdk_span(traced.one(name)).status


def test_a_function_that_returns_is_ok(traced: Spans) -> None:
    @trace
    def answer() -> int:
        return 1

    answer()
    assert status(traced, "answer") == "ok"


def test_an_async_function_that_returns_is_ok(traced: Spans) -> None:
    @trace
    async def answer() -> int:
        return 1

    asyncio.run(answer())
    assert status(traced, "answer") == "ok"


def test_a_block_that_ends_is_ok(traced: Spans) -> None:
    with span("block"):
        pass
    assert status(traced, "block") == "ok"


def test_an_exhausted_stream_is_ok(traced: Spans) -> None:
    @trace
    def items() -> Iterator[int]:
        yield 1

    list(items())
    assert status(traced, "items") == "ok"


def test_a_status_that_the_function_sets_is_kept(traced: Spans) -> None:
    @trace
    def answer() -> int:
        current_run().span.set_status(StatusCode.ERROR, "no stock")
        return 1

    answer()
    assert (status(traced, "answer"), traced.one("answer").status.description) == ("error", "no stock")


def test_a_joined_span_that_returns_is_ok() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    previous = process_runtime.replace_runtime(None)
    configure(url="http://127.0.0.1:1", spill_dir="off", provider=provider)

    @trace
    def answer() -> int:
        return 1

    answer()
    made = process_runtime.replace_runtime(previous)
    assert made is not None
    made.delivery.close(0.1)
    assert [done.status.status_code for done in exporter.get_finished_spans()] == [StatusCode.OK]


def test_a_cancelled_task_is_cancelled_and_not_an_error(traced: Spans) -> None:
    @trace
    async def slow() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(slow(), 0.01)

    asyncio.run(main())
    run = read_sdk_span(traced.one("slow"))
    assert (run.status, run.error, run.events) == ("cancelled", None, ())


def test_a_stream_whose_client_leaves_keeps_what_it_has_sent(traced: Spans) -> None:
    @trace
    async def tokens() -> AsyncIterator[str]:
        yield "par"
        yield "tial"
        await asyncio.sleep(60)

    async def main() -> None:
        stream: Any = tokens()
        await anext(stream)
        await anext(stream)
        await stream.aclose()

    asyncio.run(main())
    run = read_sdk_span(traced.one("tokens"))
    assert (run.status, run.outputs) == ("cancelled", ["par", "tial"])


def test_what_raises_its_own_error_while_it_is_cancelled_has_failed(traced: Spans) -> None:
    @trace
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("rollback failed") from None

    async def main() -> None:
        with contextlib.suppress(ValueError):
            await asyncio.wait_for(slow(), 0.01)

    asyncio.run(main())
    assert status(traced, "slow") == "error"


def test_ctrl_c_is_an_error(traced: Spans) -> None:
    with pytest.raises(KeyboardInterrupt), span("block"):
        raise KeyboardInterrupt
    assert status(traced, "block") == "error"


def test_a_captured_task_that_is_cancelled_has_failed() -> None:
    with pytest.raises(asyncio.CancelledError), capture("task") as captured:
        raise asyncio.CancelledError
    [root], _ = captured.spans()
    assert (root.status.status_code, read_sdk_span(root).status) == (StatusCode.ERROR, "error")
