"""MCP server: registration of the tools and instructions for agents."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from mcp.server.mcpserver import MCPServer

from spanwise.cli.mcp.experiment_tools import EXPERIMENT_TOOLS, EvaluationRunner
from spanwise.cli.mcp.store_access import READ_ANNOTATIONS, WRITE_ANNOTATIONS, StoreAccess, make_tool
from spanwise.cli.mcp.tool_results import NOTICE
from spanwise.cli.mcp.trace_tools import FEEDBACK_TOOLS, TRACE_TOOLS, add_feedback

SERVER_INSTRUCTIONS = (
    "Traces of LLM applications, and what evaluators and people said of them. Begin with `overview`; find traces by"
    " conditions with `find_traces`, the worst under a key with `list_feedback` and order `lowest`; read one with"
    " `read_trace`; `why_scored` says why rules did or did not score it, `diagnose_senders` what its sender leaves"
    " out. "
) + NOTICE


def make_server(places: StoreAccess, *, write: bool = False, file: Path | None = None) -> MCPServer:
    """Return an MCP server with the read tools.

    `write` adds the tool that adds feedback, and `file` the tool that runs the evaluation in this file.
    """
    made = MCPServer(
        "spanwise",
        title="Spanwise",
        version=metadata.version("spanwise"),
        instructions=SERVER_INSTRUCTIONS,
        log_level="WARNING",
        subscriptions=False,
    )
    for tool in (*TRACE_TOOLS, *FEEDBACK_TOOLS, *EXPERIMENT_TOOLS):
        made.add_tool(make_tool(places, tool), annotations=READ_ANNOTATIONS, structured_output=True)
    if write:
        made.add_tool(make_tool(places, add_feedback, "write"), annotations=WRITE_ANNOTATIONS, structured_output=True)
    if file is not None:
        made.add_tool(EvaluationRunner(file, places).tool(), annotations=WRITE_ANNOTATIONS, structured_output=True)
    return made
