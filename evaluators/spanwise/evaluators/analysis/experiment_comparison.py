"""Comparison of experiments, and history of a dataset, for terminal, notebook, pandas and Markdown."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from spanwise.collector import connect
from spanwise.collector.errors import NotFound, StoreError
from spanwise.collector.formatting import escape_markdown, first_line
from spanwise.collector.records import Experiment as Record
from spanwise.collector.records import Trace
from spanwise.collector.statistics import Contrast, Word
from spanwise.collector.stores import (
    Change,
    ComparisonOptions,
    HistoryPoint,
    JudgeAgreement,
    Slice,
    Store,
    StoredComparison,
    get_judge_keys,
    list_history,
)
from spanwise.evaluators.experiments import (
    Experiment,
    format_labels,
    format_number,
    make_html_table,
    make_text_table,
    render_text,
)
from spanwise.evaluators.interface import StoreLocation, resolve_store

if TYPE_CHECKING:
    import pandas


# Comparison of experiments for terminal, notebook, pandas and Markdown: conclusions, regressions and slices.

COLOURS: Mapping[str, str] = {"better": "bold green", "worse": "bold red", "higher": "bold", "lower": "bold"}
WORDS: Sequence[Word] = ("worse", "better", "lower", "higher", "non-inferior", "equivalent", "inconclusive")
SHOWN_REGRESSIONS = 5
SHOWN_LABEL_CHANGES = 5
MIN_SLICE = 5  # fewest pairs of a slice that is listed
_MAX_TEXT = 300  # characters of an answer or comment in Markdown and HTML


class CompareOptions(TypedDict, total=False):
    """Options of `compare()`; see `ComparisonOptions`."""

    primary: Sequence[str] | None
    margin: Mapping[str, float] | None
    good_labels: Mapping[str, Collection[str]] | None
    cluster: str | None
    all_pairs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Output of one run, the error of its task if it failed, and the evaluators' comments by key."""

    trace_id: str
    outputs: Any
    error: str | None
    comments: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Example that got worse under one or more keys, with both answers. The answer is None if its run is missing."""

    example_id: str
    inputs: Any
    changes: tuple[Change, ...]
    before: Answer | None
    after: Answer | None


class Comparison:
    """Comparison of several experiments: with the first of them, the baseline, or each with each.

    Everything is read from the stores when it is used, and only scores: answers are read for the regressions shown.
    """

    def __init__(self, sides: Sequence[tuple[Store, Record]], options: ComparisonOptions | None = None) -> None:
        self._stored = StoredComparison(sides, options)
        names = Counter(record.name for _, record in sides)
        self.names: list[str] = [
            f"{record.name} ({record.id[:8]})" if names[record.name] > 1 else record.name for _, record in sides
        ]

    @property
    def records(self) -> list[Record]:
        """Return the records of the compared experiments."""
        return [record for _, record in self._stored.sides]

    @cached_property
    def experiments(self) -> tuple[Experiment, ...]:
        """Return the compared experiments, loaded from their stores."""
        return tuple(Experiment.load(store, record.id) for store, record in self._stored.sides)

    @property
    def comparisons(self) -> list[tuple[int, int]]:
        """Return the positions of the experiments that are compared: (before, after)."""
        return self._stored.comparisons

    @property
    def keys(self) -> list[str]:
        """Return all keys with scores: `task_ok` first, if a task has failed; latency, cost and tokens last."""
        return self._stored.keys

    def _index(self, other: int, baseline: int) -> int:
        if (baseline, other) not in self.comparisons:
            raise ValueError(f"experiments {baseline} and {other} are not compared; pairs: {self.comparisons}")
        return self.comparisons.index((baseline, other))

    def contrasts(self, other: int = 1, baseline: int = 0) -> Mapping[str, Contrast]:
        """Return per key how an experiment differs from an earlier one, in the order of `keys`.

        Raises `ValueError` for experiments that are not compared, and for options that name unknown keys.
        """
        return self._stored.contrasts[self._index(other, baseline)]

    def __getitem__(self, key: str) -> Contrast:
        """Return the contrast of one key of the first comparison. Raises `KeyError`."""
        return self._stored.contrasts[0][key]

    def changes(self, other: int = 1, baseline: int = 0) -> Iterator[Change]:
        """Yield the examples whose score changed, by key and example. Labels count if some are declared good."""
        return self._stored.changes(self._index(other, baseline))

    def regressions(self, other: int = 1, baseline: int = 0, *, limit: int = 20) -> list[Regression]:
        """Return the examples that got worse, with both answers and comments.

        Examples that got worse under the most primary keys come first, then those that changed most.
        """
        ranked = self._stored.rank_changes(self._index(other, baseline))
        worse = {
            id: tuple(change for change in changes if change.better is False)
            for id, changes in ranked.items()
            if any(change.better is False for change in changes)
        }
        chosen = list(worse)[:limit]
        answers = [self._read_answers(side, chosen) for side in (baseline, other)]
        examples = self._stored.examples
        return [
            Regression(
                example_id=id,
                inputs=examples[id].inputs if id in examples else None,
                changes=worse[id],
                before=answers[0].get(id),
                after=answers[1].get(id),
            )
            for id in chosen
        ]

    def _read_answers(self, side: int, example_ids: Sequence[str]) -> dict[str, Answer]:
        """Return the answer of each example's first run."""
        store, _ = self._stored.sides[side]
        wanted, first = set(example_ids), dict[str, str]()
        for run in self._stored.runs[side]:
            id = run.example_id or run.trace_id
            if id in wanted:
                first.setdefault(id, run.trace_id)
        try:
            traces = {trace.trace_id: trace for trace in store.many(list(first.values()))}
        except NotFound:
            traces = {}
        return {id: _get_answer(traces[trace_id]) for id, trace_id in first.items() if trace_id in traces}

    def slices(self, other: int = 1, baseline: int = 0, *, limit: int = 10) -> list[Slice]:
        """Return the slices of the examples in which a primary key changed most compared with the other examples.

        Slices are the values of: tags of runs, split, categories and metadata of examples, and evaluators' labels in
        the later experiment. They have at least five examples, and are exploratory.
        """
        return self._stored.slices(self._index(other, baseline), limit)

    def slice(self, name: str, other: int = 1, baseline: int = 0) -> Mapping[str, Contrast]:
        """Return the contrasts over the examples of one slice, such as "split=hard", with conclusions.

        Raises `ValueError` for an unknown slice.
        """
        return self._stored.contrast_slice(name, self._index(other, baseline))

    # --- as data, table and text ------------------------------------------------------------------------------------

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one dict per comparison and key: means over the pairs, change, interval, p, conclusion and counts."""
        return [
            {"before": self.names[first], "after": self.names[second], **describe_contrast(contrast)}
            for (first, second), contrasts in zip(self.comparisons, self._stored.contrasts, strict=True)
            for contrast in contrasts.values()
        ]

    def to_pandas(self) -> pandas.DataFrame:
        """Return the result of `to_rows` as a DataFrame."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    def describe(self, other: int = 1, baseline: int = 0) -> str:
        """Return the conclusions of the primary keys in one line: "b against a: correctness worse, exact better"."""
        words = defaultdict(list)
        for key, contrast in self.contrasts(other, baseline).items():
            if contrast.is_primary:
                words[contrast.word].append(key)
        parts = [f"{word}: {', '.join(words[word])}" for word in WORDS if words[word]]
        return f"{self.names[other]} against {self.names[baseline]}: {'; '.join(parts) or 'no scores to compare'}"

    def to_markdown(self, url: str | None = None) -> str:
        """Return the comparison as Markdown, conclusions first, then regressions, for a pull request.

        `url` is the address of a collector to which the traces link.
        """
        parts = []
        for baseline, other in self.comparisons:
            contrasts = self.contrasts(other, baseline)
            parts.append(f"### {escape_markdown(self.describe(other, baseline))}")
            head, rows = self._cells(baseline, other)
            lines = ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in [head, *rows]]
            parts.append("\n".join([lines[0], "|" + " --- |" * len(head), *lines[1:]]))
            parts.append(
                "\n".join(
                    f"- **{escape_markdown(key)}: {contrast.word}.** {escape_markdown(contrast.sentence)}"
                    for key, contrast in contrasts.items()
                    if contrast.is_primary
                )
            )
            if regressions := self.regressions(other, baseline, limit=SHOWN_REGRESSIONS):
                parts.append("#### Regressions")
                parts += [_markdown_regression(each, url) for each in regressions]
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_html(self) -> str:
        """Return the comparison as HTML: per comparison a table, the sentences, and the regressions."""
        parts = []
        for baseline, other in self.comparisons:
            parts.append(make_html_table(self.describe(other, baseline), *self._cells(baseline, other)))
            sentences = [
                f"<li><b>{escape(key)}: {contrast.word}.</b> {escape(contrast.sentence)}</li>"
                for key, contrast in self.contrasts(other, baseline).items()
                if contrast.is_primary
            ]
            sentences += [f"<li>{escape(line)}</li>" for line in self._list_agreement(baseline, other)]
            parts.append(f"<ul>{''.join(sentences)}</ul>")
            if regressions := self.regressions(other, baseline, limit=SHOWN_REGRESSIONS):
                head = ["example", "inputs", "changes", self.names[baseline], self.names[other]]
                rows = [
                    [
                        each.example_id[:12],
                        _shorten(each.inputs),
                        _describe_changes(each),
                        *map(_describe_answer, (each.before, each.after)),
                    ]
                    for each in regressions
                ]
                parts.append(make_html_table("Regressions", head, rows))
        return "".join(parts)

    _repr_html_ = to_html  # for notebooks

    def __str__(self) -> str:
        return render_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for baseline, other in self.comparisons:
            head, rows = self._cells(baseline, other)
            colored: list[list[str | Text]] = [
                [row[0], Text(row[1], COLOURS.get(row[1].split()[0], "")), *row[2:]] for row in rows
            ]
            yield make_text_table(self.describe(other, baseline), head, colored)
            for key, contrast in self.contrasts(other, baseline).items():
                if contrast.is_primary:
                    yield Text(f"{key}: {contrast.word}. {contrast.sentence}")
            yield from map(Text, self._list_agreement(baseline, other))
            regressions = self.regressions(other, baseline, limit=SHOWN_REGRESSIONS)
            if regressions:
                yield Text("\nRegressions")
            for each in regressions:
                yield Text(f"  {each.example_id[:12]}  {_describe_changes(each)}")
                for name, answer in ((self.names[baseline], each.before), (self.names[other], each.after)):
                    yield Text(f"    {name}: {_describe_answer(answer)}")

    def _cells(self, baseline: int, other: int) -> tuple[list[str], list[list[str]]]:
        """Return head and rows of the table of one comparison."""
        head = ["key", "conclusion", self.names[baseline], self.names[other]]
        rows = []
        for key, contrast in self.contrasts(other, baseline).items():
            sides = [self._format_value(contrast, side) for side in ("before", "after")]
            moved = (contrast.wins, contrast.losses) if contrast.rising is not None else (contrast.up, contrast.down)
            interval = contrast.interval
            form = "{:.3g} to {:.3g}" if contrast.kind == "ratio" else "{:+.3g} to {:+.3g}"
            change = contrast.change
            rows.append(
                [
                    key,
                    contrast.word if contrast.is_primary else f"{contrast.word} (exploratory)",
                    *sides,
                    "" if change is None else f"×{change:.3g}" if contrast.kind == "ratio" else f"{change:+.3g}",
                    "" if interval is None else form.format(*interval),
                    contrast.p_text if contrast.pairs else "",
                    f"{contrast.changed_labels} changed, {contrast.ties} same"
                    if contrast.is_unordered
                    else f"{moved[0]}/{moved[1]}/{contrast.ties}",
                ]
            )
        return [*head, "change", "interval", "p", "better/worse/same"], rows

    @cached_property
    def _agreement(self) -> list[dict[str, str]]:
        """Return per experiment the agreement of its judges with people by key; {} if the store cannot be read."""
        found = []
        for store, record in self._stored.sides:
            try:
                found.append(JudgeAgreement(store).said(get_judge_keys(record)))
            except StoreError:
                found.append({})
        return found

    def _list_agreement(self, *places: int) -> list[str]:
        """Return a line per experiment and judge: "polite of prompt-a agrees with people 75 % (…)"."""
        return [
            f"{key} of {self.names[place]} {agreement}"
            for place in places
            for key, agreement in self._agreement[place].items()
            if key in self.keys
        ]

    def _format_value(self, contrast: Contrast, side: str) -> str:
        mean = getattr(contrast, side)
        if contrast.table:
            counts: Counter[str] = Counter()
            for labels, count in contrast.table.items():
                counts[labels[side == "after"]] += count
            return format_labels(counts)
        return format_number(mean) if mean is not None else "–"


