"""Integrations: activation of OpenInference, OpenTelemetry, Pydantic AI and MCP instrumentations."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import StatusCode, TracerProvider

from spanwise.tracer import internal_errors
from spanwise.tracer.content import model_calls
from spanwise.tracer.process_runtime import get_runtime
from spanwise.tracer.run_recording import span
from spanwise.tracer.suggestions import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def instrument_pydantic_ai(provider: TracerProvider) -> None:
    """Enable Pydantic AI's own OpenTelemetry spans for all agents. Raises `ImportError` if it is not installed."""
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))


def uninstrument_pydantic_ai() -> None:
    from pydantic_ai import Agent

    Agent.instrument_all(False)


def instrument_mcp(provider: TracerProvider) -> None:
    """Open a tool span around `ClientSession.call_tool`. Raises `ImportError` if `mcp` is not installed."""
    from mcp import ClientSession

    if not hasattr(ClientSession.call_tool, "__wrapped__"):
        ClientSession.call_tool = _wrap_call_tool(ClientSession.call_tool)  # type: ignore[method-assign]


def uninstrument_mcp() -> None:
    """Restore the original `ClientSession.call_tool`."""
    from mcp import ClientSession

    ClientSession.call_tool = getattr(ClientSession.call_tool, "__wrapped__", ClientSession.call_tool)  # type: ignore[method-assign]


def _wrap_call_tool(call_tool: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call_tool)
    async def traced(session: Any, name: str, arguments: Any = None, *args: Any, **kwargs: Any) -> Any:
        attributes = {"tool.name": name} if isinstance(name, str) else None
        with span(str(name), kind="tool", inputs=arguments or {}, attributes=attributes) as run:
            result = await call_tool(session, name, arguments, *args, **kwargs)
            with internal_errors.error_boundary("mcp"):
                # the structured content or, without it, the texts
                structured = getattr(result, "structured_content", None) or getattr(result, "structuredContent", None)
                content = getattr(result, "content", ())
                blocks = [getattr(block, "text", None) or block.model_dump(mode="json") for block in content]
                run.set_outputs(structured or (blocks[0] if len(blocks) == 1 else blocks))
                if getattr(result, "is_error", False) or getattr(result, "isError", False):
                    run.span.set_status(StatusCode.ERROR, str(blocks[0]) if blocks else "the tool reports an error")
            return result

    return traced


_ENTRY_POINT_GROUPS = (
    "openinference_instrumentor",
    "opentelemetry_instrumentor",
)  # if both groups have a name, the first one is used

# Libraries that Spanwise instruments itself: functions that enable and disable the instrumentation
_LIBRARY_HOOKS: dict[str, tuple[Callable[[TracerProvider], None], Callable[[], None]]] = {
    "pydantic_ai": (instrument_pydantic_ai, uninstrument_pydantic_ai),
    "mcp": (instrument_mcp, uninstrument_mcp),
}

# Instrumentations that are published on PyPI, by prefix of the package name
_PYPI_PACKAGES = {
    "openinference-instrumentation-": (
        "agentspec agno anthropic autogen autogen-agentchat bedrock beeai claude-agent-sdk crewai dspy "
        "google-adk google-genai groq guardrails haystack instructor langchain litellm llama-index mcp "
        "mistralai openai openai-agents pipecat portkey smolagents strands-agents vertexai"
    ).split(),
    "opentelemetry-instrumentation-": (
        "agno aio-pika aiohttp-client aiohttp-server aiokafka anthropic asgi asyncio asyncpg bedrock boto3sqs "
        "botocore cassandra celery chromadb cohere confluent-kafka crewai dbapi django elasticsearch falcon "
        "fastapi flask google-genai groq grpc haystack httpx jinja2 kafka-python langchain llamaindex logging "
        "mcp milvus mistralai mysql mysqlclient ollama openai openai-agents openai-v2 pika pinecone psycopg "
        "pymongo pymysql pyramid qdrant redis replicate requests sagemaker sqlalchemy sqlite3 starlette "
        "threading together tornado transformers urllib urllib3 vertexai weaviate wsgi"
    ).split(),
}


def instrument(name: str, *names: str, **options: Any) -> None:
    """Enable instrumentations by name (`openai`, `langchain`, `httpx`, …).

    Their spans become part of Spanwise's traces. Case, `-` and `_` are ignored. `options` are passed to the
    instrumentor. Raises `ValueError` for a name whose instrumentation is not installed.
    """
    for each in map(_normalize_name, (name, *names)):
        _enable_instrumentation(each, options)
        if each in model_calls.ESTIMATED_LIBRARIES:
            model_calls.enable_estimates()


def uninstrument(name: str, *names: str) -> None:
    """Disable instrumentations. Raises `ValueError` for a name whose instrumentation is not installed."""
    for each in map(_normalize_name, (name, *names)):
        entry = _find_entry_point(each)
        if each in _LIBRARY_HOOKS:
            _run_hook(each, _LIBRARY_HOOKS[each][1])
        if entry is not None:
            entry.load()().uninstrument()
        elif each not in _LIBRARY_HOOKS:
            raise _unknown_instrumentation_error(each)


def tracer_provider() -> TracerProvider:
    """Return the OpenTelemetry provider behind Spanwise, for instrumentations that accept a provider."""
    runtime = get_runtime()
    return runtime.provider if runtime.joined is None else runtime.joined


def _enable_instrumentation(name: str, options: dict[str, Any]) -> None:
    entry = _find_entry_point(name)
    if name in _LIBRARY_HOOKS:
        _run_hook(name, lambda: _LIBRARY_HOOKS[name][0](tracer_provider()))
    # the package for Pydantic AI only renames attributes, and the collector also reads the original names
    if entry is not None and name != "pydantic_ai":
        entry.load()().instrument(tracer_provider=tracer_provider(), **options)
    elif name not in _LIBRARY_HOOKS:
        raise _unknown_instrumentation_error(name)


def _run_hook(name: str, switch: Callable[[], None]) -> None:
    try:
        switch()
    except ImportError as error:
        raise ValueError(f"{name!r} is not installed: {error}") from error


def _normalize_name(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _find_entry_point(name: str) -> EntryPoint | None:
    from importlib.metadata import entry_points

    found = (
        entry
        for group in _ENTRY_POINT_GROUPS
        for entry in entry_points(group=group)
        if _normalize_name(entry.name) == name
    )
    return next(found, None)


def _unknown_instrumentation_error(name: str) -> ValueError:
    from importlib.metadata import entry_points

    installed = sorted(
        {*_LIBRARY_HOOKS, *(entry.name for group in _ENTRY_POINT_GROUPS for entry in entry_points(group=group))}
    )
    known = [(prefix, each) for prefix, each_of in _PYPI_PACKAGES.items() for each in each_of]
    packages = [prefix + each for prefix, each in known if _normalize_name(each) == name]
    if packages:
        remedy = f"pip install {' or '.join(packages)}"
    else:
        hint = did_you_mean(name, sorted({_normalize_name(each) for _, each in known}))
        remedy = f"no instrumentation package of that name is known{hint}"
    return ValueError(f"no instrumentation named {name!r} is installed (installed: {', '.join(installed)}); {remedy}")
