"""Instrumentation of libraries that need more than an instrumentor package: Pydantic AI and MCP's client."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from opentelemetry.trace import StatusCode, TracerProvider

from spanwise.tracer import _errors
from spanwise.tracer._run import Run, span


def instrument_pydantic_ai(provider: TracerProvider) -> None:
    """Switch on Pydantic AI's own OpenTelemetry spans for all agents. Raises `ImportError` if it is not installed."""
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))


def uninstrument_pydantic_ai() -> None:
    """Switch them off."""
    from pydantic_ai import Agent

    Agent.instrument_all(False)


def instrument_mcp(provider: TracerProvider) -> None:
    """Open a tool span around `ClientSession.call_tool`. Raises `ImportError` if `mcp` is not installed."""
    from mcp import ClientSession

    if not hasattr(ClientSession.call_tool, "__wrapped__"):
        ClientSession.call_tool = _traced_call(ClientSession.call_tool)  # type: ignore[method-assign]


def uninstrument_mcp() -> None:
    """Put the method back."""
    from mcp import ClientSession

    ClientSession.call_tool = getattr(ClientSession.call_tool, "__wrapped__", ClientSession.call_tool)  # type: ignore[method-assign]


def _traced_call(call_tool: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call_tool)
    async def traced(session: Any, name: str, arguments: Any = None, *args: Any, **kwargs: Any) -> Any:
        attributes = {"tool.name": name} if isinstance(name, str) else None
        with span(str(name), kind="tool", inputs=arguments or {}, attributes=attributes) as run:
            result = await call_tool(session, name, arguments, *args, **kwargs)
            _record(run, result)
            return result

    return traced


@_errors.ours("mcp")
def _record(run: Run, result: Any) -> None:
    """Record a tool's result: its structured content, else its texts. An error that it reports sets the status."""
    structured = getattr(result, "structured_content", None) or getattr(result, "structuredContent", None)
    blocks = [getattr(block, "text", None) or block.model_dump(mode="json") for block in getattr(result, "content", ())]
    run.set_outputs(structured or (blocks[0] if len(blocks) == 1 else blocks))
    if getattr(result, "is_error", False) or getattr(result, "isError", False):
        run.span.set_status(StatusCode.ERROR, str(blocks[0]) if blocks else "the tool reports an error")
