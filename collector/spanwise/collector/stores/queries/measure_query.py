"""Query for the sums of a measure of traces, block by block: its filter, and the records of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from spanwise.collector.alert_policy import TraceMeasure, parse_measure
from spanwise.collector.filters import Filter, extend_filter, validate_filter
from spanwise.collector.records import JSON, ScoreSums, canonical_json

SUMS = ("n", "weight", "total", "weight_squares", "products", "total_squares")  # fields of `ScoreSums`


class MeasureQuery(NamedTuple):
    """Query for the sums of a measure over the blocks of a window, by the values of a field or (None) in total."""

    measure: str
    conditions: Mapping[str, JSON]
    project: str
    since_ns: int
    until_ns: int
    block_s: int
    by: str | None

    @property
    def block_ns(self) -> int:
        """Return the nanoseconds of a block."""
        return self.block_s * 1_000_000_000

    @property
    def name(self) -> tuple[str, str, str, str, int]:
        """Return what identifies the measure among all that are kept."""
        conditions = canonical_json(self.conditions).decode()
        return self.project, self.measure, conditions, self.by or "", self.block_s

    def parse(self) -> tuple[TraceMeasure, Filter]:
        """Return the comparison, and the filter of the traces. Raise `Refused` if one is invalid."""
        comparison = parse_measure(self.measure)
        limits = {"project": self.project, "since_ns": self.since_ns, "until_ns": self.until_ns}
        return comparison, validate_filter(extend_filter(None, {**self.conditions, **limits}))

    def make_sums(self, start_ns: int, group: Any, *sums: Any) -> ScoreSums:
        """Return the sums of the block that starts at a time."""
        name = None if self.by is None else str(group)
        return ScoreSums(key=self.measure, group=name, start_ns=start_ns, **dict(zip(SUMS, sums, strict=True)))
