"""Artifacts of an agent: expectations, and file access confined to a directory.

Links are resolved first, and their target must be below the directory. Each component of the resolved path is then
opened relative to the previous one without following links. A file that is replaced by a link in the meantime
therefore cannot lead out of the directory. The type of an opened file is checked before reading, so that a FIFO, a
device or a socket is never read.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from spanwise.evaluators.builtin.json import InvalidJSON, load_strict_json

MAX_PATH_LENGTH = 4096  # characters; no system opens longer paths
MAX_PROBLEMS = 20  # problems reported per artifact; a JSONL file may have millions
_PDF_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Artifact:
    """Path and content of an artifact. A content of None means that it may be on disk."""

    path: str
    content: bytes | None = None


def find_artifacts(outputs: Any) -> list[Artifact]:
    """Return the artifacts in outputs: a list of artifacts, a single one, or contents by name.

    Raises `ValueError` for an invalid artifact.
    """
    named = outputs.get("artifacts") if isinstance(outputs, Mapping) else outputs
    if named is None or (named is outputs and not isinstance(named, list | tuple)):
        return []
    if isinstance(named, Mapping) and not isinstance(named.get("path"), str):
        return [_make_artifact({"path": path, "content": content}) for path, content in named.items()]
    return [_make_artifact(item) for item in (named if isinstance(named, list | tuple) else [named])]


def check_artifact(artifact: Artifact, expected: Mapping[str, Any], below: ArtifactDirectory) -> list[str]:
    """Return the problems of an artifact, at most `MAX_PROBLEMS`; [] if it passes all checks.

    Raises `ValueError` if the limits for reading are exceeded.
    """
    try:
        content = below.read(artifact.path) if artifact.content is None else artifact.content
    except FileNotFoundError:
        return ["is missing"]
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]
    if artifact.content is not None:
        below.take(len(artifact.content), artifact.path)
    kind = expected.get("kind")
    if kind is not None and (kind == "dir") != isinstance(content, frozenset):
        return [f"is no {kind}"]
    problems = (
        _check_folder(content, expected)
        if isinstance(content, frozenset)
        else _check_file(artifact.path, content, expected)
    )
    return list(islice(problems, MAX_PROBLEMS))


def check_expectations(expectations: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an unknown expectation, or one that no artifact could meet."""
    for path, expected in expectations.items():
        if not isinstance(expected, Mapping):
            raise ValueError(
                f"the expectations for {path!r} must be a dict such as {{'min_bytes': 1}}, not {expected!r:.200}"
            )
        for name, value in expected.items():
            if name not in EXPECTATIONS:
                raise ValueError(
                    f"unknown expectation {name!r} for {path!r}; expected one of: {', '.join(EXPECTATIONS)}"
                )
            description, is_valid = EXPECTATIONS[name]
            if not is_valid(value):
                raise ValueError(f"expectation {name!r} for {path!r} must be {description}, not {value!r:.200}")


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


def _check_folder(entries: frozenset[str], expected: Mapping[str, Any]) -> Iterator[str]:
    if not entries:
        yield "is empty"
    yield from (f"has no {name}" for name in expected.get("entries", ()) if name not in entries)


def _check_file(path: str, data: bytes, expected: Mapping[str, Any]) -> Iterator[str]:
    if not data.strip():
        yield "is empty"
        return
    for problems in (_check_size, _check_texts, _check_json, _check_pages):
        yield from problems(path, data, expected)


def _check_size(path: str, data: bytes, expected: Mapping[str, Any]) -> Iterator[str]:
    least = expected.get("min_bytes", 0)
    if len(data) < least:
        yield f"has {len(data)} bytes, fewer than {least}"


def _check_texts(path: str, data: bytes, expected: Mapping[str, Any]) -> Iterator[str]:
    wanted = expected.get("contains", ())
    text = data.decode("utf-8", "replace") if wanted else ""
    yield from (f"does not contain {part!r}" for part in wanted if part not in text)


def _check_json(path: str, data: bytes, expected: Mapping[str, Any]) -> Iterator[str]:
    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in (".json", ".jsonl") and "fields" not in expected:
        return
    try:
        for row in _json_rows(data, by_line=suffix == ".jsonl"):
            fields = expected.get("fields", {}).items()
            yield from (problem for steps, value in fields if (problem := _check_field(row, steps, value)))
    except (InvalidJSON, UnicodeDecodeError) as error:
        yield f"is no JSON: {error}"


def _json_rows(data: bytes, *, by_line: bool) -> Iterator[Any]:
    if not by_line:
        yield load_strict_json(data.decode("utf-8"))
        return
    for line in data.split(b"\n"):
        if line.strip():
            yield load_strict_json(line.decode("utf-8"))


def _check_field(row: Any, path: str, value: Any) -> str | None:
    inner = row
    for step in path.split("."):
        if not isinstance(inner, Mapping) or step not in inner:
            return f"has no field {path!r}"
        inner = inner[step]
    return None if inner == value else f"has {path!r} {inner!r:.100}, not {value!r:.100}"


def _check_pages(path: str, data: bytes, expected: Mapping[str, Any]) -> Iterator[str]:
    if "pages" not in expected:
        return
    if not data.startswith(b"%PDF-"):
        yield "is no PDF"
        return
    count = len(_PDF_PAGE.findall(data))
    if count < expected["pages"]:
        yield f"has {count} pages, fewer than {expected['pages']}"


