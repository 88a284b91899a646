"""MCP server: registration of the tools and instructions for agents."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from mcp.server.mcpserver import MCPServer

from spanwise.cli.mcp.alert_tools import ALERT_TOOLS, ALERT_WRITE_TOOLS
from spanwise.cli.mcp.experiment_tools import EXPERIMENT_TOOLS, EvaluationRunner
from spanwise.cli.mcp.store_access import READ_ANNOTATIONS, WRITE_ANNOTATIONS, StoreAccess, make_tool
from spanwise.cli.mcp.tool_results import NOTICE
from spanwise.cli.mcp.trace_tools import FEEDBACK_TOOLS, TRACE_TOOLS, add_feedback

SERVER_INSTRUCTIONS = (
    "Traces of LLM applications, with feedback of evaluators and people. Start with `overview`. Find traces by"
    " conditions with `find_traces`, and the worst traces under a key with `list_feedback` and order `lowest`. Read a"
    " trace with `read_trace`. `why_scored` explains why rules did or did not score it. `diagnose_senders` lists the"
    " fields that its sender does not set. "
) + NOTICE


def make_server(store_access: StoreAccess, *, write: bool = False, file: Path | None = None) -> MCPServer:
    """Return an MCP server with the read tools.

    `write` adds the tools that add feedback and acknowledge, snooze and test alerts, and `file` the tool that runs the evaluation in this file.
    """
    server = MCPServer(
        "spanwise",
        title="Spanwise",
        version=metadata.version("spanwise"),
        instructions=SERVER_INSTRUCTIONS,
        log_level="WARNING",
        subscriptions=False,
    )
    for tool in (*TRACE_TOOLS, *FEEDBACK_TOOLS, *EXPERIMENT_TOOLS, *ALERT_TOOLS):
        server.add_tool(make_tool(store_access, tool), annotations=READ_ANNOTATIONS, structured_output=True)
    if write:
        for tool in (add_feedback, *ALERT_WRITE_TOOLS):
            server.add_tool(
                make_tool(store_access, tool, "write"), annotations=WRITE_ANNOTATIONS, structured_output=True
            )
    if file is not None:
        server.add_tool(
            EvaluationRunner(file, store_access).tool(), annotations=WRITE_ANNOTATIONS, structured_output=True
        )
    return server
