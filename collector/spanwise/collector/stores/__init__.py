"""Store interfaces, and what all stores share: combined store, audit, explanations.

Modules, in the order in which data flows:

- `flat_tables`: Flat tables for analysis: name, type, description and source of each column.
- `data_frames`: Data frames: rows of flat tables as Arrow batches, and as a pandas DataFrame.
- `trace_store`: Trace store interface (spans, feedback, queries, deletion), with paging and traces in progress.
- `control_store`: Control store interface (datasets, experiments, rules, leases, keys), and `Store`, both in one.
- `capabilities`: Optional capabilities of a store: async append, encoded rows, feedback cursor, lazy traces.
- `backends`: Trace backend and control backend: the two interfaces that the combined store is made of.
- `combined_store`: Combined store of a trace backend and a control backend: deletion, retention, rules and decisions.
- `audit_trail`: Audit trail: which operations are recorded, with which arguments and actor.
- `amendment_merge`: Merging of amendments into runs, before and after the run arrives.
- `run_tree`: Run tree of a trace: depth-first order, and root inputs and outputs derived from the runs below.
- `decision_explanation`: Explanation of why a rule did or did not evaluate a trace, and why a rule cannot run.
- `backfill_preview`: Dry run of a backfill: traces of its period that a rule would sample, their cost and time.
- `experiment_history`: History of a dataset's experiments: the mean of each key with its interval, in order of time.
- `experiment_examples`: Examples of a stored experiment: those of its dataset version, or those that its traces hold.
- `recorded_metrics`: Metrics as experiments record them: direction, threshold, main keys.
- `stored_comparison`: Comparison of stored experiments: their scores, the declared rules of their keys, and contrasts.
- `experiment_statistics`: Statistics of a stored experiment per key: interval of the mean, repeated runs.
- `stored_robustness`: Robustness of a stored experiment against perturbations: stable base cases and flips.
- `score_statistics`: Statistics over stored scores: agreement of judges with people, weighted means and percentiles of rules.
- `rule_versions`: Comparison of two versions of an application by the scores that one rule gave to live traffic.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.lazy_imports import lazy

if TYPE_CHECKING:
    from spanwise.collector.stores.capabilities import (
        DestinationStore,
        FeedbackSource,
        FeedStore,
        LazyTrace,
        LocalStore,
        OutgoingFeedback,
        RowStore,
        StreamingStore,
    )
    from spanwise.collector.stores.control_store import ControlStore, Store
    from spanwise.collector.stores.experiment_examples import iterate_examples, read_run_examples
    from spanwise.collector.stores.experiment_history import HistoryPoint, list_history
    from spanwise.collector.stores.experiment_statistics import KeyStatistics, estimate_keys
    from spanwise.collector.stores.recorded_metrics import RecordedMetric, list_metrics
    from spanwise.collector.stores.rule_versions import (
        VERSION_FIELDS,
        RuleVersions,
        compare_rule_versions,
        make_version_condition,
    )
    from spanwise.collector.stores.run_tree import RunNode, derived_fields, make_branch, walk_tree
    from spanwise.collector.stores.score_statistics import (
        GRAIN_NS,
        JudgeAgreement,
        ScorePoint,
        correct_judge_mean,
        estimate_over_time,
        estimate_percentiles_over_time,
        get_judge_keys,
        list_human_feedback,
        list_judge_scores,
        summarize_rule,
    )
    from spanwise.collector.stores.stored_comparison import Change, ComparisonOptions, Slice, StoredComparison
    from spanwise.collector.stores.stored_robustness import (
        Flip,
        KindRobustness,
        compare_perturbations,
        measure_robustness,
    )
    from spanwise.collector.stores.trace_store import TraceStore, list_open_traces
else:
    __getattr__, __dir__ = lazy(
        __name__,
        score_statistics="GRAIN_NS JudgeAgreement ScorePoint correct_judge_mean estimate_over_time estimate_percentiles_over_time get_judge_keys list_human_feedback list_judge_scores summarize_rule",
        control_store="ControlStore Store",
        experiment_statistics="KeyStatistics estimate_keys",
        capabilities="DestinationStore FeedStore FeedbackSource LazyTrace LocalStore OutgoingFeedback RowStore StreamingStore",
        experiment_history="HistoryPoint list_history",
        stored_comparison="Change ComparisonOptions Slice StoredComparison",
        stored_robustness="Flip KindRobustness compare_perturbations measure_robustness",
        experiment_examples="iterate_examples read_run_examples",
        recorded_metrics="RecordedMetric list_metrics",
        trace_store="TraceStore list_open_traces",
        rule_versions="VERSION_FIELDS RuleVersions compare_rule_versions make_version_condition",
        run_tree="RunNode derived_fields make_branch walk_tree",
    )

__all__ = [
    "GRAIN_NS",
    "VERSION_FIELDS",
    "Change",
    "ComparisonOptions",
    "ControlStore",
    "DestinationStore",
    "FeedStore",
    "FeedbackSource",
    "Flip",
    "HistoryPoint",
    "JudgeAgreement",
    "KeyStatistics",
    "KindRobustness",
    "LazyTrace",
    "LocalStore",
    "OutgoingFeedback",
    "RecordedMetric",
    "RowStore",
    "RuleVersions",
    "RunNode",
    "ScorePoint",
    "Slice",
    "Store",
    "StoredComparison",
    "StreamingStore",
    "TraceStore",
    "compare_perturbations",
    "compare_rule_versions",
    "correct_judge_mean",
    "derived_fields",
    "estimate_keys",
    "estimate_over_time",
    "estimate_percentiles_over_time",
    "get_judge_keys",
    "iterate_examples",
    "list_history",
    "list_human_feedback",
    "list_judge_scores",
    "list_metrics",
    "list_open_traces",
    "make_branch",
    "make_version_condition",
    "measure_robustness",
    "read_run_examples",
    "summarize_rule",
    "walk_tree",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "amendment_merge",
    "data_frames",
    "decision_explanation",
    "flat_tables",
    "trace_store",
]
