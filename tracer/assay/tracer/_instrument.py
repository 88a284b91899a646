"""Model calls and HTTP, through the instrumentation packages of OpenInference and OpenTelemetry that are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.trace import TracerProvider

from assay.tracer._runtime import current

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_GROUPS = ("openinference_instrumentor", "opentelemetry_instrumentor")  # the first one that has the name is taken


def instrument(name: str, *names: str, **options: Any) -> None:
    """Switch on installed instrumentations by name (`openai`, `langchain`, `httpx`, …); their spans join ours.

    `options` go to the instrumentor. Raises `ValueError` for a name that is not installed.
    """
    for each in (name, *names):
        _find(each).load()().instrument(tracer_provider=tracer_provider(), **options)


def uninstrument(name: str, *names: str) -> None:
    """Switch instrumentations off again."""
    for each in (name, *names):
        _find(each).load()().uninstrument()


def tracer_provider() -> TracerProvider:
    """The OpenTelemetry provider behind Assay, for any instrumentation that wants one."""
    runtime = current()
    return runtime.provider if runtime.joined is None else runtime.joined


def _find(name: str) -> EntryPoint:
    from importlib.metadata import entry_points

    for group in _GROUPS:
        for entry in entry_points(group=group):
            if entry.name in (name, name.replace("-", "_")):
                return entry
    installed = sorted({entry.name for group in _GROUPS for entry in entry_points(group=group)})
    raise ValueError(
        f"no instrumentation named {name!r} is installed (there are: {', '.join(installed) or 'none'}); "
        f"try: pip install openinference-instrumentation-{name}  or  pip install opentelemetry-instrumentation-{name}"
    )
