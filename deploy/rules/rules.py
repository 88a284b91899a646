"""Rules that the monitors of this deployment run. Replace them by your own."""

from spanwise.evaluators import evaluator, monitor


@evaluator
def answered(outputs: object) -> bool:
    """Return whether the trace has outputs."""
    return bool(outputs)


monitor("answered", evaluators=[answered], sample_rate=0.1)
