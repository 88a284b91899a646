"""Telephone numbers in a text, told from order numbers, dates and versions.

Patterns that are linear in the text find what looks like one; phonenumbers then says whether it is valid in some
country's plan. With a + (or 00) that is enough. Without, the country is a guess, so that digits count when they are
written in a way that little else is, (212) 555-0123 or 020 7946 0958, or when they are named: "call 2125550123".
Whoever says the region gets every number that is valid there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

Regions: TypeAlias = str | Sequence[str] | None
Span: TypeAlias = tuple[int, int]

_BEFORE, _AFTER = r"(?<![\w,+#$€£%.-])(?<!\d[ :/])", r"(?![\w%€$£]|[.,:/-]\d)"
_LOOSE = r"\d(?:[ ().\-/]{0,2}\d)"
_SEVEN = re.compile(r"\d(?:[^\d\n]{0,4}\d){6}")
_ABROAD = re.compile(rf"(?:\+|(?<![\w.,:+-])00(?=[ ]?[1-9]))[ (]{{0,2}}{_LOOSE}{{6,16}}")
# How numbers are written at home, and where.
_AT_HOME = [
    (re.compile(_BEFORE + r"(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}" + _AFTER), ("US",)),
    (re.compile(_BEFORE + r"\(\d\d\) ?9?\d{4}-\d{4}" + _AFTER), ("BR",)),
    (
        re.compile(_BEFORE + r"(?:0\d(?:\.\d\d){4}|\(?0\d(?:[ ()/-]{0,2}\d){7,10})" + _AFTER),
        ("GB", "DE", "FR", "IT", "AU", "JP"),
    ),
]
_GROUPED = re.compile(r"\d\D+\d")
_NAMED = re.compile(
    r"\b(?:phone|tel|telephone|mobile|cell|call|dial|ring|fax|sms|whatsapp|hotline|contact number|telefon|handy|mobil"
    r"|rufnummer|téléphone|tél|portable|teléfono|telefone|celular|móvil|cellulare|電話|电话|手机|携帯)"
    rf"\W{{0,3}}(?:number|nummer|no|us|me|him|her|them|at|on|is)?\W{{0,3}}?([(]?{_LOOSE}{{6,15}})(?!\d)",
    re.IGNORECASE,
)
_OF_NAMED = ("US", "GB", "DE", "FR", "ES", "IT", "IN", "AU", "BR", "JP")


def phones(text: str, region: Regions = None) -> Iterator[Span]:
    """Where telephone numbers stand. `region`: "US", or several; () looks for numbers with + or 00 alone."""
    if not _SEVEN.search(text):
        return
    for match in _ABROAD.finditer(text):
        yield from _moved(match.start(), _numbers(re.sub(r"\A00", " +", match.group()), ""))
    if region is None:
        yield from _at_home(text)
    for country in (region,) if isinstance(region, str) else region or ():
        yield from _numbers(text, country)


def check_regions(region: Regions) -> None:
    """Raises `ValueError` for a region that phonenumbers does not know."""
    import phonenumbers

    for country in (region,) if isinstance(region, str) else region or ():
        if country not in phonenumbers.SUPPORTED_REGIONS:
            raise ValueError(f"a region is a country in two capital letters, such as 'US', not {country!r}")


def _at_home(text: str) -> Iterator[Span]:
    for pattern, regions in _AT_HOME:
        yield from (match.span() for match in pattern.finditer(text) if _is_written_in(match.group(), regions))
    for match in _NAMED.finditer(text):
        if length := _beginning(match.group(1)):
            yield match.start(1), match.start(1) + length


@lru_cache(maxsize=1024)
def _is_written_in(text: str, regions: tuple[str, ...]) -> bool:
    """Whether it is valid in one of the regions, and grouped as there."""
    if not _GROUPED.search(text):
        return False
    return any(_is_valid(text, region) and _numbers(text, region, grouped=True) for region in regions)


@lru_cache(maxsize=1024)
def _beginning(text: str) -> int:
    """How much of what follows a name is a number: all, or without up to two groups that may be something else."""
    ends = [match.end() for match in re.finditer(r"\d+", text)]
    for end in reversed(ends[-3:]):
        if any(_is_valid(text[:end], region) for region in _OF_NAMED):
            return end
    return 0


def _is_valid(text: str, region: str) -> bool:
    """What most candidates fail, and a tenth of the price of the grouping."""
    import phonenumbers

    try:
        return phonenumbers.is_valid_number_for_region(phonenumbers.parse(text, region), region)
    except phonenumbers.NumberParseException:
        return False


def _numbers(text: str, region: str, *, grouped: bool = False) -> list[Span]:
    """Valid numbers in a text; `region` "": of any country, with +."""
    from phonenumbers import Leniency, PhoneNumberMatcher

    leniency = Leniency.STRICT_GROUPING if grouped else Leniency.VALID
    return [(match.start, match.end) for match in PhoneNumberMatcher(text, region or None, leniency=leniency)]


def _moved(by: int, spans: Iterable[Span]) -> Iterator[Span]:
    return ((by + start, by + end) for start, end in spans)
