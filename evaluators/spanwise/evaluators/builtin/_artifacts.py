"""The things that an agent leaves behind, and what can be wrong with them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from spanwise.evaluators.builtin._below import Below
from spanwise.evaluators.builtin.json import InvalidJSON, loads

LONGEST_NAME = 4096  # characters: longer paths are opened by no system
MOST_PROBLEMS = 20  # told of one artifact: a file of lines may have a million
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A name, and the content that was handed over with it; None: it is on the disk, if anywhere."""

    path: str
    content: bytes | None = None


def artifacts_of(outputs: Any) -> list[Artifact]:
    """What outputs name or hold: a list of artifacts, one alone, or contents by name. Raises `ValueError`."""
    named = outputs.get("artifacts") if isinstance(outputs, Mapping) else outputs
    if named is None or (named is outputs and not isinstance(named, list | tuple)):
        return []
    if isinstance(named, Mapping) and not isinstance(named.get("path"), str):
        return [_artifact({"path": path, "content": content}) for path, content in named.items()]
    return [_artifact(item) for item in (named if isinstance(named, list | tuple) else [named])]


def check(artifact: Artifact, expected: Mapping[str, Any], below: Below) -> list[str]:
    """What is wrong with an artifact, in words, the first of it; empty when it is sound.

    Raises `ValueError` for more than may be read.
    """
    try:
        held = below.read(artifact.path) if artifact.content is None else artifact.content
    except FileNotFoundError:
        return ["is missing"]
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]
    if artifact.content is not None:
        below.take(len(artifact.content), artifact.path)
    kind = expected.get("kind")
    if kind is not None and (kind == "dir") != isinstance(held, frozenset):
        return [f"is no {kind}"]
    problems = _of_folder(held, expected) if isinstance(held, frozenset) else _of_file(artifact.path, held, expected)
    return list(islice(problems, MOST_PROBLEMS))


def check_expectations(expectations: Mapping[str, Any]) -> None:
    """Raises `ValueError` for an expectation that does not exist, or that nothing could meet."""
    for path, expected in expectations.items():
        if not isinstance(expected, Mapping):
            raise ValueError(
                f"what is expected of {path!r} is a dict such as {{'min_bytes': 1}}, not {expected!r:.200}"
            )
        for name, value in expected.items():
            if name not in EXPECTATIONS:
                raise ValueError(f"expectation {name!r} of {path!r} is none of {', '.join(EXPECTATIONS)}")
            words, holds = EXPECTATIONS[name]
            if not holds(value):
                raise ValueError(f"expectation {name!r} of {path!r} is {words}, not {value!r:.200}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(part, str) for part in value)


EXPECTATIONS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "kind": ("'file' or 'dir'", lambda value: value in ("file", "dir")),
    "min_bytes": ("a whole number, 0 or more", _is_count),
    "contains": ("a list of texts", _are_texts),
    "fields": ("a dict of paths and values", lambda value: isinstance(value, Mapping)),
    "entries": ("a list of names", _are_texts),
    "pages": ("a whole number, 0 or more", _is_count),
}


def _of_folder(entries: frozenset[str], expected: Mapping[str, Any]) -> Iterator[str]:
    if not entries:
        yield "is empty"
    yield from (f"has no {name}" for name in expected.get("entries", ()) if name not in entries)


def _of_file(path: str, data: bytes, expected: Mapping[str, Any]) -> Iterator[str]:
    if not data.strip():
        yield "is empty"
        return
    for problems in (_size, _texts, _json, _pages):
        yield from problems(path, data, expected)


def _size(path: str, data: bytes, expected: Mapping[str, Any]) -> Iterator[str]:
    least = expected.get("min_bytes", 0)
    if len(data) < least:
        yield f"has {len(data)} bytes, fewer than {least}"


def _texts(path: str, data: bytes, expected: Mapping[str, Any]) -> Iterator[str]:
    wanted = expected.get("contains", ())
    text = data.decode("utf-8", "replace") if wanted else ""
    yield from (f"does not contain {part!r}" for part in wanted if part not in text)


def _json(path: str, data: bytes, expected: Mapping[str, Any]) -> Iterator[str]:
    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in (".json", ".jsonl") and "fields" not in expected:
        return
    try:
        for row in _rows(data, by_line=suffix == ".jsonl"):
            fields = expected.get("fields", {}).items()
            yield from (problem for steps, value in fields if (problem := _field(row, steps, value)))
    except (InvalidJSON, UnicodeDecodeError) as error:
        yield f"is no JSON: {error}"


def _rows(data: bytes, *, by_line: bool) -> Iterator[Any]:
    if not by_line:
        yield loads(data.decode("utf-8"))
        return
    for line in data.split(b"\n"):
        if line.strip():
            yield loads(line.decode("utf-8"))


def _field(row: Any, path: str, value: Any) -> str | None:
    inner = row
    for step in path.split("."):
        if not isinstance(inner, Mapping) or step not in inner:
            return f"has no field {path!r}"
        inner = inner[step]
    return None if inner == value else f"has {path!r} {inner!r:.100}, not {value!r:.100}"


def _pages(path: str, data: bytes, expected: Mapping[str, Any]) -> Iterator[str]:
    if "pages" not in expected:
        return
    if not data.startswith(b"%PDF-"):
        yield "is no PDF"
        return
    count = len(_PAGE.findall(data))
    if count < expected["pages"]:
        yield f"has {count} pages, fewer than {expected['pages']}"


def _artifact(item: Any) -> Artifact:
    path = item.get("path") if isinstance(item, Mapping) else item
    if not isinstance(path, str):
        raise ValueError(f"an artifact is a path or {{'path': …, 'content': …}}, not {item!r:.200}")
    if len(path) > LONGEST_NAME:
        raise ValueError(f"an artifact's path has {len(path):,} characters, more than {LONGEST_NAME:,}: {path!r:.200}")
    content = item.get("content") if isinstance(item, Mapping) else None
    return Artifact(path, None if content is None else _written(content))


def _written(content: Any) -> bytes:
    """Content that was handed over, as it would be in a file: texts as they are, values as JSON."""
    if isinstance(content, bytes):
        return content
    try:
        text = content if isinstance(content, str) else json.dumps(content, allow_nan=False)
    except (TypeError, ValueError):
        text = str(content)
    return text.encode("utf-8", "surrogatepass")
