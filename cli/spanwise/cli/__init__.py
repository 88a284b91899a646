"""Command line: the `spanwise` command, the pytest plugin, the MCP server and the demo.

Modules, in the order in which data flows:

- `app`: Root application of the `spanwise` command: finds and imports command groups, shows migration progress.
- `command_io`: Input and output shared by all commands: store and filter options, tables, JSON lines.
- `evaluation_files`: Evaluation files of `spanwise eval`, and evaluators named on the command line.
- `baselines`: Baseline of `spanwise eval`: the earlier experiment named by --baseline, and its comparison with the new
  one.
- `gate_expressions`: Expressions of `spanwise eval --fail-if`: grammar, quantities, and their evaluation on an
  experiment.
- `quality_gate`: Quality gate of `spanwise eval`: allowed failures, bounds and expressions; reports for CI.
- `post_mortem`: Post-mortem debugger of `spanwise eval --pdb`, opened where a task or evaluator raised.
- `evaluator_docs`: Reference documentation of the evaluators, generated from the registry as Markdown.
- `pytest_plugin`: Pytest plugin: runs a marked test once per example and records an experiment.
- `xdist_coordinator`: Coordinator of pytest-xdist workers: shared experiments in a store served by the controller.
"""

import gc
import sys

__all__ = ["main"]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "app",
    "command_io",
    "evaluator_docs",
    "gate_expressions",
    "quality_gate",
]


def main() -> None:
    """Run the `spanwise` command. If an extra is missing, exit with one line that names it."""
    # until the command is imported: imports create no garbage, and collecting it would take a twentieth of the time
    gc.disable()
    try:
        from spanwise.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("spanwise"):
            raise
        sys.exit(
            f"spanwise: the command line needs {error.name!r}, which is not installed: "
            "pip install '.[server]' in a checkout of Spanwise"
        )
    run()
