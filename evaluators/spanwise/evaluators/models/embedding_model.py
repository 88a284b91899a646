"""Embedding models: Embedder, sentence-transformers, OpenAI-compatible endpoints, user functions."""

from __future__ import annotations

import base64
import math
import os
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from spanwise.evaluators.interface import (
    Unjudged,
    compute_retry_delay,
    get_http_status,
    get_response_headers,
    is_transient,
)
from spanwise.evaluators.models.disk_cache import VectorCache, folder_digest, vector_path
from spanwise.evaluators.models.inference_batching import (
    BATCHES_PER_UPDATE,
    CoalescingEncoder,
    LoadedModel,
    ModelKey,
    choose_device,
    load_shared,
    make_model,
    parameter_bytes,
    run_by_length,
    shared_encoder,
)
from spanwise.evaluators.models.model_resolution import (
    DEFAULT,
    OPENAI_URL,
    ModelLocation,
    NoModel,
    check_address,
    check_key,
    explain_loading_errors,
    explain_trust_errors,
    first_variable,
    is_offline,
    local_folder,
    locate_model,
    redact_url,
    redirect_error,
    require_modules,
)
from spanwise.evaluators.models.onnx_embeddings import OnnxSource
from spanwise.tracer.http_connections import suppress_instrumentation

if TYPE_CHECKING:
    from openai import OpenAI

    from spanwise.evaluators.models.disk_cache import Vector, Vectors


EXPECTED_EMBEDDER = "a function that maps a list of texts to one vector of finite numbers per text"


class EmbeddingSource(Protocol):
    """Protocol of an embedding model, local or remote."""

    @property
    def name(self) -> str:
        """Return the name that thresholds, versions and the user interface use."""

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Return the key under which sources share an encoder. Sources with equal keys give the same vectors in this
        process.

        The key changes when the model's files are overwritten.
        """

    @property
    def portion(self) -> int | None:
        """Return the number of texts per call; None for all."""

    @property
    def paid(self) -> bool:
        """Return whether vectors of this source cost money."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the properties that the vectors depend on. Evaluator versions are derived from them."""

    def digest(self) -> str | None:
        """Return a digest of everything that the vectors depend on, the same in every process; None if that is
        unknown.
        """

    def check(self) -> None:
        """Check for missing packages, files and keys without loading anything. Raises `NoModel`."""

    def load(self) -> None:
        """Load the model now. Raises `NoModel`."""

    def encode(self, texts: list[str]) -> Vectors:
        """Return an array of shape (number of texts, dimensions). Raises the model's errors."""


class FunctionSource:
    """Embedding function given by the user, with an optional name."""

    portion = None
    paid = False

    def __init__(self, function: Callable[[list[str]], Any], name: str | None) -> None:
        self._function, self._named = function, name
        self.name = name or str(getattr(function, "__qualname__", type(function).__qualname__))
        # the object of a bound method, because each access to the method creates a new method object
        bound = getattr(function, "__self__", None)
        self.key = "function", id(function if bound is None else bound), id(getattr(function, "__func__", None))

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the function's name. Other properties are unknown, because its vectors may depend on anything."""
        return {"model": self.name, "function": True}

    def digest(self) -> str | None:
        """Return the name that the user gave, or None."""
        return f"function {self._named}" if self._named else None

    def check(self) -> None:
        """Do nothing: a function needs no packages or files."""

    def load(self) -> None:
        """Do nothing: there is no model to load."""

    def encode(self, texts: list[str]) -> Vectors:
        """Call the function and check its vectors. Raises `ValueError`."""
        return check_vectors(self._function(list(texts)), len(texts), "an embedder", EXPECTED_EMBEDDER)


