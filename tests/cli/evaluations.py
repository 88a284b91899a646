"""Evaluation files that tests of `spanwise eval` write and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from spanwise.cli.app import app

# `RIGHT` examples of 20 have the right answer; every run costs 0.1 $ and 10 tokens, or has no known cost.
EVALUATION = """
from spanwise.tracer import current_run, trace
RIGHT, UNPRICED = 20, ()
dataset = [{"inputs": {"q": n}, "reference_outputs": f"a{n}"} for n in range(20)]
evaluators = ["exact"]

@trace(kind="llm")
def model(q):
    current_run().set_model("own")
    current_run().set_usage(input_tokens=5, output_tokens=5, cost=None if q in UNPRICED else 0.1)
    return f"a{q}" if q < RIGHT else "wrong"

def task(q):
    return model(q)
"""


@dataclass
class Command:
    """`spanwise eval` in a folder: writes evaluation files, runs them, and returns exit status and output."""

    folder: Path

    def write(self, text: str = EVALUATION, name: str = "check.py", **constants: object) -> Path:
        """Write an evaluation file; each of `constants` is added at its end."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "".join(f"\n{name} = {value!r}" for name, value in constants.items()) + "\n")
        return path

    def run(self, path: Path | str, *arguments: str) -> tuple[int, str]:
        """Run the command."""
        words = ["eval", str(path), "--store", str(self.store), *arguments]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        return result.exit_code, result.output

    def check(self, *arguments: str, text: str = EVALUATION, **constants: object) -> tuple[int, str]:
        """Write an evaluation file, and run it."""
        return self.run(self.write(text, **constants), *arguments)

    @property
    def store(self) -> Path:
        """Return the store's file."""
        return self.folder / "a.db"


def fail_if(*expressions: str) -> Sequence[str]:
    """Return the options for some expressions."""
    return [word for expression in expressions for word in ("--fail-if", expression)]


def last(output: str) -> str:
    """Return the last line."""
    return output.strip().splitlines()[-1]
