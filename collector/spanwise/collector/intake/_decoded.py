"""What came out of a request: items to keep, how many were refused, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from spanwise.collector.dialects import Also, Whole, log_fault, log_once
from spanwise.collector.intake._errors import BesideRefused, ItemRefused, Permanent, from_item
from spanwise.collector.intake._limits import GROUPS

T = TypeVar("T")
ZEROS = ("", "0" * 16, "0" * 32)
SHOWN = 3  # reasons in one answer


@dataclass(slots=True)
class Decoded(Generic[T]):
    """Items of a request that can be kept, the reasons why others cannot, and the dialects that failed on some."""

    items: list[T] = field(default_factory=list)
    also: list[Also] = field(default_factory=list)  # what they say beside, kept in the same commit
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)  # by a word for counters, a sentence for people
    beside: Counter[tuple[str, str]] = field(default_factory=Counter)  # alike, of what is said beside: costs no item
    faults: Counter[str] = field(default_factory=Counter)  # by dialect
    passed: int = 0  # items in which nothing is wrong, and nothing for us
    parsed: int = 0  # of those that were parsed one by one
    unparsed: int = 0
    values: int = 0  # in all items together, beside their bytes
    hint: str = ""  # what was passed over though its sender meant it
    made: int = 0  # runs that stand in `items` as `Rows`, in the place of each of them

    def refuse(self, error: Exception, part: str = "", count: int = 1) -> None:
        """Count items that cannot be kept, for a reason in a part of them; all but `ItemRefused` is a fault of ours."""
        if not isinstance(error, ItemRefused):
            log_once("the collector failed on an item of a request, which is refused", error)
        refusal = from_item(error)
        counter = self.beside if isinstance(refusal, BesideRefused) else self.refused
        counter[refusal.reason, part + str(refusal)] += count

    def keep_whole(self, whole: Whole) -> None:
        """Keep an item, and what it says beside; what makes no sense of that is refused alone."""
        self.items.append(cast(T, whole.run))
        for said in whole.also:
            if isinstance(said, ValueError):
                self.refuse(said)
            else:
                self.also.append(said)

    def fault(self, dialect: str, error: Exception) -> None:
        """Count an item that was read without this dialect, as that failed."""
        self.faults[dialect] += 1
        log_fault(dialect, error)

    @property
    def count(self) -> int:
        """How many items can be kept."""
        return self.made or len(self.items)

    @property
    def refused_count(self) -> int:
        """How many items were refused."""
        return self.refused.total()

    @property
    def refused_by_reason(self) -> Counter[str]:
        """How many items were refused, by the word for counters."""
        return _by_reason(self.refused)

    @property
    def beside_by_reason(self) -> Counter[str]:
        """How much of what is said beside was refused, by the word for counters."""
        return _by_reason(self.beside)

    @property
    def reason(self) -> str:
        """The reasons for people, the most frequent first, then what else they may want to know."""
        return "; ".join(filter(None, (_told(self.refused), _told(self.beside), self.hint)))


def _by_reason(refused: Counter[tuple[str, str]]) -> Counter[str]:
    counts = Counter[str]()
    for (reason, _), count in refused.items():
        counts[reason] += count
    return counts


def _told(refused: Counter[tuple[str, str]]) -> str:
    if not refused:
        return ""
    shown = [f"{count} × {message}" for (_, message), count in refused.most_common(SHOWN)]
    return "; ".join(shown) + ("; …" if len(refused) > SHOWN else "")


def check_ids(trace_id: str, span_id: str, parent_id: str) -> str | None:
    """The parent's id, None if there is none. Raises `ItemRefused` for ids that OpenTelemetry calls invalid."""
    if len(trace_id) != 32 or trace_id in ZEROS:
        raise ItemRefused("ids", f"trace id {trace_id[:64]!r} is not 16 bytes other than all zeros")
    if len(span_id) != 16 or span_id in ZEROS:
        raise ItemRefused("ids", f"span id {span_id[:64]!r} is not 8 bytes other than all zeros")
    if parent_id in ZEROS:
        return None
    if len(parent_id) != 16:
        raise ItemRefused("ids", f"parent span id {parent_id[:64]!r} is not 8 bytes")
    return parent_id


def check_groups(count: int) -> None:
    """Raises `Permanent` if a request has too many groups."""
    if count > GROUPS:
        raise Permanent("too_many", f"{count:,} groups in one request, at most {GROUPS:,}: send less")


def check_count(count: int, most: int) -> None:
    """Raises `Permanent` if a request has too many items."""
    if count > most:
        raise Permanent("too_many", f"{count:,} items in one request, at most {most:,}: send less")
