"""Loader of Python files that users edit and run: evaluations and rules. It always reads the source.

Python takes compiled code from its cache if the source has the same size and modification time. A file that was edited
twice within a second may then run in its old form.
"""

from importlib.machinery import SourceFileLoader
from types import CodeType


class UncachedSourceLoader(SourceFileLoader):
    """Loader that compiles the source on each import, and writes no bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled source of the file."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code
