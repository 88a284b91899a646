"""Copy-on-access views of cases, traces and runs, so that evaluators cannot change shared data.

Plain values are copied. Records (a run with its trace, an example, a document) become views, which copy a field on
first access. Built-in evaluators change nothing, and get the original objects.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Mapping
from dataclasses import fields as fields_of
from typing import Any, ClassVar

from spanwise.collector.records import Case, Document, Example, Run, Trace

IMMUTABLE_TYPES = frozenset({str, int, float, bool, type(None), bytes})  # immutable types, whose values need no copies
_RUN_TYPES = frozenset({"chain", "llm", "retriever", "tool", "embedding", "prompt", "parser"})  # LangSmith's run types


def copy_value(value: Any) -> Any:
    """Return a copy that may be changed without affecting the original.

    Values that cannot be copied are returned as they are.
    """
    try:
        return _copy_container(value)
    except RecursionError:  # the value is nested hundreds of levels deep, or circular
        return value


def _copy_container(value: Any) -> Any:
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if kind is dict:
        return {
            key: member if type(member) in IMMUTABLE_TYPES else _copy_container(member) for key, member in value.items()
        }
    if kind is list:
        return [member if type(member) in IMMUTABLE_TYPES else _copy_container(member) for member in value]
    if kind is tuple:
        return tuple([_copy_container(member) for member in value])
    view = _VIEW_FACTORIES.get(kind)
    return view(value) if view is not None else _deep_copy(value)


def _deep_copy(value: Any) -> Any:
    if isinstance(value, RecordView):
        return value
    try:
        return copy.deepcopy(value)
    except RecursionError:
        raise
    except Exception:  # the value cannot be copied, such as an open file, a lock or a read-only mapping
        return value


class RecordView:
    """View of a record that copies its fields on access. Each subclass also derives from the class of its record."""

    __slots__ = ()
    _record: ClassVar[type]
    _names: ClassVar[frozenset[str]]
    _of: Any

    def __init_subclass__(cls) -> None:
        cls._record = cls.__bases__[1]
        cls._names = frozenset(field.name for field in fields_of(cls._record))
        cls.__dataclass_fields__ = cls._record.__dataclass_fields__  # type: ignore[attr-defined]  # orjson looks here

    def __getattr__(self, name: str) -> Any:  # called only for attributes that are not set yet
        if name not in self._names:
            raise AttributeError(f"a {self._record.__name__.lower()} has no {name!r}", name=name, obj=self)
        value = self._copy_of(name)
        object.__setattr__(self, name, value)
        return value

    def _copy_of(self, name: str) -> Any:
        value = getattr(self._of, name)
        return value if type(value) in IMMUTABLE_TYPES else copy_value(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, self._record):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._names)

    __hash__ = None  # type: ignore[assignment]  # records hold dicts: they have none either


class DocumentView(RecordView, Document):
    """Copy-on-access view of a document."""

    __slots__ = ("_of",)


class ExampleView(RecordView, Example):
    """Copy-on-access view of an example."""

    __slots__ = ("_of",)


class TraceView(RecordView, Trace):
    """Copy-on-access view of a trace."""

    __slots__ = ("_of", "_tree")
    _tree: RunTree

    def _copy_of(self, name: str) -> Any:
        if name == "root":
            return _make_run_view(self._of.root, self._tree)
        if name == "runs":
            of_root = self._of.root
            return tuple([self.root if run is of_root else _make_run_view(run, self._tree) for run in self._of.runs])
        return RecordView._copy_of(self, name)


class CaseView(RecordView, Case):
    """Copy-on-access view of a case."""

    __slots__ = ("_of",)


class RunView(RecordView, Run):
    """Copy-on-access view of a run that also has LangSmith's attributes: `child_runs`, `run_type`, `start_time`, …

    As in LangSmith, a root run has its trace id as its id. Any other run has its span id.
    """

    __slots__ = ("_of", "_tree")
    _tree: RunTree

    @property
    def id(self) -> str:
        """Return the run's id in the form that `target_run_id` accepts."""
        return self._tree.id_of(self._of)

    @property
    def child_runs(self) -> list[RunView]:
        """Return the direct children, by start time."""
        return [_make_run_view(run, self._tree) for run in self._tree.below(self._of)]

    @property
    def child_run_ids(self) -> list[str]:
        """Return the ids of the direct children."""
        return [self._tree.id_of(run) for run in self._tree.below(self._of)]

    @property
    def parent_run_id(self) -> str | None:
        """Return the id of the parent run, None at the root."""
        return self._tree.parent_id_of(self._of)

    @property
    def run_type(self) -> str:
        """Return the run's kind under LangSmith's name; "chain" for kinds that LangSmith lacks."""
        return self.kind if self.kind in _RUN_TYPES else "chain"

    @property
    def start_time(self) -> datetime.datetime:
        """Return the start in UTC."""
        return _to_datetime(self.start_ns)

    @property
    def end_time(self) -> datetime.datetime | None:
        """Return the end in UTC; None while the run is open."""
        return _to_datetime(self.end_ns) if self.end_ns else None

    @property
    def latency(self) -> float | None:
        """Return the seconds from start to end; None while the run is open."""
        return self.duration_ns / 1e9 if self.end_ns else None

    @property
    def reference_example_id(self) -> str | None:
        """Return the id of the run's example."""
        return self.example_id

    @property
    def extra(self) -> dict[str, Any]:
        """Return the metadata under LangSmith's name."""
        return {"metadata": self.metadata}

    @property
    def prompt_tokens(self) -> int | None:
        """Return the input tokens of the run itself, without its children."""
        return self._of.usage.input_tokens if self._of.usage else None

    @property
    def completion_tokens(self) -> int | None:
        """Return the output tokens of the run itself, without its children."""
        return self._of.usage.output_tokens if self._of.usage else None

    @property
    def total_tokens(self) -> int | None:
        """Return the tokens of the run itself, without its children."""
        return self._of.usage.total_tokens if self._of.usage else None