def compare(
    *experiments: Experiment | str, store: StoreLocation | None = None, **options: Unpack[CompareOptions]
) -> Comparison:
    """Compare experiments; with a `store` (an open store, a path or a URL) they may also be given by id or name.

    - `primary=["correctness"]` names the keys that decide. The others are exploratory: each conclusion is made at
      95 % for itself. Without it, the keys of evaluators declared primary decide, or else all keys.
    - `margin={"correctness": 0.02}` gives the largest difference that does not matter, in units of the score.
    - `good_labels={"tone": ["friendly"]}` gives the labels that count as good.
    - `cluster="customer"` names a metadata field of the examples: those with an equal value count as one pair.
    - `all_pairs=True` compares each experiment with each, instead of the first with the others.

    Raises `ValueError` for fewer than two experiments, for names without a store, and for invalid options.
    """
    if len(experiments) < 2:
        raise ValueError(f"compare() requires two or more experiments, got {len(experiments)}")
    opened = resolve_store(store) if store is not None else None

    def find(experiment: Experiment | str) -> tuple[Store, Record]:
        if isinstance(experiment, Experiment):
            return experiment.store, experiment.record
        if opened is None:
            raise ValueError(f"experiment {experiment!r} is a name: pass its store, compare(…, store=…)")
        return opened, opened.experiment(experiment)

    return Comparison([find(experiment) for experiment in experiments], ComparisonOptions(**options))


