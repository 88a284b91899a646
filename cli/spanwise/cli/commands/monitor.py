"""`spanwise monitor`: run the rules of a file; list, pause, resume and remove rules; backfills; spend.

The reports (`check`, `diff`, `compare`, `status`, `why`) are in `monitor_reports`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from typer.core import TyperGroup

from spanwise.cli.command_io import (
    JsonOption,
    StoreOption,
    YesOption,
    emit,
    error_console,
    open_store,
    print_line,
    print_note,
    print_table,
)
from spanwise.cli.commands import monitor_reports
from spanwise.cli.commands.monitor_health import serve_health
from spanwise.collector import default_location, describe, formatting
from spanwise.collector.diagnostics import rule_report
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import parse_time
from spanwise.collector.records import Backfill, BackfillPreview, Rule, RuleStatus
from spanwise.collector.stores import LocalStore, Store
from spanwise.collector.terminal_escaping import escape_line

if TYPE_CHECKING:
    from spanwise.evaluators.monitors import BackfillEstimate, LoadedRules, WorkerPlan


RulesFile = Annotated[
    str, typer.Argument(metavar="RULES.PY", help="Python file that calls spanwise.evaluators.monitor(…).")
]
Workers = Annotated[
    int, typer.Option(min=1, max=64, help="Number of worker processes. They share the rules and budgets.")
]
Activate = Annotated[
    bool, typer.Option("--activate", help="Activate these versions even if newer ones have replaced them.")
]
Memory = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Memory limit of each worker in GiB; 0 for none. Default: half of the memory, divided among the workers.",
    ),
]


HealthPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Port on this machine for health checks: /healthz, and /readyz, which is 503 while no worker evaluates traces.",
    ),
]


def run(
    file: RulesFile,
    at: StoreOption = None,
    workers: Workers = 1,
    activate: Activate = False,
    memory: Memory = None,
    health_port: HealthPort = None,
) -> None:
    """Evaluate live traffic by the rules of a file, until Ctrl-C. The file is reloaded when it changes.

    Evaluators run in separate processes, which are replaced when they die or hang.

    Example: `spanwise monitor rules.py --store http://127.0.0.1:4318`
    """
    from spanwise.evaluators.monitors import Supervisor

    _check_file_exists(file)
    url = _find_store(at)
    plan = make_plan(file, url, workers=workers, activate=activate, memory=memory)
    supervisor = Supervisor(plan, print_monitor_line, print_rules)
    with stop_on_signal() as stop, serve_health(health_port, supervisor.trouble):
        is_loaded = supervisor.run(stop)
    if not is_loaded:
        raise typer.Exit(1)
    print_monitor_line("stopped; unfinished evaluations were released")


def make_plan(
    file: str,
    url: str,
    *,
    workers: int = 1,
    activate: bool = False,
    memory: float | None = None,
    key: str | None = None,
) -> WorkerPlan:
    """Return the configuration of the worker processes. Raises `Refused` if the file does not exist."""
    from spanwise.evaluators.monitors import WorkerPlan, default_memory_limit

    _check_file_exists(file)
    bytes_ = default_memory_limit(workers) if memory is None else int(memory * 2**30) or None
    return WorkerPlan(file=Path(file), url=url, key=key, workers=workers, memory=bytes_, activate=activate)


def _check_file_exists(file: str) -> None:
    """Raise `Refused` if the file does not exist."""
    if not Path(file).is_file():
        raise Refused(f"there is no rules file {file!r}")


def print_monitor_line(text: str) -> None:
    """Print a line on stderr."""
    print_note(f"monitor: {text}")


def print_rules(loaded: LoadedRules) -> None:
    """Print the loaded rules with versions, rates and budgets, and the addresses to which their evaluators send text."""
    for rule in loaded.rules:
        print_monitor_line(_describe_rule(rule))
        for where in rule["where"]:
            print_monitor_line(f"  text of rule {rule['name']!r} goes to {where}")


def _describe_rule(rule: Mapping[str, Any]) -> str:
    strata = budget = ""
    if rule["strata"]:
        count = "1 stratum" if len(rule["strata"]) == 1 else f"{len(rule['strata'])} strata"
        strata = f", {count} at {', '.join(map(_format_percent, rule['strata']))}"
    for name, limit in rule["budget"].items():
        unit, _, period = name.partition("_per_")
        budget += f", at most ${limit:g} a {period}" if unit == "usd" else f", at most {limit:g} {unit} a {period}"
    scope = f"{', '.join(rule['evaluators'])} on {_format_percent(rule['rate'])} of {rule['target']}s{strata}{budget}"
    return f"rule {rule['name']!r} of project {rule['project']!r}, version {rule['version']}: {scope}"


def _format_percent(rate: float) -> str:
    return f"{100 * rate:g} %"


def _find_store(at: str | None) -> str:
    """Return the URL of the store for the workers: that of a collector, or of the databases that collectors share.

    For a file, return that of the server that serves it. Raises `Refused`.
    """
    location = at or default_location()
    with open_store(location) as store:
        where = describe(store)
        if isinstance(store, LocalStore) and not store.is_exclusive:
            return location
    if where.startswith(("http://", "https://")):
        return where
    raise Refused(
        f"no server is running for {where!r}, and a monitor needs one; start `spanwise serve --store {where} --monitor "
        "RULES.PY`, or name a server with --store http://…"
    )


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that is set by Ctrl-C and SIGTERM."""
    stop = threading.Event()
    numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


