"""Parsing of attribute names (namespaces, indexed lists) and values (JSON, numbers, documents)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import orjson

from spanwise.collector.records import JSON, Document, Usage, make_fast_constructor
from spanwise.tracer import attribute_names as names

K = TypeVar("K")
V = TypeVar("V")
# Bounds of what is remembered, as anybody may write names: how many, characters of one, names of one span, characters
MAX_ENTRIES, MAX_NAME_CHARS, MAX_NAMES, MAX_TOTAL_CHARS = 4096, 200, 200, 1_000_000
INDEXED_NAME = re.compile(
    r"(?P<prefix>.+?)\.(?P<index>[0-9]{1,5})\.(?P<element>\w+)\.(?P<rest>.+)", re.DOTALL | re.ASCII
)
DOCUMENT_NAMESPACES = ("input.documents", "output.documents")  # namespaces, though they have a dot
NATIVE_NAMES = (names.DOCUMENTS_JSON, names.COST, names.EXPERIMENT)  # likewise
# Names of reported costs, likewise: the cost of a call, or of its input and of its output
TOTAL_COST_NAMES = ("llm.cost.total", "gen_ai.usage.cost", "gen_ai.usage.total_cost", "operation.cost")
PARTIAL_COST_NAMES = (
    ("llm.cost.prompt", "llm.cost.completion"),
    ("gen_ai.usage.input_cost", "gen_ai.usage.output_cost"),
)
COST_NAMES = frozenset((*TOTAL_COST_NAMES, *(name for pair in PARTIAL_COST_NAMES for name in pair)))
MAX_INDEX = 10_000  # a list spread over attributes is bounded by its highest index


class IndexedName(NamedTuple):
    """`{prefix}.{index}.{element}.{rest}`."""

    prefix: str
    position: int
    element: str
    rest: str


class Memo(dict[K, V], Generic[K, V]):
    """What was made of something, remembered; all of it is forgotten when it is too much, so that a flood of new names
    takes neither memory nor, once it is over, time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def keep(self, key: K, value: V, size: int) -> V:
        """Remember, of a size in characters. Threads that do so at once may count some too little, never for long."""
        if len(self) >= MAX_ENTRIES or self.size > MAX_TOTAL_CHARS:
            self.clear()
            self.size = 0
        self[key] = value
        self.size += size
        return value


class NamespaceMemo(Memo[str, str]):
    """Name of an attribute → what stands before its first dot; of what is rare where that is in every span, more of it:
    of feedback on a trace or session what stands after it, of files, of costs and of what Spanwise's dialect takes all.
    """

    def __missing__(self, name: str) -> str:
        prefix, _, rest = name.partition(".")
        if prefix in ("trace", "session") and rest.startswith(("annotations.", "evaluations.")):
            prefix = rest.partition(".")[0]
        elif prefix in ("input", "output") and rest.startswith("documents."):
            prefix += ".documents"
        elif name in NATIVE_NAMES or name in COST_NAMES:
            prefix = name
        return self.keep(name, prefix, len(name)) if len(name) < MAX_NAME_CHARS else prefix


