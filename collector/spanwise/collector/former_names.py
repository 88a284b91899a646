"""Conversion of names from before the product was renamed from Assay to Spanwise.

Databases, spools, exports and caches from before the renaming contain the former names. Spanwise translates the names
when it converts or reads such a file, and writes only the present names. Hashes of rules and of scored cases are
still computed over the former names. The hashes therefore stay the same, and nothing is scored again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from spanwise.collector.records import JSON, Feedback, Run

FORMER: Final = "assay"
PRESENT: Final = "spanwise"
# Suffixes of attribute names and log event names; other names with the product's prefix belong to users.
_SUFFIXES = (
    "attempt awaits calls.sent cancelled cost cost.unknown derived documents exact example example.id experiment.id"
    " feedback.author feedback.boolean feedback.document feedback.error feedback.evaluator feedback.id"
    " feedback.metadata feedback.outcome feedback.rule feedback.scope feedback.source feedback.version feedback.via"
    " foreign.span_id foreign.trace_id local_root monitor partial process.delivered process.dropped process.open"
    " process.pending process.report process.spilled process.started repetition sample_rate sent.created_ns"
    " sent.end_ns sent.start_ns span.name span.parent span.started spans.dropped spans.open spans.started"
    " stream.closed usage.estimated via"
).split()
ATTRIBUTES: Final = {f"{FORMER}.{suffix}": f"{PRESENT}.{suffix}" for suffix in _SUFFIXES}
# The two keys that the collector itself writes into feedback metadata; all others belong to users.
METADATA: Final = {name: ATTRIBUTES[name] for name in (f"{FORMER}.sent.created_ns", f"{FORMER}.via")}
_BACK = {present: former for former, present in ATTRIBUTES.items()}
_IN_SOURCE = re.compile(
    rf"\b{PRESENT}(?=\.(?:(?:tracer|collector|evaluators|cli)\b|(?:{'|'.join(map(re.escape, _SUFFIXES))})[\"']))"
    rf"|(?<=\bfrom ){PRESENT}(?= import\b)"
    rf"|(?<=\bimport ){PRESENT}\b"
)


def present_names(attributes: Mapping[str, JSON], names: Mapping[str, str] = ATTRIBUTES) -> Mapping[str, JSON]:
    """Return attributes under the present names; the same object if there is nothing to rename."""
    if names.keys().isdisjoint(attributes):
        return attributes
    # if both names are present, the former one is kept
    return {
        name if (other := names.get(name)) is None or other in attributes else other: value
        for name, value in attributes.items()
    }


def former_names(attributes: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return attributes under the former names, which hashes are computed over."""
    return present_names(attributes, _BACK)


def present_run(run: Run) -> Run:
    """Return a run with the present names in its attributes and in its resource's attributes."""
    attributes, resource = present_names(run.attributes), present_names(run.resource)
    if attributes is run.attributes and resource is run.resource:
        return run
    return replace(run, attributes=attributes, resource=resource)


def present_feedback(feedback: Feedback) -> Feedback:
    """Return feedback with the present names in its metadata."""
    metadata = present_names(feedback.metadata, METADATA)
    return feedback if metadata is feedback.metadata else replace(feedback, metadata=metadata)


def former_source(text: str) -> str:
    """Return the source text of a user's code with the former names in its imports and attribute names."""
    return _IN_SOURCE.sub(FORMER, text) if PRESENT in text else text


def former_identifiers(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return identifiers of compiled code, such as `spanwise` and `spanwise.tracer`, under the former names."""
    return tuple(FORMER + name[len(PRESENT) :] if name == PRESENT else former_source(name) for name in names)


def is_own_scope(scope: str) -> bool:
    """Return whether an instrumentation scope is that of Spanwise's tracer, under the present or the former name."""
    return scope.partition(".")[0] in (PRESENT, FORMER)
