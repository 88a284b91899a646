"""Base of the adapters: calls a metric object as an evaluator function, and converts case values to text."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import orjson

from spanwise.collector.records import Document
from spanwise.evaluators.interface.value_conversion import to_messages, unwrap_single_value

CaseValues = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedMetric:
    """Metric object wrapped as an evaluator function: the fields of a case that it needs and uses, and the call."""

    # Replaces module path and source text in the versions of rules, which stay the same if either changes. Changes
    # that affect results are part of the evaluator's own version.
    RULE_IDENTITY: ClassVar = ("assay.evaluators.protocol.adapters._common:Adapted", "49e433eb1e38")

    name: str
    ask: Callable[[CaseValues], Awaitable[Any]]
    needs: tuple[str, ...]
    uses: tuple[str, ...] = ()
    threshold: float | None = None
    range: tuple[float, float] | None = (0.0, 1.0)
    higher_is_better: bool = True
    source: Literal["code", "model"] = "code"
    version: str = "1"
    versioned: bool = False  # True: the metric's author set `version`; False: it is the library's version

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.KEYWORD_ONLY
        needed = [inspect.Parameter(name, kind) for name in self.needs]
        used = [inspect.Parameter(name, kind, default=None) for name in self.uses if name not in self.needs]
        return inspect.Signature([*needed, *used])

    async def __call__(self, **values: Any) -> Any:
        return await self.ask(values)


def is_derived_from(metric: Any, library: str, *names: str) -> bool:
    """Return whether a metric's class derives from a class of the library with one of those names."""
    return any(kind.__name__ in names and kind.__module__.partition(".")[0] == library for kind in type(metric).__mro__)


def get_library_version(library: str) -> str:
    """Return the library's name with its installed version, for the evaluator's version: results may differ between
    releases.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return library


def to_text(value: Any) -> str | None:
    """Return a value as text: the only value of a dict, or the content of the last message. Other values become
    JSON.
    """
    value = unwrap_single_value(value)
    if value is None or isinstance(value, str):
        return value
    messages = to_messages(value)
    if messages and isinstance(messages[-1].get("content"), str):
        return str(messages[-1]["content"])
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def list_contents(documents: Iterable[Document] | None) -> list[str] | None:
    """Return the contents of documents."""
    return None if documents is None else [document.content for document in documents]


def list_document_ids(documents: Iterable[Document] | None) -> list[str] | None:
    """Return the ids of documents; None if none has one."""
    return [document.id for document in documents or () if document.id is not None] or None
