"""Model Context Protocol server: traces, feedback, experiments and datasets for coding agents.

Modules, in the order in which data flows:

- `server`: MCP server: registration of the tools, instructions for agents, tools on experiments and datasets.
- `http_transport`: HTTP transport of the MCP server, behind the authentication of the collector.
- `tool_results`: Tool calls: store access with the rights of the caller, and bounded JSON that marks untrusted text.
- `trace_tools`: MCP tools on traces: find, read, feedback, rule decisions, filters and senders.
- `alert_tools`: MCP tools on alerts: list, show, check on past traffic, test, acknowledge, snooze.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "http_transport",
    "server",
    "tool_results",
]
