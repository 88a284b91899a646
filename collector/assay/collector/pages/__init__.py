"""Server-rendered pages over the stores."""
