"""Numbers over stored feedback, as pure functions: what evaluators, engine, stores, pages and alerts all need."""

from spanwise.collector.statistics._agreement import Agreement, Value, agreement
from spanwise.collector.statistics._compare import (
    TASK_OK,
    Contrast,
    Judgement,
    Scores,
    by_example,
    compare,
    direction,
    scores_of,
)
from spanwise.collector.statistics._corrected import Corrected, corrected_mean
from spanwise.collector.statistics._draw import Drawn, Sample, draw
from spanwise.collector.statistics._estimates import SampledMean, sampled_means
from spanwise.collector.statistics._families import Family, boolean_family
from spanwise.collector.statistics._forms import databricks_results, databricks_table, haystack_results
from spanwise.collector.statistics._keys import summarise
from spanwise.collector.statistics._newest import nameless, newest, place_of
from spanwise.collector.statistics._paired import Paired, paired
from spanwise.collector.statistics._percentile import nearest_rank, percentile
from spanwise.collector.statistics._sampling import u
from spanwise.collector.statistics._student import quantile
from spanwise.collector.statistics._tally import UNPARSED, Passes, Tally
from spanwise.collector.statistics._threshold import Cut, cut
from spanwise.collector.statistics._votes import DRAWN, Checked, Voted, check, decision, value_of

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "Agreement",
    "Checked",
    "Contrast",
    "Corrected",
    "Cut",
    "DRAWN",
    "Drawn",
    "Family",
    "Judgement",
    "Paired",
    "Passes",
    "Sample",
    "SampledMean",
    "Scores",
    "TASK_OK",
    "Tally",
    "UNPARSED",
    "Value",
    "Voted",
    "agreement",
    "boolean_family",
    "by_example",
    "check",
    "compare",
    "corrected_mean",
    "cut",
    "databricks_results",
    "databricks_table",
    "decision",
    "direction",
    "draw",
    "haystack_results",
    "nameless",
    "nearest_rank",
    "newest",
    "paired",
    "percentile",
    "place_of",
    "quantile",
    "sampled_means",
    "scores_of",
    "summarise",
    "u",
    "value_of",
]
