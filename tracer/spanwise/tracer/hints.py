"""What somebody may have meant, for errors that name a thing that is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["did_you_mean", "nearest", "no_option"]


def no_option(caller: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> TypeError:
    """What to raise for an option that there is not, in one line: what it is here, or which one was meant.

    `elsewhere` has, by the names that other products give to options, how ours are written: `{"run_type": "kind=…"}`.
    """
    known = list(known)
    ours = elsewhere.get(name)
    hint = f" (here it is {ours})" if ours else did_you_mean(name, known, form=" ({})")
    return TypeError(f"{caller} has no option {name!r}{hint}; it takes {', '.join(known)}")


def did_you_mean(name: str, known: Iterable[str], most: int = 1, form: str = "; {}") -> str:
    """`"; did you mean 'answer' or 'answers'?"` with the nearest known names, `most` at most; "" if none is near.

    `form` says how it is joined to the sentence before it: `" ({})"`.
    """
    close = nearest(name, known, most)
    return form.format(f"did you mean {' or '.join(map(repr, close))}?") if close else ""


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names that look like `name`, the nearest first, `most` at most."""
    from difflib import get_close_matches  # 6 ms that only a mistake should cost

    return get_close_matches(name, list(known), n=most)
