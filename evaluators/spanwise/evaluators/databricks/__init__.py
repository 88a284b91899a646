"""Databricks' agent evaluation under its own names: `evaluate(data=…, model=…, model_type="databricks-agent")`.

The call is that of `mlflow.evaluate` in Databricks' documentation. It runs an experiment with Databricks' judges. The
result is this experiment, with the aggregates in `metrics` and one row per request in `tables["eval_results"]`.

Modules, in the order in which data flows:

- `agent_evaluation`: Agent evaluation: choice of judges for an evaluation set, the experiment, metrics and tables.
"""

from spanwise.evaluators.databricks.agent_evaluation import AgentEvaluation, evaluate

__all__ = ["AgentEvaluation", "evaluate"]
