"""Human-readable formatting of numbers, durations, times and error messages.

Times are nanoseconds since the epoch, shown in the local time zone of the machine, or in a given zone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from math import floor, log10

from spanwise.collector.records import Experiment

HEARTBEAT_TIMEOUT_NS = 60_000_000_000  # an experiment without a heartbeat for this long is taken to have died
_SECOND = 1_000_000_000
_MARKDOWN_PUNCTUATION = re.compile(r"([\\`*_{}\[\]()#|!~])")
_CONTROL_CHARACTERS = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def duration(ns: int | float | None) -> str:
    """Format nanoseconds as "12 µs", "0.4 ms", "820 ms", "1.24 s", "2 m 03 s" or "1 h 02 m"; "–" for None."""
    if ns is None:
        return "–"
    if 0 < ns < 100_000:
        return f"{ns / 1e3:.0f} µs"
    if ns < 10_000_000:
        return f"{ns / 1e6:.1f} ms"
    if ns < _SECOND:
        return f"{ns / 1e6:.0f} ms"
    if ns < 60 * _SECOND:
        return f"{ns / 1e9:.2f} s"
    minutes, seconds = divmod(int(ns // _SECOND), 60)
    return f"{minutes} m {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} m"


def milliseconds(ms: float | None) -> str:
    """Format milliseconds like `duration`."""
    return duration(None if ms is None else ms * 1e6)


def when(ns: int, zone: tzinfo | None = None) -> str:
    """Format a time as "01:52:03" today, "21 Nov 01:52" this year, else "21 Nov 2025".

    A time that the calendar cannot represent is formatted as its number of nanoseconds.
    """
    moment = _local_time(ns, zone)
    if moment is None:
        return f"{ns} ns"
    now = datetime.now(zone)
    if moment.date() == now.date():
        return f"{moment:%H:%M:%S}"
    return f"{moment.day} {moment:%b %H:%M}" if moment.year == now.year else f"{moment.day} {moment:%b %Y}"


def date_and_time(ns: int) -> str:
    """Format a time with its full date, as "2026-11-21 01:52:03", for lists and logs."""
    moment = _local_time(ns)
    return moment.isoformat(sep=" ", timespec="seconds")[:19] if moment else f"{ns} ns"


def iso(ns: int, zone: tzinfo | None = None) -> str:
    """Format a time with date, milliseconds and time zone, for tooltips."""
    moment = _local_time(ns, zone)
    return moment.isoformat(sep=" ", timespec="milliseconds") if moment else f"{ns} ns"


def utc(ns: int) -> str:
    """Format a time to the nanosecond, as "2026-11-21T01:52:03.000000001Z", for programs and SQL."""
    return f"{datetime.fromtimestamp(ns // _SECOND, UTC):%Y-%m-%dT%H:%M:%S}.{ns % _SECOND:09d}Z"


def ago(ns: int) -> str:
    """Format the time elapsed until now: "just now", "3 min ago", "2 d ago"; "in the future" if a clock is wrong."""
    seconds = time.time() - ns / 1e9
    if seconds < -5:
        return "in the future"
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= 5 * (unit == 1) + unit * (unit > 1):
            return f"{int(seconds // unit)} {name} ago"
    return "just now"


def standing(experiment: Experiment) -> str:
    """Format the state of an experiment: "running", "finished", "interrupted", or the time of its last heartbeat.

    Only an experiment with a recent heartbeat is running. A heartbeat in the future comes from a wrong clock and
    proves nothing.
    """
    if experiment.status != "running":
        return experiment.status
    heartbeat_ns = experiment.seen_ns or experiment.started_ns
    age_ns = time.time_ns() - heartbeat_ns
    if age_ns < -HEARTBEAT_TIMEOUT_NS:
        return f"running or killed: its last heartbeat is dated {date_and_time(heartbeat_ns)}, which is in the future"
    return "running" if age_ns <= HEARTBEAT_TIMEOUT_NS else f"no heartbeat since {date_and_time(heartbeat_ns)}"


def number(value: float | bool | None) -> str:
    """Format a score: at most three significant digits below 1000, whole numbers above, booleans as "yes" and "no"."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e15 else f"{value:.3g}"  # ".3g" of 999.9 would be 1e+03


