"""History of a dataset: the mean of each key with its interval per experiment, in order of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult

from spanwise.collector import connect
from spanwise.collector.stores import HistoryPoint, list_history
from spanwise.evaluators.experiments import format_number, make_text_table, render_text
from spanwise.evaluators.interface import StoreLocation, resolve_store

if TYPE_CHECKING:
    import pandas


class History:
    """Points of a dataset's experiments, earliest first. `print` shows a table."""

    def __init__(self, dataset: str, points: Sequence[HistoryPoint]) -> None:
        self.dataset = dataset
        self.points = tuple(points)

    def __iter__(self) -> Iterator[HistoryPoint]:
        return iter(self.points)

    def __getitem__(self, key: str) -> list[HistoryPoint]:
        """Return the points of one key. Raises `KeyError` if no experiment has it."""
        found = [point for point in self.points if point.key == key]
        if not found:
            known = ", ".join(dict.fromkeys(point.key for point in self.points)) or "none"
            raise KeyError(f"no experiment over {self.dataset!r} has scores of {key!r}; known keys: {known}")
        return found

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per experiment and key."""
        import pandas

        rows = [
            {**asdict(point), "low": point.interval and point.interval[0], "high": point.interval and point.interval[1]}
            for point in self.points
        ]
        return pandas.DataFrame(rows).drop(columns="interval", errors="ignore")

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [
            [
                point.key,
                datetime.fromtimestamp(point.started_ns / 1e9).strftime("%Y-%m-%d %H:%M"),
                point.name,
                format_number(point.mean),
                "" if point.interval is None else "{:.3g} to {:.3g}".format(*point.interval),
                str(point.n),
            ]
            for point in sorted(self.points, key=lambda point: (point.key, point.started_ns))
        ]
        yield make_text_table(f"Experiments over {self.dataset}", ["key", "started", "name", "mean", "95 %", "n"], rows)


def history(dataset: str, *, store: StoreLocation | None = None, limit: int = 50) -> History:
    """Return the mean of each key with its 95 % interval, for the newest experiments over a dataset, earliest first.

    Intervals are computed for the newest experiments, up to 50,000 runs and scores in all.
    """
    return History(dataset, list_history(connect() if store is None else resolve_store(store), dataset, limit=limit))
