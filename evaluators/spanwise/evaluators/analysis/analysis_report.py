"""Report of an analysis: one self-contained HTML file, and an archive with all results as JSON and Parquet or CSV."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from spanwise.collector.records import Experiment as Record
from spanwise.collector.records import is_perturbed
from spanwise.collector.stores import Store, measure_robustness
from spanwise.evaluators.analysis.compliance import MAPPING_NOTE
from spanwise.evaluators.analysis.leaderboards import BooleanLeaderboard, PromptHeatmap, format_ranks
from spanwise.evaluators.analysis.result_analysis import AnalysisData, TradeOff
from spanwise.evaluators.experiments import Experiment, format_number

MAX_PROMPT_ROWS = 30  # prompts of each heatmap in the HTML file; the archive has all
MAX_LISTED = 200  # problems and insights in the HTML file
MAX_WORST = 50  # worst cases in the HTML file
MAX_MARK = 24  # characters of a model in a chart
MAX_TEXT = 600  # characters of one text in the HTML file

STYLE = """
:root{color-scheme:light dark;--line:light-dark(#d8dbe0,#3a3f47);--dim:light-dark(#5c6470,#9aa3ae);
--bad:light-dark(#b3261e,#ff8a80);--good:light-dark(#00684f,#5fd3b3);--soft:light-dark(#f5f6f8,#1f2329)}
body{font:14px/1.5 system-ui,sans-serif;max-width:1100px;margin:0 auto;padding:16px;background:light-dark(#fff,#15181c);
color:light-dark(#1c1f24,#e6e8eb)}
h1{font-size:20px;margin:0}h2{font-size:16px;margin:28px 0 6px}h3{font-size:14px;margin:16px 0 4px}
p,li{max-width:75ch;overflow-wrap:anywhere}.dim{color:var(--dim)}.bad{color:var(--bad);font-weight:600}
.good{color:var(--good);font-weight:600}.headline{font-size:16px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:5px 10px;text-align:left;vertical-align:top;overflow-wrap:anywhere}
td.num,th.num{text-align:right}thead th{background:var(--soft);cursor:pointer;white-space:nowrap}
td small{display:block;color:var(--dim);white-space:nowrap}
td b{white-space:nowrap}input[type=search]{display:block;font:inherit;padding:4px 8px;margin:4px 0;width:min(100%,320px)}
.h0{background:light-dark(#fbd5d1,#5a1f1b)}.h1{background:light-dark(#fbdcd0,#57261b)}.h2{background:light-dark(#fae4cf,#4f2f1b)}
.h3{background:light-dark(#f9ebcf,#48371c)}.h4{background:light-dark(#f6f0d0,#403c1e)}.h5{background:light-dark(#f2f2d3,#3a3e21)}
.h6{background:light-dark(#e8f1d5,#2f3e24)}.h7{background:light-dark(#ddf0d7,#263f28)}.h8{background:light-dark(#d1eed9,#1d402d)}
.h9{background:light-dark(#c5ecdb,#154133)}.h10{background:light-dark(#b9eadd,#0d4239)}
svg{max-width:100%;height:auto}svg text{fill:currentColor;font-size:11px}pre{white-space:pre-wrap;font:12px/1.4 ui-monospace,monospace;margin:0}
@media print{input,.nojs{display:none}body{max-width:none}.wide{overflow:visible}h2{break-after:avoid}tr{break-inside:avoid}}
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


def write_report(analysis: AnalysisData, path: Path) -> Path:
    """Write the report: HTML, or an archive (H2O's `work-dir-archive`) if the path ends in ".zip".

    Raises `ValueError` for another ending.
    """
    if path.suffix.lower() in (".html", ".htm"):
        path.write_text(render_report(analysis), "utf-8")
    elif path.suffix.lower() == ".zip":
        _write_archive(analysis, path)
    else:
        raise ValueError(f"a report must end in .html or .zip, got {str(path)!r}")
    return path


def render_page(sides: Sequence[tuple[Store, Record]]) -> tuple[str, str]:
    """Return the analysis of experiments as a page of the collector, and its content security policy."""
    return render_report(AnalysisData(sides), is_page=True), POLICY


def render_report(analysis: AnalysisData, *, is_page: bool = False) -> str:
    """Return the HTML document. It loads nothing, and its content security policy allows only its own script and style.

    As a page of the collector it links to experiments and traces.
    """
    names = ", ".join(record.name for record in analysis.records[:12])
    more = len(analysis.records) - 12
    title = f"Analysis of {names}{f' and {more} more' if more > 0 else ''}"
    body = [
        '<p><a href="/experiments">Experiments</a></p>' if is_page else "",
        f"<h1>{escape(title)}</h1>",
        f'<p class="headline">{escape(analysis.headline)}</p>',
        _render_leaderboard(analysis),
        *map(_render_boolean, analysis.boolean_leaderboards),
        *map(_render_trade_off, analysis.trade_offs),
        _render_problems(analysis),
        _render_robustness(analysis),
        _render_insights(analysis),
        _render_prompts(analysis),
        _render_worst(analysis, is_page=is_page),
        _render_compliance(analysis),
        _render_settings(analysis, is_page=is_page),
    ]
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
            cell if cell.startswith("<td") else f"<td{_get_class(place, numeric)}>{cell}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _get_class(place: int, numeric: Sequence[int]) -> str:
    return ' class="num"' if place in numeric else ""


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
    marks = []
    for model, (effort, quality) in trade_off.points.items():
        x = 50 + 500 * (effort - min(efforts)) / span_x
        y = 20 + 180 * (1 - (quality - min(qualities)) / span_y)
        on_front = model in trade_off.front
        fill = 'fill="currentColor"' if on_front else 'fill="none" stroke="currentColor"'
        marks.append(f'<g><circle cx="{x:.1f}" cy="{y:.1f}" r="5" {fill}><title>{escape(model)}</title></circle>')
        anchor, shift = ("end", -8) if x > 400 else ("start", 8)
        name = model if len(model) <= MAX_MARK else f"{model[:MAX_MARK]}…"
        marks.append(f'<text x="{x + shift:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}">{escape(name)}</text></g>')
    unit = {"cost": "US dollars", "latency": "seconds"}[trade_off.measure]
    chart = (
        f'<svg viewBox="0 0 620 240" width="620" role="img" aria-label="{escape(trade_off.key)} against {trade_off.measure}">'
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


def _render_problems(analysis: AnalysisData) -> str:
    problems = analysis.problems
    rows = [
        [
            '<span class="bad">severe</span>' if each.severe else "certain" if each.certain else "possible",
            escape(each.kind),
            escape(each.model),
            escape(each.key),
            f"{each.severity:.2f}",
            escape(each.text[:MAX_TEXT]),
            f"{len(each.cases):,}",
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


def _render_robustness(analysis: AnalysisData) -> str:
    """Return the share of base cases whose pass or fail is the same in all their perturbations of a kind."""
    rows = []
    for each in _list_robustness(analysis):
        share, interval = each["share"], each["interval"]
        if share is not None:
            ends = "" if interval is None else " [{:.3g}, {:.3g}]".format(*interval)
            texts = (each["experiment"], each["key"], each["kind"])
            rows.append([*map(escape, texts), f"{share:.3g}{ends}", f"{each['cases']:,}", f"{len(each['flips']):,}"])
    if not rows:
        return ""
    head = ["experiment", "metric", "perturbation", "stable base cases", "base cases", "flips"]
    return f"<h2>Robustness</h2>{_make_table(head, rows, (3, 4, 5))}"


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


# --- archive ----------------------------------------------------------------------------------------------------------


def _write_archive(analysis: AnalysisData, path: Path) -> None:
    files: dict[str, bytes] = {"report.html": render_report(analysis).encode()}
    results = list_results(analysis)
    files["llm-eval-results.json"] = _dump(results)
    files |= _tabulate(results)
    board = analysis.leaderboard
    files["llm-heatmap-leaderboard.json"] = _dump(
        {
            "models": board.models,
            "keys": board.keys,
            "ranks": board.ranks,
            "cells": [asdict(cell) for cell in board.cells.values()],
            "prompts": {key: _list_prompt_scores(analysis.prompts(key)) for key in board.keys},
        }
    )
    files["llm-bool-leaderboard.json"] = _dump([asdict(each) for each in analysis.boolean_leaderboards])
    files["problems.json"] = _dump([{**asdict(each), "severe": each.severe} for each in analysis.problems])
    files["unusable-thresholds.json"] = _dump([asdict(each) for each in analysis.unusable_thresholds])
    files["insights.json"] = _dump([asdict(each) for each in analysis.insights])
    files["compliance.json"] = _dump(
        {"note": MAPPING_NOTE, "standards": [asdict(each) for each in analysis.compliance]}
    )
    files["trade-offs.json"] = _dump([asdict(each) for each in analysis.trade_offs])
    files["perturbations.json"] = _dump(_list_robustness(analysis))
    files["experiments.json"] = _dump([asdict(record) for record in analysis.records])
    manifest = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()}
    files["manifest.json"] = _dump(manifest)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def list_results(analysis: AnalysisData) -> list[dict[str, Any]]:
    """Return one dict per run: model, example, inputs, outputs, references, error, and one entry per key."""
    models = {run.trace_id: model for model, runs in analysis.results.runs.items() for run in runs}
    rows = []
    for store, record in analysis.results.sides:
        rows += [
            {"model": model, "experiment": record.name, **row.to_dict()}
            for row in Experiment.load(store, record.id).rows()
            if (model := models.get(row.trace.trace_id)) is not None
        ]
    return rows


def _list_robustness(analysis: AnalysisData) -> list[dict[str, Any]]:
    """Return per experiment, kind of perturbation and key the share of stable base cases, and the flips."""
    if not any(map(is_perturbed, analysis.results.examples.values())):
        return []
    return [
        {"experiment": record.name, **asdict(each), "share": each.share, "interval": each.interval}
        for store, record in analysis.results.sides
        for each in measure_robustness(store, record).values()
    ]


def _list_prompt_scores(board: PromptHeatmap) -> list[dict[str, Any]]:
    return [
        {"model": model, "example_id": example_id, "score": score}
        for (model, example_id), score in board.scores.items()
    ]


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1, default=_encode).encode("utf-8", "replace")


def _encode(value: Any) -> Any:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else repr(value)


def _tabulate(rows: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the results as Parquet, or as CSV without pyarrow. Values that are no scalars become JSON text."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    plain = [{name: _flatten(row.get(name)) for name in columns} for row in rows]
    try:
        import pandas
        import pyarrow  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
    except ImportError:
        text = io.StringIO()
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(plain)
        return {"llm-eval-results.csv": text.getvalue().encode("utf-8", "replace")}
    data = io.BytesIO()
    frame = pandas.DataFrame(plain, columns=columns)
    for name in columns:  # a column of several types is text
        if len({type(value) for value in frame[name] if value is not None and value == value}) > 1:
            frame[name] = [None if value is None else str(value) for value in frame[name]]
    frame.to_parquet(data)
    return {"llm-eval-results.parquet": data.getvalue()}


def _flatten(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return json.dumps(value, ensure_ascii=False, default=repr)
