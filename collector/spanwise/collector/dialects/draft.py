"""Interface of dialects: raw spans and log records, the draft that dialects fill, and parsing of attributes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypedDict, TypeVar

import orjson

from spanwise.collector.record_corrections import FORMER, present_names
from spanwise.collector.records import JSON, Amendment, Document, Event, Feedback, Link, Usage, make_fast_constructor
from spanwise.tracer import attribute_names as names

# Parsing of attribute names (namespaces, indexed lists) and values (JSON, numbers, documents).

K = TypeVar("K")
V = TypeVar("V")
# Bounds of caches, because senders choose the names: entries, characters per name, names per span, total characters
MAX_ENTRIES, MAX_NAME_CHARS, MAX_NAMES, MAX_TOTAL_CHARS = 4096, 200, 200, 1_000_000
INDEXED_NAME = re.compile(
    r"(?P<prefix>.+?)\.(?P<index>[0-9]{1,5})\.(?P<element>\w+)\.(?P<rest>.+)", re.DOTALL | re.ASCII
)
DOCUMENT_KINDS = ("retriever", "reranker")  # kinds whose outputs may be documents
AGGREGATE_KINDS = ("agent", "chain")  # kinds whose spans repeat the tokens and costs of the calls below them
DOCUMENT_NAMESPACES = ("input.documents", "output.documents")  # these namespaces contain a dot, unlike all others
NATIVE_NAMES = (names.DOCUMENTS_JSON, names.COST, names.EXPERIMENT)  # each of these names is its own namespace
# Names under which senders report costs: of a call in total, or of its input and its output. Each of these names is
# its own namespace
TOTAL_COST_NAMES = ("llm.cost.total", "gen_ai.usage.cost", "gen_ai.usage.total_cost", "operation.cost")
PARTIAL_COST_NAMES = (
    ("llm.cost.prompt", "llm.cost.completion"),
    ("gen_ai.usage.input_cost", "gen_ai.usage.output_cost"),
)
COST_NAMES = frozenset((*TOTAL_COST_NAMES, *(name for pair in PARTIAL_COST_NAMES for name in pair)))
TOOL_PARAMETERS = "tool.parameters"  # is its own namespace, too
MAX_INDEX = 10_000  # limits the length of a list spread over attributes


class IndexedName(NamedTuple):
    """Parts of an attribute name of the form `{prefix}.{index}.{element}.{rest}`."""

    prefix: str
    position: int
    element: str
    rest: str


class Memo(dict[K, V], Generic[K, V]):
    """Bounded cache that is cleared when it is full.

    Memory stays bounded even if a sender keeps using new attribute names. After such a flood, the cleared cache soon
    holds useful names again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def keep(self, key: K, value: V, size: int) -> V:
        """Store a value and return it. `size` is its memory cost in characters.

        Concurrent calls may make the total size slightly too low, until the cache is cleared.
        """
        if len(self) >= MAX_ENTRIES or self.size > MAX_TOTAL_CHARS:
            self.clear()
            self.size = 0
        self[key] = value
        self.size += size
        return value


class NamespaceMemo(Memo[str, str]):
    """Cache of attribute names and their namespaces. The namespace is the text before the first dot.

    Some rare names start with a word that occurs in every span. They get a more specific namespace: `annotations` or
    `evaluations` for feedback on a trace or session, `input.documents` or `output.documents` for files, and the full
    name for costs, for `TOOL_PARAMETERS` and for `NATIVE_NAMES`.
    """

    def __missing__(self, name: str) -> str:
        prefix, _, rest = name.partition(".")
        if prefix in ("trace", "session") and rest.startswith(("annotations.", "evaluations.")):
            prefix = rest.partition(".")[0]
        elif prefix in ("input", "output") and rest.startswith("documents."):
            prefix += ".documents"
        elif name in NATIVE_NAMES or name in COST_NAMES or name == TOOL_PARAMETERS:
            prefix = name
        return self.keep(name, prefix, len(name)) if len(name) < MAX_NAME_CHARS else prefix


