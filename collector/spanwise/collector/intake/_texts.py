"""What stands in every list and sum, bounded: a page of a thousand names of a megabyte is a gigabyte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spanwise.collector.clocks import SENT
from spanwise.collector.intake._errors import ItemRefused
from spanwise.collector.intake._limits import MOST_MONEY, MOST_TOKENS
from spanwise.collector.records import JSON, Feedback, Run, Usage
from spanwise.collector.stores._amend import amended, as_json

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
        and (not run.tags or (len(run.tags) <= MOST_TAGS and max(map(len, run.tags)) <= MOST))
        and (run.experiment_id is None or len(run.experiment_id) <= MOST)
        and (run.example_id is None or len(run.example_id) <= MOST)
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


def check_names(feedback: Feedback) -> None:
    """Raises `ItemRefused` for feedback that names something at a length at which nobody reads it."""
    named = (feedback.key, feedback.label, feedback.author, feedback.evaluator, feedback.version, feedback.rule)
    for name in (*named, feedback.id, feedback.target.session_id, feedback.target.experiment_id):
        if name is not None and len(name) > MOST:
            told = f"feedback {feedback.key[:40]!r} has a name of {len(name):,} characters, at most {MOST:,}"
            raise ItemRefused("too_long", f"{told}: what is longer is a comment")


def check_amended(fields: Mapping[str, JSON]) -> None:
    """Raises `ItemRefused` for what no run could have brought, `Refused` for what no run has."""
    run = amended(_BLANK, as_json(fields))
    if bounded_texts(run) is not run:
        raise ItemRefused("too_long", f"{', '.join(fields)} of a run: names have {MOST:,} characters at most")
    if run.cost is not None and not 0 <= run.cost <= MOST_MONEY:
        raise ItemRefused("value", f"cost is {run.cost!r}: amounts are within 0 and {MOST_MONEY:,.0f}")
    usage = run.usage or Usage()
    for tokens in (usage.input_tokens, usage.output_tokens, *usage.details.values()):
        if not 0 <= tokens <= MOST_TOKENS:
            raise ItemRefused("value", f"usage says {tokens!r}: tokens are within 0 and 2^53")


_BLANK = Run(trace_id="", span_id="", name="", start_ns=0, end_ns=0)
