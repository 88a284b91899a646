"""`spanwise monitor status`, `why`, `check`, `diff` and `compare`: reports on rules and their decisions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
    print_note,
    print_table,
    resolve_trace_id,
    shorten,
)
from spanwise.cli.commands.feedback import format_value
from spanwise.collector import formatting
from spanwise.collector.diagnostics import rule_report
from spanwise.collector.errors import NotFound
from spanwise.collector.filters import parse_duration, parse_time
from spanwise.collector.records import DecisionExplanation, Rule, RuleStatus
from spanwise.collector.rule_policy import MIN_PACING_FACTOR
from spanwise.collector.statistics import SampledMean
from spanwise.collector.stores import Store, compare_rule_versions, summarize_rule
from spanwise.collector.terminal_escaping import MAX_MESSAGE_LENGTH, escape_line

if TYPE_CHECKING:
    from spanwise.evaluators.monitors import KeyDifference, RulePreview


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
    means_read: float = float("-inf")

    def read(self) -> list[tuple[RuleStatus, list[SampledMean]]]:
        statuses = self.store.status(project=self.project)
        if time.monotonic() - self.means_read > _MEANS_EVERY_S:
            self.means = {
                _rule_key(status): summarize_rule(self.store, status.rule, most=MAX_MEAN_SCORES) for status in statuses
            }
            self.means_read = time.monotonic()
        return [(status, self.means.get(_rule_key(status), [])) for status in statuses]


def _rule_key(status: RuleStatus) -> tuple[str, str, str]:
    return status.rule.project, status.rule.name, status.rule.version


def status(
    project: Project = None, once: Once = False, every: Every = 2.0, at: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show each rule's funnel, lag, rate, spending, weighted means and last errors. In a terminal, the display is live.

    Example: `spanwise monitor status --once`
    """
    import msgspec

    with open_store(at) as store:
        reader = _StatusReader(store, project)
        if as_json:
            emit(
                {**msgspec.to_builtins(status), "means": msgspec.to_builtins(means)} for status, means in reader.read()
            )
        elif once or not console.is_terminal:
            console.print(render_status(reader.read()), soft_wrap=not console.is_terminal)
        else:
            _show_live(reader, every)


