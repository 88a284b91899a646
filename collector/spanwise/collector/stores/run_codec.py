"""Encoding of runs for all stores: facts, payloads, sampling information of a span.

A run is stored as a `Fact`, which has what lists and summaries need, and a payload with all other fields as JSON.
Encoding needs no database and may run in any thread or process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import orjson

from spanwise.collector.record_corrections import FORMER, PRESENT
from spanwise.collector.records import JSON, Document, Event, Link, Run, Usage, make_fast_constructor
from spanwise.collector.stores.table_rows import INT_MAX, clean, dumps
from spanwise.tracer import attribute_names as names
from spanwise.tracer.http_connections import get_destination

TRACE_STATE = "otel.trace_state"  # attribute with the tracestate as received
SAMPLE_RATE = "spanwise.sample_rate"  # sent by earlier versions of our tracer instead of a threshold
# Smallest accepted sampling probability. A lower one counts as unknown, because one such trace would dominate the
# mean.
MIN_PROBABILITY = 1e-4
# Bit in the flags of our tracestate entry. The entry is `trace id-span id-flags`, followed by `-ot` in a foreign
# trace
MONITOR_FLAG = 2


class SamplingInfo(NamedTuple):
    """Sampling information of a span.

    - `probability` of being kept by head sampling; None if it is unknown or below `MIN_PROBABILITY`.
    - `partial`: the trace was kept only because of an error in it.
    - `judgement`: the span was made by a monitor or called by one.
    """

    probability: float | None
    partial: bool
    judgement: bool


ALWAYS_SAMPLED = SamplingInfo(1.0, False, False)
_UNKNOWN_SAMPLING = SamplingInfo(None, False, False)
_SAMPLING_ATTRIBUTES = (SAMPLE_RATE, names.PARTIAL, names.MONITOR, TRACE_STATE)


def read_sampling_info(attributes: Mapping[str, JSON], resource: Mapping[str, JSON]) -> SamplingInfo:
    """Return the sampling information in the attributes and the resource of a span."""
    is_own_span = names.LOCAL_ROOT in attributes
    if names.MONITOR not in resource and attributes.keys().isdisjoint(
        _SAMPLING_ATTRIBUTES
    ):  # faster than a loop over all attributes, because it looks up only these few names
        return ALWAYS_SAMPLED if is_own_span else _UNKNOWN_SAMPLING
    state = attributes.get(TRACE_STATE)
    members = (member.strip().partition("=") for member in state.split(",")) if isinstance(state, str) else ()
    entries = {key: value for key, _, value in members}
    partial = attributes.get(names.PARTIAL) is True
    is_judgement = (
        resource.get(names.MONITOR) is True or attributes.get(names.MONITOR) is True or _has_monitor_flag(entries)
    )
    return SamplingInfo(_read_probability(attributes, entries, 1.0 if is_own_span else None), partial, is_judgement)


def _read_probability(
    attributes: Mapping[str, JSON], entries: Mapping[str, str], otherwise: float | None
) -> float | None:
    """Return the rate that our tracer states, else the probability from OpenTelemetry's threshold, else `otherwise`."""
    rate = attributes.get(SAMPLE_RATE)
    if isinstance(rate, (int, float)) and isfinite(rate) and 0 < rate <= 1:
        stated: float | None = float(rate)
    else:
        stated = _threshold_probability(entries["ot"]) if "ot" in entries else otherwise
    return None if stated is not None and stated < MIN_PROBABILITY else stated


def _threshold_probability(entry: str) -> float | None:
    """Return 1 − th/2⁵⁶ for `th:…` (hex digits without trailing zeros), or None without a threshold (OTEP 235)."""
    fields = dict(field.partition(":")[::2] for field in entry.split(";"))
    try:
        threshold = int(fields["th"].ljust(14, "0"), 16)
    except (KeyError, ValueError):
        return None
    return 1 - threshold / 2**56 if 0 <= threshold < 2**56 else None


def _has_monitor_flag(entries: Mapping[str, str]) -> bool:
    try:
        entry = entries.get(PRESENT) or entries.get(FORMER, "")
        return bool(int(entry.split("-", 3)[2], 16) & MONITOR_FLAG)
    except (IndexError, ValueError):
        return False


