"""JSON serialization of any Python value, bounded in bytes, depth and CPU time.

A value of plain types within the limits is passed to orjson unchanged. Any other value is first rewritten into plain
types. Parts that do not fit are replaced by a marker with the number of omitted items.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import functools
import numbers
import pathlib
import time
import types
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeAlias

import orjson

from spanwise.tracer import internal_errors

MAX_NODES = 20_000  # maximum number of values in containers, over all levels
# CPU seconds for a value that has other than plain types. MAX_SECONDS and MAX_NODES limit the caller's cost
MAX_SECONDS = 0.02
MAX_WALL_SECONDS = 0.25  # wall-clock seconds for all reprs of a value, because a repr may wait instead of computing
_SLOW_REPR_SECONDS = 0.02  # wall-clock seconds of one repr; shorter times are ignored as noise
_MAX_DEPTH = 60
_MAX_SLOW_TYPES = 1_000
_OPTIONS = orjson.OPT_NON_STR_KEYS
_PLAIN_TYPES = frozenset((str, int, float, bool, types.NoneType))
# `str` describes these types; `Decimal` is a `Number`
_STR_TYPES = (numbers.Number, uuid.UUID, pathlib.PurePath, datetime.timedelta, range, slice)
# copied before they are iterated, because another thread may change them meanwhile
_MUTABLE_TYPES = frozenset((dict, set, deque))
_MISSING_VALUE_TYPES = frozenset(("NAType", "NaTType"))  # pandas' types of missing values
_SEQUENCE_TYPES: tuple[Any, ...] = (
    list,
    tuple,
    set,
    frozenset,
    deque,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)


def to_json(value: object, limit: int, nodes: int = MAX_NODES, seconds: float = MAX_SECONDS) -> str:
    """Return any value as JSON text of at most `limit` bytes plus the length of a marker.

    `nodes` and `seconds` limit the work.
    """
    try:
        if _is_plain_value(value, limit, nodes):
            text = orjson.dumps(value)
            if len(text) <= limit:
                return text.decode()
    # the value has huge integers, lone surrogates, or a dict that changes meanwhile
    except (TypeError, RecursionError, RuntimeError):
        pass
    return _rewrite_value(value, limit, nodes, seconds)


def truncate_text(text: str, limit: int) -> str:
    """Return the text, or its beginning and a marker.

    The last word is removed too, because it may be half of a secret.
    """
    if len(text) <= limit:
        return text
    kept = text[: max(0, limit)]
    tail = kept[-256:]
    kept = kept[: len(kept) - len(tail)] + tail[: max(tail.rfind(" "), tail.rfind("\n"), 0)]
    return f"{kept}…[cut {len(text) - len(kept):,} of {len(text):,} characters]"


def build_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict. A repeated key gets a number, so that no value is lost: `key`, `key~2`, `key~3`."""
    merged = dict(pairs)
    if len(merged) == len(pairs):
        return merged
    merged.clear()
    last_numbers: dict[str, int] = {}
    for key, value in pairs:
        unique = key
        while unique in merged:
            last_numbers[key] = last_numbers.get(key, 1) + 1
            unique = f"{key}~{last_numbers[key]}"
        merged[unique] = value
    return merged


def _is_plain_value(value: object, limit: int, most: int) -> bool:
    """Return whether a value contains only plain types and is within both limits. Stops at the first violation."""
    nodes = [value]
    add = nodes.extend
    for node in nodes:
        kind = type(node)
        if kind is str:
            limit -= len(node)  # type: ignore[arg-type]
            if limit < 0:
                return False
        elif kind is dict:
            if len(nodes) + len(node) > most:  # type: ignore[arg-type]
                return False
            add(node.values())  # type: ignore[attr-defined]
        elif kind is list or kind is tuple:
            if len(nodes) + len(node) > most:  # type: ignore[arg-type]
                return False
            add(node)  # type: ignore[arg-type]
        elif kind not in _PLAIN_TYPES:
            return False
    return True


