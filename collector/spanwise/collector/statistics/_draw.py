"""A random sample of cases for people to vote on, of which every case knows how likely it was to be drawn."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spanwise.collector.records import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A case of the sample. `stratum` is the kind of case among which it was drawn, "" for all."""

    target: Target
    stratum: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The cases drawn, in random order; `cases` is how many there are per stratum, `of` each target's stratum as far
    as it is in the sample or has a vote already.
    """

    drawn: tuple[Drawn, ...]
    cases: Mapping[str, int]
    of: Mapping[Target, str] = field(default_factory=dict)

    def probability(self, stratum: str, voted: int) -> float:
        """How likely a case of the stratum was to be drawn if so many of it were."""
        return min(1.0, voted / self.cases[stratum])


def draw(
    cases: Iterable[tuple[Target, str]], n: int, seed: int, *, voted: Iterable[Target] = (), strata: Sequence[str] = ()
) -> Sample:
    """The n cases with the smallest random numbers, each the hash of seed and case; of every stratum as many, if any
    are named, as far as it has them.

    A case keeps its number: the same seed draws the same sample again, a larger n adds to it, and cases that came
    since take their share. So all that were ever drawn are a random sample of what there is, each of its stratum as
    likely as the other (permanent random numbers, Ohlsson 1995). Memory grows with n and `voted` alone.
    """
    named = tuple(strata) or ("",)
    known, counted = set(voted), Counter[str]()
    of: dict[Target, str] = {}
    smallest: dict[str, list[tuple[int, int, Target]]] = {stratum: [] for stratum in named}
    for place, (target, told) in enumerate(cases):
        stratum = told if strata else ""
        if stratum not in smallest:
            continue
        counted[stratum] += 1
        if target in known:
            of[target] = stratum
        entry = (-_number(seed, target), place, target)
        heap = smallest[stratum]
        if len(heap) < n:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
    ordered = {
        stratum: dict.fromkeys((-number, target) for number, _, target in heap) for stratum, heap in smallest.items()
    }
    chosen = _shared({stratum: sorted(entries, key=lambda entry: entry[0]) for stratum, entries in ordered.items()}, n)
    of |= {drawn.target: drawn.stratum for drawn in chosen}
    chosen.sort(key=lambda drawn: _number(seed, drawn.target, "shown"))  # their numbers would tell the verdict
    return Sample(drawn=tuple(chosen), cases=dict(counted), of=of)


def _number(seed: int, target: Target, why: str = "drawn") -> int:
    about = f"{target.trace_id} {target.span_id} {target.document} {target.session_id} {target.experiment_id}"
    return int.from_bytes(hashlib.sha256(f"{why} {seed} {about}".encode()).digest()[:8])


def _shared(smallest: Mapping[str, Sequence[tuple[int, Target]]], n: int) -> list[Drawn]:
    """As many of each stratum, the small ones whole."""
    left, rooms = n, sorted(smallest, key=lambda stratum: len(smallest[stratum]))
    chosen: list[Drawn] = []
    for place, stratum in enumerate(rooms):
        share = min(len(smallest[stratum]), -(-left // (len(rooms) - place)))
        left -= share
        chosen += [Drawn(target=target, stratum=stratum) for _, target in smallest[stratum][:share]]
    return chosen
