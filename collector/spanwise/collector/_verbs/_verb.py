"""One row of the table of verbs: a method that sends its request, which the server's route is made of, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from typing import Any, Protocol, TypeVar, Unpack, cast

from spanwise.collector._verbs._call import Call, How, call_of

F = TypeVar("F", bound=Callable[..., Any])


class Asks(Protocol):
    """What a class needs so that the verbs of a table work as its methods."""

    def _ask(self, call: Call, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Send a request with the arguments of the verb; what its answer says the verb returns."""


def verb(method: F, request: str, **how: Unpack[How]) -> F:
    """A verb of a Protocol, by a request: `dataset = verb(ControlStore.dataset, "GET /api/datasets/{name:path}", …)`.

    `how` is what `call_of` takes. To type checkers the method is the Protocol's.
    """
    row = cache(partial(call_of, method, request, **how))  # read when first needed, so that the import stays cheap

    @wraps(method)
    def asked(self: Asks, *args: Any, **given: Any) -> Any:
        return self._ask(row(), args, given)

    asked.row = row  # type: ignore[attr-defined]
    return cast(F, asked)


def calls(table: type) -> Iterator[Call]:
    """The requests of a table's verbs, in their order."""
    return (member.row() for member in vars(table).values() if hasattr(member, "row"))
