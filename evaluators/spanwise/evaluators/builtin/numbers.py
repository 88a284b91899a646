"""Numeric evaluators: numbers within a tolerance; latency, tokens and cost of a trace."""

from __future__ import annotations

import decimal as decimals
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

from spanwise.collector.records import Run, Trace
from spanwise.evaluators.builtin.case_text import extract_text
from spanwise.evaluators.interface import Metric, Skip, register_builtin
from spanwise.evaluators.interface.evaluator_spec import OUTCOMES, SOUNDNESS, VALID

DecimalMark = Literal[".", ","]
Number: TypeAlias = float | decimals.Decimal
TokenKind = Literal["input", "output", "total"]
UNBOUNDED = (0.0, float("inf"))
_EXACT_BELOW = 2**53  # floats do not represent every larger integer
# maximum bits of an integer that is not given as text; the conversion of larger ones takes quadratic time
_MAX_BITS = 64_000

_NUMBER = r"[-+−]?(?:\d{1,3}(?:[%s\u00a0\u202f' ]\d{3})+|\d+)(?:\%s\d+)?(?:[eE][-+]?\d+)?|[-+−]?\%s\d+(?:[eE][-+]?\d+)?"
# Units that may follow a number directly. Letters that may mean a magnitude (10k, 5m, 2B) are excluded, because 10
# would be the wrong number.
_UNITS = (
    "km cm mm µm μm nm mi ft yd ha kg mg µg μg g lb lbs oz ms µs μs ns s sec min h hr hrs d l ml cl L mL W kW MW GW"
    " Wh kWh MWh V mV kV A mA Ah mAh Hz kHz MHz GHz N J kJ cal kcal Pa hPa kPa MPa bar mbar C F eV dB dBm KB kB MB GB"
    " TB PB KiB MiB GiB TiB bit kbit Mbit Gbit bps kbps Mbps Gbps px pt em rem dpi fps rpm mph kmh ppm ppb mol"
    " USD EUR GBP CHF JPY CNY INR pct"
)
_UNIT = "|".join(sorted(_UNITS.split(), key=len, reverse=True))
_SPACELESS = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # scripts without spaces between words
_LETTER = rf"[^\W{_SPACELESS}]"
_MAGNITUDE = "[万萬億亿兆千百만억]"
_IN_TEXT = {
    mark: re.compile(
        rf"(?<!{_LETTER})(?<![.,])(?:{_NUMBER % (',' if mark == '.' else '.', mark, mark)})"
        rf"(?=(?:(?:{_UNIT})[²³]?)?(?!{_LETTER}|[.,]\d|{_MAGNITUDE}))"
    )
    for mark in ".,"
}


def find_numbers(text: str, *, decimal: DecimalMark = ".") -> list[Number]:
    """Return the numbers in a text, without percent signs and units.

    They are written as `15,969.50` or, with `decimal=","`, as `15.969,50`. A unit may follow its number directly
    ("10km", "2.5GB"). A number next to another word ("v2", "10k") is ignored. Integers that a float cannot represent,
    and all above 1.8e308, are exact. Raises `OverflowError` if an exponent is too large.
    """
    return [_parse_number(digits, decimal) for digits in _IN_TEXT[decimal].findall(text)]


def is_close(value: Number, expected: Number, *, absolute: float = 0.0, relative: float = 0.0) -> bool:
    """Return |value − expected| ≤ max(absolute, relative × |expected|): the tolerances of `pytest.approx`."""
    if isinstance(value, decimals.Decimal) and isinstance(expected, decimals.Decimal):
        return _is_close_exact(value, expected, decimals.Decimal(absolute), decimals.Decimal(relative))
    value, expected = float(value), float(expected)
    if value == expected:
        return True
    if not math.isfinite(expected):
        return False  # any number is within a relative tolerance of infinity
    return abs(value - expected) <= max(absolute, relative * abs(expected))


def _is_close_exact(
    value: decimals.Decimal, expected: decimals.Decimal, absolute: decimals.Decimal, relative: decimals.Decimal
) -> bool:
    """Return `is_close` for integers beyond float precision.

    The time grows with the number of digits, not with the magnitude.
    """
    exact = _decimal_context(value, expected)
    difference = exact.subtract(value, expected)
    return bool(exact.abs(difference) <= exact.max(absolute, exact.multiply(relative, exact.abs(expected))))


def _decimal_context(*values: decimals.Decimal) -> decimals.Context:
    digits = sum(len(str(value)) for value in values) + 60  # 60 more digits for the tolerance, which is a float
    return decimals.Context(prec=digits, Emax=decimals.MAX_EMAX, Emin=decimals.MIN_EMIN, traps=[])


def extract_number(value: Any, *, decimal: DecimalMark = ".") -> Number:
    """Return the only number in a value.

    Raises `ValueError` for none or several, `OverflowError` for a huge one.
    """
    if isinstance(value, Real | decimals.Decimal) and not isinstance(value, bool):
        if value != value:
            raise ValueError("nan is not a number")
        return _normalize_number(value)
    text = extract_text(value)
    numbers = find_numbers(text, decimal=decimal)
    if len(set(numbers)) != 1:
        raise ValueError(f"{text!r:.200} contains {len(numbers)} numbers, expected exactly one")
    return numbers[0]


