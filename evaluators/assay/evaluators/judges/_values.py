"""The arguments of prompts as texts, taken from a case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from assay.collector.records import Case, Document
from assay.evaluators.protocol import Skip, missing_needs, value_of


def texts_of(case: Case, names: Iterable[str]) -> dict[str, str]:
    """The values of those names as texts. Raises `Skip` where the case lacks one."""
    values = {name: value_of(case, name) for name in names}
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise Skip(missing_needs(missing, case))
    return {name: text_of(value) for name, value in values.items()}


def text_of(value: Any) -> str:
    """A value as a judge reads it: a text as it is, documents numbered, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list) and value and all(isinstance(member, Document) for member in value):
        return "\n\n".join(f"[{place}] {document.content}" for place, document in enumerate(value, 1))
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2).decode()