def _show_live(reader: _StatusReader, every: float) -> None:
    from rich.live import Live

    try:
        with Live(render_status(reader.read()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(render_status(reader.read()), refresh=True)
    except KeyboardInterrupt:
        error_console.print("stopped")


def render_status(statuses: Sequence[tuple[RuleStatus, list[SampledMean]]]) -> Group:
    """Return all rules, one below the other."""
    if not statuses:
        return Group(
            Text(
                "no rules yet; define rules with spanwise.evaluators.monitor(…) and run them with `spanwise monitor rules.py`"
            )
        )
    now_ns = time.time_ns()
    finished, decided = rule_report.sum_throughput(
        (worker for status, _ in statuses for worker in status.workers), now_ns
    )
    head = Text(f"{formatting.number(finished)} finished and {formatting.number(decided)} decided per second", "dim")
    return Group(head, *(line for status, means in statuses for line in _render_rule(status, means, now_ns)))


def _render_rule(status: RuleStatus, means: list[SampledMean], now_ns: int) -> Iterator[Text | Table]:
    standing, is_healthy = rule_report.standing(status, now_ns)
    name = (escape_line(status.rule.name), "bold")
    yield Text.assemble(
        name, f"  {escape_line(status.rule.project)}  ", (standing, "green" if is_healthy else "yellow")
    )
    counts = [f"{stage.name} {formatting.count(stage.count)}" for stage in rule_report.funnel(status)]
    others = [name for name in rule_report.STORED if name != "scored" and status.counts.get(name)]
    yield Text("  " + " → ".join(counts))
    if others:
        yield Text(
            "  " + ", ".join(f"{rule_report.WORDS[name]} {formatting.count(status.counts[name])}" for name in others)
        )
    yield Text(f"  rate {rule_report.rate(status)}; {rule_report.behind(status)}")
    details = [f"budget: {spending}" for spending in rule_report.spending(status.rule, status.booked)]
    details += [f"{work.key}: {work}" for work in rule_report.work(status, now_ns)]
    details += [problem for worker in status.workers for problem in rule_report.idle(worker, status.rule.name)]
    for line in details:
        yield Text(f"  {escape_line(line)}")
    for error in status.errors[:3]:
        yield Text(f"  error: {escape_line(formatting.first_line(error))}", "red")
    if means:
        yield _means_table(means)


def _means_table(means: Sequence[SampledMean]) -> Table:
    table = Table(
        "key", "estimated mean", "95 %", "n", "effective n", "failed", "skipped", "excluded", box=None, padding=(0, 1)
    )
    for mean in means:
        interval = "–" if mean.low is None else f"{formatting.number(mean.low)}–{formatting.number(mean.high)}"
        estimate: str | Text
        counts = (mean.n, round(mean.effective), mean.failed, mean.skipped, mean.unknown + mean.outside)
        estimate = formatting.number(mean.mean)
        if mean.too_few:
            estimate, interval = Text(estimate, "dim"), "too few"
        if mean.unweighted is not None:
            estimate = f"– ({formatting.number(mean.unweighted)} unweighted)"
        table.add_row(Text(escape_line(mean.key)), estimate, interval, *map(formatting.count, counts))
    return table


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
        explanations = store.why(id)
        no_rules = "" if explanations else rule_report.explain_no_rules(store.trace(id).root.project, store.rules())
    if as_json:
        emit(map(msgspec.to_builtins, explanations))
        return
    if no_rules:
        print_note(escape_line(no_rules))
    for explanation in explanations:
        console.print(render_decision(explanation, time.time_ns()), soft_wrap=True)


def render_decision(explanation: DecisionExplanation, now_ns: int) -> Text:
    """Render the decision of one rule: a line with outcome and reason, and below it the details."""
    text = Text.assemble(
        (escape_line(explanation.rule.name), "bold"),
        "  ",
        (rule_report.WORDS[explanation.verdict], OUTCOME_STYLES.get(explanation.verdict, "yellow")),
    )
    if reason := rule_report.reason(explanation):
        text.append(f"  {escape_line(reason, MAX_MESSAGE_LENGTH)}")
    for line in _reason_lines(explanation, now_ns):
        text.append(f"\n    {escape_line(line, MAX_MESSAGE_LENGTH)}")
    return text


def _reason_lines(explanation: DecisionExplanation, now_ns: int) -> Iterator[str]:
    for condition in explanation.conditions:
        mark = {True: "holds", False: "fails", None: "unknown yet"}[condition.passes]
        yield f"{mark}: {rule_report.describe_condition(condition)}"
    if sample := rule_report.sampling(explanation):
        yield f"sample: {sample}"
    for budget in rule_report.spending(explanation.rule, explanation.budget) if explanation.budget else ():
        yield f"budget: {budget}"
    for decision in explanation.decisions:
        head = [rule_report.target(decision), rule_report.WORDS[decision.verdict], decision.reason]
        yield ", ".join(dict.fromkeys(filter(None, [*head, *rule_report.facts(decision, now_ns)])))
        for key, state, error in rule_report.states(decision):
            yield f"  {key}: {state}" + (f", {error}" if error else "")
    if command := rule_report.look_on(explanation):
        yield f"to list the fields that its spans contain, and the unused ones, run: {command}"


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
    from spanwise.evaluators.monitors import check as check_rule
    from spanwise.evaluators.monitors import load

    rules = [rule for rule in load(file) if only in (None, rule.record.name)]
    if not rules:
        raise ValueError(f"{file!r} defines no rule {only!r}")
    with open_store(at) as store:
        now_ns = time.time_ns()
        states = {
            (status.rule.project, status.rule.name): rule_report.standing(status, now_ns)[0]
            for status in store.status()
        }
        for rule in rules:
            preview = check_rule(rule, store, seconds=parse_duration(since) / 1e9, tries=tries)
            if as_json:
                emit([_preview_to_dict(preview)])
                continue
            typer.echo(escape_line(f"{preview.rule.name} ({preview.rule.project}, version {preview.rule.version})"))
            for line in _preview_lines(preview, since):
                typer.echo(escape_line(f"  {line}"))
            if preview.tried:
                ids = {"session": ("session",), "span": ("trace", "span"), "document": ("trace", "span", "document")}
                head = (*ids.get(preview.rule.target, ("trace",)), "key", "outcome", "score", "comment")
                print_table(head, _trial_cells(preview))
            if state := states.get((preview.rule.project, preview.rule.name)):
                typer.echo(escape_line(f"  now: {state}"))


def _preview_lines(preview: RulePreview, since: str) -> Iterator[str]:
    about = "" if preview.exact else "about "
    yield f"of {preview.traces} traces in {since}, {about}{preview.matched} match and {about}{preview.sampled} are sampled"
    if preview.rule.target in ("span", "document"):
        yield f"they contain about {preview.targets} {preview.rule.target}s to score"
    total = preview.estimate.total
    if total.calls or total.cached:
        endpoints = " and ".join(preview.estimate.where)
        usd = "price unknown" if preview.usd is None else f"about ${preview.usd:.4f}"
        yield f"judges are asked about {preview.calls} times, {usd}; text goes to {endpoints}"
    if preview.paced is not None and preview.paced < 1:
        share = formatting.percent(preview.paced, 1)
        if preview.paced > MIN_PACING_FACTOR:
            yield f"its budget covers {share} of that, so sample rates are lowered accordingly"
        else:
            yield f"its budget covers less than {share} of that, so sample rates are lowered to {share}, {rule_report.PACING_FLOOR_TEXT}"
    for key, error in preview.estimate.errors.items():
        yield f"{key} fails before any judge call: {error}"
    for key, skipped in preview.estimate.skipped.items():
        if skipped:
            yield f"{key} skips {skipped} of the {preview.priced} newest targets"


def _trial_cells(preview: RulePreview) -> Iterator[tuple[str, ...]]:
    """Yield the table cells of the scores of a trial, with the columns of the rule's targets."""
    for trial in preview.tried:
        target = trial.target
        ids: tuple[str, ...] = (target.trace_id or target.session_id or "",)
        if target.span_id is not None:
            document = () if target.document is None else (str(target.document + 1),)
            ids = target.trace_id or "", target.span_id, *document
        for feedback in trial.feedback:
            comment = shorten(feedback.error or feedback.comment or "")
            yield (*ids, feedback.key, feedback.outcome, format_value(feedback), comment)


def _preview_to_dict(preview: RulePreview) -> dict[str, Any]:
    return {
        "rule": preview.rule.name,
        "project": preview.rule.project,
        "version": preview.rule.version,
        "seconds": preview.seconds,
        "traces": preview.traces,
        "matched": preview.matched,
        "sampled": preview.sampled,
        "targets": preview.targets,
        "exact": preview.exact,
        "calls": preview.calls,
        "usd": preview.usd,
        "paced": preview.paced,
        "where": list(preview.estimate.where),
        "tried": [asdict(trial) for trial in preview.tried],
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
    from spanwise.evaluators.monitors import diff as compare_rules

    with open_store(at) as store:
        comparison = compare_rules(store, rule, shadow, project=project)
    if as_json:
        emit([asdict(comparison)])
        return
    old, new = comparison.old.name, comparison.new.name
    unmatched = f"{comparison.only_old} only by the first, {comparison.only_new} only by the second"
    typer.echo(escape_line(f"{old} and {new}: {comparison.both} scored by both, {unmatched}"))
    print_table(("key", "n", old, new, "change"), map(_difference_cells, comparison.differences))
    if comparison.cost_old is not None or comparison.cost_new is not None:
        cost = f"{_format_usd(comparison.cost_old)} with {old}, {_format_usd(comparison.cost_new)} with {new}"
        typer.echo(escape_line(f"a target costs {cost}"))
    if not comparison.differences:
        error_console.print("no key has scores of both rules yet", highlight=False)


def _difference_cells(difference: KeyDifference) -> tuple[str, ...]:
    conclusion = "beyond chance" if difference.beyond_chance else "within chance"
    return (
        difference.key,
        str(difference.change.n),
        _format_interval(difference.old),
        _format_interval(difference.new),
        f"{_format_interval(difference.change, signed=True)} ({conclusion})",
    )


def _format_interval(mean: SampledMean, signed: bool = False) -> str:
    sign = "+" if signed else ""
    if mean.mean is None:
        return "–" if mean.unweighted is None else f"– ({mean.unweighted:{sign}.3g} unweighted)"
    interval = "" if mean.low is None else f" [{mean.low:{sign}.3g}, {mean.high:{sign}.3g}]"
    return f"{mean.mean:{sign}.3g}{interval}"


def _format_usd(cost: float | None) -> str:
    return "an unknown amount" if cost is None else f"${cost:.5f}"


ByField = Annotated[
    str,
    typer.Option("--by", help="Field that tells the versions: tag, model, environment, prompt_version, metadata.KEY."),
]
VersionA = Annotated[str, typer.Option("--a", help="The version to compare with.")]
VersionB = Annotated[str, typer.Option("--b", help="The other version. Differences are b minus a.")]
OnlyKey = Annotated[str | None, typer.Option("--key", help="Only this feedback key.")]
StartSince = Annotated[str | None, typer.Option("--since", help="Traces that started since then: 7d, or a date.")]
StartUntil = Annotated[str | None, typer.Option("--until", help="Traces that started before then.")]
Margin = Annotated[float | None, typer.Option(min=0, help="Difference that does not matter, in units of the score.")]
ScaleOption = Annotated[
    str | None,
    typer.Option(help="Lowest and highest possible score, as LOW:HIGH. Default: as the rule records, or 0:1."),
]


def compare(
    rule: RuleName,
    a: VersionA,
    b: VersionB,
    by: ByField = "tag",
    key: OnlyKey = None,
    since: StartSince = None,
    until: StartUntil = None,
    margin: Margin = None,
    scale: ScaleOption = None,
    project: RuleProject = "default",
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two versions in production by the scores of a rule. The intervals hold however often you look.

    Example: `spanwise monitor compare support --by tag --a v1 --b v2`
    """
    low, _, high = (scale or "").partition(":")
    try:
        bounds = None if scale is None else (float(low), float(high))
    except ValueError:
        raise ValueError(f"--scale must be LOW:HIGH, such as 0:10, got {scale!r}") from None
    with open_store(at) as store:
        record = next((each for each in store.rules(project=project) if each.name == rule), None)
        if record is None:
            raise NotFound(f"there is no rule {rule!r} in project {project!r}")
        versions = compare_rule_versions(
            store,
            record,
            by=by,
            a=a,
            b=b,
            key=key,
            since_ns=parse_time(since) if since else None,
            until_ns=parse_time(until) if until else None,
            margin=margin,
            scale=bounds,
            rising=_list_directions(record),
        )
    if as_json:
        emit([{**asdict(versions), "ran_together": versions.ran_together}])
        return
    typer.echo(versions.describe_hours())
    head = ("key", f"n {a}", f"n {b}", f"mean {a}", f"mean {b}", "difference (95 %, at all looks)", "conclusion")
    rows = []
    for name, found in versions.differences.items():
        counts = [formatting.count(0 if side is None else side.n) for side in (found.a, found.b)]
        means = ["–" if side is None else formatting.number(side.mean) for side in (found.a, found.b)]
        interval = "–" if found.low is None else f"{found.difference:+.3g} [{found.low:+.3g}, {found.high:+.3g}]"
        rows.append((name, *counts, *means, interval, str(found)))
    print_table(tuple(map(escape_line, head)), rows)
    if versions.of_both:
        print_note(f"{versions.of_both} scores of traces of both versions were left out")
    if versions.unknown:
        print_note(f"{versions.unknown} scores of unknown sampling probability were left out")


def _list_directions(rule: Rule) -> dict[str, bool]:
    """Return whether a higher score is better, for the keys of a rule's built-in evaluators that it does not record.

    Rules that were created through the API record no metrics.
    """
    from spanwise.evaluators import get_evaluator, list_evaluators

    directions: dict[str, bool] = {}
    known = list_evaluators()
    for entry in () if rule.metrics else rule.evaluators:
        if (id := str(entry.get("type") or entry.get("id"))) in known:
            with suppress(ValueError):  # it needs parameters
                directions |= {metric.key: metric.higher_is_better for metric in get_evaluator(id).metrics}
    return directions
