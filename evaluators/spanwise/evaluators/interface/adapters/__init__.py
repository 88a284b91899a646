"""Adapters for metric objects of autoevals, deepeval, pydantic-evals and ragas.

Modules, in the order in which data flows:

- `adapted_metric`: Base of the adapters: calls a metric object as an evaluator function, and converts case values to
  text.
- `autoevals_adapter`: Adapter for autoevals scorers.
- `deepeval_adapter`: Adapter for deepeval metrics of single turns and conversations.
- `pydantic_evals_adapter`: Adapter for pydantic-evals evaluators.
- `ragas_adapter`: Adapter for ragas metrics, for those that take a sample and those that take arguments.
"""

from spanwise.evaluators.interface.adapters.adapted_metric import AdaptedMetric
from spanwise.evaluators.interface.adapters.autoevals_adapter import adapt_autoevals_scorer
from spanwise.evaluators.interface.adapters.deepeval_adapter import adapt_deepeval_metric
from spanwise.evaluators.interface.adapters.pydantic_evals_adapter import adapt_pydantic_evaluator
from spanwise.evaluators.interface.adapters.ragas_adapter import adapt_ragas_metric

__all__ = [
    "AdaptedMetric",
    "adapt_autoevals_scorer",
    "adapt_deepeval_metric",
    "adapt_pydantic_evaluator",
    "adapt_ragas_metric",
]
