"""Store access of a tool call: opened per call with the rights of the caller; tool wrapper.

An agent's session lasts for hours, but the store is open only for the milliseconds of a call. In between, a server,
an experiment or another agent can use the file. If a server was started meanwhile, the next call finds it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from spanwise.cli.command_io import connect_store
from spanwise.collector import default_location
from spanwise.collector.errors import Forbidden, Refused, StoreError
from spanwise.collector.records import Key
from spanwise.collector.security.authorization import ACCESS_SCOPE_KEY, Access
from spanwise.collector.stores import Store
from spanwise.collector.terminal_escaping import escape_message

# seconds to wait for a file that another process holds, and between two attempts
STORE_TIMEOUT_S, RETRY_PAUSE_S = 10.0, 0.02
MAX_TRIES = 3  # further attempts if no process seems to hold the file


class StoreAccess:
    """Factory of stores for tool calls. `at` is the value of `--store`; `guarded` means that every call passes the HTTP
    guard.
    """

    def __init__(self, at: str | None, *, guarded: bool = False) -> None:
        self.at, self.guarded = at, guarded

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """Open the unrestricted store for a short time. If another process holds the file, retry for up to ten
        seconds.
        """
        store = self._connect()
        try:
            yield store
        finally:
            store.close()

    def _connect(self) -> Store:
        deadline, attempts = time.monotonic() + STORE_TIMEOUT_S, 0
        while True:
            try:
                return connect_store(self.at)
            except Refused:
                attempts += not self._is_held()  # the holder may have released it by now
                if time.monotonic() > deadline or attempts > MAX_TRIES:
                    raise
            time.sleep(RETRY_PAUSE_S)

    def _is_held(self) -> bool:
        """Return whether a process holds the file. Another agent's call holds it for a few milliseconds."""
        from spanwise.collector.stores.sqlite import holder

        location = default_location() if self.at is None else self.at
        return "://" not in location and holder(location) is not None

    @contextmanager
    def restricted_to(self, access: Access, needs: str) -> Iterator[Store]:
        """Open the store with the sender's rights. Raises `Forbidden` if the sender lacks the scope `needs`."""
        access.require(needs)
        with self.opened() as store:
            yield access.restrict(store)

    def access(self, scope: Mapping[str, Any] | None) -> Access:
        """Return the rights of a request's sender. On stdio the sender has all rights, otherwise those that the HTTP
        guard found.
        """
        if not self.guarded:
            return Access()
        # a request that no guard has checked must never get all rights
        if scope is None or ACCESS_SCOPE_KEY not in scope:
            raise Forbidden("the request was not authenticated")
        access: Access = scope[ACCESS_SCOPE_KEY]
        return access

    def keys(self) -> Sequence[Key]:
        """Return the API keys of the store, which the HTTP guard checks."""
        with self.opened() as store:
            return store.keys()


Tool = Callable[..., dict[str, Any]]  # tool function; its first argument is the store
CONTEXT_PARAMETER = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
READ_ANNOTATIONS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITE_ANNOTATIONS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)


def make_tool(store_access: StoreAccess, tool: Tool, needs: str = "read") -> Callable[..., dict[str, Any]]:
    """Wrap a tool for the MCP package. The wrapper opens the store with the sender's rights and passes it to the
    tool.
    """
    signature = inspect.signature(tool, eval_str=True)
    _, *parameters = signature.parameters.values()

    def call(*, context: Context, **arguments: Any) -> dict[str, Any]:
        with (
            report_tool_errors(),
            store_access.restricted_to(store_access.access(request_scope(context)), needs) as store,
        ):
            return tool(store, **arguments)

    call.__name__, call.__doc__ = tool.__name__, inspect.getdoc(tool)
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    parameters.append(CONTEXT_PARAMETER)
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__annotations__["return"] = dict[str, Any]
    return call


def request_scope(context: Context) -> Any:
    """Return the ASGI scope of the request that made the call; None on stdio."""
    request = context.request_context.request
    return None if request is None else request.scope


@contextmanager
def report_tool_errors() -> Iterator[None]:
    """Convert errors that the agent can fix into tool errors. The MCP package hides the text of all others."""
    try:
        yield
    except (StoreError, ValueError, OSError) as error:
        raise ToolError(escape_message(str(error))) from error