class RunTree:
    """Parent-child index of the runs of a trace, built on first use."""

    __slots__ = ("_below", "_trace")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._below: dict[str | None, list[Run]] | None = None

    def below(self, run: Run) -> list[Run]:
        """Return the direct children of a run, by start time."""
        if self._below is None:
            self._below = {}
            for member in self._trace.runs:
                self._below.setdefault(member.parent_id, []).append(member)
        return self._below.get(run.span_id, [])

    def id_of(self, run: Run) -> str:
        """Return LangSmith's id of a run."""
        return run.trace_id if run.span_id == self._trace.root.span_id else run.span_id

    def parent_id_of(self, run: Run) -> str | None:
        """Return LangSmith's id of the parent run."""
        return run.trace_id if run.parent_id == self._trace.root.span_id else run.parent_id


def make_case_view(case: Case) -> Case:
    """Return a copy-on-access view of a case."""
    return case if isinstance(case, RecordView) else _make_view(CaseView, case)


def make_langsmith_example(case: Case) -> Example | None:
    """Return the example of a case in LangSmith's form, with the reference under `outputs`."""
    if case.example is None:
        return None
    example: Example = _make_view(ExampleView, case.example)
    object.__setattr__(example, "outputs", example.reference_outputs)
    return example


def _make_view(kind: Any, record: Any) -> Any:
    view = object.__new__(kind)
    object.__setattr__(view, "_of", record)
    return view


def _make_trace_view(trace: Trace) -> Any:
    view = _make_view(TraceView, trace)
    object.__setattr__(view, "_tree", RunTree(trace))
    return view


def _make_run_view(run: Run, tree: RunTree) -> Any:
    view = _make_view(RunView, run)
    object.__setattr__(view, "_tree", tree)
    return view


def _to_datetime(nanoseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(nanoseconds / 1e9, datetime.UTC)


_VIEW_FACTORIES: Mapping[type, Any] = {
    Case: make_case_view,
    Trace: _make_trace_view,
    Run: lambda run: _make_run_view(run, RunTree(Trace(run, (run,)))),
    Example: lambda example: _make_view(ExampleView, example),
    Document: lambda document: _make_view(DocumentView, document),
}
