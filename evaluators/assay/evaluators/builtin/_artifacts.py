"""The things that an agent leaves behind, and what can be wrong with them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.evaluators.builtin.json import InvalidJSON, loads

EXPECTATIONS = ("kind", "min_bytes", "contains", "fields", "entries", "pages")
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file or directory, or content that was handed over with its name."""

    path: str
    content: str | bytes | None = None
    directory: str | None = None

    @property
    def place(self) -> Path:
        """Where it is, if it is a file."""
        return Path(self.directory or ".") / self.path

    def read(self) -> bytes:
        """Its bytes."""
        if self.content is None:
            return self.place.read_bytes()
        return self.content if isinstance(self.content, bytes) else self.content.encode("utf-8", "surrogatepass")


def artifacts_of(outputs: Any, directory: str | None) -> list[Artifact]:
    """Artifacts named in outputs, and all files below a directory. Raises `ValueError` for what is no artifact."""
    named = outputs.get("artifacts", []) if isinstance(outputs, Mapping) else outputs
    artifacts = [_artifact(item, directory) for item in named] if isinstance(named, list | tuple) else []
    if directory is not None:
        known = {artifact.path for artifact in artifacts}
        root = Path(directory)
        files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        artifacts += [Artifact(path, directory=directory) for path in files if path not in known]
    return artifacts


def check(artifact: Artifact, expected: Mapping[str, Any]) -> list[str]:
    """What is wrong with an artifact, in words; empty when it is sound."""
    if artifact.content is None and not artifact.place.exists():
        return ["is missing"]
    is_directory = artifact.content is None and artifact.place.is_dir()
    kind = expected.get("kind")
    if kind is not None and (kind == "dir") != is_directory:
        return [f"is no {kind}"]
    return _check_directory(artifact, expected) if is_directory else _check_file(artifact, expected)


def check_expectations(expectations: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises `ValueError` for an expectation that does not exist."""
    for path, expected in expectations.items():
        for name in expected:
            if name not in EXPECTATIONS:
                raise ValueError(f"expectation {name!r} of {path!r} is none of {', '.join(EXPECTATIONS)}")
        if expected.get("kind") not in (None, "file", "dir"):
            raise ValueError(f"kind of {path!r} is 'file' or 'dir', not {expected['kind']!r}")


def _check_directory(artifact: Artifact, expected: Mapping[str, Any]) -> list[str]:
    entries = {path.name for path in artifact.place.iterdir()}
    problems = [] if entries else ["is empty"]
    return problems + [f"has no {name}" for name in expected.get("entries", ()) if name not in entries]


def _check_file(artifact: Artifact, expected: Mapping[str, Any]) -> list[str]:
    data = artifact.read()
    if not data.strip():
        return ["is empty"]
    checks: list[Callable[[Artifact, bytes, Mapping[str, Any]], list[str]]] = [_size, _texts, _json, _pages]
    return [problem for find in checks for problem in find(artifact, data, expected)]


def _size(artifact: Artifact, data: bytes, expected: Mapping[str, Any]) -> list[str]:
    least = expected.get("min_bytes", 0)
    return [] if len(data) >= least else [f"has {len(data)} bytes, fewer than {least}"]


def _texts(artifact: Artifact, data: bytes, expected: Mapping[str, Any]) -> list[str]:
    text = data.decode("utf-8", "replace")
    return [f"does not contain {wanted!r}" for wanted in expected.get("contains", ()) if wanted not in text]


def _json(artifact: Artifact, data: bytes, expected: Mapping[str, Any]) -> list[str]:
    suffix = Path(artifact.path).suffix.lower()
    if suffix not in (".json", ".jsonl") and "fields" not in expected:
        return []
    try:
        text = data.decode("utf-8")
        rows = [loads(line) for line in text.splitlines() if line.strip()] if suffix == ".jsonl" else [loads(text)]
    except (InvalidJSON, UnicodeDecodeError) as error:
        return [f"is no JSON: {error}"]
    wanted = expected.get("fields", {})
    return [problem for row in rows for path, value in wanted.items() if (problem := _field(row, path, value))]


def _field(row: Any, path: str, value: Any) -> str | None:
    inner = row
    for step in path.split("."):
        if not isinstance(inner, Mapping) or step not in inner:
            return f"has no field {path!r}"
        inner = inner[step]
    return None if inner == value else f"has {path!r} {inner!r:.100}, not {value!r:.100}"


def _pages(artifact: Artifact, data: bytes, expected: Mapping[str, Any]) -> list[str]:
    if "pages" not in expected:
        return []
    if not data.startswith(b"%PDF-"):
        return ["is no PDF"]
    count = len(_PAGE.findall(data))
    return [] if count >= expected["pages"] else [f"has {count} pages, fewer than {expected['pages']}"]


def _artifact(item: Any, directory: str | None) -> Artifact:
    if isinstance(item, str):
        return Artifact(item, directory=directory)
    if isinstance(item, Mapping) and isinstance(item.get("path"), str):
        content = item.get("content")
        known = content is None or isinstance(content, str | bytes)
        return Artifact(item["path"], content if known else _written(content), directory)
    raise ValueError(f"an artifact is a path or {{'path': …, 'content': …}}, not {item!r:.200}")


def _written(content: Any) -> str:
    """The text of content that was handed over as a value: JSON, which is what it would be in a file."""
    try:
        return json.dumps(content, allow_nan=False)
    except (TypeError, ValueError):
        return str(content)
