"""What a search finds is marked in text, and everything is escaped."""

import pytest

from spanwise.collector.pages.components.rendering import mark_matches, shorten_preview


@pytest.mark.parametrize(
    ("text", "search", "marked"),
    [
        ("left the Dépôt", "depot", "left the [Dépôt]"),
        ("depot in Oslo", '"depot in" osl', "[depot in] [Osl]o"),
        ("depot in, in depot", '"in depot"', "depot in, [in depot]"),
        ("redepot", "depot", "redepot"),
        ("depots", '"depot"', "depots"),
        ("返品の方法", "品の", "返[品の]方法"),
        ("e-mail", "e-mail", "[e-mail]"),
        ("İstanbul", "istanbul", "[İstanbul]"),
        ("a<b>&", "b", "a&lt;[b]&gt;&amp;"),
        ("no search", None, "no search"),
        ("a.c", "...", "a.c"),
        ("", "x", ""),
    ],
)
def test_matches_are_marked(text, search, marked):
    html = str(mark_matches(text, search))
    assert html.replace("<mark>", "[").replace("</mark>", "]") == marked


@pytest.mark.parametrize(
    ("text", "search", "shown"),
    [
        ("a depot", "depot", "a depot"),
        ("word " * 100 + "the depot in Oslo", "depot", "…d word word the depot in Oslo"),
        ("word " * 100, "depot", "word " * 47 + "word…"),
        ("word " * 100, None, "word " * 47 + "word…"),
        ("x" * 5_000 + " DÉPÔT", "depot", "…" + "x" * 15 + " DÉPÔT"),
        ("返" * 200 + "品", "品", "…" + "返" * 16 + "品"),
    ],
)
def test_a_preview_begins_near_what_a_search_finds(text, search, shown):
    assert shorten_preview(text, search=search) == shown
