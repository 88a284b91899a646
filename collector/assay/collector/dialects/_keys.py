"""What the names of attributes say, parsed once per name: programs write the same few hundred names in every span."""

from __future__ import annotations

import re
from typing import NamedTuple

KNOWN, LONGEST = 4096, 200  # bounds of what is remembered, as anybody may write names
LISTED = re.compile(r"(?P<prefix>.+?)\.(?P<index>[0-9]{1,5})\.(?P<element>\w+)\.(?P<rest>.+)", re.DOTALL | re.ASCII)
MAX_INDEX = 10_000  # a list spread over attributes is bounded by its highest index


class Listed(NamedTuple):
    """`{prefix}.{index}.{element}.{rest}`."""

    prefix: str
    position: int
    element: str
    rest: str


class Namespaces(dict[str, str]):
    """Name of an attribute → what stands before its first dot; of feedback on a trace or session what stands after it,
    as `session.id` stands in every span.
    """

    def __missing__(self, name: str) -> str:
        prefix, _, rest = name.partition(".")
        if prefix in ("trace", "session") and rest.startswith(("annotations.", "evaluations.")):
            prefix = rest.partition(".")[0]
        if len(self) < KNOWN and len(name) < LONGEST:
            self[name] = prefix
        return prefix


class Below(dict[str, str]):
    """Name of an attribute → what stands after a prefix; empty if it does not begin with it, or goes on with one of
    the words that are left out.
    """

    def __init__(self, prefix: str, without: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.prefix, self.without = prefix, without

    def __missing__(self, name: str) -> str:
        rest = name[len(self.prefix) :] if name.startswith(self.prefix) else ""
        rest = "" if self.without and rest.startswith(self.without) else rest
        if len(self) < KNOWN and len(name) < LONGEST:
            self[name] = rest
        return rest


class Lists(dict[str, Listed | None]):
    """Name of an attribute → its place in a list spread over attributes, None if it is in none."""

    def __missing__(self, name: str) -> Listed | None:
        place = _listed(name)
        if len(self) < KNOWN and len(name) < LONGEST:
            self[name] = place
        return place


def _listed(name: str) -> Listed | None:
    match = LISTED.fullmatch(name)
    if match is None or int(match["index"]) >= MAX_INDEX:
        return None
    return Listed(match["prefix"], int(match["index"]), match["element"], match["rest"])


namespace = Namespaces().__getitem__
listed = Lists().__getitem__
