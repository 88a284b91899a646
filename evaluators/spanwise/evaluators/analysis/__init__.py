"""Analysis of results by model: leaderboards, problems, insights and compliance, as H2O Eval Studio reports them.

Modules, in the order in which data flows:

- `experiment_comparison`: Comparison of experiments, and history of a dataset, for terminal, notebook, pandas and
  Markdown.
- `model_results`: Results by model: the runs of one or more experiments, grouped by the model that answered.
- `model_findings`: Findings about models: leaderboards, problems, insights, compliance with standards.
- `analysis_report`: Analysis of experiments as data, and its report in HTML.
- `model_analysis`: Analysis of experiments by model: display in terminal and notebook, report as a file or archive.
- `parameter_sweep`: Sweep: one experiment per combination of parameters, or per variant of the task, analyzed together.
"""

from spanwise.collector.stores import Change, Slice
from spanwise.evaluators.analysis.analysis_report import AnalysisData, TradeOff, render_page
from spanwise.evaluators.analysis.experiment_comparison import Answer, Comparison, History, Regression, compare, history
from spanwise.evaluators.analysis.model_analysis import Analysis, analyze
from spanwise.evaluators.analysis.model_findings import (
    BooleanLeaderboard,
    HeatmapLeaderboard,
    Insight,
    Problem,
    PromptHeatmap,
    StandardCoverage,
    UnusableThreshold,
)
from spanwise.evaluators.analysis.model_results import Cell, ModelResults
from spanwise.evaluators.analysis.parameter_sweep import Sweep, SweepCell, sweep

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
