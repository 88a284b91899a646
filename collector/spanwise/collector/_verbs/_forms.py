"""Bodies that are no record: the fields of a verb together, and the changes that a record allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import is_dataclass
from functools import cache
from typing import Any, cast, get_type_hints

import msgspec

from spanwise.collector.records import CHANGEABLE

REQUIRED: Any = msgspec.NODEFAULT


class Change(msgspec.Struct):
    """Some fields of a record; those that are left out are `UNSET`."""


def form(name: str, fields: Iterable[tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    """A body with fields of (name, type, default); fields that it does not know are passed over."""
    return msgspec.defstruct(name, list(fields), kw_only=True, module=__name__)


@cache
def change_of(record: type) -> type[Change]:
    """A body with some of the `CHANGEABLE` fields of a record; another field is refused."""
    kinds, unset = get_type_hints(record), msgspec.UNSET
    made = msgspec.defstruct(
        f"{record.__name__}Change",
        [(name, _part(kinds[name]) | msgspec.UnsetType, unset) for name in CHANGEABLE[record]],
        bases=(Change,),
        forbid_unknown_fields=True,
        module=__name__,
        namespace={"__doc__": f"Fields of a {record.__name__.lower()} that may change."},
    )
    return cast(type[Change], made)


def _part(kind: Any) -> Any:
    """What a field may be changed by: another value, or, where it is a record itself, some fields of it."""
    return dict[str, Any] if is_dataclass(kind) else kind


def given(change: Change) -> dict[str, Any]:
    """The fields that a body named, out of all that may change."""
    return {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