# limit of one run: above that of any model, and low enough that totals of many traces fit into 64 bits
TOKENS_MAX = 2**40
COUNT_MAX = 2**31
SPAN_KIND = "otel.span.kind"  # see `dialects.translation`
MAX_RESPONSE_ID_CHARACTERS = 200


class SpanCounts(NamedTuple):
    """Counts of spans and calls under a local root, at the end of one of its spans."""

    started: int
    open: int
    dropped: int = 0
    calls_sent: int = 0


class RunLabels(NamedTuple):
    """Prompt, agent, finish reasons and time to the first token of a run that has at least one of them."""

    prompt_name: str | None
    prompt_version: str | None
    agent_name: str | None
    finish_reasons: tuple[str, ...]
    time_to_first_token_ms: float | None


class Fact(NamedTuple):
    """A run without its payload: the columns of `spans`, then the fields that only the trace summary needs."""

    span_id: str
    parent_id: str | None
    name: str
    kind: str
    status: str
    error: str | None
    start_ns: int
    end_ns: int
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None
    session_id: str | None
    user_id: str | None
    size: int  # bytes of the payload before compression
    project: str
    environment: str
    experiment_id: str | None
    example_id: str | None
    repetition: int
    tags: tuple[str, ...]
    metadata: str | None  # JSON object of its scalar values
    local_root: str | None
    counts: SpanCounts | None  # reported by its process at the end of this span
    sampling: SamplingInfo  # sampling information, and the monitor mark
    sent: int | None = None  # of an amended run: `size` without the amendments
    response_id: str | None = None  # id that the model gave its response
    route: str | None = None  # destination of a call; "" for a span that continues a call of another process
    labels: RunLabels | None = None  # None if the run has none, as most runs


SPAN_COLUMN_COUNT = 15  # number of fields of a Fact that are columns of `spans`
# Makes a Fact from all fields in a tuple; a call with that many arguments takes twice as long.
make_fact: Callable[[Iterable[Any]], Fact] = partial(tuple.__new__, Fact)


def extract_fact(run: Run) -> Fact:
    """Return the fact of a run: its columns and the fields for summaries."""
    return encode_run(run)[1][0]


def encode_amended_run(run: Run, fields: Mapping[str, JSON], sent: int) -> tuple[Fact, bytes]:
    """Encode a run with its amendments applied; `sent` is its size without them.

    The payload also keeps the amended fields separately.
    """
    _, (fact, payload) = encode_run(run)
    whole = payload[:-1] + b',"amended":' + dumps([sent, fields]).encode() + b"}"
    return fact._replace(size=len(whole), sent=sent), whole


def encode_run(run: Run) -> tuple[Run, tuple[Fact, bytes]]:
    """Encode a run; return it as stored, with its fact and payload. Never raises: values that JSON or the columns of a
    database cannot store are repaired.
    """
    try:
        return run, _encode(run)
    except (TypeError, ValueError, OverflowError, RecursionError, AttributeError):
        mended = _repair_run(run)
        return mended, _encode(mended)


def _encode(run: Run) -> tuple[Fact, bytes]:
    fields = _build_payload(run)
    try:
        payload = orjson.dumps(fields)
    except TypeError:  # a key is not text; the option costs time
        payload = orjson.dumps(fields, option=orjson.OPT_NON_STR_KEYS)
    usage, attributes, start_ns, end_ns = run.usage, run.attributes, run.start_ns, run.end_ns
    prompt = (run.prompt_name, run.prompt_version)
    labels = (*prompt, run.agent_name, run.finish_reasons, _make_finite(run.time_to_first_token_ms))
    # Raises `TypeError` if a column cannot store its text. The payload was checked when it was encoded.
    texts = (run.name, run.kind, run.error, run.model, run.session_id, run.user_id, run.project, run.environment)
    orjson.dumps((run.trace_id, run.span_id, run.parent_id, texts, run.experiment_id, run.example_id))
    fact = (
        run.span_id,
        run.parent_id,
        run.name,
        run.kind,
        run.status,
        run.error,
        start_ns if 0 <= start_ns <= INT_MAX else max(0, min(start_ns, INT_MAX)),
        end_ns if 0 <= end_ns <= INT_MAX else max(0, min(end_ns, INT_MAX)),
        run.model,
        max(0, min(usage.input_tokens, TOKENS_MAX)) if usage else None,
        max(0, min(usage.output_tokens, TOKENS_MAX)) if usage else None,
        _make_finite(run.cost),
        run.session_id,
        run.user_id,
        len(payload),
        run.project,
        run.environment,
        run.experiment_id,
        run.example_id,
        run.repetition,
        run.tags,
        _comparable_metadata(run.metadata) if run.metadata else None,
        *(_read_counts(attributes) if names.LOCAL_ROOT in attributes else _NO_COUNTS),
        read_sampling_info(attributes, run.resource),
        None,
        read_response_id(attributes) if names.RESPONSE_ID in attributes else None,
        _read_route(run) if SPAN_KIND in attributes or (run.parent_id and names.LOCAL_ROOT in attributes) else None,
        None if labels == _NO_LABELS else RunLabels(*labels),
    )
    return make_fact(fact), payload


