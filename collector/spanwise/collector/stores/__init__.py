"""Store interfaces, and what all stores share: combined store, audit, explanations.

Modules, in the order in which data flows:

- `flat_tables`: Flat tables for analysis: name, type, description and source of each column; data frames of their
  rows.
- `store_interfaces`: Store interfaces: traces, control records, both in one, and optional capabilities.
- `table_rows`: Table rows: column values, hashed ids, statements for many rows, cursors of pages.
- `run_codec`: Encoding of runs for all stores: facts, payloads, sampling information of a span.
- `side_records`: Records of senders besides runs: amendments, started runs, and reports of processes, as all stores keep
  them.
- `trace_summary`: Trace summary: definition of a trace's totals (root, tokens, cost, completeness) over all of its spans.
- `fork_protection`: Protection of connections to a database from forked child processes, which must neither use nor
  close them.
- `bucket_totals`: Totals of the buckets of an aggregate, in all trace backends: counts, exact percentiles, tallies of
  feedback.
- `backends`: Trace backend and control backend: the two interfaces that the combined store is made of, and that of
  copies.
- `weighted_sums`: Weighted sums of rules' scores by block of time, over a trace backend and a control backend of any
  kind.
- `combined_store`: Combined store of a trace backend and a control backend: deletion, retention, rules, decisions,
  audit trail.
- `cluster_store`: Cluster store: traces in ClickHouse and control records in PostgreSQL, shared by any number of
  processes.
- `search_terms`: Search terms of all backends: texts in a JSON value, tokens of Chinese, Japanese and Korean text, terms
  of a search.
- `trace_assembly`: Assembly of traces: amendments merged into runs, the tree of runs, derived inputs and outputs of
  the root.
- `decision_explanation`: Explanation of why a rule did or did not evaluate a trace, and why a rule cannot run.
- `backfill_preview`: Dry run of a backfill: traces of its period that a rule would sample, their cost and time.
- `experiment_statistics`: Stored experiments: their metrics, examples, statistics per key, and the history of a
  dataset.
- `stored_comparison`: Comparison of stored experiments: scores, rules of their keys, contrasts, robustness against
  perturbations.
- `score_statistics`: Statistics over stored scores: agreement of judges with people, means of rules, two versions of
  an application.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.module_loading import lazy

if TYPE_CHECKING:
    from spanwise.collector.stores.cluster_store import ClusterStore, open_backends
    from spanwise.collector.stores.combined_store import CombinedStore
    from spanwise.collector.stores.experiment_statistics import (
        HistoryPoint,
        KeyStatistics,
        RecordedMetric,
        estimate_keys,
        iterate_examples,
        list_history,
        list_metrics,
        read_run_examples,
    )
    from spanwise.collector.stores.score_statistics import (
        GRAIN_NS,
        VERSION_FIELDS,
        JudgeAgreement,
        RuleVersions,
        ScorePoint,
        compare_rule_versions,
        correct_judge_mean,
        estimate_over_time,
        estimate_percentiles_over_time,
        get_judge_keys,
        list_human_feedback,
        list_judge_scores,
        make_version_condition,
        summarize_rule,
    )
    from spanwise.collector.stores.store_interfaces import (
        ControlStore,
        DestinationStore,
        FeedbackSource,
        FeedStore,
        LazyTrace,
        LocalStore,
        OutgoingFeedback,
        RowStore,
        Store,
        StreamingStore,
        TraceStore,
        list_open_traces,
    )
    from spanwise.collector.stores.stored_comparison import (
        Change,
        ComparisonOptions,
        Flip,
        KindRobustness,
        Slice,
        StoredComparison,
        compare_perturbations,
        measure_robustness,
    )
    from spanwise.collector.stores.trace_assembly import RunNode, derived_fields, make_branch, walk_tree
else:
    __getattr__, __dir__ = lazy(
        __name__,
        score_statistics="GRAIN_NS JudgeAgreement ScorePoint correct_judge_mean estimate_over_time estimate_percentiles_over_time get_judge_keys list_human_feedback list_judge_scores summarize_rule VERSION_FIELDS RuleVersions compare_rule_versions make_version_condition",
        store_interfaces="ControlStore Store DestinationStore FeedStore FeedbackSource LazyTrace LocalStore OutgoingFeedback RowStore StreamingStore TraceStore list_open_traces",
        experiment_statistics="KeyStatistics estimate_keys HistoryPoint list_history iterate_examples read_run_examples RecordedMetric list_metrics",
        stored_comparison="Change ComparisonOptions Slice StoredComparison Flip KindRobustness compare_perturbations measure_robustness",
        trace_assembly="RunNode derived_fields make_branch walk_tree",
        combined_store="CombinedStore",
        cluster_store="ClusterStore open_backends",
    )

__all__ = [
    "GRAIN_NS",
    "VERSION_FIELDS",
    "Change",
    "ClusterStore",
    "CombinedStore",
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
    "open_backends",
    "read_run_examples",
    "summarize_rule",
    "walk_tree",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "backends",
    "bucket_totals",
    "decision_explanation",
    "flat_tables",
    "run_codec",
    "search_terms",
    "side_records",
    "fork_protection",
    "store_interfaces",
    "table_rows",
    "trace_assembly",
    "trace_summary",
    "weighted_sums",
]
