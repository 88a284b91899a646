"""What the names of attributes say, parsed once per name, or once for all names of a span: programs write the same few
hundred names in every span, and the same few of them together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from spanwise.tracer import attributes as names

K = TypeVar("K")
V = TypeVar("V")
# Bounds of what is remembered, as anybody may write names: how many, characters of one, names of one span, characters
KNOWN, LONGEST, TOGETHER, IN_ALL = 4096, 200, 200, 1_000_000
LISTED = re.compile(r"(?P<prefix>.+?)\.(?P<index>[0-9]{1,5})\.(?P<element>\w+)\.(?P<rest>.+)", re.DOTALL | re.ASCII)
FILES = ("input.documents", "output.documents")  # namespaces, though they have a dot
TAKEN = (names.DOCUMENTS_JSON, names.COST, names.EXPERIMENT)  # likewise
# Names of reported costs, likewise: the cost of a call, or of its input and of its output
TOTAL_COSTS = ("llm.cost.total", "gen_ai.usage.cost", "gen_ai.usage.total_cost", "operation.cost")
PARTIAL_COSTS = (
    ("llm.cost.prompt", "llm.cost.completion"),
    ("gen_ai.usage.input_cost", "gen_ai.usage.output_cost"),
)
COSTS = frozenset((*TOTAL_COSTS, *(name for pair in PARTIAL_COSTS for name in pair)))
MAX_INDEX = 10_000  # a list spread over attributes is bounded by its highest index


class Listed(NamedTuple):
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
        if len(self) >= KNOWN or self.size > IN_ALL:
            self.clear()
            self.size = 0
        self[key] = value
        self.size += size
        return value


class Namespaces(Memo[str, str]):
    """Name of an attribute → what stands before its first dot; of what is rare where that is in every span, more of it:
    of feedback on a trace or session what stands after it, of files, of costs and of what Spanwise's dialect takes all.
    """

    def __missing__(self, name: str) -> str:
        prefix, _, rest = name.partition(".")
        if prefix in ("trace", "session") and rest.startswith(("annotations.", "evaluations.")):
            prefix = rest.partition(".")[0]
        elif prefix in ("input", "output") and rest.startswith("documents."):
            prefix += ".documents"
        elif name in TAKEN or name in COSTS:
            prefix = name
        return self.keep(name, prefix, len(name)) if len(name) < LONGEST else prefix


class Below(Memo[str, str]):
    """Name of an attribute → what stands after a prefix; empty if it does not begin with it, or goes on with one of
    the words that are left out.
    """

    def __init__(self, prefix: str, without: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.prefix, self.without = prefix, without

    def __missing__(self, name: str) -> str:
        rest = name[len(self.prefix) :] if name.startswith(self.prefix) else ""
        rest = "" if self.without and rest.startswith(self.without) else rest
        return self.keep(name, rest, len(name)) if len(name) < LONGEST else rest


class Lists(Memo[str, Listed | None]):
    """Name of an attribute → its place in a list spread over attributes, None if it is in none."""

    def __missing__(self, name: str) -> Listed | None:
        place = _listed(name)
        return self.keep(name, place, len(name)) if len(name) < LONGEST else place


def _listed(name: str) -> Listed | None:
    match = LISTED.fullmatch(name)
    if match is None or int(match["index"]) >= MAX_INDEX:
        return None
    return Listed(match["prefix"], int(match["index"]), match["element"], match["rest"])


namespace = Namespaces().__getitem__
listed = Lists().__getitem__

Names: TypeAlias = tuple[str, ...]
N = TypeVar("N", bound=Collection[str])
EACH = 100  # characters that a name costs beside its own


def weight(names: Collection[str]) -> int | None:
    """What it costs to remember names together, in characters; None for more than is worth it."""
    if len(names) > TOGETHER or any(len(name) >= LONGEST for name in names):
        return None
    return sum(map(len, names)) + EACH * len(names)


class OfNames(Memo[N, V]):
    """Names of a span's attributes, in their order, or their namespaces → what a function makes of them."""

    def __init__(self, make: Callable[[N], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, names: N) -> V:
        value, size = self._make(names), weight(names)
        return value if size is None else self.keep(names, value, size)


def _namespaces(names: Names) -> frozenset[str]:
    return frozenset(map(namespace, names))


namespaces = OfNames(_namespaces).__getitem__

# By prefix and name of the elements the lists that are spread over attributes: of each element by index, gaps closed,
# its attributes by what they are called in it
Spread: TypeAlias = Mapping[tuple[str, str], tuple[tuple[tuple[str, str], ...], ...]]


def _spread(names: Names) -> Spread:
    lists: dict[tuple[str, str], dict[int, list[tuple[str, str]]]] = {}
    for name in names:
        if place := listed(name):
            elements = lists.setdefault((place.prefix, place.element), {})
            elements.setdefault(place.position, []).append((place.rest, name))
    return {of: tuple(tuple(elements[at]) for at in sorted(elements)) for of, elements in lists.items()}


spread = OfNames(_spread).__getitem__
