"""JSON encoding and decoding of records, shared by server, client and stores."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Encode a record, or a structure of records, as JSON; unsupported values become the closest JSON value."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_replace_surrogates(msgspec.to_builtins(value, str_keys=True, enc_hook=_to_json_value)))


def _replace_surrogates(value: Any) -> Any:
    """Return the value with lone surrogates replaced, because UTF-8 cannot encode them."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    return [_replace_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


@overload
def decode(kind: type[T], body: bytes | str) -> T: ...
@overload
def decode(kind: Any, body: bytes | str) -> Any: ...
def decode(kind: Any, body: bytes | str) -> Any:
    """Decode a JSON body as `kind`. Raises `ValueError` that names the position of the error in the body."""
    try:
        return _get_decoder(kind).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the JSON does not match the expected type: {error}") from error


def count_items(body: bytes) -> int:
    """Return the number of items of a JSON list without decoding them; 0 for anything else, and for invalid JSON."""
    try:
        return len(_item_decoder.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


_item_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def convert(value: Any, kind: Any) -> Any:
    """Convert plain values to `kind`. Raises `msgspec.ValidationError`."""
    _get_decoder(kind)  # makes msgspec analyze the classes of `kind` under the lock
    return msgspec.convert(value, kind)


def _to_json_value(value: Any) -> Any:
    """Return a foreign object as JSON: numpy scalars and arrays by value, other objects by their `repr`."""
    if callable(getattr(type(value), "tolist", None)):
        with suppress(Exception):  # the object has an unrelated method of the same name
            return value.tolist()
    return repr(value)


_encoder = msgspec.json.Encoder(enc_hook=_to_json_value)


_decoder_lock = threading.Lock()


def _get_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        # While msgspec analyzes a class, it stores incomplete data on that class. If a second thread reads these
        # data, the process crashes.
        with _decoder_lock:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