RuleName = Annotated[str, typer.Argument(metavar="RULE", help="Name of a rule.")]
Project = Annotated[
    str | None, typer.Option(help="Project of the rule; required if several projects have a rule of this name.")
]
OfProject = Annotated[str | None, typer.Option("--project", help="Only rules of this project.")]


def rules(project: OfProject = None, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the rules with their project, state, rate and owner.

    Example: `spanwise monitor list`
    """
    import msgspec

    with open_store(at) as store:
        statuses = store.status(project=project)
    if as_json:
        emit(msgspec.to_builtins(status.rule) for status in statuses)
    elif statuses:
        print_table(("rule", "project", "state", "rate", "owner", "version"), map(_rule_cells, statuses))
    else:
        error_console.print("there are no rules; `spanwise monitor rules.py` runs the rules of a file")


def _rule_cells(status: RuleStatus) -> tuple[str, ...]:
    rule = status.rule
    return (
        rule.name,
        rule.project,
        rule_report.standing(status, time.time_ns())[0],
        rule_report.rate(status),
        rule.owner,
        rule.version[:12],
    )


def pause(name: RuleName, project: Project = None, at: StoreOption = None) -> None:
    """Pause a rule until it is resumed, even if its file changes. Traces that arrive meanwhile are decided on
    resumption.

    Example: `spanwise monitor pause polite`
    """
    with open_store(at) as store:
        rule = _find_rule(store, name, project)
        store.change_rule(rule.name, project=rule.project, enabled=False)
    print_line(escape_line(f"paused {_rule_label(rule)}; continue with: spanwise monitor resume {quote(rule.name)}"))


def resume(name: RuleName, project: Project = None, at: StoreOption = None) -> None:
    """Resume a paused rule. It also decides on the traces that arrived meanwhile.

    Example: `spanwise monitor resume polite`
    """
    with open_store(at) as store:
        rule = _find_rule(store, name, project)
        store.change_rule(rule.name, project=rule.project, enabled=True)
    print_line(escape_line(f"resumed {_rule_label(rule)}"))


def remove(name: RuleName, project: Project = None, yes: YesOption = False, at: StoreOption = None) -> None:
    """Remove a rule. Its feedback and decisions stay.

    Example: `spanwise monitor remove polite --yes`
    """
    with open_store(at) as store:
        rule = _find_rule(store, name, project)
        if not yes:
            typer.confirm(f"Remove {_rule_label(rule)}?", abort=True, err=True)
        store.delete_rule(rule.name, project=rule.project)
    print_line(escape_line(f"removed {_rule_label(rule)}{rule_report.comes_back(rule)}"))


OfRule = Annotated[str | None, typer.Option("--rule", help="Only this rule.")]
SpendBy = Annotated[str, typer.Option("--by", help="Group by rule, evaluator, model or project; several: rule,model.")]
SpendPer = Annotated[str | None, typer.Option("--per", help="One row per hour or day (UTC) and group.")]
SpendSince = Annotated[str, typer.Option("--since", help="Calls since then: 24h, 30d, or a date.")]
BUCKETS_NS = {"hour": 3_600_000_000_000, "day": 86_400_000_000_000}


def spend(
    by: SpendBy = "rule",
    per: SpendPer = None,
    since: SpendSince = "30d",
    rule: OfRule = None,
    project: OfProject = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the US dollars that rules spend on judge calls: settled, reserved, and of unknown cost.

    Example: `spanwise monitor spend --by evaluator,model --per day`
    """
    import msgspec

    if per is not None and per not in BUCKETS_NS:
        raise ValueError(f"--per must be hour or day, got {per!r}")
    groups: list[Any] = [name.strip() for name in by.split(",")]
    if "rule" in groups and "project" not in groups:  # names of rules are unique within a project
        groups.insert(0, "project")
    with open_store(at) as store:
        found = store.spend(
            by=groups,
            bucket_ns=None if per is None else BUCKETS_NS[per],
            project=project,
            rule=rule,
            since_ns=parse_time(since),
        )
        statuses = store.status(project=project)
    if as_json:
        emit(map(msgspec.to_builtins, found))
        return
    if not found:
        error_console.print(f"no rule has spent anything on judge calls since {since}", highlight=False)
        return
    rows = []
    for each in found:
        start = datetime.fromtimestamp(each.start_ns // 10**9, UTC)
        first = () if per is None else (f"{start:%Y-%m-%d %H:%M}" if per == "hour" else f"{start:%Y-%m-%d}",)
        names = (escape_line(getattr(each, group) or "–") for group in groups)
        rows.append((*first, *names, *map(formatting.cost, (each.settled, each.reserved, each.unknown, each.total))))
    heads = () if per is None else (f"{per} (UTC)",)
    print_table((*heads, *groups, "settled", "reserved", "cost unknown", "total"), rows)
    if unpriced := sum(each.unpriced for each in found):
        print_note(f"{unpriced} calls asked models of unknown price; give their judges price=(…)")
    for status in statuses:
        for budget in rule_report.spending(status.rule, status.booked) if rule in (None, status.rule.name) else ():
            print_note(escape_line(f"budget of {_rule_label(status.rule)}: {budget}"))


def _find_rule(store: Store, name: str, project: str | None) -> Rule:
    """Return the rule with this name. Raises `NotFound`, or `Refused` if several projects have a rule of this name."""
    rules = store.rules(project=project)
    matching = [rule for rule in rules if rule.name == name]
    if not matching:
        from spanwise.tracer.suggestions import did_you_mean

        hint = did_you_mean(name, [rule.name for rule in rules], form=": {}")
        raise NotFound(f"there is no rule {name!r}{f' in project {project!r}' if project else ''}{hint}")
    if len(matching) > 1:
        projects = ", ".join(rule.project for rule in matching)
        raise Refused(f"rules named {name!r} are in several projects ({projects}); choose one with --project")
    return matching[0]


def _rule_label(rule: Rule) -> str:
    return f"rule {rule.name!r} of project {rule.project!r}"


Since = Annotated[str, typer.Option(help="Traces that started since then: 30d, or a date.")]
Until = Annotated[str | None, typer.Option(help="Traces that started before then. Default: now.")]
Rate = Annotated[
    float | None, typer.Option(help="Sample rate for every trace. Default: the rates of the rule and its strata.")
]
BudgetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="LIMIT=AMOUNT",
        help="Budget of this job, such as usd_per_day=5. Default: half of the rule's.",
    ),
]
RulesOption = Annotated[
    str | None, typer.Option("--rules", metavar="RULES.PY", help="Rules file, for the cost. Default: that of the rule.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what the backfill would do.")]