def _rewrite_value(value: object, limit: int, nodes: int, seconds: float) -> str:
    size = limit
    for _ in range(4):
        try:
            text = orjson.dumps(_Rewriter(size, nodes, seconds).rewrite(value, 0), option=_OPTIONS)
        except Exception as error:
            internal_errors.counts["serialise"] += 1
            return orjson.dumps(f"[{_type_name(value)} that could not be captured: {type(error).__name__}]").decode()
        if len(text) <= limit + 200:
            return text.decode()
        size = int(size * limit / len(text) * 0.9)  # escapes and non-ASCII characters take more bytes than characters
    return orjson.dumps(f"…[cut {len(text):,} bytes]").decode()


class _Rewriter:
    """Rewriter that converts a value to plain types, within budgets of bytes, nodes and CPU time."""

    __slots__ = ("deadline", "nodes", "path", "repr_seconds", "size")

    def __init__(self, size: int, nodes: int, seconds: float) -> None:
        self.size = size
        self.nodes = nodes
        self.path: set[int] = set()
        self.deadline = time.thread_time() + seconds
        self.repr_seconds = MAX_WALL_SECONDS

    def rewrite(self, value: Any, depth: int) -> Any:
        self.nodes -= 1
        self.size -= 4
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind in _PLAIN_TYPES:
            return self.number(value)
        if depth > _MAX_DEPTH:
            return "…[cut: nested too deeply]"
        return "…[cycle]" if id(value) in self.path else self.convert_guarded(value, depth)

    def convert_guarded(self, value: Any, depth: int) -> Any:
        self.path.add(id(value))
        if not self.nodes & 63 and time.thread_time() > self.deadline:
            self.nodes = 0
        try:
            return self.convert(value, depth)
        except RecursionError:
            return "…[cut: nested too deeply]"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # for example `SystemExit` raised by a property
            return f"[{_type_name(value)} that could not be captured: {type(error).__name__}]"
        finally:
            self.path.discard(id(value))

    def convert(self, value: Any, depth: int) -> Any:
        fields = _find_fields_reader(type(value))  # type: ignore[arg-type]
        if fields is not None:
            named = fields(value)
            return self.mapping(named.items(), len(named), depth)
        if type(value) in _MUTABLE_TYPES and len(value) <= max(self.nodes, 0):
            value = value.copy()  # another thread may be changing it
        if isinstance(value, Mapping):
            return self.mapping(value.items(), len(value), depth)
        if isinstance(value, _SEQUENCE_TYPES):
            return self.items(value, len(value), depth)
        return self.scalar(value, depth)

    def scalar(self, value: Any, depth: int) -> Any:
        if type(value).__name__ in _MISSING_VALUE_TYPES and type(value).__module__.startswith("pandas."):
            return None
        if isinstance(value, enum.Enum):
            return self.rewrite(value.value, depth + 1)
        if isinstance(value, str):
            return self.text(str.__str__(value))
        if isinstance(value, (int, float)):
            return self.number(int(value) if isinstance(value, int) else float(value))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self.data(bytes(value[: max(self.size, 0) + 1]), len(value))
        if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
            return value.isoformat()
        if hasattr(type(value), "iterrows"):
            return self.table(value, depth)
        if hasattr(type(value), "tolist"):
            return self.array(value, depth)
        return float(value) if isinstance(value, numbers.Rational) else self.text(self.describe(value))

    def array(self, value: Any, depth: int) -> Any:
        """Rewrite numpy arrays and scalars, and similar types such as tensors. Large ones are truncated."""
        size = getattr(value, "size", 0)  # `size` is a method of tensors
        total = size if isinstance(size, int) else int(value.numel()) if hasattr(value, "numel") else 0
        if total <= max(self.nodes, 1):
            return self.rewrite(value.tolist(), depth + 1)
        flat = value.reshape(-1) if hasattr(value, "reshape") else value
        self.nodes -= 1000
        return {"shape": list(value.shape), "head": flat[:1000].tolist(), "…": f"[cut: {total - 1000:,} more items]"}

    def table(self, value: Any, depth: int) -> list[Any]:
        """Rewrite a pandas DataFrame as a dict per row. Large ones are truncated."""
        kept = max(self.nodes, 0) // (len(value.columns) + 1)
        rows: list[Any] = []
        for row in value.head(kept).to_dict("records"):
            if self.nodes <= 0 or self.size <= 0:
                break
            rows.append(self.rewrite(row, depth + 1))
        left = len(value) - len(rows)
        return [*rows, f"…[cut: {left:,} more rows]"] if left else rows

    def mapping(self, pairs: Iterable[tuple[Any, Any]], total: int, depth: int) -> dict[str, Any]:
        rewritten: list[tuple[str, Any]] = []
        for key, value in islice(pairs, total):
            if self.nodes <= 0 or self.size <= 0:
                rewritten.append(("…", f"[cut: {total - len(rewritten):,} more keys]"))
                break
            rewritten.append(
                (self.text(key if type(key) is str else self.describe(key)), self.rewrite(value, depth + 1))
            )
        return build_dict(rewritten)

    def items(self, values: Iterable[Any], total: int, depth: int) -> list[Any]:
        rewritten: list[Any] = []
        for value in islice(values, total):
            if self.nodes <= 0 or self.size <= 0:
                rewritten.append(f"…[cut: {total - len(rewritten):,} more items]")
                break
            rewritten.append(self.rewrite(value, depth + 1))
        return rewritten

    def describe(self, value: Any) -> str:
        began = time.perf_counter()
        text = _describe_value(value)
        waited = time.perf_counter() - began
        if waited > _SLOW_REPR_SECONDS:
            self.repr_seconds -= waited
            if self.repr_seconds <= 0:
                self.nodes = 0
        return text

    def text(self, value: str) -> str:
        short = truncate_text(value, self.size)
        self.size -= len(short)
        return short if short.isascii() else short.encode("utf-8", "replace").decode()

    def number(self, value: Any) -> Any:
        if type(value) is float and (value != value or value in (float("inf"), float("-inf"))):
            return None  # orjson also writes null for these values
        if type(value) is int and not -(2**63) <= value < 2**64:
            return str(value) if value.bit_length() < 10_000 else f"[integer of {value.bit_length():,} bits]"
        return value

    def data(self, head: bytes, total: int) -> str:
        try:
            text = head.decode()
        except UnicodeDecodeError:
            text = "base64:" + base64.b64encode(head).decode()
        short = self.text(text)
        return short if len(head) == total else f"{short} [of {total:,} bytes]"


