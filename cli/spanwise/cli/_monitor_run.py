"""`spanwise monitor rules.py`: the rules of a file, carried out until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spanwise.cli._common import harmless, notes, opened
from spanwise.cli._options import StoreOption
from spanwise.collector import describe
from spanwise.collector.errors import Refused

if TYPE_CHECKING:
    from spanwise.evaluators.monitors import Loaded, Plan

File = Annotated[
    str, typer.Argument(metavar="RULES.PY", help="A Python file that calls spanwise.evaluators.monitor(…).")
]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Processes that evaluate; they share the rules and budgets.")]
Activate = Annotated[bool, typer.Option("--activate", help="Take up versions again that others have superseded.")]
Memory = Annotated[
    float | None,
    typer.Option(min=0, help="GiB that each worker may fill, 0 for no limit; else half of the machine's, shared."),
]


def run(
    file: File, at: StoreOption = None, workers: Workers = 1, activate: Activate = False, memory: Memory = None
) -> None:
    """Evaluate live traffic by the rules of a file, until Ctrl-C. The file is read again whenever it changes.

    Evaluators run in processes of their own, which are replaced when they die or hang.

    Example: `spanwise monitor rules.py --store http://127.0.0.1:4318`
    """
    from spanwise.evaluators.monitors import Supervisor

    _refuse_absent(file)
    url = _collector(at)
    plan = planned(file, url, workers=workers, activate=activate, memory=memory)
    with until_told() as stop:
        done = Supervisor(plan, say, show).run(stop)
    if not done:
        raise typer.Exit(1)
    say("stopped; what was not finished is given back")


def planned(
    file: str,
    url: str,
    *,
    workers: int = 1,
    activate: bool = False,
    memory: float | None = None,
    key: str | None = None,
) -> Plan:
    """What is to run. Raises `Refused` where there is no such file."""
    from spanwise.evaluators.monitors import Plan, usual_memory

    _refuse_absent(file)
    bytes_ = usual_memory(workers) if memory is None else int(memory * 2**30) or None
    return Plan(file=Path(file), url=url, key=key, workers=workers, memory=bytes_, activate=activate)


def _refuse_absent(file: str) -> None:
    """Raises `Refused` where there is no such file."""
    if not Path(file).is_file():
        raise Refused(f"there is no file of rules {file!r}")


def say(text: str) -> None:
    """A line on stderr."""
    notes.print(harmless(f"monitor: {text}"), markup=False, highlight=False, soft_wrap=True)


def show(loaded: Loaded) -> None:
    """What runs: rules with versions, rates and budgets, and where text goes."""
    for rule in loaded.rules:
        say(_line(rule))
        for where in rule["where"]:
            say(f"  text of rule {rule['name']!r} goes to {where}")


def _line(rule: Mapping[str, Any]) -> str:
    strata = (
        f", {_counted(len(rule['strata']))} at {', '.join(map(_percent, rule['strata']))}" if rule["strata"] else ""
    )
    budget = "".join(f", at most {_limit(name, most)}" for name, most in rule["budget"].items())
    what = f"{', '.join(rule['evaluators'])} on {_percent(rule['rate'])} of {rule['target']}s{strata}{budget}"
    return f"rule {rule['name']!r} of project {rule['project']!r}, version {rule['version']}: {what}"


def _counted(strata: int) -> str:
    return "1 stratum" if strata == 1 else f"{strata} strata"


def _percent(rate: float) -> str:
    return f"{100 * rate:g} %"


def _limit(name: str, most: float) -> str:
    what, _, period = name.partition("_per_")
    return f"${most:g} a {period}" if what == "usd" else f"{most:g} {what} a {period}"


def _collector(at: str | None) -> str:
    """The address of the collector; a file's is that of the server that holds it. Raises `Refused`."""
    with opened(at) as store:
        where = describe(store)
    if "://" in where:
        return where
    raise Refused(
        f"no server holds {where!r}, and a monitor writes through one: start `spanwise serve --store {where} --monitor "
        "RULES.PY`, or name a server with --store http://…"
    )


@contextmanager
def until_told() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set."""
    stop = threading.Event()
    numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
