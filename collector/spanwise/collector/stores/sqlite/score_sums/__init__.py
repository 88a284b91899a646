"""Weighted sums of the scores of rules, per time at which the traces started.

Modules, in the order in which data flows:

- `contributions`: Contribution of a trace's scores to the weighted sums of its rules, computed from feedback and
  decisions.
- `window_sums`: Sums of a time window, block by block.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "window_sums",
]
