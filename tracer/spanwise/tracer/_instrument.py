"""Model calls and HTTP, through the instrumentation packages of OpenInference and OpenTelemetry that are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import TracerProvider

from spanwise.tracer import library_hooks, token_estimates
from spanwise.tracer._runtime import current
from spanwise.tracer.hints import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_GROUPS = ("openinference_instrumentor", "opentelemetry_instrumentor")  # the first one that has the name is taken

# Libraries with hooks of our own: the library, how to switch them on and off
_HOOKS: dict[str, tuple[Callable[[TracerProvider], None], Callable[[], None]]] = {
    "pydantic_ai": (library_hooks.instrument_pydantic_ai, library_hooks.uninstrument_pydantic_ai),
    "mcp": (library_hooks.instrument_mcp, library_hooks.uninstrument_mcp),
}

# Names for which a package exists on PyPI, by the package's prefix
_PACKAGES = {
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
    """Switch on instrumentations by name (`openai`, `langchain`, `httpx`, …); their spans join ours.

    Case, `-` and `_` make no difference. `options` go to the instrumentor. Raises `ValueError` for a name whose
    instrumentation is not installed.
    """
    for each in map(_normalised, (name, *names)):
        _switch_on(each, options)
        if each in token_estimates.LIBRARIES:
            token_estimates.enable()


def uninstrument(name: str, *names: str) -> None:
    """Switch instrumentations off again. Raises `ValueError` as `instrument` does."""
    for each in map(_normalised, (name, *names)):
        entry = _entry(each)
        if each in _HOOKS:
            _hook(each, _HOOKS[each][1])
        if entry is not None:
            entry.load()().uninstrument()
        elif each not in _HOOKS:
            raise _unknown(each)


def tracer_provider() -> TracerProvider:
    """Return the OpenTelemetry provider behind Spanwise, for any instrumentation that wants one."""
    runtime = current()
    return runtime.provider if runtime.joined is None else runtime.joined


def _switch_on(name: str, options: dict[str, Any]) -> None:
    entry = _entry(name)
    if name in _HOOKS:
        _hook(name, lambda: _HOOKS[name][0](tracer_provider()))
    if entry is not None and name != "pydantic_ai":  # whose package only renames attributes, which the collector reads
        entry.load()().instrument(tracer_provider=tracer_provider(), **options)
    elif name not in _HOOKS:
        raise _unknown(name)


def _hook(name: str, switch: Callable[[], None]) -> None:
    try:
        switch()
    except ImportError as error:
        raise ValueError(f"{name!r} is not installed: {error}") from error


def _normalised(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def _entry(name: str) -> EntryPoint | None:
    from importlib.metadata import entry_points

    found = (entry for group in _GROUPS for entry in entry_points(group=group) if _normalised(entry.name) == name)
    return next(found, None)


def _unknown(name: str) -> ValueError:
    from importlib.metadata import entry_points

    installed = sorted({*_HOOKS, *(entry.name for group in _GROUPS for entry in entry_points(group=group))})
    known = [(prefix, each) for prefix, each_of in _PACKAGES.items() for each in each_of]
    packages = [prefix + each for prefix, each in known if _normalised(each) == name]
    if packages:
        remedy = f"pip install {' or '.join(packages)}"
    else:
        hint = did_you_mean(name, sorted({_normalised(each) for _, each in known}))
        remedy = f"no instrumentation package of that name is known{hint}"
    return ValueError(f"no instrumentation named {name!r} is installed (there are: {', '.join(installed)}); {remedy}")
