"""What a trace's roll-up is made of, but for what grows with the trace."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from spanwise.collector.stores.sqlite._codec import Fact
from spanwise.collector.stores.sqlite._rollup import PICO, models_text

FIRSTS = ("session_id", "user_id", "experiment_id", "example_id", "metadata")


class Carrier(msgspec.Struct, array_like=True):
    """The first span with tokens, or with a cost: it counts where parents go in a circle, so that none would."""

    row: int
    model: str | None
    amounts: tuple[int, ...]


class Totals(msgspec.Struct, array_like=True):
    """All of a state that does not grow with its trace."""

    count: int = 0
    errors: int = 0
    size: int = 0
    start_ns: int = 2**63 - 1
    end_ns: int = 0
    names: dict[str, int] = {}  # as a list that is searched, in order of arrival
    kinds: dict[str, int] = {}
    tags: dict[str, int] = {}
    models: dict[str, list[int]] = {}  # calls, input tokens, output tokens, cost in trillionths
    firsts: dict[str, tuple[int, str]] = {}  # of `FIRSTS`: row and value
    top: tuple[int, str, int] | None = None  # start, span, row of the earliest without a parent
    first: tuple[int, str, int] | None = None  # the earliest of all
    orphan: tuple[int, str, int, str] | None = None  # with its parent; None where it must be looked for
    missing: int = 0  # parents that are not here
    root: Fact | None = None
    root_row: int = 0
    marked: bool = False  # a monitor's
    with_tokens: int = 0  # spans whose tokens count
    tokens: tuple[int, int] = (0, 0)
    with_cost: int = 0
    cost: int = 0
    first_tokens: Carrier | None = None
    first_cost: Carrier | None = None
    untold: int = 0  # spans without a local root, of which no parent is missing
    unwalked: bool = False  # some have come for which no local root was looked, as there was none
    local_roots: int = 0
    not_arrived: int = 0  # of these
    waiting: int = 0  # of these, for calls
    dropped: int = 0
    calls_sent: int = 0

    def shown_tokens(self) -> Sequence[int]:
        """Input and output tokens; those of the first span that has some where parents go in a circle."""
        first = self.first_tokens
        return first.amounts if first is not None and not self.with_tokens else self.tokens

    def shown_cost(self) -> float | None:
        """The cost, likewise; None if nothing has one."""
        first = self.first_cost
        if first is None:
            return None
        return (self.cost if self.with_cost else first.amounts[0]) / PICO

    def shown_models(self) -> str:
        """Of the models; where parents go in a circle, with what the first span carries."""
        models: dict[str | None, Sequence[int]] = dict(self.models.items())
        for first, counted, place in (
            (self.first_tokens, self.with_tokens, 1),
            (self.first_cost, self.with_cost, 3),
        ):
            if first is not None and not counted and first.model in models:
                found = [*models[first.model]]
                found[place : place + len(first.amounts)] = first.amounts
                models[first.model] = found
        return models_text(models)

    def complete(self) -> int | None:
        """1 if all that was started has come, 0 if some has not, None if nobody can tell."""
        if not self.local_roots:
            return None
        if self.not_arrived:
            return 0
        return None if self.missing or self.untold or self.waiting else 1


_encoder = msgspec.json.Encoder()  # its integers have no bounds, as sums of costs ask for
_decoder = msgspec.json.Decoder(Totals)


def pack(totals: Totals) -> bytes:
    """As a column holds them."""
    return _encoder.encode(totals)


def unpack(data: bytes) -> Totals:
    """What `pack` has made. Raises `msgspec.DecodeError`, also for what another version has made."""
    return _decoder.decode(data)
