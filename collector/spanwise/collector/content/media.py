"""Embedded images and audio: decoding, fixed types, size limit.

The type is found in the first bytes of the data, never taken from the sender. SVG is not an image here, because it
can contain scripts.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from spanwise.collector.content.blocks import Block

MAX_MEDIA_BYTES = 10 * 1024 * 1024  # of one decoded image or recording
_HEAD_CHARACTERS = 64  # of base64; enough for every signature
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "audio/webm"),
)


@dataclass(frozen=True, slots=True)
class Media:
    """Decoded image or recording, with the type of its bytes."""

    content: bytes
    media_type: str


def find_media_type(block: Block) -> str | None:
    """Return the type of embedded data that a browser may show, None for other types and oversized data."""
    if not block.data or len(block.data) > MAX_MEDIA_BYTES * 4 // 3 + 4:
        return None
    try:
        head = base64.b64decode(_normalize(block.data[:_HEAD_CHARACTERS]))
    except (binascii.Error, ValueError):
        return None
    found = next((name for signature, name in _SIGNATURES if head.startswith(signature)), None)
    if head[:4] == b"RIFF":
        found = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(head[8:12])
    elif head[4:8] == b"ftyp":
        found = {b"avif": "image/avif", b"M4A ": "audio/mp4"}.get(head[8:12])
    return found if found and found.startswith(block.kind) else None


def decode_media(block: Block) -> Media | None:
    """Decode an embedded image or recording. Return None for types that `find_media_type` does not accept."""
    media_type = find_media_type(block)
    if media_type is None:
        return None
    try:
        return Media(base64.b64decode(_normalize(block.data)), media_type)
    except (binascii.Error, ValueError):
        return None


def _normalize(data: str) -> bytes:
    """Return base64 in the standard alphabet, without line breaks, with padding."""
    text = data.encode("ascii", "replace").translate(bytes.maketrans(b"-_", b"+/"), b"\r\n \t=")
    return text + b"=" * (-len(text) % 4)
