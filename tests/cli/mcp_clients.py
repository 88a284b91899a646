"""The package's own client over each transport, and a store with something in it."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2

from lazy_modules import LazyModule
from spanwise.collector.records import Document, Feedback, Run, Target

if TYPE_CHECKING:
    from mcp import Client

    from spanwise.cli.mcp.tool_results import StoreAccess

mcp = LazyModule("mcp")
http_transport = LazyModule("spanwise.cli.mcp.http_transport")
server = LazyModule("spanwise.cli.mcp.server")
store_access = LazyModule("spanwise.cli.mcp.tool_results")
ROOT = Path(__file__).parents[2]
GOOD, BAD = "1" * 32, "2" * 32
SECOND = 1_000_000_000


def runs(trace_id: str = BAD, **fields: Any) -> list[Run]:
    """A root and its retriever."""
    start = 1_750_000_000 * SECOND
    root = Run(
        trace_id=trace_id,
        span_id="a" * 16,
        name="answer",
        start_ns=start,
        end_ns=start + SECOND,
        inputs={"question": "why?"},
        outputs="because",
        **fields,
    )
    retriever = Run(
        trace_id=trace_id,
        span_id="b" * 16,
        parent_id=root.span_id,
        name="search",
        kind="retriever",
        start_ns=start + 1,
        end_ns=start + 2,
        documents=(Document("a passage", "doc-1", 0.5),),
    )
    return [root, retriever]


def scored(trace_id: str, key: str, score: float, comment: str | None = None) -> Feedback:
    return Feedback(target=Target(trace_id=trace_id), key=key, score=score, comment=comment)


COMMAND = [sys.executable, "-c", "from spanwise.cli import main; main()"]


def environment() -> dict[str, str]:
    """This one's, with the repository's folders on the path, and nothing that says where things go."""
    folders = os.pathsep.join(str(ROOT / name) for name in ("tracer", "collector", "evaluators", "cli"))
    models = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("SPANWISE_", "OTEL_", *models))}
    return ours | {"PYTHONPATH": folders, "SPANWISE_SPILL_DIR": "off"}


Connected = Callable[["Client"], Coroutine[Any, Any, Any]]


def here(places: StoreAccess, talk: Connected, **options: Any) -> Any:
    """Talk to the server in this process."""

    async def main() -> Any:
        async with mcp.Client(server.make_server(places, **options)) as client:
            return await talk(client)

    return anyio.run(main)


def over_stdio(talk: Connected, *arguments: str, cwd: Path | None = None) -> Any:
    """Talk to `spanwise mcp` as an agent starts it."""
    from mcp.client.stdio import StdioServerParameters

    process = StdioServerParameters(
        command=COMMAND[0],
        args=[*COMMAND[1:], "mcp", *arguments],
        env=environment(),
        cwd=cwd,
    )

    async def main() -> Any:
        async with mcp.Client(process) as client:
            return await talk(client)

    return anyio.run(main)


@contextmanager
def served(at: Path | str, host: str = "127.0.0.1", **options: Any) -> Iterator[str]:
    """The address of `spanwise mcp --http`, in a thread."""
    places = store_access.StoreAccess(str(at), guarded=True)
    serving = http_transport.make_guarded(server.make_server(places, **options), places, host, 0)
    ready = threading.Event()
    thread = threading.Thread(target=serving.run, args=(ready.set,))
    thread.start()
    try:
        assert ready.wait(60)
        yield f"{serving.url}{http_transport.MCP_PATH}"
    finally:
        serving.stop()
        thread.join()


@asynccontextmanager
async def client_of(url: str, secret: str | None = None) -> AsyncIterator[Client]:
    from mcp.client.streamable_http import streamable_http_client

    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        mcp.Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


def over_http(url: str, talk: Connected, secret: str | None = None) -> Any:
    """Talk to a server at an address."""

    async def main() -> Any:
        async with client_of(url, secret) as client:
            return await talk(client)

    return anyio.run(main)


def calling(tool: str, **arguments: Any) -> Connected:
    """A talk of one call: what it gave."""

    async def talk(client: Client) -> Any:
        return await given(client, tool, **arguments)

    return talk


async def given(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a call gives, which is the same as data and as text."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    [block] = result.content
    assert json.loads(block.text) == result.structured_content
    return result.structured_content


def failing(tool: str, **arguments: Any) -> Connected:
    """A talk of one call that is refused: what it said."""

    async def talk(client: Client) -> str:
        result = await client.call_tool(tool, arguments)
        assert result.is_error
        [block] = result.content
        return block.text

    return talk
