"""Judge: evaluators, `evaluate()`, monitor."""
