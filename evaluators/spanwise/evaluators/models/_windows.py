"""Long texts cut into windows that a model can read whole, by its own tokenizer, each overlapping the one before.

A window is a part of the text as it stands, so that what is scored can be shown. Cuts are made between words where one
is near, else between tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Spans: TypeAlias = Sequence[tuple[int, int]]
"""Of each token of a text the first character and the one behind its last."""

OVERLAP = 0.2  # of a window that stands in the one before, too
SPARE = 2  # tokens left free: a part of a text may have one or two more than it had inside the whole
PIECE = 200_000  # characters that are looked at together
_LEAST = 8  # tokens of a window


def windows(text: str, spans_of: Callable[[str], Spans], size: int, *, characters: int = PIECE) -> list[str]:
    """The text itself where it has no more than `size` tokens, else windows of at most that many, in order.

    Together they are all of the text but for blanks between them. `size` below 8 counts as 8. No more than so many
    `characters` are looked at together.
    """
    size = max(size, _LEAST)
    if _surely_fits(text, size):
        return [text]
    found: list[str] = []
    start = 0
    while start < len(text):
        piece = text[start : start + characters]
        spans = spans_of(piece)
        ends = start + len(piece) == len(text)
        if not found and ends and len(spans) <= size:
            return [text]
        parts, next_token = _cut(piece, spans, max(size - SPARE, _LEAST), ends)
        found += parts
        start += len(piece) if ends or next_token == 0 else spans[next_token][0]
    return found or [text]


def spans_with(tokenizer: Any) -> Callable[[str], Spans]:
    """Where a tokenizer of transformers has its tokens. Raises `ValueError`, when it is called, where it cannot say."""

    def spans_of(text: str) -> Spans:
        try:
            told = tokenizer(
                text, add_special_tokens=False, truncation=False, return_offsets_mapping=True, verbose=False
            )
        except NotImplementedError as error:
            kind = type(tokenizer).__name__
            raise ValueError(
                f"a text of {len(text)} characters is too long, and {kind} cannot cut it: {error}"
            ) from None
        return [(first, end) for first, end in told["offset_mapping"] if end > first]

    return spans_of


def limit_of(tokenizer: Any, config: Any) -> int:
    """How many tokens a model reads at once: what its tokenizer says, else its positions, else 512."""
    positions = getattr(config, "max_position_embeddings", None) or 512
    if getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
        positions -= 2  # their positions begin behind the padding's
    said = getattr(tokenizer, "model_max_length", None) or positions
    return int(min(said, positions))


def _surely_fits(text: str, size: int) -> bool:
    """Without a look at its tokens, of which there is at least a byte for each, and one that stands for the start."""
    return len(text) < size and len(text.encode(errors="replace")) < size


def _cut(piece: str, spans: Spans, size: int, ends: bool) -> tuple[list[str], int]:
    """The windows of a piece of a text, and the token with which the next piece begins; 0 where there is no progress.

    Where the text goes on behind the piece, the last window is left to the next one.
    """
    found: list[str] = []
    at = 0
    while at < len(spans):
        end = at + size
        if end >= len(spans):
            if ends:
                found.append(piece[spans[at][0] : spans[-1][1]])
            break
        end = _word(spans, end, at + size // 2)
        found.append(piece[spans[at][0] : spans[end - 1][1]])
        back = max(end - int(size * OVERLAP), at + 1)
        at = _word(spans, back, max(at + 1, back - size // 8))
    if not found and not ends:
        return [piece], 0
    return found, at


def _word(spans: Spans, token: int, least: int) -> int:
    """The nearest token at or before this one with which a word begins; itself where none is at `least` or behind."""
    for before in range(token, least - 1, -1):
        if spans[before][0] > spans[before - 1][1]:
            return before
    return token
