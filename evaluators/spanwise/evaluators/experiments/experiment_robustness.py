"""Robustness of an experiment against perturbations, for terminal, notebook and pandas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from spanwise.collector.stores import Flip, KindRobustness
from spanwise.evaluators.experiments.experiment_summary import (
    format_share,
    make_html_table,
    make_text_table,
    render_text,
)

if TYPE_CHECKING:
    import pandas

SHOWN_FLIPS = 10
_MAX_TEXT = 200  # characters of inputs
_HEAD = ["key", "kind", "stable", "interval", "base cases", "pass→fail", "fail→pass", "missing", "unscored"]
_FLIP_HEAD = ["key", "kind", "flip", "base", "base inputs", "perturbed", "perturbed inputs"]


class Robustness(Mapping[tuple[str, str], KindRobustness]):
    """Robustness by kind of perturbation and key: `robustness["typos", "exact"].share`."""

    def __init__(self, title: str, results: Mapping[tuple[str, str], KindRobustness]) -> None:
        self.title = title
        self._results = results

    def __getitem__(self, kind_and_key: tuple[str, str]) -> KindRobustness:
        return self._results[kind_and_key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of perturbation in the experiment."""
        return list(dict.fromkeys(kind for kind, _ in self._results))

    def flips(self, kind: str | None = None, key: str | None = None) -> list[Flip]:
        """Return the flips of one kind and one key, or of all: first those from pass to fail, then from fail to pass."""
        chosen = [
            flip
            for result in self.values()
            if kind in (None, result.kind) and key in (None, result.key)
            for flip in result.flips
        ]
        return sorted(chosen, key=lambda flip: not flip.base_passes)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one dict per kind and key: share, interval and counts."""
        rows = []
        for result in self.values():
            low, high = result.interval or (None, None)
            counts = {name: value for name, value in asdict(result).items() if name != "flips"}
            flips = {
                "pass_to_fail": sum(flip.base_passes for flip in result.flips),
                "fail_to_pass": sum(not flip.base_passes for flip in result.flips),
            }
            rows.append({**counts, **flips, "share": result.share, "low": low, "high": high})
        return rows

    def to_pandas(self) -> pandas.DataFrame:
        """Return the result of `to_rows` as a DataFrame."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self:
            yield Text(f"{self.title}: no perturbed examples with scores that pass or fail")
            return
        yield make_text_table(self.title, _HEAD, self._cells())
        flips = self.flips()
        for flip in flips[:SHOWN_FLIPS]:
            yield Text(f"{flip.key}, {flip.kind}: {flip.direction}")
            yield Text(f"  {flip.base_id[:12]}  {_shorten(flip.base_inputs)}  (trace {flip.base_trace_id})")
            yield Text(f"  {flip.example_id[:12]}  {_shorten(flip.inputs)}  (trace {flip.trace_id})")
        if len(flips) > SHOWN_FLIPS:
            yield Text(f"… and {len(flips) - SHOWN_FLIPS} more flips: see flips()")

    def _repr_html_(self) -> str:
        rows = [
            [
                flip.key,
                flip.kind,
                flip.direction,
                f"{flip.base_id[:12]} (trace {flip.base_trace_id})",
                _shorten(flip.base_inputs),
                f"{flip.example_id[:12]} (trace {flip.trace_id})",
                _shorten(flip.inputs),
            ]
            for flip in self.flips()[:SHOWN_FLIPS]
        ]
        table = make_html_table(self.title, _HEAD, self._cells())
        return table + (make_html_table("Flips", _FLIP_HEAD, rows) if rows else "")

    def _cells(self) -> list[list[str]]:
        cells = []
        for row in self.to_rows():
            interval = "" if row["low"] is None else f"{row['low']:.1%} to {row['high']:.1%}"
            counts = [row[name] for name in ("cases", "pass_to_fail", "fail_to_pass", "missing", "unscored")]
            cells.append([row["key"], row["kind"], format_share(row["share"]), interval, *map(str, counts)])
        return cells


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
