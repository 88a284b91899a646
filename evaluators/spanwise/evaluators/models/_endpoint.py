"""Vectors by an OpenAI-compatible endpoint, asked through openai's own client."""

from __future__ import annotations

import base64
import math
import os
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from spanwise.evaluators.models._address import OPENAI, check_address, check_key, first_of, hidden, redirect_words
from spanwise.evaluators.models._find import NoModel, Place, installed, loading
from spanwise.evaluators.models._source import vectors_of
from spanwise.evaluators.protocol import Unjudged, headers_of, may_pass, status_of, wait_before
from spanwise.tracer.suppression import suppress_instrumentation

if TYPE_CHECKING:
    from openai import OpenAI

    from spanwise.evaluators.models._encoding import Vectors

EXTRA = "pip install 'spanwise[server]'"
DEADLINE = 120.0  # seconds for one request with all its attempts
BATCH = 32  # texts in a request: some servers take no more
CHARACTERS = 200_000  # of a request: OpenAI takes 300,000 tokens
LARGEST = 256 << 20  # bytes of an answer
SHOWN = 300  # characters of what a server said
_NO_KEY = "none"  # the client insists on one; servers at home look at none
_WANTED = "a list of one vector of finite numbers for each text"


class Endpoint:
    """A model by name, at an address. Raises `ValueError` for arguments that cannot be right."""

    portion: int | None
    paid = True

    def __init__(
        self,
        model: Any,
        base_url: Any,
        api_key: Any = None,
        *,
        deadline: float = DEADLINE,
        batch_size: int | None = None,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise ValueError(
                f"at {hidden(base_url)} a model is asked by its name, which is never guessed, not {model!r:.200}"
            )
        if not isinstance(deadline, int | float) or not 0 < deadline < math.inf:
            raise ValueError(f"deadline is a number of seconds above 0, not {deadline!r}")
        self.name = self.model = model.strip()
        self.base_url, self._deadline = check_address(base_url), float(deadline)
        self._api_key = check_key(api_key) or check_key(_own_key(self.base_url))
        self.portion = batch_size or BATCH
        self.key = "endpoint", self.model, self.base_url, self._api_key, self.portion, deadline
        self._client: tuple[int, OpenAI] | None = (
            None  # of which process, for a forked child has connections of its own
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        """Model and address, never the key."""
        return {"model": self.model, "function": False, "endpoint": self.base_url}

    def digest(self) -> str | None:
        """Model and address."""
        return f"endpoint {self.model} {self.base_url}"

    def check(self) -> None:
        """Raises `NoModel` where openai's client is not installed, or OpenAI would be asked without a key."""
        with loading(Place(self.model, self.base_url), f"embedding with {self._where}", EXTRA):
            installed("openai")
        if self.base_url == OPENAI and not self._api_key:
            raise NoModel(
                f"the model {self.model!r} at {OPENAI} needs a key: give api_key, or set OPENAI_API_KEY; or say with "
                "base_url where else it is"
            )

    def load(self) -> None:
        """There is nothing to load. Raises `NoModel` as `check` does."""
        self.check()

    def encode(self, texts: list[str]) -> Vectors:
        """In as many requests as it takes. Raises `Unjudged` for what no other try can mend, and for what did not pass
        within the deadline.
        """
        import numpy

        self.check()
        vectors = [self._in_time(some) for some in _requests(texts)]
        if len({one.shape[1] for one in vectors}) > 1:
            raise Unjudged(f"{self._where} gave vectors of {sorted({one.shape[1] for one in vectors})} numbers")
        whole: Vectors = numpy.concatenate(vectors)
        return whole

    @property
    def _where(self) -> str:
        return f"{self.model} at {self.base_url}"

    def _in_time(self, texts: list[str]) -> Vectors:
        """Attempts under one deadline, with pauses between."""
        until, attempt = time.monotonic() + self._deadline, 0
        while True:
            try:
                return self._once(texts, until)
            except Exception as error:
                pause = wait_before(attempt, error)
                if isinstance(error, Unjudged):
                    raise
                if refused := redirect_words(self.base_url, status_of(error), headers_of(error)):
                    raise Unjudged(refused) from None
                if not may_pass(error):
                    raise Unjudged(self._told(error)) from error
                if time.monotonic() + pause >= until:
                    tried = f"within {self._deadline:g} s after {attempt + 1} attempt{'s' if attempt else ''}"
                    raise TimeoutError(f"{self._where} gave no vectors {tried}: {self._short(error)}") from None
            time.sleep(pause)
            attempt += 1

    def _once(self, texts: list[str], until: float) -> Vectors:
        left = until - time.monotonic()
        timeout = max(0.01, min(left, self._deadline / 2))  # so that a hang leaves room for another attempt
        asking = self._connected().embeddings.with_streaming_response
        said = [text or " " for text in texts]  # OpenAI refuses empty ones
        with suppress_instrumentation():
            asked = asking.create(model=self.model, input=said, encoding_format="base64", timeout=timeout)
            with asked as raw:
                content = self._content(raw, time.monotonic() + timeout)
        try:
            return _vectors(orjson.loads(content), len(texts))
        except ValueError as error:
            shown = self._hidden(" ".join(content[: 1 << 16].decode(errors="replace").split()))[:SHOWN]
            raise Unjudged(
                f"{self.base_url} answered with no embeddings ({self._short(error)}): {shown!r}; is its "
                "base_url right? most end with /v1"
            ) from None

    def _connected(self) -> OpenAI:
        """A client, whose connections are kept as long as this is."""
        from openai import DefaultHttpxClient, OpenAI

        if self._client is None or self._client[0] != os.getpid():
            client = OpenAI(
                base_url=self.base_url,
                api_key=self._api_key or _NO_KEY,
                max_retries=0,
                http_client=DefaultHttpxClient(follow_redirects=False),
            )
            weakref.finalize(self, client.close)
            self._client = os.getpid(), client
        return self._client[1]

    def _content(self, raw: Any, until: float) -> bytes:
        """What came. Raises the client's error where it breaks off or takes too long, `Unjudged` for too much."""
        import openai

        content = bytearray()
        try:
            for piece in raw.iter_bytes():
                content += piece
                if time.monotonic() > until:
                    raise TimeoutError("the answer came too slowly")
                if len(content) > LARGEST:
                    break
        except Exception as error:
            raise openai.APIConnectionError(request=raw.http_request) from error
        if len(content) > LARGEST:
            raise Unjudged(f"{self.base_url} answered with more than {LARGEST >> 20} MiB")
        return bytes(content)

    def _told(self, error: Exception) -> str:
        """An error that no other try can mend, in words that say what to do."""
        status = status_of(error)
        words = {
            401: f"{self.base_url} refused the key",
            403: f"{self.base_url} does not allow it with this key",
            404: f"there is no model {self.model!r} at {self.base_url}, or no embeddings",
            413: f"{self.base_url} refused the size of the request; give a smaller batch_size",
        }
        said = words.get(status or 0, f"{self._where} refused to embed")
        return f"{said}{f' ({status})' if status else ''}: {self._short(error)}"

    def _short(self, error: BaseException) -> str:
        body = getattr(error, "body", None)
        message = body.get("message") if isinstance(body, Mapping) else None
        cause = error.__cause__ if str(error) == "Connection error." and error.__cause__ is not None else error
        words = message if isinstance(message, str) and message else f"{type(cause).__name__}: {cause}"
        return self._hidden(" ".join(words.split()))[:SHOWN]

    def _hidden(self, said: str) -> str:
        """Without the key: some servers repeat it."""
        return said.replace(self._api_key, "…") if self._api_key else said


def _own_key(url: str) -> str | None:
    """The environment's key for an address; none for one that it does not name, or whoever names one would get it."""
    ours = first_of("SPANWISE_EMBEDDINGS_URL")
    if ours is not None and url == check_address(ours, "SPANWISE_EMBEDDINGS_URL"):
        return first_of("SPANWISE_EMBEDDINGS_KEY")
    openai = check_address(first_of("OPENAI_BASE_URL") or OPENAI, "OPENAI_BASE_URL")
    return first_of("OPENAI_API_KEY") if url == openai else None


def _requests(texts: list[str]) -> list[list[str]]:
    """Texts in their order, as few characters together as a request may have."""
    requests: list[list[str]] = []
    room = 0
    for text in texts:
        if len(text) > room or not requests:
            requests.append([])
            room = CHARACTERS
        requests[-1].append(text)
        room -= len(text)
    return requests


def _vectors(body: Any, count: int) -> Vectors:
    """In the order of `index`, whatever order they came in. Raises `ValueError` for anything but `count` of them."""
    data = body.get("data") if isinstance(body, Mapping) else None
    if not isinstance(data, list) or not all(isinstance(one, Mapping) for one in data):
        raise ValueError("no list of embeddings")
    places = [one.get("index", place) for place, one in enumerate(data)]
    if sorted(places, key=repr) != sorted(range(count), key=repr):
        raise ValueError(f"embeddings of {len(data)} places for {count} texts, not one of each")
    placed = {place: _numbers(one.get("embedding")) for place, one in zip(places, data, strict=True)}
    return vectors_of([placed[place] for place in range(count)], count, "the endpoint", _WANTED)


def _numbers(given: Any) -> Any:
    """Numbers as they are, or the bytes of 32-bit floats in base64."""
    import numpy

    if not isinstance(given, str):
        return given
    return numpy.frombuffer(base64.b64decode(given, validate=True), dtype="<f4")