_FieldsReader: TypeAlias = Callable[[Any], Mapping[str, Any]]


@functools.lru_cache(maxsize=1024)
def _find_fields_reader(kind: Any) -> _FieldsReader | None:
    """Return a reader for the fields of pydantic models, dataclasses, attrs classes and named tuples, or None."""
    if callable(getattr(kind, "model_dump", None)):
        return _dump_model
    if dataclasses.is_dataclass(kind):
        return _make_getter([f.name for f in dataclasses.fields(kind)])
    if hasattr(kind, "__attrs_attrs__"):
        return _make_getter([a.name for a in kind.__attrs_attrs__])
    return _make_getter(list(kind._fields)) if issubclass(kind, tuple) and hasattr(kind, "_fields") else None


def _make_getter(names: list[str]) -> _FieldsReader:
    return lambda value: {name: getattr(value, name, None) for name in names}


def _dump_model(model: Any) -> Mapping[str, Any]:
    fields = model.model_dump()
    return fields if isinstance(fields, Mapping) else {"root": fields}


_slow_reprs: Counter[str] = Counter()  # by type: number of reprs that took longer than `MAX_WALL_SECONDS`
_MAX_SLOW_REPRS = 2  # after this many slow reprs a type is skipped; the first may be due to a busy machine


def _describe_value(value: object) -> str:
    """Return a short text for a value without a JSON form. Its `__repr__` may raise or be slow."""
    if isinstance(value, BaseException):
        return internal_errors.describe_error(value)
    if _slow_reprs and _slow_reprs[_full_type_name(value)] >= _MAX_SLOW_REPRS:
        return f"[{_type_name(value)} whose repr takes too long]"
    describe: Callable[[object], str] = str if isinstance(value, _STR_TYPES) else repr
    began = time.perf_counter()
    try:
        return describe(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `pytest.fail`, `SystemExit`: a failing repr must not end the program
        return f"[{_type_name(value)} whose repr raised {type(error).__name__}]"
    finally:
        if time.perf_counter() - began > MAX_WALL_SECONDS and len(_slow_reprs) < _MAX_SLOW_TYPES:
            _slow_reprs[_full_type_name(value)] += 1


def _full_type_name(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _type_name(value: object) -> str:
    try:
        return type(value).__name__
    except Exception:  # the metaclass of the value raises
        return "object"
