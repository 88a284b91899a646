"""`spanwise monitor list|pause|resume|remove`: the rules that a store has, and their states."""

from __future__ import annotations

import time
from shlex import quote
from typing import Annotated

import typer

from spanwise.cli._common import console, emit, notes, on_a_line, opened, table
from spanwise.cli._options import JsonOption, StoreOption, YesOption
from spanwise.collector import verdicts
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Rule, RuleStatus
from spanwise.collector.stores import Store

Name = Annotated[str, typer.Argument(metavar="RULE", help="The name of a rule.")]
Project = Annotated[
    str | None, typer.Option(help="The project of the rule; needed if several have a rule of the name.")
]
Of = Annotated[str | None, typer.Option("--project", help="Rules of this project alone.")]


def rules(project: Of = None, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the rules with their project, state, rate and owner.

    Example: `spanwise monitor list`
    """
    import msgspec

    with opened(at) as store:
        found = store.status(project=project)
    if as_json:
        emit(msgspec.to_builtins(status.rule) for status in found)
    elif found:
        table(("rule", "project", "state", "rate", "owner", "version"), map(_cells, found))
    else:
        notes.print("there are no rules: `spanwise monitor rules.py` runs those of a file")


def _cells(status: RuleStatus) -> tuple[str, ...]:
    rule = status.rule
    return (
        rule.name,
        rule.project,
        verdicts.standing(status, time.time_ns())[0],
        verdicts.rate(status),
        rule.owner,
        (rule.version[:12]),
    )


def pause(name: Name, project: Project = None, at: StoreOption = None) -> None:
    """Pause a rule until it is resumed, also if its file changes. Traces that arrive meanwhile are decided then.

    Example: `spanwise monitor pause polite`
    """
    with opened(at) as store:
        rule = _find(store, name, project)
        store.change_rule(rule.name, project=rule.project, enabled=False)
    _say(f"paused {_named(rule)}; continue with: spanwise monitor resume {quote(rule.name)}")


def resume(name: Name, project: Project = None, at: StoreOption = None) -> None:
    """Resume a paused rule. It decides on the traces that arrived meanwhile, too.

    Example: `spanwise monitor resume polite`
    """
    with opened(at) as store:
        rule = _find(store, name, project)
        store.change_rule(rule.name, project=rule.project, enabled=True)
    _say(f"resumed {_named(rule)}")


def remove(name: Name, project: Project = None, yes: YesOption = False, at: StoreOption = None) -> None:
    """Remove a rule. Its feedback and decisions stay.

    Example: `spanwise monitor remove polite --yes`
    """
    with opened(at) as store:
        rule = _find(store, name, project)
        if not yes:
            typer.confirm(f"Remove {_named(rule)}?", abort=True, err=True)
        store.delete_rule(rule.name, project=rule.project)
    _say(f"removed {_named(rule)}{verdicts.comes_back(rule)}")


def _find(store: Store, name: str, project: str | None) -> Rule:
    """Return the rule of a name. Raises `NotFound`, and `Refused` if rules of several projects have the name."""
    there = store.rules(project=project)
    found = [rule for rule in there if rule.name == name]
    if not found:
        from spanwise.tracer.hints import did_you_mean

        hint = did_you_mean(name, [rule.name for rule in there], form=": {}")
        raise NotFound(f"there is no rule {name!r}{f' in project {project!r}' if project else ''}{hint}")
    if len(found) > 1:
        projects = ", ".join(rule.project for rule in found)
        raise Refused(f"rules named {name!r} are in several projects ({projects}); choose one with --project")
    return found[0]


def _named(rule: Rule) -> str:
    return f"rule {rule.name!r} of project {rule.project!r}"


def _say(text: str) -> None:
    console.print(on_a_line(text), markup=False, highlight=False, soft_wrap=True)
