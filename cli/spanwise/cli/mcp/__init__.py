"""Model Context Protocol server: traces, feedback, experiments and datasets for coding agents.

Modules, in the order in which data flows:

- `server`: MCP server: registration of the tools and instructions for agents.
- `http_transport`: HTTP transport of the MCP server, behind the authentication of the collector.
- `store_access`: Store access of a tool call: opened per call with the rights of the caller; tool wrapper.
- `trace_tools`: MCP tools on traces: find, read, feedback, rule decisions, filters and senders.
- `alert_tools`: MCP tools on alerts: list, show, check on past traffic, test, acknowledge, snooze.
- `experiment_tools`: MCP tools on experiments and datasets, and the evaluation that an agent may run.
- `tool_results`: Tool results: bounded JSON that marks third-party text as `untrusted`.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "http_transport",
    "server",
    "store_access",
]
