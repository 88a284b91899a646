"""Overview page: live traffic, errors, latency, tokens, cost and feedback over time, compared with the period before.

Modules, in the order in which data flows:

- `overview_page`: Overview page: time range, aggregates, charts and groups.
- `bucket_measures`: Measures of a bucket: values, units, differences between two periods, and those that changed
  most.
"""

from spanwise.collector.pages.overview.overview_page import overview

__all__ = ["overview"]
