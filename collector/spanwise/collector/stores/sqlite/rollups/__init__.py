"""Hourly and daily rollups of traces, and the aggregates that they answer.

Modules, in the order in which data flows:

- `rollup_delta`: Contribution of traces and feedback to the rollup of their hour, latency histograms included.
- `hourly_rollups`: Hourly rollups, updated in the transaction that changes traces or feedback.
- `sealed_rollups`: Rollups of sealed hours and days: bucket totals, exact latencies and names of runs.
- `aggregation`: Aggregates over time: buckets from rollups where they cover the time range, from rows elsewhere.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "aggregation",
    "hourly_rollups",
    "rollup_delta",
    "sealed_rollups",
]
