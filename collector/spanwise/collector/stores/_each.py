"""All pages of a list of traces, for whatever store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spanwise.collector.filters import Filter
from spanwise.collector.records import Page, TraceSummary, paged

PAGE = 500  # summaries in memory at once


def each(traces: Callable[..., Page[TraceSummary]], filter: Filter) -> Iterator[TraceSummary]:
    """The traces that pass, with one filter for all pages: `since="1h"` was an hour before the first of them."""
    return paged(lambda cursor: traces(filter, limit=PAGE, cursor=cursor))
