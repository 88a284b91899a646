"""The command line: the only place that knows all the others."""

import gc
import sys

__all__ = ["main"]


def main() -> None:
    """Run the `assay` command, or say in one line which extra is missing."""
    gc.disable()  # nothing of what is imported is garbage, and looking for it takes a twentieth of the time
    try:
        from assay.cli._app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("assay"):
            raise
        sys.exit(f"assay: the command line needs {error.name!r}, which is not installed: pip install 'assay[server]'")
    gc.enable()
    run()
