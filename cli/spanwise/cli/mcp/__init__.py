"""`spanwise mcp`: the store's traces for coding agents, over the Model Context Protocol."""
