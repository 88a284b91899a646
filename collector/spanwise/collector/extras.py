"""What an import says when its extra is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Imports of `what`, which come with an extra: a missing one is told together with what to install.

    Raises `ModuleNotFoundError` with the name of the missing module, as the import itself would.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "spanwise":
            raise
        raise ModuleNotFoundError(
            f"{what} needs {error.name!r}, which is not installed: pip install 'spanwise[{extra}]'", name=error.name
        ) from None
