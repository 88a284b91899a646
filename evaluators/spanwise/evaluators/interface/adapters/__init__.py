"""Adapters for metric objects of autoevals, deepeval, pydantic-evals and ragas.

Modules, in the order in which data flows:

- `adapted_metric`: Base of the adapters: calls a metric object as an evaluator function, and converts case values to
  text.
- `autoevals_adapter`: Adapter for autoevals scorers.
- `deepeval_adapter`: Adapter for deepeval metrics of single turns and conversations.
- `pydantic_evals_adapter`: Adapter for pydantic-evals evaluators.
- `ragas_adapter`: Adapter for ragas metrics, for those that take a sample and those that take arguments.
"""
