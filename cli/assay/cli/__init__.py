"""The command line: the only place that knows all the others."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the `assay` command, or say in one line which extra is missing."""
    try:
        from assay.cli._app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("assay"):
            raise
        sys.exit(f"assay: the command line needs {error.name!r}, which is not installed: pip install 'assay[server]'")
    run()
