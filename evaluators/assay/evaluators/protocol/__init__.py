"""The one protocol: any callable becomes an evaluator, found by name, whose outcomes are values."""
