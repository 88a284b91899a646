"""Keep: records, OTLP intake, dialects, stores, statistics, API, client, pages."""

from assay.collector._aio import AsyncStore, aio
from assay.collector._connect import connect, describe

__all__ = ["AsyncStore", "aio", "connect", "describe"]
