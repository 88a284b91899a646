"""Keep: records, intake of OTLP, dialects, stores, statistics, API, client, pages."""

from typing import TYPE_CHECKING

from spanwise.collector import errors
from spanwise.tracer.lazy import lazy

if TYPE_CHECKING:
    from spanwise.collector._aio import AsyncStore, aio
    from spanwise.collector._connect import connect, default_place, describe
    from spanwise.collector._names import named
else:
    __getattr__, __dir__ = lazy(
        __name__,
        _aio="AsyncStore aio",
        _connect="connect default_place describe",
        _names="named",
    )

__all__ = ["AsyncStore", "aio", "connect", "default_place", "describe", "errors", "named"]
