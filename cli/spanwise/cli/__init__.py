"""The command line: the only place that knows all the others."""

import gc
import sys

__all__ = ["main"]


def main() -> None:
    """Run the `spanwise` command, or say in one line which extra is missing."""
    gc.disable()  # nothing of what is imported is garbage, and looking for it takes a twentieth of the time
    try:
        from spanwise.cli._app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("spanwise"):
            raise
        sys.exit(
            f"spanwise: the command line needs {error.name!r}, which is not installed: pip install 'spanwise[server]'"
        )
    gc.enable()
    run()