def _make_finite(value: float | None) -> float | None:
    """Return a number that JSON and all databases can store; None for others, such as NaN."""
    return value if value is None or -_FLOAT_MAX < value < _FLOAT_MAX else None


_FLOAT_MAX = 1e18  # also integers of 64 bits
_NO_COUNTS = (None, None)
_NO_LABELS = (None, None, None, (), None)


def read_response_id(attributes: Mapping[str, JSON]) -> str | None:
    """Return the id that a model gave its response; None if it is missing or too long to be one.

    A span that fetches the response of an earlier call does not count, because what is said of the response concerns
    that call.
    """
    if attributes.get(names.OPERATION) == "fetch_response":
        return None
    id = attributes.get(names.RESPONSE_ID)
    return id if isinstance(id, str) and 0 < len(id) <= MAX_RESPONSE_ID_CHARACTERS and id.isascii() else None


def _read_route(run: Run) -> str | None:
    attributes = run.attributes
    kind = attributes.get(SPAN_KIND)
    if kind in ("client", "producer"):
        return get_destination(attributes)
    continues = kind in ("server", "consumer") or attributes.get(names.LOCAL_ROOT) == run.span_id
    return "" if continues and run.parent_id is not None else None


def _read_counts(attributes: Mapping[str, JSON]) -> tuple[str | None, SpanCounts | None]:
    root = attributes.get(names.LOCAL_ROOT)
    if not isinstance(root, str):
        return None, None
    started, still_open = attributes.get(names.SPANS_STARTED), attributes.get(names.SPANS_OPEN)
    if not isinstance(started, int) or not isinstance(still_open, int):
        return root, None
    return root, SpanCounts(
        started if -COUNT_MAX < started < COUNT_MAX else COUNT_MAX,
        still_open if -COUNT_MAX < still_open < COUNT_MAX else COUNT_MAX,
        _read_count(attributes, names.SPANS_DROPPED),
        _read_count(attributes, names.CALLS_SENT),
    )


def _read_count(attributes: Mapping[str, JSON], name: str) -> int:
    """Return a count that senders omit if it is 0, clamped to a range that columns and totals can hold."""
    value = attributes.get(name)
    return max(0, min(value, COUNT_MAX)) if isinstance(value, int) else 0


def _comparable_metadata(metadata: Mapping[str, JSON]) -> str | None:
    """Return the metadata that filters can compare, as JSON: scalar values of at most 200 characters."""
    plain = {str(key): value for key, value in metadata.items() if isinstance(value, (str, int, float, bool))}
    return dumps({key: value for key, value in plain.items() if len(str(value)) <= 200}) if plain else None


def _build_payload(run: Run) -> dict[str, JSON]:
    """Return the fields of a run that have no column, without empty ones."""
    payload: dict[str, JSON] = {"inputs": run.inputs, "outputs": run.outputs}
    if run.documents:
        payload["documents"] = [(d.content, d.id, d.score, d.metadata) for d in run.documents]
    if run.attributes:
        payload["attributes"] = run.attributes
    if run.events:
        payload["events"] = [(e.name, min(e.time_ns, INT_MAX), e.attributes) for e in run.events]
    if run.links:
        payload["links"] = [(link.trace_id, link.span_id, link.attributes) for link in run.links]
    if run.metadata:
        payload["metadata"] = run.metadata
    if run.tags:
        payload["tags"] = run.tags
    if run.usage and run.usage.details:
        payload["usage"] = run.usage.details
    if run.experiment_id is not None:
        payload["experiment"] = (run.experiment_id, run.example_id, run.repetition)
    if run.project != "default":
        payload["project"] = run.project
    if run.environment != "default":
        payload["environment"] = run.environment
    if run.prompt_name is not None or run.prompt_version is not None:
        payload["prompt"] = (run.prompt_name, run.prompt_version)
    if run.agent_name is not None:
        payload["agent"] = run.agent_name
    if run.finish_reasons:
        payload["finish_reasons"] = run.finish_reasons
    if run.time_to_first_token_ms is not None:
        payload["time_to_first_token_ms"] = run.time_to_first_token_ms
    if run.tools:
        payload["tools"] = run.tools
    return payload