def signed(value: float) -> str:
    """Format a difference, always with its sign."""
    return "±0" if abs(value) < 5e-7 else ("+" if value > 0 else "−") + number(abs(value))


def count(value: int) -> str:
    """Format a count: exact below 10,000, else "12.3k" or "4.56M"."""
    if value < 10_000:
        return f"{value:,}"
    return f"{value / 1e3:.1f}k" if value < 1_000_000 else f"{value / 1e6:.2f}M"


def prompt(name: str | None, version: str | None) -> str:
    """Format a prompt as "greet@v2": its name and, if known, its version."""
    return (name or "") if version is None else f"{name or ''}@{version}"


def prompts(versions: Mapping[str, Sequence[str | None]]) -> list[str]:
    """Format the versions of several prompts, given by name."""
    return [prompt(name, version) for name, listed in versions.items() for version in listed]


def percent(part: float, whole: float) -> str:
    """Format a part of a total in percent; "0 %" if the total is 0."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.1f} %" if 0 < share < 10 else f"{share:.0f} %"


def points(difference: float) -> str:
    """Format the difference of two shares in percentage points, always with its sign."""
    size = number(round(abs(difference) * 100, 1))
    if size == "0":
        return "±0 points"
    return f"{'+' if difference > 0 else '−'}{size} point{'' if size == '1' else 's'}"


def cost(usd: float | None) -> str:
    """Format US dollars, with two significant digits if small; "" if unknown."""
    if usd is None:
        return ""
    if usd >= 0.1 or usd == 0:
        return f"${usd:,.2f}"
    if 0 < usd < 0.0001:  # avoid scientific notation such as 8e-05
        return f"${usd:.{min(12, 1 - floor(log10(usd)))}f}"
    return f"${usd:.2g}"


def characters(length: int) -> str:
    """Format a text length in characters."""
    if length < 1000:
        return f"{length} characters"
    return f"{length / 1e3:.1f}k characters" if length < 1_000_000 else f"{length / 1e6:.1f}M characters"


def _local_time(ns: int, zone: tzinfo | None = None) -> datetime | None:
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return None


def first_line(text: str, longest: int = 160) -> str:
    """Return the first line of an error or another text, truncated to `longest` characters."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= longest else line[: longest - 1] + "…"


_STACK_TRACE_PATTERN = re.compile(r"Traceback \(most recent call last\):|^ {4}at \S", re.MULTILINE)


def split_stack(message: str) -> tuple[str, str]:
    """Split an error into its message and the Python or JavaScript stack trace after it.

    If the text begins with the stack trace, all of it is the message.
    """
    match = _STACK_TRACE_PATTERN.search(message)
    before = message[: match.start()].rstrip() if match else ""
    return (before, message[match.start() :]) if match and before else (message, "")


_MAX_GROUP_LENGTH = 300  # characters
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}")
_NUMBERED = re.compile(
    r"\b(Task|Thread|ThreadPoolExecutor|ForkProcess|SpawnProcess|Process|Dummy|worker)-\d+(?:[-_]\d+)*"
)
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)


def error_group(error: str | None) -> str | None:
    """Return the first line of an error, with memory addresses, task and thread numbers, and UUIDs replaced.

    Errors that differ only in these have the same result, which has at most 300 characters.
    """
    if not error:
        return None
    line = error.lstrip().partition("\n")[0][: 4 * _MAX_GROUP_LENGTH]
    line = _ADDRESS.sub("0x…", _UUID.sub("…", _NUMBERED.sub(r"\1-…", line)))
    return line[:_MAX_GROUP_LENGTH].rstrip()


def escape_markdown(text: str) -> str:
    """Return a text as one line of Markdown in which nothing is markup, HTML, a link or a mention.

    A zero-width space after "@" prevents mentions, which GitHub also finds behind an entity.
    """
    line = _MARKDOWN_PUNCTUATION.sub(r"\\\1", " ".join(_CONTROL_CHARACTERS.sub("", text).split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@&#8203;")
    return line.replace("://", ":&#47;&#47;").replace("www.", "www&#46;")
