"""What a search finds is marked in text, and everything is escaped."""

import pytest

from spanwise.collector.pages.components.rendering import mark_matches


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
