"""`spanwise monitor`: rules that evaluate live traffic, carried out and looked at.

The commands stand in modules of their own, `_monitor_*.py`; each has a line here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from spanwise.cli import _monitor_check, _monitor_rules, _monitor_run, _monitor_status, _monitor_why

_RUN = "run"


class _Group(TyperGroup):
    """`spanwise monitor rules.py` is `spanwise monitor run rules.py`: a file or an option goes to `run`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` before what is neither a command, nor a misspelt one, nor a question for help."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names and _is_for_run(args[0]):
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


def _is_for_run(word: str) -> bool:
    return word.startswith("-") or word.endswith(".py") or Path(word).exists()


app = typer.Typer(
    cls=_Group,
    help="Rules that evaluate live traffic: `spanwise monitor rules.py` carries them out.",
    no_args_is_help=True,
    epilog="Example: `spanwise monitor rules.py`, which is `spanwise monitor run rules.py`",
)
app.command(_RUN)(_monitor_run.run)
app.command("list")(_monitor_rules.rules)
app.command("pause")(_monitor_rules.pause)
app.command("resume")(_monitor_rules.resume)
app.command("remove")(_monitor_rules.remove)
app.command("check")(_monitor_check.check)
app.command("diff")(_monitor_check.diff)
app.command("status")(_monitor_status.status)
app.command("why")(_monitor_why.why)
