"""What a trace counts for in the hourly sums, and what is said of it: read from rows, added up with a sign.

A trace stands in the cell of its hour, project, environment and name, and in one more for each model that it has
called, with that model's tokens and cost. What is said of it stands in the same cells. Amounts are integers here, in
units of 2^-80, so that what was added can be taken away, in any order, and nothing stays.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from spanwise.collector.filters import EVALUATOR
from spanwise.collector.stores.sqlite._latencies import bin_of
from spanwise.collector.stores.sqlite._rollup import RollUp
from spanwise.collector.stores.sqlite._sql import find_many
from spanwise.collector.stores.sqlite._values import INT_MAX

HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS
FINE = 80  # binary digits of an amount behind the point
AT_ONCE = 500  # traces between two pauses
MOST_ROWS = 4_000  # of an hour; who sends another name with each trace costs no more
MANY_MODELS, LONG_MODELS = 100, 50_000  # of one trace, and characters of them: beyond, its hour is read from rows
OWN, LIVE, OF_EXPERIMENT = 0, 1, 2
WHOLE = ""  # in place of a model: the cell of traces as such
# Hour (start_ns // HOUR_NS, towards zero, as SQL divides), project, environment, name, shown, model
Cell: TypeAlias = tuple[int, str, str, str, int, str]

# Of an evaluator's own, which no list shows; live; of an experiment
_KIND = f"CASE WHEN t.experiment_id IS NOT NULL THEN {OF_EXPERIMENT} ELSE t.kind IS NOT '{EVALUATOR}' END"
_TEXTS = ", ".join(f"CAST(coalesce(t.{name}, '') AS TEXT)" for name in ("project", "environment", "name"))
_TOKENS = ", ".join(f"CAST(coalesce(t.{name}, 0) AS INTEGER)" for name in ("input_tokens", "output_tokens"))
# Whatever a damaged row holds counts for something: it can be written again, and deleted
_ROW = (
    f"t.id, t.start_ns / {HOUR_NS}, {_TEXTS}, {_KIND}, max(0, coalesce(t.end_ns, t.start_ns) - t.start_ns),"
    f" t.status IS 'error', {_TOKENS}, CAST(t.cost AS REAL), CAST(t.models AS TEXT)"
)
_OF_KEYS = f"SELECT {_ROW} FROM traces t WHERE t.span_count > 0 AND t.start_ns IS NOT NULL AND t.id IN (%s)"
# Of a row `f` on a trace: whether it is a person's, under a key under which a judge has spoken on the same trace
CHECKS = (
    "(f.source = 'human' AND EXISTS (SELECT 1 FROM feedback j INDEXED BY feedback_by_trace"
    " WHERE j.trace = f.trace AND j.key = f.key AND j.source = 'model'))"
)
COUNTS = f"f.standing >= 1 AND NOT {CHECKS}"
_ALL = f"SELECT f.trace, f.key, f.label, f.outcome, f.score, {COUNTS} FROM feedback f"
_SAID = f"SELECT f.trace, f.key, f.label, f.outcome, f.score FROM feedback f WHERE {COUNTS}"

OfModel: TypeAlias = tuple[int, int, int, float | None]  # calls, input tokens, output tokens, cost
_MODELS = msgspec.json.Decoder(dict[str, OfModel])


class TooMuch(Exception):
    """More than sums are kept of: the hour is read from rows."""


class Counted(NamedTuple):
    """What a trace counts for."""

    hour: int
    project: str
    environment: str
    name: str
    shown: int
    latency_ns: int
    error: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    models: str | None

    def cells(self) -> list[Cell]:
        """Where it stands. Raises `TooMuch`."""
        return [(*self[:5], model) for model in (WHOLE, *map(named, self.by_model()))]

    def by_model(self) -> dict[str, OfModel]:
        """Calls, input tokens, output tokens and cost. Raises `TooMuch`."""
        if self.models is None:
            return {}
        if len(self.models) > LONG_MODELS:
            raise TooMuch
        try:
            by_model = _MODELS.decode(self.models)
        except msgspec.MsgspecError:  # it is damaged
            raise TooMuch from None
        if not 0 < len(by_model) <= MANY_MODELS:
            raise TooMuch
        return by_model

    @property
    def place(self) -> tuple[object, ...]:
        """What decides in which cells it stands."""
        try:
            return tuple(self.cells())
        except TooMuch:
            return self[:5]


def counted(rolled: RollUp) -> Counted:
    """What a trace counts for of which this is all that is known: the same as is read of its row once it is written."""
    shown = OF_EXPERIMENT if rolled.experiment_id is not None else int(rolled.kind != EVALUATOR)
    return Counted(
        rolled.start_ns // HOUR_NS,
        rolled.project,
        rolled.environment,
        rolled.name,
        shown,
        rolled.end_ns - rolled.start_ns if rolled.end_ns > rolled.start_ns else 0,
        rolled.status == "error",
        rolled.input_tokens,
        rolled.output_tokens,
        rolled.cost,
        rolled.models,
    )


def named(value: str) -> str:
    """A model or a label as the tables have it: one that is empty is told from none."""
    return f"={value}"


def units(amount: float) -> int:
    """An amount in units of 2^-80; what is smaller than half of one is lost. Raises `TooMuch` for one without end."""
    try:
        numerator, denominator = amount.as_integer_ratio()
    except (OverflowError, ValueError):
        raise TooMuch from None
    return ((numerator << FINE + 1) // denominator + 1) >> 1


def amount(units: int) -> float:
    """The amount of so many units. Raises `TooMuch` for one that no float can hold."""
    try:
        return units / (1 << FINE)
    except OverflowError:
        raise TooMuch from None


class Part:
    """What is added to (or, below zero, taken from) a cell."""

    __slots__ = ("bins", "cost", "errors", "input_tokens", "n", "output_tokens")

    def __init__(self) -> None:
        self.n = self.errors = self.input_tokens = self.output_tokens = self.cost = 0
        self.bins: Counter[int] = Counter()

    def add(self, sign: int, bin: int, error: int, input_tokens: int, output_tokens: int, cost: float) -> None:
        self.n += sign
        self.errors += sign * error
        self.input_tokens += sign * input_tokens
        self.output_tokens += sign * output_tokens
        if cost:
            self.cost += sign * units(cost)
        self.bins[bin] += sign

    def merge(self, other: Part) -> None:
        self.n += other.n
        self.errors += other.errors
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cost += other.cost
        for bin, count in other.bins.items():
            self.bins[bin] += count


class Said:
    """What is added to what is said under a key and a label in a cell; `scores`: how often each."""

    __slots__ = ("failed", "n", "said", "scores", "skipped", "total")

    def __init__(self) -> None:
        self.said = self.n = self.total = self.failed = self.skipped = 0
        self.scores: Counter[float] = Counter()

    def add(self, sign: int, outcome: str, score: float | None) -> None:
        if outcome == "score":
            self.said += sign
        elif outcome == "error":
            self.failed += sign
        else:
            self.skipped += sign
        if score is not None:
            self.n += sign
            self.total += sign * units(score)
            self.scores[score] += sign

    def merge(self, other: Said) -> None:
        self.said += other.said
        self.n += other.n
        self.total += other.total
        self.failed += other.failed
        self.skipped += other.skipped
        for score, times in other.scores.items():
            self.scores[score] += times

    def condense(self) -> None:
        """Keep of scores that were only added the least and the greatest alone."""
        if len(self.scores) > 2:
            least, most = min(self.scores), max(self.scores)
            self.scores = Counter({least: self.scores[least], most: self.scores[most]})


class Delta:
    """What changes the sums of an hour."""

    __slots__ = ("parts", "said")

    def __init__(self) -> None:
        self.parts: dict[Cell, Part] = {}
        self.said: dict[tuple[Cell, str, str], Said] = {}

    def add_trace(self, one: Counted, sign: int) -> None:
        """Raises `TooMuch`."""
        bin, place = bin_of(one.latency_ns), one[:5]
        whole = self._part((*place, WHOLE))
        whole.add(sign, bin, one.error, one.input_tokens, one.output_tokens, one.cost or 0.0)
        for model, (_, tokens_in, tokens_out, cost) in one.by_model().items():
            self._part((*place, named(model))).add(sign, bin, one.error, tokens_in, tokens_out, cost or 0.0)

    def add_said(self, cells: Iterable[Cell], row: Sequence[Any], sign: int) -> None:
        """Count a row of feedback: key, label, outcome, score. Raises `TooMuch`."""
        key, label, outcome, score = row
        label = "" if label is None else named(label)
        for cell in cells:
            said = self.said.get((cell, key, label))
            if said is None:
                said = self.said[cell, key, label] = Said()
            said.add(sign, outcome, score)

    def add(self, other: Delta) -> None:
        """What changes by both."""
        for cell, part in other.parts.items():
            self._part(cell).merge(part)
        for place, said in other.said.items():
            if place in self.said:
                self.said[place].merge(said)
            else:
                self.said[place] = said

    def _part(self, cell: Cell) -> Part:
        part = self.parts.get(cell)
        if part is None:
            part = self.parts[cell] = Part()
        return part


def of_traces(db: sqlite3.Connection, keys: Iterable[int]) -> dict[int, Counted]:
    """What traces count for, by key; those of which only feedback is here count for nothing."""
    return {row[0]: Counted(*row[1:]) for row in find_many(db, _OF_KEYS, keys)}


def said_of(db: sqlite3.Connection, keys: Iterable[int]) -> list[Any]:
    """All that counts of what is said of traces: trace, key, label, outcome, score."""
    return find_many(db, _SAID + " AND f.trace IN (%s)", keys)


def all_under(db: sqlite3.Connection, pairs: Iterable[tuple[int, str]]) -> list[Any]:
    """The same of traces under a key each, with all that does not count, and at the end whether it does; and none of
    what else such a trace may have a lot of.
    """
    by_key: dict[str, list[int]] = {}
    for trace, key in pairs:
        by_key.setdefault(key, []).append(trace)
    sql = _ALL + " WHERE f.key = ? AND f.trace IN (%s)"
    return [row for key, traces in by_key.items() for row in find_many(db, sql, traces, (key,))]


def stretch(hour: int, width: int = HOUR_NS) -> tuple[int, int | None]:
    """The starts [since, until) of which `start_ns / width` is `hour`: division is towards zero. Until None: as late as
    a column can hold.
    """
    if hour > 0:
        until = (hour + 1) * width
        return hour * width, until if until <= INT_MAX else None
    return (hour - 1) * width + 1, (width if hour == 0 else hour * width + 1)


def bounds(hour: int) -> tuple[int, int]:
    """The first and the last start that lie in an hour."""
    since, until = stretch(hour)
    return since, INT_MAX if until is None else until - 1


def keys_of(db: sqlite3.Connection, hour: int, at_once: int) -> Iterator[list[int]]:
    """The traces that start within an hour, some at a time."""
    sql = "SELECT id FROM traces INDEXED BY traces_by_start WHERE start_ns BETWEEN ? AND ? AND span_count > 0"
    cursor = db.execute(sql, bounds(hour))
    while rows := cursor.fetchmany(at_once):
        yield [row[0] for row in rows]


def count(db: sqlite3.Connection, hour: int, rest: Callable[[], object] = lambda: None) -> Delta | None:
    """What the rows of an hour add up to; None where that is more than sums are kept of. Rests now and then."""
    counted = Delta()
    try:
        for keys in keys_of(db, hour, AT_ONCE):
            _add(db, counted, keys)
            if len(counted.parts) + len(counted.said) > MOST_ROWS:
                return None
            rest()
    except TooMuch:
        return None
    return counted


def _add(db: sqlite3.Connection, delta: Delta, keys: list[int]) -> None:
    traces = of_traces(db, keys)
    for one in traces.values():
        delta.add_trace(one, 1)
    cells = {key: one.cells() for key, one in traces.items()}
    for trace, *row in said_of(db, traces):
        delta.add_said(cells[trace], row, 1)
    for said in delta.said.values():
        said.condense()