def _make_artifact(item: Any) -> Artifact:
    path = item.get("path") if isinstance(item, Mapping) else item
    if not isinstance(path, str):
        raise ValueError(f"an artifact is a path or {{'path': …, 'content': …}}, not {item!r:.200}")
    if len(path) > MAX_PATH_LENGTH:
        raise ValueError(
            f"an artifact's path has {len(path):,} characters, more than {MAX_PATH_LENGTH:,}: {path!r:.200}"
        )
    content = item.get("content") if isinstance(item, Mapping) else None
    return Artifact(path, None if content is None else _content_bytes(content))


def _content_bytes(content: Any) -> bytes:
    """Return content as it would be in a file: texts unchanged, other values as JSON."""
    if isinstance(content, bytes):
        return content
    try:
        text = content if isinstance(content, str) else json.dumps(content, allow_nan=False)
    except (TypeError, ValueError):
        text = str(content)
    return text.encode("utf-8", "surrogatepass")


_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# without O_NONBLOCK, opening a FIFO would wait for a writer
_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class ArtifactDirectory:
    """Directory of artifacts (None: no directory), with limits for the number of entries and of bytes to read."""

    directory: str | None
    most: int
    left: int

    def files(self) -> list[str]:
        """Return the sorted names of all files and links below the directory, and of folders that cannot be listed.

        Raises `ValueError` if there are more than `most` entries, or no such directory.
        """
        names: list[str] = []
        waiting, seen = [""] if self.directory is not None else [], 0
        while waiting:
            folder = waiting.pop()
            for entry in self._entries(folder, names):
                seen += 1
                self._check_count(seen)
                name = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name)
                elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                    names.append(name)
        return sorted(names)

    def normal(self, name: str) -> str:
        """Return the normalized name: relative to the directory, without `./`."""
        absolute = os.path.abspath(os.path.join(self.directory or ".", name))
        return os.path.relpath(absolute, os.path.abspath(self.directory or "."))

    def read(self, name: str) -> bytes | frozenset[str]:
        """Return the bytes of a file, or the names in a folder.

        Raises `OSError`, or `ValueError` if the limits are exceeded.
        """
        if self.directory is None:
            raise _permission_error("the answer does not contain it, and no directory is given")
        with _open_inside(self.directory, name) as (descriptor, found):
            if stat.S_ISDIR(found.st_mode):
                with os.scandir(descriptor) as entries:
                    names = frozenset(entry.name for entry in islice(entries, self.most + 1))
                self._check_count(len(names))
                return names
            if not stat.S_ISREG(found.st_mode):
                raise _permission_error("it is not a regular file")
            self.take(found.st_size, name)
            return _read_bytes(descriptor, found.st_size)

    def take(self, size: int, name: str) -> None:
        """Subtract bytes from the limit. Raises `ValueError` if the limit is exceeded."""
        if size > self.left:
            raise ValueError(
                f"artifact {name!r:.200} has {size:,} bytes, but only {self.left:,} bytes are left of max_bytes, the limit for "
                "all artifacts of a case: give a larger max_bytes"
            )
        self.left -= size

    def _entries(self, folder: str, unlisted: list[str]) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(os.path.join(self.directory or ".", folder)) as entries:
                yield from entries
        except OSError as error:
            if not folder:
                raise ValueError(f"directory {self.directory!r} cannot be listed: {error.strerror}") from error
            unlisted.append(folder)

    def _check_count(self, count: int) -> None:
        if count > self.most:
            raise ValueError(
                f"directory {self.directory!r} holds more than {self.most:,} entries: give a larger max_artifacts"
            )


def _permission_error(why: str) -> PermissionError:
    return PermissionError(errno.EACCES, why)


@contextmanager
def _open_inside(directory: str, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a name below a directory, and yield its descriptor and `stat` result. Raises `OSError`."""
    root = os.path.realpath(directory)
    *steps, last = os.path.relpath(_resolve_path(directory, root, name), root).split(os.sep)
    descriptor = os.open(root, _FOLDER_FLAGS)
    try:
        for step in steps:
            descriptor = _open_step(descriptor, step, _FOLDER_FLAGS)
        descriptor = _open_step(descriptor, last, _FILE_FLAGS)
        yield descriptor, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _open_step(descriptor: int, step: str, flags: int) -> int:
    """Return the descriptor of the next path component, and close the previous one."""
    further = os.open(step, flags, dir_fd=descriptor)
    os.close(descriptor)
    return further


def _resolve_path(directory: str, root: str, name: str) -> str:
    """Return the resolved path of a name.

    A name that is lexically outside of the directory is rejected without disk access.
    """
    if "\0" in name:
        raise _permission_error("a file name cannot contain a NUL character")
    absolute = os.path.abspath(os.path.join(directory, name))
    if not _is_inside(absolute, os.path.abspath(directory)) and not _is_inside(absolute, root):
        raise _permission_error("it is outside of the directory")
    try:
        real = os.path.realpath(absolute)
    except UnicodeEncodeError:
        raise _permission_error("it is not a valid file name") from None
    if not _is_inside(real, root):
        raise _permission_error("it links to a place outside of the directory")
    return real


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(os.path.join(directory, ""))


def _read_bytes(descriptor: int, size: int) -> bytes:
    """Return at most as many bytes as the file had when it was opened, even if it grows."""
    chunks = []
    while size and (chunk := os.read(descriptor, min(size, 1 << 20))):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
