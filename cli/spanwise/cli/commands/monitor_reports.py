"""`spanwise monitor status`, `why`, `check` and `diff`: reports on rules and their decisions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from spanwise.cli.command_io import (
    JsonOption,
    StoreOption,
    console,
    emit,
    error_console,
    open_store,
    print_table,
    resolve_trace_id,
    shorten,
)
from spanwise.cli.commands.feedback import format_value
from spanwise.collector import formatting
from spanwise.collector.diagnostics import rule_report
from spanwise.collector.filter_values import parse_duration
from spanwise.collector.records import ConditionResult, Decision, DecisionExplanation, RuleStatus
from spanwise.collector.rule_policy import MIN_PACING_FACTOR
from spanwise.collector.statistics import SampledMean
from spanwise.collector.stores import Store, summarize_rule
from spanwise.collector.terminal_escaping import MAX_MESSAGE_LENGTH, escape_line

if TYPE_CHECKING:
    from spanwise.collector.records import Target
    from spanwise.evaluators.monitors import KeyDifference, RuleComparison, RulePreview


Project = Annotated[str | None, typer.Option(help="Only rules of this project.")]
Once = Annotated[bool, typer.Option("--once", help="Print the report once instead of updating it until Ctrl-C.")]
Every = Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")]
MAX_MEAN_SCORES = 5_000  # number of a rule's newest scores that the displayed mean covers
_MEANS_EVERY_S = 10.0  # seconds between two reads of the means


@dataclass
class _StatusReader:
    """Reader of the status that a live display shows. Each refresh reads the counts; mean scores are read less often."""

    store: Store
    project: str | None
    means: dict[tuple[str, str, str], list[SampledMean]] = field(default_factory=dict)
    read: float = float("-inf")

    def take(self) -> list[tuple[RuleStatus, list[SampledMean]]]:
        found = self.store.status(project=self.project)
        if time.monotonic() - self.read > _MEANS_EVERY_S:
            self.means = {_rule_key(one): summarize_rule(self.store, one.rule, most=MAX_MEAN_SCORES) for one in found}
            self.read = time.monotonic()
        return [(one, self.means.get(_rule_key(one), [])) for one in found]


def _rule_key(status: RuleStatus) -> tuple[str, str, str]:
    return status.rule.project, status.rule.name, status.rule.version


def status(
    project: Project = None, once: Once = False, every: Every = 2.0, at: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show each rule's funnel, lag, rate, spending, weighted means and last errors. In a terminal, the display is live.

    Example: `spanwise monitor status --once`
    """
    with open_store(at) as store:
        look = _StatusReader(store, project)
        if as_json:
            emit(map(_status_to_dict, look.take()))
        elif once or not console.is_terminal:
            console.print(render_status(look.take()), soft_wrap=not console.is_terminal)
        else:
            _show_live(look, every)


