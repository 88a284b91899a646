"""What agents may do, as tools of the official package: functions over a store, bounded, with errors in a line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from spanwise.cli.mcp.places import Places
from spanwise.collector.errors import StoreError
from spanwise.collector.terminal import beginning

Tool = Callable[..., dict[str, Any]]  # takes the store first
CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)


def over(places: Places, tool: Tool, needs: str = "read") -> Callable[..., dict[str, Any]]:
    """The tool as the package takes it: without the store, which is opened for the call as its sender may see it."""
    signature = inspect.signature(tool, eval_str=True)
    _, *taken = signature.parameters.values()

    def call(*, context: Context, **given: Any) -> dict[str, Any]:
        with in_a_line(), places.seen_by(places.access(scope_of(context)), needs) as store:
            return tool(store, **given)

    call.__name__, call.__doc__ = tool.__name__, inspect.getdoc(tool)
    by_name = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in taken]
    call.__signature__ = signature.replace(parameters=[*by_name, CONTEXT])  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in (*taken, CONTEXT)} | {"return": dict[str, Any]}
    return call


def scope_of(context: Context) -> Any:
    """The ASGI scope of the request that a call came by; None on stdio."""
    request = context.request_context.request
    return None if request is None else request.scope


@contextmanager
def in_a_line() -> Iterator[None]:
    """Turn the errors that an agent can mend into what it reads; others are told by the package without their text."""
    try:
        yield
    except (StoreError, ValueError, OSError) as error:
        raise ToolError(beginning(str(error))) from error
