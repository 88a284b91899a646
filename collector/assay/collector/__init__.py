"""Keep: records, intake of OTLP, dialects, stores, statistics, API, client, pages."""

from assay.collector import errors
from assay.collector._aio import AsyncStore, aio
from assay.collector._connect import connect, default_place, describe
from assay.collector._names import named

__all__ = ["AsyncStore", "aio", "connect", "default_place", "describe", "errors", "named"]
