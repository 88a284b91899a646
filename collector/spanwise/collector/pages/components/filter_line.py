"""Filter line: conditions typed in the grammar of the command line, and suggestions while they are typed.

`status=error feedback.concise<0.5 metadata.tenant=t1 "in depot"` has three conditions and a phrase to search for. Quotes
keep spaces together: `name="support chat"`. A term in quotes is always searched for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spanwise.collector.filters import (
    COMPARED_CONDITIONS,
    FEEDBACK_CONDITIONS,
    OPERATOR_PATTERN,
    STATUSES,
    TERM_PATTERN,
)
from spanwise.collector.stores import Store

_TERM = re.compile(r'(?:"[^"]*"|[^\s"])+|"')  # text without spaces outside of quotes, or a quote that is not closed
_KEY = re.compile(r"([^<>=!]*)(<=|>=|!=|<|>|=|)(.*)", re.DOTALL)
MAX_SUGGESTIONS = 12
_MAX_READ = 1_000  # values that are read to find those that match
# Conditions that the line suggests, with what they mean
SUGGESTED_CONDITIONS: Mapping[str, str] = {
    "status=": "ok, error or cancelled",
    "name=": "name of the root",
    "user=": "user",
    "session=": "session",
    "tag=": "tag",
    "feedback.": "score or label, as in feedback.concise<0.5",
    "metadata.": "metadata, as in metadata.tenant=t1",
    "latency_ms>": "milliseconds of the whole trace",
    "tokens>": "tokens of all runs",
    "cost>": "US dollars",
    "model=": "model of a run",
    "error=": "words of the error",
    "environment=": "environment",
    "project=": "project",
    "kind=": "kind of the root",
    "prompt=": "prompt of a run",
    "prompt_version=": "version of a prompt",
    "agent=": "agent of a run",
    "finish_reason=": "finish reason of a run",
    "time_to_first_token_ms>": "milliseconds of the slowest run",
    "any_name=": "name of a run",
    "any_kind=": "kind of a run",
    "missing=": "key without a score",
    "failed=": "key whose evaluation failed",
    "skipped=": "key whose evaluation was skipped",
    "since=": "1h, 7d, today, yesterday or a date",
    "until=": "a date or time",
    "experiment=": "id of an experiment",
    "dataset=": "dataset of an experiment",
}
# Fields of the store with the values of a condition, if its name is another one
_VALUE_FIELDS = {
    "tags": "tag",
    "any_kind": "kind",
    **dict.fromkeys(("feedback", "missing", "untried", "failed", "skipped"), "feedback"),
}
_FIXED_VALUES: Mapping[str, Sequence[str]] = {
    "status": STATUSES,
    "since": ("1h", "24h", "7d", "30d", "today", "yesterday"),
}
_STORED = frozenset(
    (
        *("project", "environment", "name", "kind", "model", "tag", "session", "user"),
        *("prompt", "prompt_version", "agent", "finish_reason", "feedback"),
    )
)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Text that can replace the term that is being typed. A term that ends with an operator or dot is not complete."""

    text: str
    hint: str = ""


def parse_line(line: str) -> list[tuple[str, str]]:
    """Return the pairs of a query string for a line. Terms that are no conditions become one pair `text`."""
    pairs: list[tuple[str, str]] = []
    words = []
    for term in _TERM.findall(line):
        match = None if term.startswith('"') else TERM_PATTERN.fullmatch(term.replace('"', ""))
        if match is None:
            words.append(term)
            continue
        name, key, operator, value = match.groups()
        if name in FEEDBACK_CONDITIONS and key:
            pairs.append((name, f"{key}{operator}{value}"))
        elif name in COMPARED_CONDITIONS and operator != "=" and not key:
            pairs.append((name, f"{operator}{value}"))
        else:  # as a query string splits it
            name, _, value = match.group().partition("=")
            pairs.append((name, value))
    return pairs + ([("text", " ".join(words))] if words else [])


def suggest(store: Store, typed: str, project: str | None = None) -> list[Suggestion]:
    """Return what could complete a term: names of conditions, keys, or values that the store has."""
    at = OPERATOR_PATTERN.search(typed)
    if at is None:
        return [
            Suggestion(text, hint) for text, hint in SUGGESTED_CONDITIONS.items() if text.startswith(typed.lower())
        ][:MAX_SUGGESTIONS]
    name, rest = typed[: at.start()], typed[at.start() :]
    if rest[0] == "." and name in ("metadata", *FEEDBACK_CONDITIONS):
        key, operator, value = _KEY.fullmatch(rest[1:]).groups()  # type: ignore[union-attr]  # matches every text
        if not operator:
            field, ending = ("metadata", "=") if name == "metadata" else ("feedback", "<")
            return _complete(store.values(field, limit=_MAX_READ, project=project), key, f"{name}.", ending)
        if name == "metadata":
            return _complete(
                store.values(f"metadata.{key}", limit=_MAX_READ, project=project), value, f"{name}.{key}{operator}"
            )
        return []
    operator = rest[:2] if rest[:2] == "!=" else rest[0]
    field = _VALUE_FIELDS.get(name, name)
    values = _FIXED_VALUES.get(name, ())
    if field in _STORED and operator in ("=", "!="):
        values = store.values(field, limit=_MAX_READ, project=project)
    return _complete(values, rest.removeprefix(operator), name + operator, "<" if name == "feedback" else "")


def _complete(values: Sequence[str], typed: str, before: str, after: str = "") -> list[Suggestion]:
    """Return terms with the values that contain the typed text; those that begin with it are first."""
    wanted = typed.strip('"').lower()
    found = [value for value in values if wanted in value.lower() and '"' not in value]
    found.sort(key=lambda value: not value.lower().startswith(wanted))
    quoted = (f'"{value}"' if re.search(r"\s", value) else value for value in found[:MAX_SUGGESTIONS])
    return [Suggestion(before + value + after) for value in quoted]
