"""Keep: records, OTLP receiver, dialects, stores, statistics, API, client, pages."""

from assay.collector._aio import AsyncStore, aio
from assay.collector.connect import connect

__all__ = ["AsyncStore", "aio", "connect"]
