"""Puts the server together: which tools there are, and what an agent is told of them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from mcp.server.mcpserver import MCPServer

from spanwise.cli.mcp.evaluation import Evaluation
from spanwise.cli.mcp.judging import JUDGING
from spanwise.cli.mcp.lists import LISTS
from spanwise.cli.mcp.places import Places
from spanwise.cli.mcp.reading import READING
from spanwise.cli.mcp.shown import NOTICE
from spanwise.cli.mcp.tools import READS, WRITES, over
from spanwise.cli.mcp.writing import add_feedback

INSTRUCTIONS = (
    "Traces of LLM applications, and what evaluators and people said of them. Begin with `overview`; find traces by"
    " conditions with `find_traces`, the worst under a key with `list_feedback` and order `lowest`; read one with"
    " `read_trace`; `why_scored` says why rules did or did not score it, `diagnose_senders` what its sender leaves"
    " out. "
) + NOTICE


def server(places: Places, *, write: bool = False, file: Path | None = None) -> MCPServer:
    """The tools over the stores of `places`: reading ones; with `write` feedback, with `file` its evaluation."""
    made = MCPServer(
        "spanwise",
        title="Spanwise",
        version=metadata.version("spanwise"),
        instructions=INSTRUCTIONS,
        log_level="WARNING",
        subscriptions=False,
    )
    for tool in (*READING, *JUDGING, *LISTS):
        made.add_tool(over(places, tool), annotations=READS, structured_output=True)
    if write:
        made.add_tool(over(places, add_feedback, "write"), annotations=WRITES, structured_output=True)
    if file is not None:
        made.add_tool(Evaluation(file, places).tool(), annotations=WRITES, structured_output=True)
    return made
