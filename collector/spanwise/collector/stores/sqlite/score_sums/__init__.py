"""Weighted sums of the scores of rules, per time at which the traces started.

Modules, in the order in which data flows:

- `contributions`: Contribution of a trace's scores to the weighted sums of its rules, computed from feedback and
  decisions.
- `trace_measures`: Sums of measures of traces: for which of them a condition is true, block by block.
- `exact_rows`: Rows of exact sums: selected by place, changed by numbers that are added, and replaced.
- `session_clusters`: Sums of sessions, each a cluster, and their products in the sums of blocks.
- `sum_tables`: Tables of sums: changed traces are subtracted with their old contribution and added with their new one.
- `background_sums`: Background job that applies recorded changes to the sums.
- `window_sums`: Sums of a time window, block by block, from the tables of sums or from all rows.
- `sum_queries`: Queries for sums, which first apply recorded changes; if these are too many, they read all rows instead.
- `bucket_weights`: Weighted means of rules' scores in the buckets of an aggregate.
- `listed_scores`: Scores of rules one by one: those of a window, and those of the traces in the buckets of an aggregate.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "background_sums",
    "bucket_weights",
    "listed_scores",
    "sum_queries",
    "sum_tables",
    "trace_measures",
    "window_sums",
]