@register_builtin(
    "numeric",
    metrics=(Metric("numeric", primary=True),),
    standards=(VALID, OUTCOMES),
    source="common practice",
    canonical="pytest.approx",
    example='get_evaluator("numeric", absolute=0.5), outputs="about 15,969.4 km", reference_outputs=15969',
)
@dataclass(frozen=True, slots=True)
class Numeric:
    """True if the number in the answer is within `absolute`, or `relative` × |reference|, of the reference's.

    The larger tolerance counts. Numbers are found in texts ("about 15,969 km", "15969km"). An answer without exactly
    one number fails. 10k or 5m, which may be thousands and millions, are not read as numbers. `decimal=","` reads
    15.969,5. Integers are compared exactly, whatever their length.
    """

    absolute: float = 0.0
    relative: float = 1e-6
    decimal: DecimalMark = "."

    def __post_init__(self) -> None:
        if not (0 <= self.absolute < math.inf and 0 <= self.relative < math.inf):
            raise ValueError(f"tolerances are 0 or more: absolute {self.absolute!r}, relative {self.relative!r}")
        if self.decimal not in _IN_TEXT:
            raise ValueError(f"decimal is '.' or ',', not {self.decimal!r}")

    def __call__(self, outputs: Any, reference_outputs: Any) -> dict[str, Any]:
        expected = extract_number(reference_outputs, decimal=self.decimal)
        try:
            value = extract_number(outputs, decimal=self.decimal)
        except ValueError as error:
            return {"score": False, "comment": str(error)}
        passed = is_close(value, expected, absolute=self.absolute, relative=self.relative)
        difference = float(value) - float(expected)
        shown = {"difference": difference} if math.isfinite(difference) else {}
        return {"score": passed, "comment": f"{value:.6g} for {expected:.6g}", "metadata": shown}


@register_builtin(
    "latency",
    metrics=(Metric("latency", UNBOUNDED, higher_is_better=False, primary=True),),
    standards=(VALID,),
    source="common practice",
    canonical="end − start of the root span",
    example='get_evaluator("latency", threshold=3.0), trace',
)
@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from the start to the end of the run. `threshold` is the longest that passes."""

    def __call__(self, run: Run) -> float:
        if not run.end_ns:
            raise Skip("the run has no end")
        return run.duration_ns / 1e9


@register_builtin(
    "tokens",
    metrics=(Metric("tokens", UNBOUNDED, higher_is_better=False, primary=True),),
    standards=(VALID,),
    source="common practice",
    canonical="sum over the spans of the trace",
    example='get_evaluator("tokens"), trace',
)
@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of all model calls of the trace; `count` is "total" (default), "input" or "output".

    A span with the sum of the calls below it is not counted again. Without any token count the case is skipped.
    """

    count: TokenKind = "total"

    def __post_init__(self) -> None:
        if self.count not in ("total", "input", "output"):
            raise ValueError(f"count is 'total', 'input' or 'output', not {self.count!r}")

    def __call__(self, trace: Trace) -> int:
        used = [run.usage for run in _innermost_runs(trace, [run for run in trace.runs if run.usage is not None])]
        if not used:
            raise Skip("no span of the trace has token counts")
        return sum(getattr(usage, f"{self.count}_tokens") for usage in used)


@register_builtin(
    "cost",
    metrics=(Metric("cost", UNBOUNDED, higher_is_better=False, primary=True),),
    standards=(VALID, SOUNDNESS),
    source="common practice",
    canonical="sum over the spans of the trace",
    example='get_evaluator("cost"), trace',
)
@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars of all model calls of the trace, as recorded in their spans.

    A span with the sum of the calls below it is not counted again. Without any cost the case is skipped.
    """

    def __call__(self, trace: Trace) -> float:
        known = [run.cost for run in _innermost_runs(trace, [run for run in trace.runs if run.cost is not None])]
        if not known:
            raise Skip("no span of the trace has a cost")
        return math.fsum(cost for cost in known if cost is not None)


def _innermost_runs(trace: Trace, holders: Sequence[Run]) -> Iterable[Run]:
    """Return the runs in `holders` that have no other run in `holders` below them. The values of the runs above them are
    sums that include theirs.
    """
    parents = {run.span_id: run.parent_id for run in trace.runs}
    above: set[str] = set()
    for run in holders:
        parent = run.parent_id
        while parent is not None and parent not in above:
            above.add(parent)
            parent = parents.get(parent)
    return [run for run in holders if run.span_id not in above]


def _parse_number(digits: str, decimal: DecimalMark) -> Number:
    plain = re.sub(r"[\u00a0\u202f' ]", "", digits).replace("−", "-")
    plain = plain.replace(",", "") if decimal == "." else plain.replace(".", "").replace(",", ".")
    number = float(plain)
    if abs(number) < _EXACT_BELOW or (math.isfinite(number) and not plain.lstrip("+-").isdecimal()):
        return number
    try:
        return decimals.Decimal(plain)
    except decimals.InvalidOperation:
        raise OverflowError(f"{digits!r:.200} is too large") from None


def _normalize_number(value: Any) -> Number:
    """Return a float, or an exact decimal for an integer beyond float precision.

    Raises `OverflowError` for too many bits.
    """
    if isinstance(value, decimals.Decimal):
        return value if value.is_finite() and abs(value) >= _EXACT_BELOW else float(value)
    if not isinstance(value, Integral):
        return float(value)
    whole = int(value)
    if abs(whole) < _EXACT_BELOW:
        return float(whole)
    if whole.bit_length() > _MAX_BITS:
        raise OverflowError(
            f"an integer of {whole.bit_length():,} bits exceeds the limit of {_MAX_BITS:,}: give it as a text"
        )
    return decimals.Decimal(whole)
