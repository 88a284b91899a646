"""Metric objects of autoevals, deepeval, ragas and pydantic-evals as evaluators.

They are known by the modules and names of their classes, so that nothing is imported for those who have none of them;
what a library needs to be asked with is taken from the library itself, which is loaded when there is an object of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spanwise.evaluators.protocol.adapters import _autoevals, _deepeval, _pydantic_evals, _ragas
from spanwise.evaluators.protocol.adapters._common import Adapted

__all__ = ["Adapted", "adapted"]

_LIBRARIES: Mapping[str, Callable[[Any], Adapted | None]] = {
    "autoevals": _autoevals.adapted,
    "deepeval": _deepeval.adapted,
    "pydantic_evals": _pydantic_evals.adapted,
    "ragas": _ragas.adapted,
}


def adapted(metric: Any) -> Adapted | None:
    """A metric object of one of the libraries, or of a class derived from theirs; None for anything else.

    Raises `ValueError` for a kind of theirs that judges no single case.
    """
    for kind in type(metric).__mro__:
        adapter = _LIBRARIES.get(kind.__module__.partition(".")[0])
        if adapter is not None and (made := adapter(metric)) is not None:
            return made
    return None