def check_vectors(given: Any, count: int, who: str, wanted: str) -> Vectors:
    """Convert given vectors to an array of shape (count, dimensions) with finite numbers. Raises `ValueError` for other
    values.
    """
    import numpy

    try:
        vectors = numpy.asarray(given, dtype=numpy.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{who} returned {given!r:.100}; expected {wanted}") from error
    if vectors.ndim != 2 or len(vectors) != count:
        raise ValueError(f"{who} returned an array of shape {vectors.shape} for {count} texts; expected {wanted}")
    if not numpy.isfinite(vectors).all():
        raise ValueError(f"{who} returned numbers that are not finite; expected {wanted}")
    return vectors


TRANSFORMER_BATCH = 32  # texts per batch by default


class SentenceTransformerSource:
    """Model of sentence-transformers. It is loaded once per process, for each location and device."""

    portion = None
    paid = False

    def __init__(
        self,
        place: ModelLocation,
        *,
        device: str | None,
        batch_size: int | None,
        token: str | None,
        remote_code: bool,
        pickle: bool,
    ) -> None:
        self.name, self._place, self._device = place.name, place, device
        self._batch_size = batch_size or TRANSFORMER_BATCH
        self._token, self._remote_code, self._pickle = token, remote_code, pickle

    @property
    def key(self) -> ModelKey:
        """Return the model's files and the settings it runs with."""
        return "embedding", self._place.key, self._device, self._remote_code

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the model's name, and a digest of the weights for a local folder."""
        return {"model": self.name, "function": False, **self._place.identity}

    def digest(self) -> str | None:
        """Return a digest of the model's files, or None if they are not on this machine."""
        folder = local_folder(self._place)
        return folder_digest(folder) if folder else None

    def check(self) -> None:
        """Check that sentence-transformers is installed and, if the hub must not be used, that the model is on this
        machine.

        Raises `NoModel`.
        """
        with explain_loading_errors(self._place, f"embedding with {self.name}"):
            require_modules("sentence_transformers")
            if is_offline() and local_folder(self._place) is None:
                raise FileNotFoundError("it is not in the local cache of the hub")

    def load(self) -> None:
        """Load the model now. Raises `NoModel`."""
        load_shared(self.key, self._load)

    def encode(self, texts: list[str]) -> Vectors:
        """Return the model's vectors. Raises `NoModel`."""
        loaded = load_shared(self.key, self._load)
        with loaded.running:
            loaded.texts += len(texts)
            encode = partial(loaded.model.encode, batch_size=self._batch_size, show_progress_bar=False)
            return run_by_length(texts, BATCHES_PER_UPDATE * self._batch_size, encode, "texts embedded")

    def _load(self) -> LoadedModel:
        place = self._place
        with explain_loading_errors(place, f"embedding with {place.name}"), explain_trust_errors(place, "Embedder"):
            from sentence_transformers import SentenceTransformer

            device = choose_device(self._device)
            model = SentenceTransformer(
                place.where,
                device=device,
                token=self._token,
                trust_remote_code=self._remote_code,
                local_files_only=is_offline(),
                model_kwargs={} if self._pickle else {"use_safetensors": True},
            )
        return LoadedModel(model, place.name, place.where, device, parameter_bytes(model))


ENDPOINT_EXTRA = "pip install '.[server]' in a checkout of Spanwise"
DEADLINE_S = 120.0  # seconds for one request with all its attempts
ENDPOINT_BATCH = 32  # texts per request, because some servers accept no more
REQUEST_CHARACTERS = 200_000  # characters per request, within OpenAI's limit of 300,000 tokens
MAX_RESPONSE_BYTES = 256 << 20  # maximum bytes of a response
MAX_ERROR_CHARACTERS = 300  # maximum characters of a server's error that are shown
_PLACEHOLDER_KEY = "none"  # used if there is no key: the client requires one, and local servers ignore it
_EXPECTED_EMBEDDINGS = "one vector of finite numbers per text"


class EmbeddingEndpoint:
    """Model at an OpenAI-compatible endpoint. Raises `ValueError` for invalid arguments."""

    portion: int | None
    paid = True

    def __init__(
        self,
        model: Any,
        base_url: Any,
        api_key: Any = None,
        *,
        deadline: float = DEADLINE_S,
        batch_size: int | None = None,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise ValueError(f"the endpoint {redact_url(base_url)} needs the name of a model, got {model!r:.200}")
        if not isinstance(deadline, int | float) or not 0 < deadline < math.inf:
            raise ValueError(f"deadline must be a number of seconds above 0, got {deadline!r}")
        self.name = self.model = model.strip()
        self.base_url, self._deadline = check_address(base_url), float(deadline)
        self._api_key = check_key(api_key) or check_key(_environment_key(self.base_url))
        self.portion = batch_size or ENDPOINT_BATCH
        self.key = "endpoint", self.model, self.base_url, self._api_key, self.portion, deadline
        self._client: tuple[int, OpenAI] | None = (
            None  # process id and client: a forked child needs its own connections
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the model and the address, but not the API key."""
        return {"model": self.model, "function": False, "endpoint": self.base_url}

    def digest(self) -> str | None:
        """Return the model and the address as one text."""
        return f"endpoint {self.model} {self.base_url}"

    def check(self) -> None:
        """Raise `NoModel` if openai's client is not installed, or OpenAI would be called without a key."""
        with explain_loading_errors(
            ModelLocation(self.model, self.base_url), f"embedding with {self._where}", ENDPOINT_EXTRA
        ):
            require_modules("openai")
        if self.base_url == OPENAI_URL and not self._api_key:
            raise NoModel(
                f"the model {self.model!r} at {OPENAI_URL} needs a key: give api_key or set OPENAI_API_KEY, or name "
                "another endpoint with base_url"
            )

    def load(self) -> None:
        """Run `check`: there is no model to load. Raises `NoModel`."""
        self.check()

    def encode(self, texts: list[str]) -> Vectors:
        """Return the vectors, in as many requests as necessary.

        Raises `Unjudged` for errors that a retry cannot fix, and `TimeoutError` if no attempt succeeds within the
        deadline.
        """
        import numpy

        self.check()
        vectors = [self._request_until_deadline(some) for some in _split_requests(texts)]
        if len({one.shape[1] for one in vectors}) > 1:
            raise Unjudged(
                f"{self._where} returned vectors of different lengths: {sorted({one.shape[1] for one in vectors})}"
            )
        whole: Vectors = numpy.concatenate(vectors)
        return whole

    @property
    def _where(self) -> str:
        return f"{self.model} at {self.base_url}"

    def _request_until_deadline(self, texts: list[str]) -> Vectors:
        """Request vectors until an attempt succeeds, with pauses between attempts, until the deadline."""
        until, attempt = time.monotonic() + self._deadline, 0
        while True:
            try:
                return self._once(texts, until)
            except Exception as error:
                pause = compute_retry_delay(attempt, error)
                if isinstance(error, Unjudged):
                    raise
                if refused := redirect_error(self.base_url, get_http_status(error), get_response_headers(error)):
                    raise Unjudged(refused) from None
                if not is_transient(error):
                    raise Unjudged(self._describe_error(error)) from error
                if time.monotonic() + pause >= until:
                    tried = f"within {self._deadline:g} s after {attempt + 1} attempt{'s' if attempt else ''}"
                    raise TimeoutError(f"{self._where} returned no vectors {tried}: {self._short(error)}") from None
            time.sleep(pause)
            attempt += 1

    def _once(self, texts: list[str], until: float) -> Vectors:
        left = until - time.monotonic()
        timeout = max(0.01, min(left, self._deadline / 2))  # a request that hangs must leave time for another attempt
        asking = self._connected().embeddings.with_streaming_response
        inputs = [text or " " for text in texts]  # OpenAI rejects empty texts
        with suppress_instrumentation():
            asked = asking.create(model=self.model, input=inputs, encoding_format="base64", timeout=timeout)
            with asked as raw:
                content = self._content(raw, time.monotonic() + timeout)
        try:
            return _parse_embeddings(orjson.loads(content), len(texts))
        except ValueError as error:
            shown = self._hidden(" ".join(content[: 1 << 16].decode(errors="replace").split()))[:MAX_ERROR_CHARACTERS]
            raise Unjudged(
                f"{self.base_url} returned no embeddings ({self._short(error)}): {shown!r}; check "
                "base_url, which usually ends with /v1"
            ) from None

    def _connected(self) -> OpenAI:
        """Return the client of this process. Its connections are closed when this object is deleted."""
        from openai import DefaultHttpxClient, OpenAI

        if self._client is None or self._client[0] != os.getpid():
            client = OpenAI(
                base_url=self.base_url,
                api_key=self._api_key or _PLACEHOLDER_KEY,
                max_retries=0,
                http_client=DefaultHttpxClient(follow_redirects=False),
            )
            weakref.finalize(self, client.close)
            self._client = os.getpid(), client
        return self._client[1]

    def _content(self, raw: Any, until: float) -> bytes:
        """Read the response body, at most until the time `until`.

        Raises the client's connection error if the transfer breaks off or takes too long, and `Unjudged` if the body
        is too large.
        """
        import openai

        content = bytearray()
        try:
            for piece in raw.iter_bytes():
                content += piece
                if time.monotonic() > until:
                    raise TimeoutError("the response took too long")
                if len(content) > MAX_RESPONSE_BYTES:
                    break
        except Exception as error:
            raise openai.APIConnectionError(request=raw.http_request) from error
        if len(content) > MAX_RESPONSE_BYTES:
            raise Unjudged(f"{self.base_url} answered with more than {MAX_RESPONSE_BYTES >> 20} MiB")
        return bytes(content)

    def _describe_error(self, error: Exception) -> str:
        """Return the message for an error that a retry cannot fix, with a remedy."""
        status = get_http_status(error)
        messages = {
            401: f"{self.base_url} refused the key",
            403: f"{self.base_url} does not allow it with this key",
            404: f"there is no model {self.model!r} at {self.base_url}, or no embeddings",
            413: f"{self.base_url} refused the size of the request; give a smaller batch_size",
        }
        message = messages.get(status or 0, f"{self._where} refused to embed")
        return f"{message}{f' ({status})' if status else ''}: {self._short(error)}"

    def _short(self, error: BaseException) -> str:
        body = getattr(error, "body", None)
        message = body.get("message") if isinstance(body, Mapping) else None
        cause = error.__cause__ if str(error) == "Connection error." and error.__cause__ is not None else error
        text = message if isinstance(message, str) and message else f"{type(cause).__name__}: {cause}"
        return self._hidden(" ".join(text.split()))[:MAX_ERROR_CHARACTERS]

    def _hidden(self, message: str) -> str:
        """Remove the API key from a text, because some servers repeat the key in their errors."""
        return message.replace(self._api_key, "…") if self._api_key else message


def _environment_key(url: str) -> str | None:
    """Return the API key in the environment if the environment also names this address; None for any other address.

    Without this check, anyone who may choose an address would receive the key.
    """
    configured = first_variable("SPANWISE_EMBEDDINGS_URL")
    if configured is not None and url == check_address(configured, "SPANWISE_EMBEDDINGS_URL"):
        return first_variable("SPANWISE_EMBEDDINGS_KEY")
    openai = check_address(first_variable("OPENAI_BASE_URL") or OPENAI_URL, "OPENAI_BASE_URL")
    return first_variable("OPENAI_API_KEY") if url == openai else None


def _split_requests(texts: list[str]) -> list[list[str]]:
    """Split texts, in order, into requests of at most `REQUEST_CHARACTERS` characters."""
    requests: list[list[str]] = []
    room = 0
    for text in texts:
        if len(text) > room or not requests:
            requests.append([])
            room = REQUEST_CHARACTERS
        requests[-1].append(text)
        room -= len(text)
    return requests


def _parse_embeddings(body: Any, count: int) -> Vectors:
    """Return the vectors sorted by `index`, because the response may list them in any order.

    Raises `ValueError` unless there are `count` vectors.
    """
    data = body.get("data") if isinstance(body, Mapping) else None
    if not isinstance(data, list) or not all(isinstance(one, Mapping) for one in data):
        raise ValueError("no list of embeddings")
    places = [one.get("index", place) for place, one in enumerate(data)]
    if sorted(places, key=repr) != sorted(range(count), key=repr):
        raise ValueError(f"the indexes of {len(data)} embeddings do not match {count} texts")
    placed = {place: _parse_embedding(one.get("embedding")) for place, one in zip(places, data, strict=True)}
    return check_vectors([placed[place] for place in range(count)], count, "the endpoint", _EXPECTED_EMBEDDINGS)


def _parse_embedding(given: Any) -> Any:
    """Decode one embedding: 32-bit floats in base64. A list of numbers is returned as it is."""
    import numpy

    if not isinstance(given, str):
        return given
    return numpy.frombuffer(base64.b64decode(given, validate=True), dtype="<f4")


# encoders of functions and endpoints; they live as long as an embedder uses them
_user_encoders: weakref.WeakValueDictionary[ModelKey, CoalescingEncoder] = weakref.WeakValueDictionary()


class Embedder:
    """Embedding model that encodes each text once per process and model. The first text loads the model.

    The argument `model` is a folder, a model of the hub, a preset's name, or a function of a list of texts. A folder
    with model.onnx and no other weights, and a file that ends in .onnx, run on onnxruntime. `device` is "cuda", "mps"
    or "cpu" (None: the first one available), and `batch_size` is a number of texts (None: a default that suits the
    model).

    With `base_url`, `model` names a model at an OpenAI-compatible endpoint. `api_key` is sent only to that endpoint.
    If it is None, SPANWISE_EMBEDDINGS_KEY is used for the address in SPANWISE_EMBEDDINGS_URL, and OPENAI_API_KEY for
    the address in OPENAI_BASE_URL or OpenAI's own. `deadline` is in seconds, for one request with all its attempts.

    The argument `cache` stores vectors in a file: True in the user's cache directory, a path at that path. With None,
    vectors of endpoints are stored, and vectors of models if SPANWISE_VECTORS names a file. Vectors of a function are
    stored only if `cache` is set and the function has a `name`.

    Weights that run code on loading (`remote_code`) or that are pickles (`pickle`) are loaded only if the argument is
    true. The first text raises `NoModel` if the model or a package that it needs is missing. The constructor raises
    `ValueError` for arguments that contradict each other.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Callable[[list[str]], Any] | None = None,
        *,
        name: str | None = None,
        device: str | None = None,
        batch_size: int | None = None,
        token: str | None = None,
        remote_code: bool = False,
        pickle: bool = False,
        base_url: str | None = None,
        api_key: str | None = None,
        deadline: float = DEADLINE_S,
        cache: bool | str | os.PathLike[str] | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is 1 or more, not {batch_size!r}")
        self._given, self._name, self._cache = model, name, cache
        self._function = FunctionSource(model, name) if callable(model) else None
        self._endpoint: EmbeddingEndpoint | None = None
        if base_url is not None:
            self._endpoint = EmbeddingEndpoint(model, base_url, api_key, deadline=deadline, batch_size=batch_size)
        elif api_key is not None:
            raise ValueError("api_key needs base_url, because the key is sent only to that address")
        if cache and self._function is not None and name is None:
            raise ValueError("cache= with a function needs name=, which identifies the function in the cache")
        self.device, self.batch_size = device, batch_size
        self._used: tuple[ModelKey, CoalescingEncoder] | None = None
        self._options: dict[str, Any] = {"token": token, "remote_code": remote_code, "pickle": pickle}

    def __repr__(self) -> str:
        return f"Embedder({self.name!r})"

    def __deepcopy__(self, memo: object) -> Embedder:
        """Return the embedder itself, because its model is shared by the process."""
        return self

    @property
    def name(self) -> str:
        """Return the name that thresholds, versions and the user interface use."""
        return self._name if self._name is not None else self._source.name

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return the properties that the vectors depend on."""
        return {**self._source.identity, "model": self.name}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return an array of shape (number of texts, dimensions), in the order of the texts. The model's vectors are
        returned unchanged.
        """
        import numpy

        if not texts:
            return numpy.zeros((0, 0), dtype=numpy.float32)
        vectors = self.by_text(texts)
        return numpy.stack([vectors[text] for text in texts])

    def by_text(self, texts: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors by text."""
        return self._encoding()(texts)

    def check(self) -> None:
        """Check for missing packages, files and keys without loading anything. Raises `NoModel`."""
        self._source.check()

    def load(self) -> None:
        """Load the model now. Raises `NoModel`."""
        self._source.load()

    @cached_property
    def _place(self) -> ModelLocation:
        assert not callable(self._given)
        return locate_model(DEFAULT["embedding"] if self._given is None else self._given)

    @cached_property
    def _source(self) -> EmbeddingSource:
        if self._function is not None:
            return self._function
        if self._endpoint is not None:
            return self._endpoint
        running: dict[str, Any] = {"device": self.device, "batch_size": self.batch_size}
        if self._place.runs_on_onnx:
            return OnnxSource(self._place, **running)
        return SentenceTransformerSource(self._place, **running, **self._options)

    def _encoding(self) -> CoalescingEncoder:
        """Return the encoder that all embedders of the same model share.

        Encoders of functions and endpoints live as long as an embedder uses them.
        """
        key = self._source.key
        if self._used is None or self._used[0] != key:
            self._used = key, self._shared_as(key)
        return self._used[1]

    def _shared_as(self, key: ModelKey) -> CoalescingEncoder:
        source, anonymous = self._source, self._function is not None and self._cache is None
        path = None if anonymous else vector_path(self._cache, source.paid)

        def make() -> CoalescingEncoder:
            digest = source.digest() if path is not None else None
            stored = VectorCache(path, self.name, digest) if path is not None and digest is not None else None
            return CoalescingEncoder(source.encode, stored, portion=source.portion)

        key = *key, path
        if self._function is None and self._endpoint is None:
            return shared_encoder(key, make)
        return _user_encoders.get(key) or _user_encoders.setdefault(key, make())


def embedder(given: Any = None, **options: Any) -> Embedder:
    """Return an embedder for an `Embedder`, a function, a folder, a name, a dict of arguments, or None (the default).

    Raises `ValueError` for anything else.
    """
    if (made := make_model(Embedder, given, options)) is not None:
        return made
    # an object of sentence-transformers has `encode` and is not callable with texts
    encode = getattr(given, "encode", given)
    if callable(encode):
        made = Embedder(encode, **options)
        if encode is not given and made._name is None:
            made._name = type(given).__name__
        return made
    raise NoModel(f"an embedder is a model's name, a folder, or {EXPECTED_EMBEDDER}, not {given!r:.200}")
