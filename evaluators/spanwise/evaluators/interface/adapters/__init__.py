"""Adapters for metric objects of autoevals, deepeval, pydantic-evals and ragas.

Modules, in the order in which data flows:

- `adapted_metric`: Base of the adapters: a metric object as an evaluator function, and case values as text.
- `autoevals_adapter`: Adapter for autoevals scorers.
- `deepeval_adapter`: Adapter for deepeval metrics of single turns and conversations.
- `pydantic_evals_adapter`: Adapter for pydantic-evals evaluators.
- `ragas_adapter`: Adapter for ragas metrics, with samples or with arguments.
"""
