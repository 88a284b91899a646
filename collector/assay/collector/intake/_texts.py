"""Texts that stand in every list, in bounded length: a page of a thousand names of a megabyte is a gigabyte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from assay.collector.clocks import SENT
from assay.collector.records import Run

MOST, MOST_ERROR, MOST_TAGS = 2_000, 16_000, 100  # characters, characters, tags
SHORT = ("name", "kind", "model", "session_id", "user_id", "project", "environment", "experiment_id", "example_id")


def bounded_texts(run: Run) -> Run:
    """The run with what is too long cut, and beside it, in its attributes, what was sent; the same if nothing is."""
    if (
        len(run.name) <= MOST
        and len(run.kind) <= MOST
        and len(run.project) <= MOST
        and len(run.environment) <= MOST
        and (run.model is None or len(run.model) <= MOST)
        and (run.session_id is None or len(run.session_id) <= MOST)
        and (run.user_id is None or len(run.user_id) <= MOST)
        and (run.error is None or len(run.error) <= MOST_ERROR)
        and not run.tags
        and not run.experiment_id
    ):
        return run
    return _cut(run)


def _cut(run: Run) -> Run:
    most = {**dict.fromkeys(SHORT, MOST), "error": MOST_ERROR}
    texts: dict[str, str] = {name: getattr(run, name) or "" for name in most}
    kept: dict[str, Any] = {name: text[: most[name]] for name, text in texts.items() if len(text) > most[name]}
    sent: dict[str, Any] = {f"{SENT}{name}": texts[name] for name in kept}
    if len(run.tags) > MOST_TAGS or any(len(tag) > MOST for tag in run.tags):
        kept["tags"] = tuple(tag[:MOST] for tag in run.tags[:MOST_TAGS])
        sent[f"{SENT}tags"] = list(run.tags)
    return replace(run, **kept, attributes={**run.attributes, **sent}) if kept else run
