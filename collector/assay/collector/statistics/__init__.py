"""Numbers over stored feedback, as pure functions: what evaluators, engine, stores, pages and alerts all need."""

from assay.collector.statistics._agreement import Agreement, agreement
from assay.collector.statistics._compare import (
    TASK_OK,
    Contrast,
    Judgement,
    Scores,
    by_example,
    compare,
    direction,
    scores_of,
)
from assay.collector.statistics._corrected import Corrected, corrected_mean
from assay.collector.statistics._families import Family, boolean_family
from assay.collector.statistics._forms import databricks_results, haystack_results
from assay.collector.statistics._keys import summarise
from assay.collector.statistics._newest import nameless, newest, place_of
from assay.collector.statistics._paired import Paired, paired
from assay.collector.statistics._percentile import percentile
from assay.collector.statistics._tally import Passes, Tally

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "Agreement",
    "Contrast",
    "Corrected",
    "Family",
    "Judgement",
    "Paired",
    "Passes",
    "Scores",
    "TASK_OK",
    "Tally",
    "agreement",
    "boolean_family",
    "by_example",
    "compare",
    "corrected_mean",
    "databricks_results",
    "direction",
    "haystack_results",
    "nameless",
    "newest",
    "paired",
    "percentile",
    "place_of",
    "scores_of",
    "summarise",
]
