"""Diagnostics: explanations for users about senders, traces and rules.

Modules, in the order in which data flows:

- `doctor_report`: Report of `spanwise doctor`: field coverage per sender, hints, and other known problems.
- `trace_completeness`: Explanation of missing parts of a trace: dropped spans, open runs, unanswered calls.
- `rule_report`: Text about rules: decisions and their reasons, funnel, budget, rate, lag and workers.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "doctor_report",
    "rule_report",
    "trace_completeness",
]
