"""Texts hidden in a text: runs of base16, base32, base64 and character codes, also inside each other."""

from __future__ import annotations

import base64
import binascii
import html
import re

DEPTH = 5  # encodings inside encodings that are followed
_HEX = re.compile(r"(?<![0-9A-Za-z])(?:0x)?((?:[0-9A-Fa-f]{2}[ :]?){5,}[0-9A-Fa-f]{2})(?![0-9A-Za-z])")
_HEX_BYTES = re.compile(r"(?<!\w)(?:(?:0x|\\x|%)[0-9A-Fa-f]{2}(?:, ?| )?){6,}")  # 0x6a, 0x61 and \x6a\x61 and %6a%61
_CODES = re.compile(r"(?<![\w.])(?:\d{2,3}(?:[,;] ?| )){5,}\d{2,3}(?!\w)")  # 106, 97, 110
_ESCAPES = re.compile(r"(?:&#(?:\d{1,7}|[xX][0-9A-Fa-f]{1,6});|\\u[0-9A-Fa-f]{4}){6,}")  # &#106; and \u006a
_BASE32 = re.compile(r"(?<![A-Z2-7])[A-Z2-7]{16,}={0,6}")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{8,}={0,2}")
_WRAPPED = re.compile(r"(?:[A-Za-z0-9+/]{60,76}\r?\n)+[A-Za-z0-9+/]{1,76}={0,2}")  # as `base64` writes it


def decoded(text: str, depth: int = DEPTH) -> list[str]:
    """The readable texts that are encoded in a text, outer ones first."""
    texts: dict[str, None] = {}  # in order, each once
    for hidden in _candidates(text):
        if hidden not in texts:
            texts[hidden] = None
            if depth > 1:
                texts.update(dict.fromkeys(decoded(hidden, depth - 1)))
    return list(texts)


def _candidates(text: str) -> list[str]:
    raw = [_hex(match.group(1)) for match in _HEX.finditer(text)]
    raw += [_hex(re.sub(r"0x|[\\x%,]", "", match.group())) for match in _HEX_BYTES.finditer(text)]
    raw += [_codes(match.group()) for match in _CODES.finditer(text)]
    raw += [_escapes(match.group()) for match in _ESCAPES.finditer(text)]
    raw += [_base32(match.group()) for match in _BASE32.finditer(text)]
    raw += [_base64(match.group()) for pattern in (_BASE64, _WRAPPED) for match in pattern.finditer(text)]
    return [readable for data in raw if data and (readable := _readable(data))]


def _hex(text: str) -> bytes:
    return bytes.fromhex(re.sub(r"[ :]", "", text))


def _codes(text: str) -> bytes:
    return "".join(chr(int(code)) for code in re.findall(r"\d+", text)).encode()


def _escapes(text: str) -> bytes:
    entities = re.sub(r"\\u([0-9A-Fa-f]{4})", r"&#x\1;", text)
    return html.unescape(entities).encode("utf-8", "replace")


def _base32(text: str) -> bytes:
    try:
        return base64.b32decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 8))
    except (binascii.Error, ValueError):
        return b""


def _base64(text: str) -> bytes:
    plain = re.sub(r"\s", "", text).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4))
    except (binascii.Error, ValueError):
        return b""


def _readable(data: bytes) -> str | None:
    """The text if nearly all of it can be printed: a word that happens to be base64 decodes to noise."""
    text = data.decode(_unicode_of(data), "replace")
    printable = sum((character.isprintable() and character != "\ufffd") or character in "\n\r\t" for character in text)
    return text if text and printable >= 0.95 * len(text) else None


def _unicode_of(data: bytes) -> str:
    """Every other byte of a Western text in UTF-16 is zero; the first two may be a byte order mark."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    zeros = data.count(0)
    if 4 * zeros < len(data):
        return "utf-8"
    return "utf-16-be" if 2 * data[::2].count(0) > zeros else "utf-16-le"
