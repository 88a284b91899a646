"""One request to a target, and what its answer means: taken, refused for good, or worth another try."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec

from spanwise.collector.forward._letter import Letter
from spanwise.collector.forward._target import Target
from spanwise.collector.hosts import is_loopback
from spanwise.collector.intake import HOPS, SIGNALS
from spanwise.tracer.backoff import seconds_until
from spanwise.tracer.suppression import suppress_instrumentation

if TYPE_CHECKING:
    import httpx

MOST_ANSWER = 64 * 1024  # bytes of an answer that are read
LONGEST_WAIT = 300.0  # seconds, whatever a target asks for
WORTH_PACKING = 1024  # bytes
SECONDS, TO_CONNECT = 30.0, 5.0  # for the next piece of an answer
# Beside these what OTLP calls retryable; 3xx and who lets nobody in may be mended by whoever runs either of the two
LATER = frozenset((401, 403, 407, 408, 425, 429, 500, 502, 503, 504))
_SIGNALS = {signal.name: signal for signal in SIGNALS}


@dataclass(frozen=True, slots=True)
class Answer:
    """`verdict`: taken, refused (for good), too_large, or later (not before `after` seconds).

    Of what was taken, `rejected` items were refused for good.
    """

    verdict: Literal["taken", "refused", "too_large", "later"]
    reason: str = ""
    after: float = 0.0
    rejected: int = 0


class Post:
    """Sends over one connection that is kept. For one thread."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._packs = not is_loopback(urlsplit(target.url).hostname or "")
        self._client: httpx.Client | None = None

    def send(self, letter: Letter) -> Answer:
        """POST it to the address of its signal."""
        import httpx  # a tenth of a second that only those pay who pass on

        if self._client is None:
            timeout = httpx.Timeout(SECONDS, connect=TO_CONNECT)
            self._client = httpx.Client(timeout=timeout, follow_redirects=False)
        body, headers = self._made(letter)
        url = f"{self._target.url}/v1/{letter.signal}"
        try:
            with (
                suppress_instrumentation(),
                self._client.stream("POST", url, content=body, headers=headers) as response,
            ):
                return _meaning(letter, response)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return Answer("later", type(error).__name__)

    def _made(self, letter: Letter) -> tuple[bytes, dict[str, str]]:
        kind = "application/json" if letter.json else "application/x-protobuf"
        headers = {"user-agent": f"spanwise/{metadata.version('spanwise')}", **self._target.headers}
        headers |= {"content-type": kind, HOPS.decode(): ",".join(letter.hops)}
        if not self._packs or len(letter.body) < WORTH_PACKING:
            return letter.body, headers
        return gzip.compress(letter.body, 1, mtime=0), {**headers, "content-encoding": "gzip"}

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._client.close()


def _meaning(letter: Letter, response: httpx.Response) -> Answer:
    status, reason = response.status_code, f"http_{response.status_code}"
    if 200 <= status < 300:
        return Answer("taken", rejected=_rejected(letter, _beginning(response)))
    if status == 413:
        return Answer("too_large", reason)
    if status in LATER or 300 <= status < 400:
        return Answer("later", reason, min(LONGEST_WAIT, seconds_until(response.headers.get("retry-after")) or 0.0))
    return Answer("refused", reason)


def _beginning(response: httpx.Response) -> bytes:
    body = b""
    for piece in response.iter_bytes(MOST_ANSWER):
        body += piece
        if len(body) > MOST_ANSWER:
            return b""
    return body


def _rejected(letter: Letter, answer: bytes) -> int:
    """How many items an answer says were refused; 0 where it says nothing that can be read."""
    signal: Any = _SIGNALS[letter.signal]
    try:
        if letter.json:
            first, *others = signal.refused_field.split("_")
            field = first + "".join(map(str.capitalize, others))
            return max(0, int(msgspec.json.decode(answer)["partialSuccess"][field]))
        return max(0, int(getattr(signal.response.FromString(answer).partial_success, signal.refused_field)))
    except Exception:  # a proxy's page, or anything else that a target thinks of
        return 0
