"""Numbers over stored feedback, as pure functions: what evaluators, pages and alerts all need."""

from assay.collector.statistics._families import Family, boolean_family
from assay.collector.statistics._forms import databricks_results, haystack_results
from assay.collector.statistics._keys import KeyStats, newest, summarise
from assay.collector.statistics._paired import Paired, paired

__all__ = [
    "Family",
    "KeyStats",
    "Paired",
    "boolean_family",
    "databricks_results",
    "haystack_results",
    "newest",
    "paired",
    "summarise",
]