class SuffixMemo(Memo[str, str]):
    """Name of an attribute → what stands after a prefix; empty if it does not begin with it, or goes on with one of
    the words that are left out.
    """

    def __init__(self, prefix: str, without: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.prefix, self.without = prefix, without

    def __missing__(self, name: str) -> str:
        rest = name[len(self.prefix) :] if name.startswith(self.prefix) else ""
        rest = "" if self.without and rest.startswith(self.without) else rest
        return self.keep(name, rest, len(name)) if len(name) < MAX_NAME_CHARS else rest


class IndexedNameMemo(Memo[str, IndexedName | None]):
    """Name of an attribute → its place in a list spread over attributes, None if it is in none."""

    def __missing__(self, name: str) -> IndexedName | None:
        place = _parse_indexed_name(name)
        return self.keep(name, place, len(name)) if len(name) < MAX_NAME_CHARS else place


def _parse_indexed_name(name: str) -> IndexedName | None:
    match = INDEXED_NAME.fullmatch(name)
    if match is None or int(match["index"]) >= MAX_INDEX:
        return None
    return IndexedName(match["prefix"], int(match["index"]), match["element"], match["rest"])


get_namespace = NamespaceMemo().__getitem__
get_indexed_name = IndexedNameMemo().__getitem__

NameTuple: TypeAlias = tuple[str, ...]
N = TypeVar("N", bound=Collection[str])
NAME_OVERHEAD = 100  # characters that a name costs beside its own


def weigh_names(names: Collection[str]) -> int | None:
    """What it costs to remember names together, in characters; None for more than is worth it."""
    if len(names) > MAX_NAMES or any(len(name) >= MAX_NAME_CHARS for name in names):
        return None
    return sum(map(len, names)) + NAME_OVERHEAD * len(names)


class NamesMemo(Memo[N, V]):
    """Names of a span's attributes, in their order, or their namespaces → what a function makes of them."""

    def __init__(self, make: Callable[[N], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, names: N) -> V:
        value, size = self._make(names), weigh_names(names)
        return value if size is None else self.keep(names, value, size)


def _find_namespaces(names: NameTuple) -> frozenset[str]:
    return frozenset(map(get_namespace, names))


get_namespaces = NamesMemo(_find_namespaces).__getitem__

# By prefix and name of the elements the lists that are spread over attributes: of each element by index, gaps closed,
# its attributes by what they are called in it
IndexedLists: TypeAlias = Mapping[tuple[str, str], tuple[tuple[tuple[str, str], ...], ...]]


def _group_indexed_names(names: NameTuple) -> IndexedLists:
    lists: dict[tuple[str, str], dict[int, list[tuple[str, str]]]] = {}
    for name in names:
        if place := get_indexed_name(name):
            elements = lists.setdefault((place.prefix, place.element), {})
            elements.setdefault(place.position, []).append((place.rest, name))
    return {of: tuple(tuple(elements[at]) for at in sorted(elements)) for of, elements in lists.items()}


get_indexed_lists = NamesMemo(_group_indexed_names).__getitem__


CONTENT_FIELDS = ("content", "page_content", "text", "chunk")
ID_FIELDS = ("id", "doc_uri", "document_id", "url")
METADATA_ID_FIELDS = ("doc_uri", "id", "document_id", "doc_id")  # of a document's metadata
METADATA_SCORE_FIELDS = ("score", "relevance_score", "similarity_score", "_score")  # the same; distances are no scores
LLAMA_INDEX_REPR = "<NodeWithScore("  # how LlamaIndex's instrumentor writes what it has listed elsewhere
DOCUMENT_FIELDS = frozenset((*CONTENT_FIELDS, *ID_FIELDS))
new_document, new_usage = make_fast_constructor(Document), make_fast_constructor(Usage)


def parse_json(value: JSON) -> JSON:
    """What a text holds if it is JSON, else the value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def parse_number(value: JSON) -> float | None:
    """A finite number, also out of a text; None for everything else."""
    if value.__class__ is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        parsed = float(value)
    except (ValueError, OverflowError):  # an int of Python's own may be larger than any float
        return None
    return parsed if math.isfinite(parsed) else None


def parse_count(value: JSON) -> int | None:
    """A whole number that is not negative, or None."""
    if value.__class__ is int and 0 <= value < 2**53:
        return value
    parsed = None if value is None else parse_number(value)
    return int(parsed) if parsed is not None and 0 <= parsed < 2**53 and parsed.is_integer() else None


def text_or_none(value: JSON) -> str | None:
    """A text that is not empty, or None."""
    return value if isinstance(value, str) and value else None


def to_text(value: JSON) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def read_document(value: JSON) -> Document | None:
    """One retrieved document out of a text, or of an object under any of the names in use; None if it is neither."""
    if isinstance(value, str):
        return None if value.startswith(LLAMA_INDEX_REPR) else Document(value)
    if not isinstance(value, dict):
        return None
    if "lc" in value and isinstance(
        inner := value.get("kwargs"), dict
    ):  # as LangChain writes objects; its id is a class
        value = inner
    return build_document(value) if not DOCUMENT_FIELDS.isdisjoint(value) else None


def build_document(value: Mapping[str, JSON]) -> Document:
    """The document that an object is known to be: without content it is an empty one, which still has its rank."""
    content, id, metadata, score = value.get("content"), value.get("id"), value.get("metadata"), value.get("score")
    if content is None:
        content = _find_first(value, CONTENT_FIELDS)
    if metadata is not None:
        metadata = parse_json(metadata)
    metadata = metadata if isinstance(metadata, dict) else {}
    if type(id) is not str or not id:
        id = _find_id(value, ID_FIELDS) or (_find_id(metadata, METADATA_ID_FIELDS) if metadata else None)
    score = parse_number(score)
    if score is None and metadata:
        score = _find_metadata_score(metadata)
    return new_document("" if content is None else to_text(content), id, score, metadata)


def read_documents(values: JSON) -> tuple[Document, ...]:
    """The documents in a list, or none at all if some element is not one."""
    if isinstance(values, Mapping):
        values = values.get("documents")
    if not isinstance(values, Sequence) or isinstance(values, str):
        return ()
    elements = [read_document(value) for value in values]
    return tuple(element for element in elements if element) if all(elements) else ()


def take_indexed_list(attributes: dict[str, Any], prefix: str, element: str) -> list[dict[str, JSON]]:
    """Take the list out of `{prefix}.{i}.{element}.{name}`: one object per index, by index, gaps closed."""
    elements = get_indexed_lists(tuple(attributes)).get((prefix, element), ())
    return [{rest: attributes.pop(name) for rest, name in one} for one in elements]


def _find_first(value: Mapping[str, JSON], names: tuple[str, ...]) -> JSON:
    return next((value[name] for name in names if value.get(name) is not None), None)


def _find_metadata_score(metadata: Mapping[str, JSON]) -> float | None:
    return next(
        (score for name in METADATA_SCORE_FIELDS if (score := parse_number(metadata.get(name))) is not None), None
    )


def _find_id(value: Mapping[str, JSON], names: tuple[str, ...]) -> str | None:
    given = (value.get(name) for name in names)
    return next((str(id) for id in given if type(id) in (str, int, float) and id != ""), None)