class SuffixMemo(Memo[str, str]):
    """Cache of attribute names and the text in them after a prefix.

    The text is empty if the name lacks the prefix, or if an excluded word follows the prefix.
    """

    def __init__(self, prefix: str, without: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.prefix, self.without = prefix, without

    def __missing__(self, name: str) -> str:
        rest = name[len(self.prefix) :] if name.startswith(self.prefix) else ""
        rest = "" if self.without and rest.startswith(self.without) else rest
        return self.keep(name, rest, len(name)) if len(name) < MAX_NAME_CHARS else rest


class IndexedNameMemo(Memo[str, IndexedName | None]):
    """Cache of attribute names and their parts as an `IndexedName`; None for names of another form."""

    def __missing__(self, name: str) -> IndexedName | None:
        match = INDEXED_NAME.fullmatch(name)
        place = None
        if match is not None and int(match["index"]) < MAX_INDEX:
            place = IndexedName(match["prefix"], int(match["index"]), match["element"], match["rest"])
        return self.keep(name, place, len(name)) if len(name) < MAX_NAME_CHARS else place


get_namespace = NamespaceMemo().__getitem__
get_indexed_name = IndexedNameMemo().__getitem__

NameTuple: TypeAlias = tuple[str, ...]
N = TypeVar("N", bound=Collection[str])
NAME_OVERHEAD = 100  # overhead of a cached name, in characters


def weigh_names(names: Collection[str]) -> int | None:
    """Return the memory cost of a cache key made of these names, in characters; None if it is too high to cache."""
    if len(names) > MAX_NAMES or any(len(name) >= MAX_NAME_CHARS for name in names):
        return None
    return sum(map(len, names)) + NAME_OVERHEAD * len(names)


class NamesMemo(Memo[N, V]):
    """Cache of a function's results. The key is the tuple of a span's attribute names, or the set of its namespaces."""

    def __init__(self, make: Callable[[N], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, names: N) -> V:
        value, size = self._make(names), weigh_names(names)
        return value if size is None else self.keep(names, value, size)


def memoize_names(make: Callable[[N], V]) -> Callable[[N], V]:
    """Cache the results of a function in a `NamesMemo`. Usable as a decorator."""
    return NamesMemo(make).__getitem__


_namespaces: NamesMemo[NameTuple, frozenset[str]] = NamesMemo(lambda names: frozenset(map(get_namespace, names)))
get_namespaces = _namespaces.__getitem__

# Lists whose elements are spread over several attributes. The key is (prefix, element name). The value holds the
# elements in order of their index, each as pairs of (name within the element, full attribute name)
IndexedLists: TypeAlias = Mapping[tuple[str, str], tuple[tuple[tuple[str, str], ...], ...]]


@memoize_names
def get_indexed_lists(names: NameTuple) -> IndexedLists:
    """Return the lists whose elements are spread over several of the attributes."""
    lists: dict[tuple[str, str], dict[int, list[tuple[str, str]]]] = {}
    for name in names:
        if indexed := get_indexed_name(name):
            elements = lists.setdefault((indexed.prefix, indexed.element), {})
            elements.setdefault(indexed.position, []).append((indexed.rest, name))
    return {of: tuple(tuple(elements[at]) for at in sorted(elements)) for of, elements in lists.items()}


CONTENT_FIELDS = ("content", "page_content", "text", "chunk")
ID_FIELDS = ("id", "doc_uri", "document_id", "url")
METADATA_ID_FIELDS = ("doc_uri", "id", "document_id", "doc_id")  # keys in a document's metadata that may hold its id
# keys in a document's metadata that may hold its score; a distance is not a score
METADATA_SCORE_FIELDS = ("score", "relevance_score", "similarity_score", "_score")
# Start of texts that LlamaIndex's instrumentor writes for documents. They are ignored, because it lists the same
# documents in other attributes
LLAMA_INDEX_REPR = "<NodeWithScore("
DOCUMENT_FIELDS = frozenset((*CONTENT_FIELDS, *ID_FIELDS))
new_document, new_usage = make_fast_constructor(Document), make_fast_constructor(Usage)


def parse_json(value: JSON) -> JSON:
    """Parse a string as JSON. Return invalid JSON, and any value other than a string, unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def parse_number(value: JSON) -> float | None:
    """Convert a number or a numeric string to a finite number. Return None for any other value."""
    if value.__class__ is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        parsed = float(value)
    except (ValueError, OverflowError):  # an int may exceed the range of float
        return None
    return parsed if math.isfinite(parsed) else None


def parse_count(value: JSON) -> int | None:
    """Convert a number or a numeric string to an integer from 0 to 2**53 - 1. Return None for any other value."""
    if value.__class__ is int and 0 <= value < 2**53:
        return value
    parsed = None if value is None else parse_number(value)
    return int(parsed) if parsed is not None and 0 <= parsed < 2**53 and parsed.is_integer() else None


def find_name(attributes: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the first of the names that is an attribute; None if there is none."""
    return next((name for name in names if name in attributes), None)


def find_count(values: Mapping[str, JSON], names: tuple[str, ...]) -> int | None:
    """Return the first valid token count under one of the names. Providers that do not count tokens report NaN."""
    return next((count for name in names if (count := parse_count(values.get(name))) is not None), None)


def text_or_none(value: JSON) -> str | None:
    """Return a non-empty string; None for any other value."""
    return value if isinstance(value, str) and value else None


def to_text(value: JSON) -> str:
    """Return a string unchanged, and any other value as JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # the value holds an integer beyond 64 bits
        return json.dumps(value, default=str)


def read_document(value: JSON) -> Document | None:
    """Return a retrieved document from a string, or from an object with any of the known field names; else None."""
    if isinstance(value, str):
        return None if value.startswith(LLAMA_INDEX_REPR) else Document(value)
    if not isinstance(value, dict):
        return None
    if "lc" in value and isinstance(
        inner := value.get("kwargs"), dict
    ):  # a serialized LangChain object; its `id` is a class
        value = inner
    return build_document(value) if not DOCUMENT_FIELDS.isdisjoint(value) else None


def build_document(value: Mapping[str, JSON]) -> Document:
    """Build a document from an object. A document without content still counts, because it has a rank."""
    content, id, metadata, score = value.get("content"), value.get("id"), value.get("metadata"), value.get("score")
    if content is None:
        content = next((value[name] for name in CONTENT_FIELDS if value.get(name) is not None), None)
    if metadata is not None:
        metadata = parse_json(metadata)
    metadata = metadata if isinstance(metadata, dict) else {}
    if type(id) is not str or not id:
        id = _find_id(value, ID_FIELDS) or (_find_id(metadata, METADATA_ID_FIELDS) if metadata else None)
    score = parse_number(score)
    if score is None and metadata:
        score = next(
            (score for name in METADATA_SCORE_FIELDS if (score := parse_number(metadata.get(name))) is not None), None
        )
    return new_document("" if content is None else to_text(content), id, score, metadata)


def read_documents(values: JSON) -> tuple[Document, ...]:
    """Return the documents in a list, or in the list `documents` of an object. Return () if any element is no
    document.
    """
    if isinstance(values, Mapping):
        values = values.get("documents")
    if not isinstance(values, Sequence) or isinstance(values, str):
        return ()
    elements = [read_document(value) for value in values]
    return tuple(element for element in elements if element) if all(elements) else ()


def take_indexed_list(attributes: dict[str, Any], prefix: str, element: str) -> list[dict[str, JSON]]:
    """Remove the list `{prefix}.{i}.{element}.{name}` from the attributes, and return one object per index, in order.

    Missing indexes are skipped.
    """
    elements = get_indexed_lists(tuple(attributes)).get((prefix, element), ())
    return [{rest: attributes.pop(name) for rest, name in element_names} for element_names in elements]


def _find_id(value: Mapping[str, JSON], names: tuple[str, ...]) -> str | None:
    given = (value.get(name) for name in names)
    return next((str(id) for id in given if type(id) in (str, int, float) and id != ""), None)


# Interface of dialects: raw spans and log records, the draft that dialects fill, and side records.


# not frozen: every span needs an instance, and an instance of a frozen class takes twice as long to create
@dataclass(slots=True)
class RawSpan:
    """OpenTelemetry span before translation: ids in lower-case hex, times in nanoseconds, attributes as plain values.

    `kind` and `status` are OTLP's numbers: 0 unspecified, 1 internal, 2 server, 3 client, 4 producer, 5 consumer; and
    0 unset, 1 ok, 2 error. Spans of one resource share one `resource` mapping.
    """

    trace_id: str
    span_id: str
    name: str
    parent_id: str | None = None
    kind: int = 0
    start_ns: int = 0
    end_ns: int = 0
    status: int = 0
    message: str = ""
    attributes: Mapping[str, JSON] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    links: tuple[Link, ...] = ()
    resource: Mapping[str, JSON] = field(default_factory=dict)
    scope: str = ""
    scope_version: str = ""
    trace_state: str = ""


@dataclass(slots=True)
class RawLog:
    """OpenTelemetry log record before translation, in the same format. `span_id` is None if the record has no span."""

    trace_id: str
    span_id: str | None
    time_ns: int
    attributes: Mapping[str, JSON] = field(default_factory=dict)
    event_name: str = ""
    body: JSON = None
    resource: Mapping[str, JSON] = field(default_factory=dict)
    scope: str = ""
    scope_version: str = ""

    @property
    def event(self) -> str:
        """Return the event's name. Older OTLP versions have it in an attribute instead of a field."""
        return self.event_name or str(self.attributes.get("event.name", ""))


SideRecord: TypeAlias = Feedback | Amendment
# A `ValueError` represents invalid data. It is reported to the sender, and the span is stored all the same
SideResult: TypeAlias = SideRecord | ValueError


def make_side_record(make: Callable[..., SideRecord], *args: Any) -> SideResult:
    """Return the result of `make`, or the `ValueError` that it raises."""
    try:
        return make(*args)
    except ValueError as error:
        return error


def check_side_records(also: Sequence[SideResult]) -> None:
    """Raise `TypeError` for anything but feedback, amendments and `ValueError`s."""
    for record in also:
        if not isinstance(record, Feedback | Amendment | ValueError):
            raise TypeError(f"a side record must be feedback or an amendment, got {record!r:.200}")


class RunFields(TypedDict, total=False):
    """Fields of a `Run` that a dialect fills in. The other fields (ids, times, status, resource) come from the raw
    span.
    """

    name: str  # more readable than the span's own name, which then stays in the attribute `otel.span.name`
    kind: str
    inputs: JSON
    outputs: JSON
    documents: tuple[Document, ...]
    model: str
    usage: Usage
    cost: float | None
    session_id: str
    user_id: str
    tags: tuple[str, ...]
    metadata: Mapping[str, JSON]
    experiment_id: str | None
    example_id: str | None
    repetition: int
    prompt_name: str
    prompt_version: str
    agent_name: str
    finish_reasons: tuple[str, ...]
    time_to_first_token_ms: float
    tools: tuple[JSON, ...]


# Exact types of fields; None allows any JSON value
FIELD_TYPES: Mapping[str, tuple[type, ...] | None] = {
    "name": (str,),
    "kind": (str,),
    "inputs": None,
    "outputs": None,
    "documents": (tuple,),
    "model": (str,),
    "usage": (Usage,),
    "cost": (float, int, type(None)),
    "session_id": (str,),
    "user_id": (str,),
    "tags": (tuple,),
    "metadata": (dict,),
    "experiment_id": (str, type(None)),
    "example_id": (str, type(None)),
    "repetition": (int,),
    "prompt_name": (str,),
    "prompt_version": (str,),
    "agent_name": (str,),
    "finish_reasons": (tuple,),
    "time_to_first_token_ms": (float, int),
    "tools": (tuple,),
}
ELEMENT_TYPES = (("documents", {Document}), ("tags", {str}), ("finish_reasons", {str}))


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raise `TypeError` for a value of a wrong type, and `KeyError` for a field that dialects do not fill in.

    Because of one such value, a store would refuse the run together with all other runs of its batch.
    """
    for name, value in fields.items():
        kinds = FIELD_TYPES[name]
        if kinds is not None and type(value) not in kinds:
            raise TypeError(f"a dialect has filled in {name}={value!r:.200}, which is of a wrong type")
    for name, kind in ELEMENT_TYPES:
        if (items := fields.get(name)) and set(map(type, items)) != kind:
            raise TypeError(f"a dialect has filled in {name}={items!r:.200}, which is of a wrong type")


class Draft:
    """Raw span together with the run fields that dialects have extracted from it so far.

    - `span`: the raw span with events, links, scope and resource. Dialects must not change it.
    - `attributes`: the attributes that no dialect has taken yet. Those left at the end are stored in `Run.attributes`.
    - `fields`: the run fields that dialects have filled in. The first dialect to fill a field wins.
    - `namespaces`: the namespaces of the attributes (see `NamespaceMemo`), for a quick check whether a dialect applies.
    - `awaits`: fields whose content arrives in other messages (log records, siblings). The run's attribute
      `spanwise.awaits` lists them, so that a reader can distinguish "not given" from "not arrived yet"; see
      `Amendment`.
    - `also`: side records of the span, `Feedback` and `Amendment`s, stored with the run in one commit. For invalid
      data it holds the `ValueError` with the reason, as `make_side_record` returns it. Append with `also += (…,)`.
    - `sums`: True if the span's token counts and cost are totals of the spans below it. They are then ignored, because
      the spans below report their own.
    """

    __slots__ = ("also", "attributes", "awaits", "fields", "namespaces", "span", "sums")

    def __init__(self, span: RawSpan) -> None:
        self.span = span
        self.attributes: dict[str, Any] = dict(span.attributes)
        self.fields: RunFields = {}
        self.namespaces: frozenset[str] = get_namespaces(tuple(self.attributes))
        if FORMER in self.namespaces:
            self.attributes = dict(present_names(self.attributes))
            self.namespaces = get_namespaces(tuple(self.attributes))
        self.awaits: tuple[str, ...] = ()
        self.also: tuple[SideResult, ...] = ()
        self.sums = False

    def check(self) -> None:
        """Raise `TypeError` or `KeyError` for values that no store could keep."""
        check_fields(self.fields)
        if self.also:
            check_side_records(self.also)


# A dialect is a function that takes the attributes, events and scope that it recognizes from a draft, and fills in
# run fields that are still empty. It changes only the draft, and replaces values instead of modifying them: if it
# raises, the span is translated again without it. `/metrics` and the log show its `__name__`. A dialect sees one span
# at a time, because siblings arrive in any order and in other requests. If it needs their content, it sets `awaits`,
# and the later span amends the earlier one. A dialect for all spans of one request would be a
# `Callable[[Sequence[Draft]], None]` in `ingest/request_decoder.py`.
Dialect: TypeAlias = Callable[[Draft], None]


class Applicability(NamedTuple):
    """Condition under which a dialect applies: an attribute in one of the namespaces, or a scope with one of the
    prefixes.
    """

    namespaces: frozenset[str]
    scopes: tuple[str, ...]


def applies_to(*namespaces: str, scope: str | tuple[str, ...] = ()) -> Callable[[Dialect], Dialect]:
    """Restrict a dialect to spans with these namespaces or scopes. A dialect without this decorator gets all spans."""
    applicability = Applicability(frozenset(namespaces), (scope,) if isinstance(scope, str) else scope)

    def mark(dialect: Dialect) -> Dialect:
        dialect.place = applicability  # type: ignore[attr-defined]
        return dialect

    return mark


def is_applicable(dialect: Dialect, namespaces: Set[str], scope: str) -> bool:
    """Return whether a dialect applies to a span with these namespaces and this scope."""
    applicability: Applicability | None = getattr(dialect, "place", None)
    if applicability is None:
        return True
    return not applicability.namespaces.isdisjoint(namespaces) or scope.startswith(applicability.scopes)
