"""What a span or a log record says beside a run: feedback, and content of spans that came before or come later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from spanwise.collector.records import Amendment, Feedback

Also: TypeAlias = Feedback | Amendment
# A `ValueError` stands for something that makes no sense: the sender is told, and the span is kept all the same
Said: TypeAlias = Also | ValueError


def said(make: Callable[..., Also], *args: Any) -> Said:
    """What a function makes of a part of a span, or the `ValueError` that it raises."""
    try:
        return make(*args)
    except ValueError as error:
        return error


def check_also(also: Sequence[Said]) -> None:
    """Raises `TypeError` for what cannot be said beside a run."""
    for one in also:
        if not isinstance(one, Feedback | Amendment | ValueError):
            raise TypeError(f"a dialect says {one!r:.200} beside a span, which is neither feedback nor an amendment")
