"""Server-rendered pages over the stores."""

from assay.collector.pages._router import ROUTES, not_found, router

__all__ = ["ROUTES", "not_found", "router"]
