"""Analysis of experiments as data, and its report in HTML."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from urllib.parse import quote

from spanwise.collector.records import JSON
from spanwise.collector.records import Experiment as Record
from spanwise.collector.stores import Flip, Store
from spanwise.evaluators.analysis.model_findings import (
    MAPPING_NOTE,
    BooleanLeaderboard,
    HeatmapLeaderboard,
    Insight,
    Problem,
    PromptHeatmap,
    Ranks,
    StandardCoverage,
    UnusableThreshold,
    find_case_problems,
    find_insights,
    find_problems,
    find_unusable_thresholds,
    format_ranks,
    list_compliance,
    make_boolean_leaderboards,
    make_heatmap,
    make_prompt_heatmap,
)
from spanwise.evaluators.analysis.model_results import Cell, ModelResults
from spanwise.evaluators.experiments import Robustness, format_number

# Analysis of experiments: leaderboards, problems, insights, compliance and trade-offs of their models, as data.


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """Models by quality and by one measure of effort, "cost" (US dollars) or "latency" (seconds) per example.

    `front` are the models on the Pareto front: no other model is at least as good and at most as expensive, and better
    in one of the two.
    """

    key: str
    measure: str
    points: Mapping[str, tuple[float, float]]  # by model: effort, quality
    front: tuple[str, ...]


class AnalysisData:
    """Results of an analysis by model. Everything is computed when it is used, from scores alone."""

    def __init__(self, sides: Sequence[tuple[Store, Record]], models: Sequence[str] | None = None) -> None:
        self.results = ModelResults(sides, models)

    @property
    def records(self) -> list[Record]:
        """Return the records of the experiments."""
        return [record for _, record in self.results.sides]

    @property
    def models(self) -> list[str]:
        """Return the models in order of first occurrence."""
        return self.results.models

    @cached_property
    def leaderboard(self) -> HeatmapLeaderboard:
        """Return models × metrics with ranks (H2O's `llm-heatmap-leaderboard`)."""
        return make_heatmap(self.results)

    @cached_property
    def boolean_leaderboards(self) -> list[BooleanLeaderboard]:
        """Return the rates of each boolean evaluator by model (H2O's `llm-bool-leaderboard`)."""
        return make_boolean_leaderboards(self.results)

    def prompts(self, key: str) -> PromptHeatmap:
        """Return models × prompts for one key. Raises `ValueError` for a key without scores."""
        return make_prompt_heatmap(self.results, key)

    @cached_property
    def _case_problems(self) -> list[Problem]:
        return list(find_case_problems(self.results))

    @cached_property
    def problems(self) -> list[Problem]:
        """Return the problems, the severe ones first."""
        return find_problems(self.results, self._case_problems)

    @cached_property
    def unusable_thresholds(self) -> list[UnusableThreshold]:
        """Return thresholds that raise no problem, with the reason."""
        return find_unusable_thresholds(self.results)

    @cached_property
    def insights(self) -> list[Insight]:
        """Return the insights."""
        return find_insights(self.results, self._case_problems)

    @cached_property
    def robustness(self) -> dict[str, Robustness]:
        """Return by model the robustness against perturbations; {} without perturbed cases with scores that pass or fail."""
        by_model = self.results.robustness.items()
        return {model: Robustness(f"Robustness of {model}", by_kind) for model, by_kind in by_model if by_kind}

    @cached_property
    def compliance(self) -> list[StandardCoverage]:
        """Return the standards and the evaluators of these experiments that address them."""
        return list_compliance(self.results)

    @cached_property
    def trade_offs(self) -> list[TradeOff]:
        """Return quality against cost and latency, for the first primary key that all models have scores of."""
        keys = [
            key for key in self.results.primary_keys if all(self._mean(model, key) is not None for model in self.models)
        ]
        if not keys or len(self.models) < 2:
            return []
        found = []
        for measure in ("cost", "latency"):
            efforts = {model: self.results.measure(model, measure) for model in self.models}
            points = {
                model: (effort, mean)
                for model, effort in efforts.items()
                if effort is not None and (mean := self._mean(model, keys[0])) is not None
            }
            if len(points) > 1:
                rising = self.results.get_metric(keys[0]).higher_is_better
                front = tuple(model for model in points if _is_on_front(model, points, 1 if rising else -1))
                found.append(TradeOff(key=keys[0], measure=measure, points=points, front=front))
        return found

    def _mean(self, model: str, key: str) -> float | None:
        cell: Cell = self.results.cells[model, key]
        return cell.mean

    @property
    def headline(self) -> str:
        """Return in one or two sentences which model is best by the first metric, and how sure that is."""
        board = self.leaderboard
        if not board.keys or not board.models:
            return "No scores to analyze."
        best = next((each for each in self.insights if each.kind in ("best model", "most accurate model")), None)
        severe = sum(problem.severe for problem in self.problems)
        counts = f"{len(self.problems)} problems, {severe} of them severe."
        if best is None:
            cell = board.cells[board.models[0], board.keys[0]]
            return f"{cell.model}: {cell.key} {format_cell(cell)}. {counts}"
        reason = str(best.metadata.get("sentence", "")).removesuffix(".")
        compared = f" (the two of them, pair by pair: {reason})" if reason else ""
        return f"{best.text[0].upper()}{best.text[1:]}{compared}. {counts}"


def _is_on_front(model: str, points: Mapping[str, tuple[float, float]], sign: int) -> bool:
    effort, quality = points[model][0], sign * points[model][1]
    return not any(
        other_effort <= effort and sign * other >= quality and (other_effort < effort or sign * other > quality)
        for other_effort, other in points.values()
    )


def format_cell(cell: Cell, ranks: Ranks | None = None) -> str:
    """Return mean, interval, number of scores and ranks of a cell as text."""
    if cell.mean is None:
        return "–"
    interval = "" if cell.interval is None else " [{:.3g}, {:.3g}]".format(*cell.interval)
    return f"{format_number(cell.mean)}{interval} n={cell.n}" + ("" if ranks is None else f" #{format_ranks(ranks)}")


# HTML of an analysis: the report, a self-contained file, and the pages of the collector.

MAX_PROMPT_ROWS = 30  # prompts of each heatmap in the HTML file; the archive has all
MAX_LISTED = 200  # problems and insights in the HTML file
MAX_PROBLEM_CASES = 20  # traces of one problem in the HTML file; the archive has all
MAX_WORST = 50  # worst cases in the HTML file
MAX_FLIPS = 500  # flips on their page
MAX_REPORT_FLIPS = 50  # flips in the report; the archive has all
MAX_MARK = 24  # characters of a model in a chart
LONG_TEXT = 50  # characters from which a cell is not squeezed on narrow screens
MAX_TEXT = 600  # characters of one text in the HTML file

STYLE = """
:root{color-scheme:light dark;--line:light-dark(#d8dbe0,#3a3f47);--dim:light-dark(#5c6470,#9aa3ae);
--bad:light-dark(#b3261e,#ff8a80);--good:light-dark(#00684f,#5fd3b3);--soft:light-dark(#f5f6f8,#1f2329)}
body{font:14px/1.5 system-ui,sans-serif;max-width:1400px;margin:0 auto;padding:16px;background:light-dark(#fff,#15181c);
color:light-dark(#1c1f24,#e6e8eb)}
h1{font-size:20px;margin:0}h2{font-size:16px;margin:28px 0 6px}h3{font-size:14px;margin:16px 0 4px}
p,li{max-width:75ch;overflow-wrap:anywhere}.dim{color:var(--dim)}.bad{color:var(--bad);font-weight:600}
.good{color:var(--good);font-weight:600}.headline{font-size:16px}
.wide{overflow:auto;max-height:80vh}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:5px 10px;text-align:left;vertical-align:top;overflow-wrap:anywhere}
td{min-width:9ch}td.text{min-width:26ch}td.num,th.num{text-align:right}td.num{min-width:0;white-space:nowrap}td span{white-space:nowrap}
thead th{background:var(--soft);cursor:pointer;white-space:nowrap;position:sticky;top:0}
td small{display:block;color:var(--dim)}td.num small{white-space:nowrap}
td b{white-space:nowrap}input[type=search]{display:block;font:inherit;padding:4px 8px;margin:4px 0;width:min(100%,320px)}
.h0{background:light-dark(#fbd5d1,#5a1f1b)}.h1{background:light-dark(#fbdcd0,#57261b)}.h2{background:light-dark(#fae4cf,#4f2f1b)}
.h3{background:light-dark(#f9ebcf,#48371c)}.h4{background:light-dark(#f6f0d0,#403c1e)}.h5{background:light-dark(#f2f2d3,#3a3e21)}
.h6{background:light-dark(#e8f1d5,#2f3e24)}.h7{background:light-dark(#ddf0d7,#263f28)}.h8{background:light-dark(#d1eed9,#1d402d)}
.h9{background:light-dark(#c5ecdb,#154133)}.h10{background:light-dark(#b9eadd,#0d4239)}
svg{max-width:100%;height:auto}svg text{fill:currentColor;font-size:11px}pre{white-space:pre-wrap;font:12px/1.4 ui-monospace,monospace;margin:0}
@media(max-width:600px){td,th{padding:5px 6px}td.text{min-width:17ch}}
@media print{input,.nojs{display:none}body{max-width:none}.wide{overflow:visible;max-height:none}h2{break-after:avoid}tr{break-inside:avoid}}
"""

SCRIPT = """
for(const t of document.querySelectorAll('table')){const b=t.tBodies[0];if(!b||!t.tHead)continue;
[...t.tHead.rows[0].cells].forEach((h,i)=>{h.tabIndex=0;const sort=()=>{const up=h.dataset.up!=='1';
const v=r=>{const c=r.cells[i];return c?(c.dataset.v??c.textContent):''};
[...b.rows].sort((x,y)=>{const p=v(x),q=v(y),m=parseFloat(p),n=parseFloat(q);
const d=isNaN(m)||isNaN(n)?p.localeCompare(q):m-n;return up?d:-d}).forEach(r=>b.append(r));
for(const o of t.tHead.rows[0].cells){delete o.dataset.up;o.removeAttribute('aria-sort')}
h.dataset.up=up?'1':'0';h.setAttribute('aria-sort',up?'ascending':'descending')};
h.addEventListener('click',sort);h.addEventListener('keydown',e=>{if(e.key==='Enter')sort()})});
if(b.rows.length>8){const f=document.createElement('input');f.type='search';f.placeholder='Filter rows';
f.setAttribute('aria-label','Filter rows');f.addEventListener('input',()=>{const w=f.value.toLowerCase();
for(const r of b.rows)r.hidden=!r.textContent.toLowerCase().includes(w)});(t.closest('.wide')||t).before(f)}}
"""


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY = (
    f"default-src 'none'; style-src 'sha256-{_digest(STYLE)}'; script-src 'sha256-{_digest(SCRIPT)}'; "
    "base-uri 'none'; form-action 'none'"
)


def render_page(sides: Sequence[tuple[Store, Record]], page: str = "analysis") -> tuple[str, str]:
    """Return a page of the collector and its content security policy: "analysis", or "flips" of perturbed cases."""
    analysis = AnalysisData(sides)
    if page == "flips":
        return _render_flips_page(analysis), POLICY
    return render_report(analysis, is_page=True), POLICY


def render_report(analysis: AnalysisData, *, is_page: bool = False) -> str:
    """Return the HTML document. It loads nothing, and its content security policy allows only its own script and style.

    As a page of the collector it links to experiments, traces and flips.
    """
    title = _make_title("Analysis", analysis)
    body = [
        '<p><a href="/experiments">Experiments</a></p>' if is_page else "",
        f"<h1>{escape(title)}</h1>",
        f'<p class="headline">{escape(analysis.headline)}</p>',
        _render_leaderboard(analysis),
        *map(_render_boolean, analysis.boolean_leaderboards),
        *map(_render_trade_off, analysis.trade_offs),
        _render_problems(analysis, is_page=is_page),
        _render_robustness(analysis, is_page=is_page),
        _render_insights(analysis),
        _render_prompts(analysis),
        _render_worst(analysis, is_page=is_page),
        _render_compliance(analysis),
        _render_settings(analysis, is_page=is_page),
    ]
    return _render_document(title, body)


def _render_flips_page(analysis: AnalysisData) -> str:
    """Return the page with the flips of all models, each base case beside its perturbed case."""
    title = _make_title("Flips", analysis)
    flips = _list_flips(analysis)
    note = (
        "A case flips if it passes and its perturbation fails, or the other way round. "
        "Under a text: the answer, the scores and the trace."
    )
    body = [
        f'<p><a href="{_make_address("/analysis", analysis)}">Analysis</a></p><h1>{escape(title)}</h1>',
        f'<p class="dim">{note}</p>',
        _make_flip_table(analysis, flips[:MAX_FLIPS], is_page=True) if flips else "<p>No perturbed case flips.</p>",
        f"<p>The first {MAX_FLIPS:,} of {len(flips):,} flips.</p>" if len(flips) > MAX_FLIPS else "",
    ]
    return _render_document(title, body)


def _make_title(kind: str, analysis: AnalysisData) -> str:
    names = ", ".join(record.name for record in analysis.records[:12])
    more = len(analysis.records) - 12
    return f"{kind} of {names}{f' and {more} more' if more > 0 else ''}"


def _make_address(path: str, analysis: AnalysisData) -> str:
    return f"{path}?ids={','.join(quote(record.id) for record in analysis.records)}"


def _render_document(title: str, body: Iterable[str]) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"{''.join(body)}<script>{SCRIPT}</script></body></html>\n"
    )


