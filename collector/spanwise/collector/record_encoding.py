"""JSON encoding and decoding of records, shared by server, client and stores."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """A record, or anything made of records, as JSON; what JSON cannot hold becomes the nearest that it can."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_replace_surrogates(msgspec.to_builtins(value, str_keys=True, enc_hook=_to_json_value)))


def _replace_surrogates(value: Any) -> Any:
    """The same without lone surrogates, which UTF-8 has no bytes for."""
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
    """What a body holds. Raises `ValueError`, saying where in the body the fault is."""
    try:
        return _get_decoder(kind).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the JSON is not what is asked for: {error}") from error


def count_items(body: bytes) -> int:
    """How many items a list has, of which nothing is made; 0 for what is no list, and what is no JSON."""
    try:
        return len(_item_decoder.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


_item_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def convert(value: Any, kind: Any) -> Any:
    """Plain values as what they are to be. Raises `msgspec.ValidationError`."""
    _get_decoder(kind)  # after which msgspec knows the classes in it
    return msgspec.convert(value, kind)


def _to_json_value(value: Any) -> Any:
    """Return a foreign object as JSON can hold it: numpy's scalars and arrays by value, as stores keep them."""
    if callable(getattr(type(value), "tolist", None)):
        with suppress(Exception):  # a method of that name that does something else
            return value.tolist()
    return repr(value)


_encoder = msgspec.json.Encoder(enc_hook=_to_json_value)


_decoder_lock = threading.Lock()


def _get_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    made = _decoders.get(kind)
    if made is None:
        # msgspec leaves what it knows of a class with the class while it is still finding out: a second thread that
        # meets it then ends the process
        with _decoder_lock:
            made = _decoders[kind] = msgspec.json.Decoder(kind)
    return made


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
