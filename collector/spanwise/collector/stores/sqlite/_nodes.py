"""The spans of a trace that are here, as far as those that are new ask for them."""

from __future__ import annotations

from collections.abc import Callable

from spanwise.collector.stores.sqlite._codec import Fact

TOKENS, COST = 1, 2  # flags: somewhere below a span are such as have some


class Adrift(Exception):
    """To say what a trace sums up to now would take longer than a batch may; it is found out behind the writer."""


class Node:
    """A span that is here, as far as its children and its marks ask for it."""

    __slots__ = ("below", "cost", "further", "input_tokens", "model", "output_tokens", "parent_id", "row")

    def __init__(
        self,
        row: int,
        parent_id: str | None,
        model: str | None,
        input_tokens: int | None,
        output_tokens: int | None,
        cost: float | None,
        below: int = 0,
    ) -> None:
        self.row, self.parent_id, self.model, self.cost = row, parent_id, model, cost
        self.input_tokens, self.output_tokens = input_tokens, output_tokens
        self.below = below
        self.further: str | None = None  # a span above it, up to which nothing is a local root

    @property
    def carries(self) -> int:
        """Flags of what the span has itself."""
        return (self.input_tokens is not None) * TOKENS | (self.cost is not None) * COST


def node(row: int, fact: Fact, below: int = 0) -> Node:
    """The node of a fact."""
    return Node(row, fact.parent_id, fact.model, fact.input_tokens, fact.output_tokens, fact.cost, below)


class Spans:
    """The spans of a trace that are here: those that were looked up, others by `find`. `read` gives a row's fact."""

    def __init__(
        self,
        known: dict[str, Node | None] | None = None,
        find: Callable[[str], Node | None] = lambda _: None,
        read: Callable[[int], Fact] | None = None,
        steps: int = 2**62,
    ) -> None:
        self.known = {} if known is None else known
        self.facts: dict[int, Fact] = {}
        self.marked: list[Node] = []  # whose flags have changed
        self._find, self._read, self.steps = find, read, steps

    def get(self, span_id: str) -> Node | None:
        """The span, None if it is not here."""
        if span_id not in self.known:
            self.known[span_id] = self._find(span_id)
        return self.known[span_id]

    def fact(self, row: int) -> Fact:
        """The fact of a row."""
        if row not in self.facts:
            assert self._read is not None
            self.facts[row] = self._read(row)
        return self.facts[row]

    def mark(self, one: Node, flags: int) -> None:
        """Set flags of a span. Raises `Adrift` where these are more than a batch may set."""
        one.below |= flags
        self.marked.append(one)
        self.step()

    def step(self) -> None:
        """Go one span up. Raises `Adrift` where a batch has gone too far."""
        self.steps -= 1
        if self.steps < 0:
            raise Adrift
