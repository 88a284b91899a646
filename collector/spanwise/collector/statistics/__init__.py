"""Statistics over feedback: means, intervals, agreement, comparison and sampling.

Modules, in the order in which data flows:

- `feedback_tally`: Feedback tally: latest feedback, exact sums, weighted means and pass shares per key.
- `quantiles`: Quantiles: nearest-rank percentiles and Student's t distribution.
- `intervals`: Confidence intervals: paired proportions, means of scores, proportions, and the examples a narrower one
  needs.
- `paired_tests`: Tests of paired data: exact McNemar, sign flips, Tango's score test of a difference, Bhapkar's test of
  labels.
- `score_comparison`: Comparison of experiments: paired scores per key, and the conclusion with its interval, test and
  sentence.
- `pass_rules`: Pass rules: which scores of a key pass, by its threshold or because all of them are 0 or 1.
- `score_samples`: Mean of the scores of one key of an experiment, with its interval, clustered by example.
- `repeated_runs`: Statistics of repeated runs: pass@k, pass^k, variance within and between examples, flaky examples.
- `survey_sampling`: Survey sampling: sampling position of a target, samples for labelling, Hajek means with
  intervals.
- `alert_evaluation`: Evaluation of alerts: estimate of a window, one-sided bound, breach, and the state that follows.
- `human_agreement`: Agreement of a judge with human labels: pairing, Cohen's kappa, fitted thresholds.
- `ppi`: Prediction-powered inference: a judge's mean corrected by human labels.
- `weighted_percentiles`: Weighted percentiles of rules' scores, with Woodruff's interval.
- `version_comparison`: Comparison of two versions in production: weighted difference of means, confidence sequence.
- `vendor_result_formats`: Results in the formats of Databricks, Haystack and H2O.
"""

from spanwise.collector.statistics.alert_evaluation import (
    WINDOW_BLOCKS,
    AlertCondition,
    AlertLook,
    AlertState,
    AlertStatus,
    BlockSums,
    WindowEstimate,
    estimate_window,
    evaluate_condition,
)
from spanwise.collector.statistics.feedback_tally import (
    UNPARSED,
    PassCondition,
    Tally,
    exact_expansion,
    get_feedback_slot,
    is_anonymous,
    select_latest,
    summarize_by_key,
)
from spanwise.collector.statistics.human_agreement import (
    DRAWN_METADATA,
    Agreement,
    JudgeCheck,
    LabelledCase,
    ThresholdFit,
    Value,
    check_judge,
    choose_threshold,
    get_feedback_value,
    get_majority_label,
    measure_agreement,
)
from spanwise.collector.statistics.intervals import (
    Interval,
    Moments,
    examples_for_mean,
    examples_for_proportions,
    hall_interval,
    limit_spread,
    mean_interval,
    paired_proportions_interval,
    wilson_interval,
)
from spanwise.collector.statistics.paired_tests import (
    bhapkar_test,
    binomial_test,
    chi_square_tail,
    mcnemar_test,
    sign_flip_test,
    tango_statistic,
)
from spanwise.collector.statistics.pass_rules import PassRule, is_passing, make_pass_rule, make_pass_rules
from spanwise.collector.statistics.ppi import CorrectedMean, estimate_ppi_mean
from spanwise.collector.statistics.quantiles import nearest_rank, percentile, t_quantile
from spanwise.collector.statistics.repeated_runs import (
    PassEstimate,
    RepeatedExample,
    RepeatedRuns,
    collect_repeated_runs,
)
from spanwise.collector.statistics.score_comparison import (
    ALPHA,
    MEASURES,
    RATE_ENDINGS,
    TASK_OK,
    Contrast,
    ExperimentScores,
    KeyRule,
    KeyScores,
    Word,
    collect_scores,
    compare_scores,
    get_direction,
    get_question,
)
from spanwise.collector.statistics.score_samples import ScoreSample
from spanwise.collector.statistics.survey_sampling import (
    MIN_SHOWN_EFFECTIVE,
    LabelSample,
    SampledCase,
    SampledMean,
    draw_label_sample,
    estimate_means,
    estimate_sums,
    get_sampling_position,
)
from spanwise.collector.statistics.vendor_result_formats import (
    BooleanRates,
    compute_boolean_rates,
    databricks_results,
    databricks_table,
    haystack_results,
)
from spanwise.collector.statistics.version_comparison import (
    MIN_VERSION_TRACES,
    VersionDifference,
    VersionMean,
    VersionScore,
    compare_versions,
)
from spanwise.collector.statistics.weighted_percentiles import SampledPercentile, estimate_percentiles

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "MIN_VERSION_TRACES",
    "WINDOW_BLOCKS",
    "Agreement",
    "AlertCondition",
    "AlertLook",
    "AlertState",
    "AlertStatus",
    "BlockSums",
    "VersionDifference",
    "VersionMean",
    "VersionScore",
    "WindowEstimate",
    "compare_versions",
    "estimate_window",
    "evaluate_condition",
    "JudgeCheck",
    "Contrast",
    "CorrectedMean",
    "ThresholdFit",
    "DRAWN_METADATA",
    "SampledCase",
    "BooleanRates",
    "PassCondition",
    "LabelSample",
    "MIN_SHOWN_EFFECTIVE",
    "SampledMean",
    "SampledPercentile",
    "TASK_OK",
    "ALPHA",
    "MEASURES",
    "RATE_ENDINGS",
    "ExperimentScores",
    "KeyRule",
    "KeyScores",
    "Interval",
    "Moments",
    "PassEstimate",
    "RepeatedExample",
    "PassRule",
    "RepeatedRuns",
    "ScoreSample",
    "collect_repeated_runs",
    "Word",
    "bhapkar_test",
    "examples_for_mean",
    "examples_for_proportions",
    "hall_interval",
    "limit_spread",
    "paired_proportions_interval",
    "binomial_test",
    "chi_square_tail",
    "collect_scores",
    "get_question",
    "make_pass_rule",
    "make_pass_rules",
    "mcnemar_test",
    "mean_interval",
    "sign_flip_test",
    "tango_statistic",
    "wilson_interval",
    "Tally",
    "UNPARSED",
    "Value",
    "LabelledCase",
    "measure_agreement",
    "compute_boolean_rates",
    "check_judge",
    "compare_scores",
    "estimate_ppi_mean",
    "exact_expansion",
    "choose_threshold",
    "databricks_results",
    "databricks_table",
    "get_majority_label",
    "get_direction",
    "draw_label_sample",
    "haystack_results",
    "is_anonymous",
    "is_passing",
    "nearest_rank",
    "select_latest",
    "percentile",
    "get_feedback_slot",
    "t_quantile",
    "estimate_means",
    "estimate_percentiles",
    "estimate_sums",
    "summarize_by_key",
    "get_sampling_position",
    "get_feedback_value",
]
