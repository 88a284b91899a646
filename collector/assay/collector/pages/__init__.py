"""Server-rendered pages over the stores."""

from assay.collector.pages._router import not_found, router

__all__ = ["not_found", "router"]