def _repair_run(run: Run) -> Run:
    """Return the run with lone surrogates, huge integers, too deep nesting and foreign objects replaced."""
    fields = {name: clean(getattr(run, name)) for name in Run.__slots__}
    fields.update({name: getattr(run, name) for name in ("start_ns", "end_ns", "repetition", "usage")})
    fields.update({name: _make_finite(getattr(run, name)) for name in ("cost", "time_to_first_token_ms")})
    fields["documents"] = tuple(Document(*map(clean, (d.content, d.id, d.score, d.metadata))) for d in run.documents)
    fields["events"] = tuple(
        Event(clean(e.name), max(-INT_MAX, min(e.time_ns, INT_MAX)), clean(e.attributes)) for e in run.events
    )
    fields["links"] = tuple(Link(*map(clean, (x.trace_id, x.span_id, x.attributes))) for x in run.links)
    fields.update({name: tuple(fields[name]) for name in ("tags", "finish_reasons", "tools")})
    return Run(**fields)


_new_run: Callable[..., Run] = make_fast_constructor(Run)


def decode_run(trace_id: str, columns: Sequence[Any], payload: Mapping[str, JSON], resource: Mapping[str, JSON]) -> Run:
    """Decode the run of a row. `columns` are the first `SPAN_COLUMN_COUNT` fields of its `Fact`."""
    experiment_id, example_id, repetition = payload.get("experiment", (None, None, 0))
    prompt_name, prompt_version = payload.get("prompt", (None, None))
    tokens_in, tokens_out = columns[9], columns[10]
    usage = None if tokens_in is None else Usage(tokens_in, tokens_out, payload.get("usage", {}))
    return _new_run(
        trace_id=trace_id,
        span_id=columns[0],
        parent_id=columns[1],
        name=columns[2],
        kind=columns[3],
        status=columns[4],
        error=columns[5],
        start_ns=columns[6],
        end_ns=columns[7],
        model=columns[8],
        usage=usage,
        cost=columns[11],
        session_id=columns[12],
        user_id=columns[13],
        inputs=payload.get("inputs"),
        outputs=payload.get("outputs"),
        documents=tuple(Document(*d) for d in payload["documents"]) if "documents" in payload else (),
        attributes=payload.get("attributes", {}),
        events=tuple(Event(*e) for e in payload["events"]) if "events" in payload else (),
        links=tuple(Link(*link) for link in payload["links"]) if "links" in payload else (),
        metadata=payload.get("metadata", {}),
        tags=tuple(payload.get("tags", ())),
        project=payload.get("project", "default"),
        environment=payload.get("environment", "default"),
        experiment_id=experiment_id,
        example_id=example_id,
        repetition=repetition,
        resource=resource,
        prompt_name=prompt_name,
        prompt_version=prompt_version,
        agent_name=payload.get("agent"),
        finish_reasons=tuple(payload.get("finish_reasons", ())),
        time_to_first_token_ms=payload.get("time_to_first_token_ms"),
        tools=tuple(payload.get("tools", ())),
    )


def supersedes(new: Fact, old: Fact) -> bool:
    """Return whether a new version of a run replaces the old one: it must end later or, if both end together, be larger.

    If both rank equally, a new version that differs replaces the old one, except that it must not undo amendments.
    """
    if old.sent is not None:
        return (new.end_ns, new.size) > (old.end_ns, old.sent)
    rank_new, rank_old = (new.end_ns, new.size), (old.end_ns, old.size)
    return rank_new > rank_old or (rank_new == rank_old and new != old)
