"""What somebody may have meant, for errors that name a thing that is not there."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str], most: int = 1, form: str = "; {}") -> str:
    """`"; did you mean 'answer' or 'answers'?"` with the nearest known names, `most` at most; "" if none is near.

    `form` says how it is joined to the sentence before it: `" ({})"`.
    """
    from difflib import get_close_matches  # 6 ms that only a mistake should cost

    close = get_close_matches(name, list(known), n=most)
    return form.format(f"did you mean {' or '.join(map(repr, close))}?") if close else ""