def _show_live(look: _StatusReader, every: float) -> None:
    from rich.live import Live

    try:
        with Live(render_status(look.take()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(render_status(look.take()), refresh=True)
    except KeyboardInterrupt:
        error_console.print("stopped")


def _status_to_dict(found: tuple[RuleStatus, list[SampledMean]]) -> dict[str, Any]:
    import msgspec

    return {**msgspec.to_builtins(found[0]), "means": msgspec.to_builtins(found[1])}


def render_status(found: Sequence[tuple[RuleStatus, list[SampledMean]]]) -> Group:
    """Return all rules, one below the other."""
    if not found:
        return Group(
            Text(
                "no rules yet; define rules with spanwise.evaluators.monitor(…) and run them with `spanwise monitor rules.py`"
            )
        )
    now_ns = time.time_ns()
    finished, decided = rule_report.sum_throughput((worker for status, _ in found for worker in status.workers), now_ns)
    head = Text(f"{formatting.number(finished)} finished and {formatting.number(decided)} decided per second", "dim")
    return Group(head, *(part for one in found for part in _render_rule(*one, now_ns)))


def _render_rule(status: RuleStatus, means: list[SampledMean], now_ns: int) -> Iterator[Text | Table]:
    standing, right = rule_report.standing(status, now_ns)
    name = (escape_line(status.rule.name), "bold")
    yield Text.assemble(name, f"  {escape_line(status.rule.project)}  ", (standing, "green" if right else "yellow"))
    counts = [f"{stage.name} {formatting.count(stage.count)}" for stage in rule_report.funnel(status)]
    others = [name for name in rule_report.STORED if name != "scored" and status.counts.get(name)]
    yield Text("  " + " → ".join(counts))
    if others:
        yield Text(
            "  " + ", ".join(f"{rule_report.WORDS[name]} {formatting.count(status.counts[name])}" for name in others)
        )
    yield Text(f"  rate {rule_report.rate(status)}; {rule_report.behind(status)}")
    for line in _detail_lines(status, now_ns):
        yield Text(f"  {escape_line(line)}")
    for error in status.errors[:3]:
        yield Text(f"  error: {escape_line(formatting.first_line(error))}", "red")
    if means:
        yield _means_table(means)


def _detail_lines(status: RuleStatus, now_ns: int) -> Iterator[str]:
    yield from (f"budget: {one}" for one in rule_report.spending(status.rule, status.booked))
    yield from (f"{one.key}: {one}" for one in rule_report.work(status, now_ns))
    yield from (said for worker in status.workers for said in rule_report.idle(worker, status.rule.name))


def _means_table(means: Sequence[SampledMean]) -> Table:
    table = Table(
        "key", "estimated mean", "95 %", "n", "effective n", "failed", "skipped", "excluded", box=None, padding=(0, 1)
    )
    for mean in means:
        interval = "–" if mean.low is None else f"{formatting.number(mean.low)}–{formatting.number(mean.high)}"
        counts = (mean.n, round(mean.effective), mean.failed, mean.skipped, mean.unknown + mean.outside)
        table.add_row(Text(escape_line(mean.key)), _format_mean(mean), interval, *map(formatting.count, counts))
    return table


def _format_mean(mean: SampledMean) -> str:
    if mean.unweighted is None:
        return formatting.number(mean.mean)
    return f"– ({formatting.number(mean.unweighted)} unweighted)"


TraceId = Annotated[str, typer.Argument(help="Id of a trace, or the first characters of a recent one.")]
OUTCOME_STYLES = {
    "scored": "green",
    "failed": "bold red",
    "over_budget": "red",
    "filtered": "dim",
    "sampled_out": "dim",
}


def why(trace_id: TraceId, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Explain why each rule scored a trace or did not: the failed condition, the sampling, the budget, the error.

    Example: `spanwise monitor why 0af76519`
    """
    import msgspec

    with open_store(at) as store:
        id = resolve_trace_id(store, trace_id)
        found = store.why(id)
        lack = "" if found else rule_report.explain_no_rules(store.trace(id).root.project, store.rules())
    if as_json:
        emit(map(msgspec.to_builtins, found))
    elif lack:
        error_console.print(escape_line(lack), markup=False, highlight=False, soft_wrap=True)
    for one in found if not as_json else ():
        console.print(render_decision(one, time.time_ns()), soft_wrap=True)


def render_decision(one: DecisionExplanation, now_ns: int) -> Text:
    """Render the decision of one rule: a line with outcome and reason, and below it the details."""
    text = Text.assemble(
        (escape_line(one.rule.name), "bold"),
        "  ",
        (rule_report.WORDS[one.verdict], OUTCOME_STYLES.get(one.verdict, "yellow")),
    )
    if reason := rule_report.reason(one):
        text.append(f"  {escape_line(reason, MAX_MESSAGE_LENGTH)}")
    for line in _reason_lines(one, now_ns):
        text.append(f"\n    {escape_line(line, MAX_MESSAGE_LENGTH)}")
    return text


def _reason_lines(one: DecisionExplanation, now_ns: int) -> Iterator[str]:
    yield from map(_format_condition, one.conditions)
    if sample := rule_report.sampling(one):
        yield f"sample: {sample}"
    for budget in rule_report.spending(one.rule, one.budget) if one.budget else ():
        yield f"budget: {budget}"
    for decision in one.decisions:
        yield from _decision_lines(decision, now_ns)
    if command := rule_report.look_on(one):
        yield f"to list the fields that its spans contain, and the unused ones, run: {command}"


def _format_condition(one: ConditionResult) -> str:
    mark = {True: "holds", False: "fails", None: "unknown yet"}[one.passes]
    return f"{mark}: {rule_report.describe_condition(one)}"


def _decision_lines(one: Decision, now_ns: int) -> Iterator[str]:
    head = [rule_report.target(one), rule_report.WORDS[one.verdict], one.reason, *rule_report.facts(one, now_ns)]
    yield ", ".join(dict.fromkeys(filter(None, head)))
    for key, state, error in rule_report.states(one):
        yield f"  {key}: {state}" + (f", {error}" if error else "")


RulesFile = Annotated[
    str, typer.Argument(metavar="RULES.PY", help="Python file that calls spanwise.evaluators.monitor(…).")
]
TrialCount = Annotated[
    int, typer.Option("--try", min=0, help="Score this number of the newest traces, without storing anything.")
]
Since = Annotated[str, typer.Option("--since", help="Period to examine: 90s, 30m, 1h, 7d, 2w.")]
OnlyRule = Annotated[str | None, typer.Option("--rule", help="Only this rule of the file.")]
RuleProject = Annotated[str, typer.Option(help="Project of the rules.")]


def check(
    file: RulesFile,
    tries: TrialCount = 0,
    since: Since = "1d",
    only: OnlyRule = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate how many traces of the last day each rule would have matched and sampled, and their cost.

    Example: `spanwise monitor check rules.py --try 20`
    """
    from spanwise.evaluators.monitors import check as checked
    from spanwise.evaluators.monitors import load

    rules = [rule for rule in load(file) if only in (None, rule.record.name)]
    if not rules:
        raise ValueError(f"{file!r} defines no rule {only!r}")
    with open_store(at) as store:
        now_ns = time.time_ns()
        states = {(one.rule.project, one.rule.name): rule_report.standing(one, now_ns)[0] for one in store.status()}
        for rule in rules:
            found = checked(rule, store, seconds=parse_duration(since) / 1e9, tries=tries)
            emit([_preview_to_dict(found)]) if as_json else _print_preview(found, since)
            if not as_json and (state := states.get((found.rule.project, found.rule.name))):
                typer.echo(escape_line(f"  now: {state}"))


def _print_preview(found: RulePreview, since: str) -> None:
    typer.echo(escape_line(f"{found.rule.name} ({found.rule.project}, version {found.rule.version})"))
    for line in _preview_lines(found, since):
        typer.echo(escape_line(f"  {line}"))
    if found.tried:
        place = {"session": ("session",), "span": ("trace", "span"), "document": ("trace", "span", "document")}
        head = (*place.get(found.rule.target, ("trace",)), "key", "outcome", "score", "comment")
        print_table(head, _trial_cells(found))


def _preview_lines(found: RulePreview, since: str) -> Iterator[str]:
    about = "" if found.exact else "about "
    yield f"of {found.traces} traces in {since}, {about}{found.matched} match and {about}{found.sampled} are sampled"
    if found.rule.target in ("span", "document"):
        yield f"they contain about {found.targets} {found.rule.target}s to score"
    counted = found.estimate.total
    if counted.calls or counted.cached:
        to = " and ".join(found.estimate.where)
        usd = "price unknown" if found.usd is None else f"about ${found.usd:.4f}"
        yield f"judges are asked about {found.calls} times, {usd}; text goes to {to}"
    if found.paced is not None and found.paced < 1:
        share = formatting.percent(found.paced, 1)
        if found.paced > MIN_PACING_FACTOR:
            yield f"its budget covers {share} of that, so sample rates are lowered accordingly"
        else:
            yield f"its budget covers less than {share} of that, so sample rates are lowered to {share}, {rule_report.PACING_FLOOR_TEXT}"
    for key, error in found.estimate.errors.items():
        yield f"{key} fails before any judge call: {error}"
    for key, skipped in found.estimate.skipped.items():
        if skipped:
            yield f"{key} skips {skipped} of the {found.priced} newest targets"


def _trial_cells(found: RulePreview) -> Iterator[tuple[str, ...]]:
    for tried in found.tried:
        for it in tried.feedback:
            yield (
                *_target_cells(tried.target),
                it.key,
                it.outcome,
                format_value(it),
                shorten(it.error or it.comment or ""),
            )


def _target_cells(target: Target) -> tuple[str, ...]:
    """Return the table cells that describe a target, for the columns of `_print_preview`."""
    if target.span_id is None:
        return (target.trace_id or target.session_id or "",)
    document = () if target.document is None else (str(target.document + 1),)
    return target.trace_id or "", target.span_id, *document


def _preview_to_dict(found: RulePreview) -> dict[str, Any]:
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


RuleName = Annotated[str, typer.Argument(help="The active rule.")]
ShadowName = Annotated[
    str | None, typer.Argument(help="The rule to compare with. Optional if the active rule has exactly one shadow.")
]


def diff(
    rule: RuleName,
    shadow: ShadowName = None,
    project: RuleProject = "default",
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a rule with its shadow rule (`shadow_of=`), on the targets that both have scored.

    Example: `spanwise monitor diff grounded`
    """
    from spanwise.evaluators.monitors import diff as compared

    with open_store(at) as store:
        found = compared(store, rule, shadow, project=project)
    if as_json:
        emit([asdict(found)])
        return
    typer.echo(
        escape_line(f"{found.old.name} and {found.new.name}: {found.both} scored by both, {_describe_unmatched(found)}")
    )
    print_table(("key", "n", found.old.name, found.new.name, "change"), map(_difference_cells, found.differences))
    if found.cost_old is not None or found.cost_new is not None:
        cost = (
            f"{_format_usd(found.cost_old)} with {found.old.name}, {_format_usd(found.cost_new)} with {found.new.name}"
        )
        typer.echo(escape_line(f"a target costs {cost}"))
    if not found.differences:
        error_console.print("no key has scores of both rules yet", highlight=False)


def _describe_unmatched(found: RuleComparison) -> str:
    return f"{found.only_old} only by the first, {found.only_new} only by the second"


def _difference_cells(it: KeyDifference) -> tuple[str, ...]:
    verdict = "beyond chance" if it.beyond_chance else "within chance"
    return (
        it.key,
        str(it.change.n),
        _format_interval(it.old),
        _format_interval(it.new),
        f"{_format_interval(it.change, signed=True)} ({verdict})",
    )


def _format_interval(mean: SampledMean, signed: bool = False) -> str:
    if mean.mean is None:
        return "–" if mean.unweighted is None else f"– ({mean.unweighted:{'+' * signed}.3g} unweighted)"
    sign = "+" if signed else ""
    interval = "" if mean.low is None else f" [{mean.low:{sign}.3g}, {mean.high:{sign}.3g}]"
    return f"{mean.mean:{sign}.3g}{interval}"


def _format_usd(cost: float | None) -> str:
    return "an unknown amount" if cost is None else f"${cost:.5f}"
