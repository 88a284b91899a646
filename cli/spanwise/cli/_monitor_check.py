"""`spanwise monitor check` and `diff`: what rules would do before they run, and a changed one beside the old."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spanwise.cli._common import emit, notes, on_a_line, opened, short, table
from spanwise.cli._options import JsonOption, StoreOption
from spanwise.cli.feedback import value_of
from spanwise.collector import format, verdicts
from spanwise.collector.querystring import duration
from spanwise.collector.rules import LEAST_PACED

if TYPE_CHECKING:
    from spanwise.collector.records import Target
    from spanwise.collector.statistics import SampledMean
    from spanwise.evaluators.monitors import Check, Diff, Difference

File = Annotated[
    str, typer.Argument(metavar="RULES.PY", help="A Python file that calls spanwise.evaluators.monitor(…).")
]
Try = Annotated[int, typer.Option("--try", min=0, help="Really score so many of the newest traces; nothing is stored.")]
Since = Annotated[str, typer.Option("--since", help="How far to look back: 90s, 30m, 1h, 7d, 2w.")]
Only = Annotated[str | None, typer.Option("--rule", help="Only this rule of the file.")]
Project = Annotated[str, typer.Option(help="The rules' project.")]


def check(
    file: File,
    tries: Try = 0,
    since: Since = "1d",
    only: Only = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many traces of the last day each rule would have matched, taken, and paid for.

    Example: `spanwise monitor check rules.py --try 20`
    """
    from spanwise.evaluators.monitors import check as checked
    from spanwise.evaluators.monitors import load

    rules = [rule for rule in load(file) if only in (None, rule.record.name)]
    if not rules:
        raise ValueError(f"{file!r} holds no rule {only!r}")
    with opened(at) as store:
        now_ns = time.time_ns()
        states = {(one.rule.project, one.rule.name): verdicts.standing(one, now_ns)[0] for one in store.status()}
        for rule in rules:
            found = checked(rule, store, seconds=duration(since) / 1e9, tries=tries)
            emit([_as_data(found)]) if as_json else _show(found, since)
            if not as_json and (state := states.get((found.rule.project, found.rule.name))):
                typer.echo(on_a_line(f"  now: {state}"))


def _show(found: Check, since: str) -> None:
    typer.echo(on_a_line(f"{found.rule.name} ({found.rule.project}, version {found.rule.version})"))
    for line in _lines(found, since):
        typer.echo(on_a_line(f"  {line}"))
    if found.tried:
        place = {"session": ("session",), "span": ("trace", "span"), "document": ("trace", "span", "document")}
        head = (*place.get(found.rule.target, ("trace",)), "key", "outcome", "score", "comment")
        table(head, _cells(found))


def _lines(found: Check, since: str) -> Iterator[str]:
    about = "" if found.exact else "about "
    yield f"of {found.traces} traces in {since}, {about}{found.matched} match and {about}{found.sampled} are taken"
    if found.rule.target in ("span", "document"):
        yield f"in these about {found.targets} {found.rule.target}s are scored"
    counted = found.estimate.total
    if counted.calls or counted.cached:
        to = " and ".join(found.estimate.where)
        usd = "price unknown" if found.usd is None else f"about ${found.usd:.4f}"
        yield f"judges are asked about {found.calls} times, {usd}; text goes to {to}"
    if found.paced is not None and found.paced < 1:
        share = format.percent(found.paced, 1)
        if found.paced > LEAST_PACED:
            yield f"its budget lasts for {share} of that: rates are lowered by as much"
        else:
            yield f"its budget lasts for less than {share} of that: rates are lowered to {share}, {verdicts.AT_LEAST}"
    for key, error in found.estimate.errors.items():
        yield f"{key} fails before it asks anything: {error}"
    for key, skipped in found.estimate.skipped.items():
        if skipped:
            yield f"{key} skips {skipped} of the {found.priced} newest targets"


def _cells(found: Check) -> Iterator[tuple[str, ...]]:
    for tried in found.tried:
        for it in tried.feedback:
            yield *_where(tried.target), it.key, it.outcome, value_of(it), short(it.error or it.comment or "")


def _where(target: Target) -> tuple[str, ...]:
    """The target as cells, below the words of `_show`."""
    if target.span_id is None:
        return (target.trace_id or target.session_id or "",)
    document = () if target.document is None else (str(target.document + 1),)
    return target.trace_id or "", target.span_id, *document


def _as_data(found: Check) -> dict[str, Any]:
    return {
        "rule": found.rule.name,
        "project": found.rule.project,
        "version": found.rule.version,
        "seconds": found.seconds,
        "traces": found.traces,
        "matched": found.matched,
        "sampled": found.sampled,
        "targets": found.targets,
        "exact": found.exact,
        "calls": found.calls,
        "usd": found.usd,
        "paced": found.paced,
        "where": list(found.estimate.where),
        "tried": [asdict(tried) for tried in found.tried],
    }


Rule = Annotated[str, typer.Argument(help="The rule that is in force.")]
Shadow = Annotated[str | None, typer.Argument(help="The rule beside it; left out where it has one shadow.")]


def diff(
    rule: Rule, shadow: Shadow = None, project: Project = "default", at: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Set a rule beside the one that is tried in its place (`shadow_of=`), on the targets that both have scored.

    Example: `spanwise monitor diff grounded`
    """
    from spanwise.evaluators.monitors import diff as compared

    with opened(at) as store:
        found = compared(store, rule, shadow, project=project)
    if as_json:
        emit([asdict(found)])
        return
    typer.echo(on_a_line(f"{found.old.name} and {found.new.name}: {found.both} scored by both, {_alone(found)}"))
    table(("key", "n", found.old.name, found.new.name, "change"), map(_row, found.differences))
    if found.cost_old is not None or found.cost_new is not None:
        cost = f"{_usd(found.cost_old)} with {found.old.name}, {_usd(found.cost_new)} with {found.new.name}"
        typer.echo(on_a_line(f"a target costs {cost}"))
    if not found.differences:
        notes.print("no key has scores of both yet", highlight=False)


def _alone(found: Diff) -> str:
    return f"{found.only_old} by the first alone, {found.only_new} by the second alone"


def _row(it: Difference) -> tuple[str, ...]:
    verdict = "beyond chance" if it.beyond_chance else "within chance"
    return it.key, str(it.change.n), _mean(it.old), _mean(it.new), f"{_mean(it.change, signed=True)} ({verdict})"


def _mean(mean: SampledMean, signed: bool = False) -> str:
    if mean.mean is None:
        return "–" if mean.unweighted is None else f"– ({mean.unweighted:{'+' * signed}.3g} unweighted)"
    sign = "+" if signed else ""
    interval = "" if mean.low is None else f" [{mean.low:{sign}.3g}, {mean.high:{sign}.3g}]"
    return f"{mean.mean:{sign}.3g}{interval}"


def _usd(cost: float | None) -> str:
    return "nothing that is known" if cost is None else f"${cost:.5f}"
