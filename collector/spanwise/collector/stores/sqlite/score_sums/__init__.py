"""Weighted sums of the scores of rules, per time at which the traces started.

Modules, in the order in which data flows:

- `contributions`: Contribution of a trace's scores to the weighted sums of its rules, computed from feedback and
  decisions.
- `trace_measures`: Sums of measures of traces: for which of them a condition is true, block by block.
- `window_sums`: Sums of a time window, block by block.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "trace_measures",
    "window_sums",
]