# --- parts of the HTML document ---------------------------------------------------------------------------------------


def _make_table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int] = ()) -> str:
    """Return a table. Cells are HTML; a cell that begins with "<td" is taken as it is."""
    top = "".join(f'<th scope="col"{_get_class(place, numeric)}>{escape(name)}</th>' for place, name in enumerate(head))
    body = "".join(
        "<tr>"
        + "".join(
            cell if cell.startswith("<td") else f"<td{_get_class(place, numeric, cell)}>{cell}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _get_class(place: int, numeric: Sequence[int], cell: str = "") -> str:
    """Return the class of a column with numbers, or of a cell with a long text."""
    return ' class="num"' if place in numeric else ' class="text"' if len(cell) > LONG_TEXT else ""


def _heat(warmth: float | None) -> str:
    return "" if warmth is None else f"h{round(10 * warmth)}"


def _render_leaderboard(analysis: AnalysisData) -> str:
    board = analysis.leaderboard
    if not board.keys:
        return "<p>No scores.</p>"
    rows = []
    for model in board.models:
        cells = [f"<b>{escape(model)}</b>"]
        for key in board.keys:
            cell = board.cells[model, key]
            if cell.mean is None:
                cells.append('<td class="num">–</td>')
                continue
            interval = "" if cell.interval is None else " [{:.3g}, {:.3g}]".format(*cell.interval)
            ranks = format_ranks(board.ranks[key].get(model))
            cells.append(
                f'<td class="num {_heat(board.warmth[model, key])}" data-v="{cell.mean!r}">{format_number(cell.mean)}'
                f"<small>{interval} n {cell.n:,} · rank {ranks}</small></td>"
            )
        rows.append(cells)
    note = (
        "Mean with its 95 % interval, number of scores and ranks. Models whose intervals overlap share a rank; a comparison "
        "example by example, as in the insights, can tell them apart. "
        "The colour follows the metric's direction."
    )
    keys = [f"{key} {analysis.results.get_metric(key).arrow}".strip() for key in board.keys]
    return (
        f'<h2>Leaderboard</h2><p class="dim">{note}</p>{_make_table(["model", *keys], rows, range(1, len(keys) + 1))}'
    )


def _render_boolean(board: BooleanLeaderboard) -> str:
    names = ("passes", "failures", "retrieval_failures", "generation_failures", "parse_failures")
    rows = [
        [escape(row.model), format_ranks(row.ranks), f"{row.succeeded:,}", f"{row.cases:,}"]
        + ["–" if (value := getattr(row, name)) is None else f"{value:.1%}" for name in names]
        for row in board.rows
    ]
    head = ["model", "rank", "succeeded", "cases", *(name.replace("_", " ") for name in names)]
    return f"<h2>{escape(board.key)}: test cases that succeeded</h2>{_make_table(head, rows, range(1, 9))}"


def _render_trade_off(trade_off: TradeOff) -> str:
    """Return a chart of quality against effort, and the same as a table."""
    efforts = [effort for effort, _ in trade_off.points.values()]
    qualities = [quality for _, quality in trade_off.points.values()]
    span_x, span_y = (max(values) - min(values) or 1.0 for values in (efforts, qualities))
    places = {
        model: (50 + 500 * (effort - min(efforts)) / span_x, 20 + 180 * (1 - (quality - min(qualities)) / span_y))
        for model, (effort, quality) in trade_off.points.items()
    }
    marks = []
    taken = [(x - 6, x + 6, y + 4) for x, y in places.values()]  # left end, right end and height of marks and labels
    for model, (x, y) in places.items():
        on_front = model in trade_off.front
        fill = 'fill="currentColor"' if on_front else 'fill="none" stroke="currentColor"'
        marks.append(f'<g><circle cx="{x:.1f}" cy="{y:.1f}" r="5" {fill}><title>{escape(model)}</title></circle>')
        name = model if len(model) <= MAX_MARK else f"{model[:MAX_MARK]}…"
        anchor, left = ("end", x - 8 - 6.5 * len(name)) if x > 400 else ("start", x + 8)
        right = left + 6.5 * len(name)
        heights = [y + 4 + 11 * step for step in (0, -1, 1, -2, 2, -3, -4) if y + 11 * step < 204]
        free = [
            h for h in heights if not any(left < end and begin < right and abs(h - at) < 11 for begin, end, at in taken)
        ]
        height = free[0] if free else heights[0]
        taken.append((left, right, height))
        text_x = x - 8 if anchor == "end" else x + 8
        marks.append(f'<text x="{text_x:.1f}" y="{height:.1f}" text-anchor="{anchor}">{escape(name)}</text></g>')
    unit = {"cost": "US dollars", "latency": "seconds"}[trade_off.measure]
    chart = (
        f'<svg viewBox="-24 0 644 240" width="644" role="img" aria-label="{escape(trade_off.key)} against {trade_off.measure}">'
        '<path d="M40 10V210H610" fill="none" stroke="currentColor" opacity=".4"/>'
        f'<text x="40" y="228">{format_number(min(efforts))}</text>'
        f'<text x="610" y="228" text-anchor="end">{trade_off.measure} {format_number(max(efforts))} {unit} per example</text>'
        f'<text x="36" y="24" text-anchor="end">{format_number(max(qualities))}</text>'
        f'<text x="36" y="204" text-anchor="end">{format_number(min(qualities))}</text>'
        f'<text x="44" y="10">{escape(trade_off.key)}</text>'
        f"{''.join(marks)}</svg>"
    )
    rows = [
        [
            escape(model),
            format_number(effort),
            format_number(quality),
            "yes" if model in trade_off.front else "",
        ]
        for model, (effort, quality) in trade_off.points.items()
    ]
    head = ["model", f"{trade_off.measure} ({unit})", trade_off.key, "Pareto front"]
    title = f"<h2>{escape(trade_off.key)} against {trade_off.measure}</h2>"
    note = '<p class="dim">Filled: no other model is at least as good for at most as much (Pareto front).</p>'
    return f"{title}{note}{chart}{_make_table(head, rows, (1, 2))}"


def _render_problems(analysis: AnalysisData, *, is_page: bool) -> str:
    problems = analysis.problems
    rows = [
        [
            '<span class="bad">severe</span>' if each.severe else "certain" if each.certain else "possible",
            escape(each.kind),
            escape(each.model),
            escape(each.key),
            f"{each.severity:.2f}",
            escape(each.text[:MAX_TEXT]),
            _render_cases(each, is_page=is_page),
        ]
        for each in problems[:MAX_LISTED]
    ]
    parts = [f"<h2>Problems ({len(problems):,})</h2>"]
    head = ["", "kind", "model", "metric", "severity", "problem", "cases"]
    parts.append(_make_table(head, rows, (4, 6)) if rows else "<p>None.</p>")
    parts += [
        f'<p class="dim">Threshold of {escape(each.key)} ({each.threshold:g}) raises no problem: {escape(each.reason)}.</p>'
        for each in analysis.unusable_thresholds
    ]
    return "".join(parts)


def _render_cases(problem: Problem, *, is_page: bool) -> str:
    """Return a table cell with the number of a problem's cases and their traces."""
    count = len(problem.cases)
    if not count:
        return '<td class="num" data-v="0">0</td>'
    traces = [_link(f"/traces/{id}", id, is_page=is_page) for id in [*problem.cases.values()][:MAX_PROBLEM_CASES]]
    more = "<br>…" if count > MAX_PROBLEM_CASES else ""
    return f'<td class="num" data-v="{count}"><details><summary>{count:,}</summary>{"<br>".join(traces)}{more}</details></td>'


def _render_robustness(analysis: AnalysisData, *, is_page: bool) -> str:
    """Return the share of base cases whose pass or fail is the same in all their perturbations of a kind, and the flips."""
    rows = []
    for model, robustness in analysis.robustness.items():
        for each in robustness.values():
            if each.share is not None and each.interval is not None:
                texts = map(escape, (model, each.key, each.kind))
                counts = (
                    sum(flip.base_passes for flip in each.flips),
                    sum(not flip.base_passes for flip in each.flips),
                )
                share = f'<td class="num {_heat(each.share)}" data-v="{each.share!r}">{each.share:.1%}'
                share += "<small>{:.1%} to {:.1%}</small></td>".format(*each.interval)
                rows.append([*texts, share, f"{each.cases:,}", *map(str, counts)])
    if not rows:
        return ""
    head = ["model", "metric", "perturbation", "stable base cases", "base cases", "pass→fail", "fail→pass"]
    parts = [f"<h2>Robustness</h2>{_make_table(head, rows, (3, 4, 5, 6))}"]
    if flips := _list_flips(analysis):
        shown = flips[:MAX_REPORT_FLIPS]
        parts.append(
            f"<h3>{len(shown):,} of {len(flips):,} flips</h3>{_make_flip_table(analysis, shown, is_page=is_page)}"
        )
        if is_page:
            parts.append(f'<p><a href="{_make_address("/analysis/flips", analysis)}">All flips side by side</a></p>')
    return "".join(parts)


def _list_flips(analysis: AnalysisData) -> list[list[tuple[str, Flip]]]:
    """Return the pairs of cases that flip, those from pass to fail first: model and flip for each metric of a pair."""
    pairs: dict[tuple[bool, str, str], list[tuple[str, Flip]]] = {}
    for model, robustness in analysis.robustness.items():
        for flip in robustness.flips():
            pairs.setdefault((not flip.base_passes, model, flip.example_id), []).append((model, flip))
    return sorted(pairs.values(), key=lambda pair: not pair[0][1].base_passes)


def _make_flip_table(analysis: AnalysisData, pairs: Sequence[Sequence[tuple[str, Flip]]], *, is_page: bool) -> str:
    """Return a table of base cases beside their perturbed cases: inputs, answer, scores and trace."""
    ids = [id for pair in pairs for id in (pair[0][1].base_trace_id, pair[0][1].trace_id)]
    outputs = analysis.results.read_outputs(ids)

    def show(inputs: JSON, trace_id: str, scores: Mapping[str, float]) -> str:
        answer = f"<pre>{escape(_shorten(outputs[trace_id]))}</pre>" if trace_id in outputs else ""
        trace = _link(f"/traces/{trace_id}", trace_id[:12], is_page=is_page)
        texts = [f"{escape(key)} {format_number(score)}" for key, score in scores.items()]
        return f'<td class="text">{escape(_shorten(inputs))}{answer}<small>{" · ".join([*texts, trace])}</small></td>'

    rows = []
    for pair in pairs:
        model, flip = pair[0]
        kind = "bad" if flip.base_passes else "good"
        rows.append(
            [
                f'<span class="{kind}">{flip.direction}</span>',
                show(flip.base_inputs, flip.base_trace_id, {each.key: each.base_score for _, each in pair}),
                show(flip.inputs, flip.trace_id, {each.key: each.score for _, each in pair}),
                escape(model),
                escape(flip.kind),
            ]
        )
    return _make_table(["flip", "base case", "perturbed case", "model", "perturbation"], rows)


def _shorten(value: JSON) -> str:
    """Return inputs or outputs as text; the only value of a mapping alone."""
    if isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _render_insights(analysis: AnalysisData) -> str:
    shown = [each for each in analysis.insights if each.shown]
    hidden = [each for each in analysis.insights if not each.shown]
    items = "".join(f"<li>{escape(each.text[:MAX_TEXT])}</li>" for each in shown[:MAX_LISTED])
    others = "".join(f"<li>{escape(each.text[:MAX_TEXT])}</li>" for each in hidden[:MAX_LISTED])
    parts = [f"<h2>Insights ({len(shown):,})</h2><ul>{items}</ul>" if items else "<h2>Insights (0)</h2><p>None.</p>"]
    if others:
        parts.append(f"<h3>No difference can be shown</h3><ul>{others}</ul>")
    return "".join(parts)


def _render_prompts(analysis: AnalysisData) -> str:
    parts = []
    for key in analysis.leaderboard.keys:
        board: PromptHeatmap = analysis.prompts(key)
        if not board.example_ids:  # only set-level scores
            continue
        rows = []
        for example_id in board.example_ids[:MAX_PROMPT_ROWS]:
            cells = [escape(analysis.results.describe_example(example_id, 120))]
            for model in board.models:
                score = board.scores.get((model, example_id))
                heat = _heat(board.warmth.get((model, example_id)))
                text = "–" if score is None else format_number(score)
                cells.append(f'<td class="num {heat}" data-v="{score if score is not None else ""}">{text}</td>')
            rows.append(cells)
        total = len(board.example_ids) + board.left_out
        parts.append(f"<h3>{escape(key)}: the {len(rows):,} worst of {total:,} prompts</h3>")
        parts.append(_make_table(["prompt", *board.models], rows, range(1, len(board.models) + 1)))
        if len(parts) >= 2 * 5:  # prompts of five metrics; the archive has all
            break
    return f"<h2>Models × prompts</h2>{''.join(parts)}" if parts else ""


def _render_worst(analysis: AnalysisData, *, is_page: bool) -> str:
    """Return the cases of problems, the severe problems first, with their traces."""
    rows: list[list[str]] = []
    for problem in analysis.problems:
        for example_id, trace_id in problem.cases.items():
            if len(rows) < MAX_WORST:
                text = escape(analysis.results.describe_example(example_id, MAX_TEXT))
                trace = _link(f"/traces/{trace_id}", trace_id, is_page=is_page)
                rows.append([escape(problem.model), escape(problem.key), text, trace])
    return f"<h2>Worst cases</h2>{_make_table(['model', 'metric', 'prompt', 'trace'], rows)}" if rows else ""


def _render_compliance(analysis: AnalysisData) -> str:
    rows = [
        [
            escape(each.standard),
            ", ".join(map(escape, each.evaluators)) if each.is_covered else '<span class="dim">not covered</span>',
            escape(each.summary),
        ]
        for each in analysis.compliance
    ]
    head = ["standard", "evaluators of these experiments", "summary"]
    return f'<h2>Compliance</h2><p class="dim">{escape(MAPPING_NOTE)}</p>{_make_table(head, rows)}'


def _link(address: str, text: str, *, is_page: bool) -> str:
    shown = f"<code>{escape(text)}</code>"
    return f'<a href="{escape(address)}">{shown}</a>' if is_page else shown


def _render_settings(analysis: AnalysisData, *, is_page: bool) -> str:
    rows = [
        [
            escape(record.name),
            _link(f"/experiments/{record.id}", record.id, is_page=is_page),
            escape(f"{record.dataset} {record.dataset_version or ''}".strip()),
            escape(record.status),
            datetime.fromtimestamp(record.started_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        ]
        for record in analysis.records
    ]
    return f"<h2>Experiments</h2>{_make_table(['name', 'id', 'dataset', 'status', 'started'], rows)}"
