"""The HTTP API over the stores."""