BackfillId = Annotated[str, typer.Argument(metavar="ID", help="Id of a backfill, or its beginning.")]


def start_backfill(
    name: RuleName,
    since: Since,
    until: Until = None,
    rate: Rate = None,
    budget: BudgetOption = None,
    file: RulesOption = None,
    dry_run: DryRun = False,
    yes: YesOption = False,
    project: Project = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score the traces of a past period by a rule, beside its live traffic. A dry run comes first.

    Example: `spanwise monitor backfill polite --since 30d --until 7d --rate 0.1`
    """
    import msgspec

    from spanwise.evaluators.monitors import estimate_backfill, load_rule

    try:
        limits = {name: float(amount) for name, _, amount in (text.partition("=") for text in budget or ())}
    except ValueError:
        raise ValueError(f"--budget must be LIMIT=AMOUNT, such as usd_per_day=5, got {budget!r}") from None
    with open_store(at) as store:
        rule = _find_rule(store, name, project)
        options: dict[str, Any] = {
            "project": rule.project,
            "since_ns": parse_time(since),
            "until_ns": time.time_ns() if until is None else parse_time(until),
            "sample_rate": rate,
        }
        preview = store.preview_backfill(rule.name, **options)
        loaded = load_rule(rule, file)
        estimated = None if loaded is None else estimate_backfill(loaded, store, preview)
        if as_json:
            emit([{**msgspec.to_builtins(preview), **(asdict(estimated) if estimated is not None else {})}])
        else:
            for line in _preview_lines(preview, estimated):
                print_line(escape_line(line))
        if dry_run:
            return
        if not yes:
            typer.confirm(f"Start this backfill of {_rule_label(rule)}?", abort=True, err=True)
        options |= {"budget": limits, "version": preview.version, "id": uuid4().hex[:12]}
        job = store.start_backfill(rule.name, **options)
    if as_json:
        emit([msgspec.to_builtins(job)])
    else:
        print_line(f"started backfill {job.id}; follow it with: spanwise monitor backfill show {job.id}")


def _preview_lines(preview: BackfillPreview, estimated: BackfillEstimate | None) -> Iterator[str]:
    about = "" if preview.exact else "about "
    yield (
        f"of {about}{preview.read:,} traces, {about}{preview.matched:,} match and {about}{preview.sampled:,} are sampled;"
        f" {about}{preview.known:,} of them have a result of version {preview.version[:12]}"
    )
    targets = preview.scored if estimated is None else estimated.targets
    if estimated is None:
        usd = "unknown" if preview.usd is None else f"about {formatting.cost(preview.usd)}, as the latest results"
        yield f"to score: {about}{targets:,}; cost: {usd}; judge calls: unknown, because its evaluators are not loaded (--rules)"
    elif estimated.calls:
        usd = "price unknown" if estimated.usd is None else f"about {formatting.cost(estimated.usd)}"
        yield f"to score: {about}{targets:,}; judge calls: about {estimated.calls:,}, {usd}; text goes to {' and '.join(estimated.where)}"
    else:
        yield f"to score: {about}{targets:,}; judge calls: none"
    if preview.seconds_per_target is None:
        yield f"duration: unknown, because no worker has timed this version; concurrency {preview.concurrency}"
    else:
        seconds = targets * preview.seconds_per_target / preview.concurrency
        yield f"duration: about {formatting.duration(int(seconds * 1e9))} at concurrency {preview.concurrency}, without live traffic"


def list_backfills(project: OfProject = None, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the backfills with their state and progress, newest first.

    Example: `spanwise monitor backfill list`
    """
    import msgspec

    with open_store(at) as store:
        jobs = store.backfills(project=project)
    if as_json:
        emit(map(msgspec.to_builtins, jobs))
    elif jobs:
        head = ("backfill", "rule", "project", "state", "progress")
        print_table(
            head, ((job.id, job.rule, job.project, job.state, rule_report.backfill_progress(job)) for job in jobs)
        )
    else:
        error_console.print("there are no backfills; `spanwise monitor backfill RULE --since 30d` starts one")


def show_backfill(id: BackfillId, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show the period, the state and the progress of a backfill.

    Example: `spanwise monitor backfill show 3f2a`
    """
    import msgspec

    with open_store(at) as store:
        job = _find_backfill(store, id)
    if as_json:
        emit([msgspec.to_builtins(job)])
        return
    budget = ", ".join(f"{name}={limit:g}" for name, limit in job.budget.items()) or "half of the rule's"
    lines = (
        f"backfill {job.id} of rule {job.rule!r} of project {job.project!r}, version {job.version[:12]}",
        f"traces that started from {formatting.utc(job.since_ns)} to {formatting.utc(job.until_ns)}, sample rate {rule_report.backfill_rate(job)}",
        f"budget: {budget}",
        rule_report.backfill_state(job),
        rule_report.backfill_progress(job),
    )
    for line in lines:
        print_line(escape_line(line))


def pause_backfill(id: BackfillId, at: StoreOption = None) -> None:
    """Pause a backfill. Targets that are being evaluated are finished.

    Example: `spanwise monitor backfill pause 3f2a`
    """
    _change_backfill(at, id, "paused")


def resume_backfill(id: BackfillId, at: StoreOption = None) -> None:
    """Resume a paused backfill.

    Example: `spanwise monitor backfill resume 3f2a`
    """
    _change_backfill(at, id, "running")


def cancel_backfill(id: BackfillId, at: StoreOption = None) -> None:
    """Cancel a backfill. Its scores stay.

    Example: `spanwise monitor backfill cancel 3f2a`
    """
    _change_backfill(at, id, "cancelled")


def _change_backfill(at: str | None, id: str, state: str) -> None:
    with open_store(at) as store:
        found = _find_backfill(store, id)
        job = store.change_backfill(found.id, state, project=found.project)
    print_line(
        escape_line(f"backfill {job.id} is {rule_report.backfill_state(job)}; {rule_report.backfill_progress(job)}")
    )


def _find_backfill(store: Store, id: str) -> Backfill:
    """Return the backfill with this id, or whose id begins with it. Raises `NotFound` or `Refused`."""
    matching = [job for job in store.backfills() if job.id.startswith(id)]
    if not matching:
        raise NotFound(f"there is no backfill {id!r}; `spanwise monitor backfill list` shows all")
    if len(matching) > 1 and all(job.id != id for job in matching):
        raise Refused(f"several backfills begin with {id!r}: {', '.join(job.id for job in matching)}")
    return next((job for job in matching if job.id == id), matching[0])


class _BackfillGroup(TyperGroup):
    """Command group in which `spanwise monitor backfill RULE` is short for `spanwise monitor backfill start RULE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `start` before the name of a rule."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["start", *args]
        return super().parse_args(ctx, args)


backfill_app = typer.Typer(
    cls=_BackfillGroup,
    help="Jobs that score the traces of a past period: `spanwise monitor backfill RULE --since 30d` starts one.",
    no_args_is_help=True,
    epilog="Example: `spanwise monitor backfill polite --since 30d --rate 0.1`",
)
backfill_app.command("start")(start_backfill)
backfill_app.command("list")(list_backfills)
backfill_app.command("show")(show_backfill)
backfill_app.command("pause")(pause_backfill)
backfill_app.command("resume")(resume_backfill)
backfill_app.command("cancel")(cancel_backfill)

_RUN_COMMAND = "run"


class _MonitorGroup(TyperGroup):
    """Command group in which `spanwise monitor rules.py` is short for `spanwise monitor run rules.py`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `run` before a file or an option. Commands, misspelt commands and help options stay unchanged."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            is_for_run = args[0].startswith("-") or args[0].endswith(".py") or Path(args[0]).exists()
            args = [_RUN_COMMAND, *args] if is_for_run else args
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_MonitorGroup,
    help="Rules that evaluate live traffic: `spanwise monitor rules.py` runs them.",
    no_args_is_help=True,
    epilog="Example: `spanwise monitor rules.py`, which is `spanwise monitor run rules.py`",
)
app.command(_RUN_COMMAND)(run)
app.command("list")(rules)
app.command("pause")(pause)
app.command("resume")(resume)
app.command("remove")(remove)
app.add_typer(backfill_app, name="backfill")
app.command("check")(monitor_reports.check)
app.command("diff")(monitor_reports.diff)
app.command("compare")(monitor_reports.compare)
app.command("spend")(spend)
app.command("status")(monitor_reports.status)
app.command("why")(monitor_reports.why)
