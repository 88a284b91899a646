"""Reader of the values that filters compare, for the filters of rules and for `explain` (see `filter_evaluation`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, TypeAlias

from spanwise.collector.filter_evaluation import (
    KeyFeedback,
    TraceCondition,
    evaluate,
    explain,
    required_values,
    trace_conditions,
)
from spanwise.collector.filters import Filter
from spanwise.collector.records import ConditionResult
from spanwise.collector.stores.queries.trace_reader import Key
from spanwise.collector.stores.trace_summary import MAX_LISTED

Results: TypeAlias = tuple[bool | None, ...]  # of all filters

# Lists of the distinct values of all runs: the condition on them, and their column in `spans`
LISTS = {"names": ("any_name", "name"), "kinds": ("any_kind", "kind"), "models": ("model", "model")}
_NO_KEYS: Mapping[str, KeyFeedback] = {}


class FilterReader(ABC):
    """Reader of the values that some filters require.

    A backend selects one column for each of `positions`, and the key of the trace. The other methods are its SQL for
    values that no column of `traces` has.
    """

    loaded: Collection[str] = ()  # values that `load` converts
    positions: dict[str, int]  # columns of the values in a row
    key_column: int

    def __init__(self, filters: Sequence[Filter]) -> None:
        """Compile the filters. Raise `Refused` for an invalid filter."""
        self._filters = filters
        self._check_stopped: Callable[[], object] = lambda: None  # raises if the request was stopped
        self._conditions: list[list[TraceCondition]] = [trace_conditions(filter) for filter in filters]
        self._required = set[str]().union(*map(required_values, self._conditions))

    @abstractmethod
    def load(self, name: str, value: Any) -> Any: ...

    @abstractmethod
    def find_listed(self, keys: Sequence[Key], column: str, wanted: Collection[str]) -> Mapping[Key, Iterable[str]]:
        """Return which of the wanted values the spans of traces have."""

    @abstractmethod
    def read_errors(self, keys: Sequence[Key]) -> Mapping[Key, Iterable[str]]:
        """Return the errors of the runs of traces."""

    @abstractmethod
    def read_feedback(self, keys: Sequence[Key], names: Collection[str]) -> Mapping[Key, Mapping[str, KeyFeedback]]:
        """Return the feedback under some names, by trace and name."""

    @abstractmethod
    def find_text(self, text: str, keys: Sequence[Key]) -> Collection[Key]:
        """Return which of some traces contain all terms of a text."""

    @abstractmethod
    def is_indexed(self, value: Any) -> bool:
        """Return whether the text of a trace is indexed, given the column of `texts`."""

    def evaluate(self, rows: Sequence[Any]) -> Iterable[Results]:
        """Return the results of all filters for each row."""
        traces, by_filter = self._convert(rows), []
        for conditions in self._conditions:
            self._check_stopped()
            by_filter.append(evaluate(conditions, traces, self.positions))
        return zip(*by_filter, strict=True) if by_filter else repeat(())

    def explain_rows(self, rows: Sequence[Any]) -> list[list[ConditionResult]]:
        """Return the results of the conditions of the first filter for each row."""
        return [explain(self._conditions[0], trace, self.positions) for trace in self._convert(rows)]

    def _convert(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows with the values that conditions expect."""
        converted = {
            name: place
            for name, place in self.positions.items()
            if name in self.loaded or name in LISTS or name in ("errors", "feedback", "texts")
        }
        if not converted:
            return rows
        traces, keys = list(map(list, rows)), [row[self.key_column] for row in rows]
        for name, place in converted.items():
            values = [row[place] for row in rows]
            for trace, value in zip(traces, self._convert_values(name, keys, values), strict=True):
                trace[place] = value
        return traces

    def _convert_values(self, name: str, keys: Sequence[Key], values: Sequence[Any]) -> Iterable[Any]:
        if name in LISTS:
            return self._complete_lists(name, keys, values)
        if name == "errors":
            errors = self.read_errors([key for key, count in zip(keys, values, strict=True) if count])
            return [errors.get(key, ()) for key in keys]
        if name == "feedback":
            feedback = self.read_feedback(keys, self._feedback_names())
            return [feedback.get(key, _NO_KEYS) for key in keys]
        if name == "texts":
            texts = {filter.text for filter in self._filters if filter.text is not None}
            found = {text: self.find_text(text, keys) for text in texts}
            return [
                [text for text, traces in found.items() if key in traces] if self.is_indexed(value) else None
                for key, value in zip(keys, values, strict=True)
            ]
        return [self.load(name, value) for value in values]

    def _complete_lists(self, name: str, keys: Sequence[Key], values: Sequence[Any]) -> Iterable[Any]:
        """Return lists, to which the wanted values that only the spans have are added if they have reached their
        maximum length.
        """
        condition, column = LISTS[name]
        wanted = {value for filter in self._filters if (value := getattr(filter, condition)) is not None}
        lists = [self.load(name, value) if name in self.loaded else value for value in values]
        full = [
            key
            for key, listed in zip(keys, lists, strict=True)
            if len(listed) >= MAX_LISTED and not wanted.issubset(listed)
        ]
        if full:
            found = self.find_listed(full, column, wanted)
            lists = [[*listed, *found.get(key, ())] for key, listed in zip(keys, lists, strict=True)]
        return lists

    def _feedback_names(self) -> set[str]:
        names = set[str]()
        for filter in self._filters:
            names.update((key for key, _, _ in filter.feedback), filter.missing, filter.untried)
            names.update(filter.failed, filter.skipped)
        return names