def describe_contrast(contrast: Contrast) -> dict[str, Any]:
    """Return a contrast as plain values: the columns of `Comparison.to_pandas()`."""
    low, high = contrast.interval or (None, None)
    return {
        "key": contrast.key,
        "kind": contrast.kind,
        "primary": contrast.is_primary,
        "pairs": contrast.pairs,
        "mean_before": contrast.before,
        "mean_after": contrast.after,
        "change": contrast.change,
        "low": low,
        "high": high,
        "level": contrast.level,
        "p": contrast.p,
        "conclusion": contrast.word,
        "sentence": contrast.sentence,
        "wins": contrast.wins,
        "losses": contrast.losses,
        "up": contrast.up,
        "down": contrast.down,
        "ties": contrast.ties,
        "changed_labels": contrast.changed_labels,
        "only_before": contrast.only_before,
        "only_after": contrast.only_after,
    }


def _get_answer(trace: Trace) -> Answer:
    comments = {each.key: each.comment for each in trace.feedback if each.comment}
    return Answer(trace_id=trace.trace_id, outputs=trace.root.outputs, error=trace.root.error, comments=comments)


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _describe_changes(regression: Regression) -> str:
    return ", ".join(f"{each.key} {each.before:.4g} → {each.after:.4g}" for each in regression.changes)


def _describe_answer(answer: Answer | None) -> str:
    if answer is None:
        return "no run"
    text = f"failed: {first_line(answer.error)}" if answer.error is not None else _shorten(answer.outputs)
    return "; ".join([text, *(f"{key}: {first_line(comment)}" for key, comment in answer.comments.items())])


def _markdown_regression(regression: Regression, url: str | None) -> str:
    def describe(answer: Answer | None) -> str:
        text = escape_markdown(_describe_answer(answer))
        if answer is None or url is None:
            return text
        return f"{text} ([trace]({url.rstrip('/')}/traces/{answer.trace_id}))"

    lines = [
        f"- `{re.sub(r'[^0-9A-Za-z_.:-]', '_', regression.example_id)[:40]}` {escape_markdown(_describe_changes(regression))}",
        f"  - inputs: {escape_markdown(_shorten(regression.inputs))}",
        f"  - before: {describe(regression.before)}",
        f"  - after: {describe(regression.after)}",
    ]
    return "\n".join(lines)


# History of a dataset: the mean of each key with its interval per experiment, in order of time.


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
