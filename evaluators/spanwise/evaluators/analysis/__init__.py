"""Analysis of results by model: leaderboards, problems, insights and compliance, as H2O Eval Studio reports them.

Modules, in the order in which data flows:

- `experiment_comparison`: Comparison of experiments: conclusions, regressions and slices, for terminal, notebook, pandas
  and Markdown.
- `experiment_history`: History of a dataset: the mean of each key with its interval per experiment, in order of time.
- `model_results`: Results by model: the runs of one or more experiments, grouped by the model that answered.
- `leaderboards`: Leaderboards of models: heatmaps of means by metric and by prompt, and the rates of boolean
  evaluators.
- `problems`: Problems of models: means on the wrong side of a threshold, flips of perturbed cases, and cases that
  failed a check.
- `insights`: Insights: best and worst, fastest and cheapest model, and the test cases that most models failed.
- `compliance`: Compliance: the nine standards of NIST AI RMF and SR 11-7, and the evaluators that address each.
- `result_analysis`: Analysis of experiments: leaderboards, problems, insights, compliance and trade-offs, as data.
- `analysis_report`: HTML of an analysis: the report, a self-contained file, and the pages of the collector.
- `report_archive`: Report of an analysis as a file: HTML, or an archive with all results.
- `model_analysis`: Analysis of experiments by model: its display in terminal and notebook, and its report.
- `parameter_sweep`: Sweep: one experiment per combination of parameters, or per variant of the task, analyzed together.
"""

from spanwise.collector.stores import Change, Slice
from spanwise.evaluators.analysis.analysis_report import render_page
from spanwise.evaluators.analysis.compliance import StandardCoverage
from spanwise.evaluators.analysis.experiment_comparison import Answer, Comparison, Regression, compare
from spanwise.evaluators.analysis.experiment_history import History, history
from spanwise.evaluators.analysis.insights import Insight
from spanwise.evaluators.analysis.leaderboards import BooleanLeaderboard, HeatmapLeaderboard, PromptHeatmap
from spanwise.evaluators.analysis.model_analysis import Analysis, analyze
from spanwise.evaluators.analysis.model_results import Cell, ModelResults
from spanwise.evaluators.analysis.parameter_sweep import Sweep, SweepCell, sweep
from spanwise.evaluators.analysis.problems import Problem, UnusableThreshold
from spanwise.evaluators.analysis.result_analysis import AnalysisData, TradeOff

__all__ = [
    "Analysis",
    "AnalysisData",
    "Answer",
    "BooleanLeaderboard",
    "Cell",
    "Change",
    "Comparison",
    "HeatmapLeaderboard",
    "History",
    "Insight",
    "ModelResults",
    "Problem",
    "PromptHeatmap",
    "Regression",
    "Slice",
    "StandardCoverage",
    "Sweep",
    "SweepCell",
    "TradeOff",
    "UnusableThreshold",
    "analyze",
    "compare",
    "history",
    "render_page",
    "sweep",
]
