"""Columns of the trace list: which, in which order, how wide. They are remembered in a cookie, or come with the address."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest

from collector.making import run
from spanwise.collector.pages.components.preferences import COLUMNS, DEFAULT_COLUMNS, VIEW_COOKIE


@pytest.fixture(autouse=True)
def traces(store):
    store.append([run(tags=("a",), user_id="u")])


def columns(client, address="/traces"):
    heads = re.findall(r'<th scope="col" class="c-(\w+)', client.get(address).text)
    return [name for name in heads if name not in ("name", "score", "more")]


def save(client, *chosen, **fields):
    form = {"columns": "1", **{f"column_{name}": "1" for name in chosen}, **fields}
    answer = client.post("/preferences", data=form, follow_redirects=False)
    assert answer.status_code == 303
    return answer


def test_columns_are_in_the_order_of_the_form(client):
    save(client, "started", "output", "tags")
    assert columns(client) == ["started", "output", "tags"]


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        ("output.up", ["output", "input", "user"]),
        ("output.down", ["input", "user", "output"]),
        ("input.up", ["input", "output", "user"]),
        ("user.down", ["input", "output", "user"]),
        ("tags.up", ["input", "output", "user"]),
        ("output.sideways", ["input", "output", "user"]),
        ("output", ["input", "output", "user"]),
        (".", ["input", "output", "user"]),
    ],
)
def test_a_button_moves_a_column(client, move, expected):
    save(client, "input", "output", "user", move=move)
    assert columns(client) == expected


def test_the_form_with_all_columns_and_widths_is_accepted(client):
    save(client, *COLUMNS, density="compact", **{f"width_{name}": "" for name in ("name", *COLUMNS)})
    assert "spans" in columns(client)


def test_the_address_has_columns_that_the_cookie_does_not_change(client):
    save(client, "started", "user")
    assert columns(client, "/traces?columns=tags.input.tags.nothing") == ["tags", "input"]
    assert columns(client) == ["started", "user"]
    page = client.get("/traces?columns=tags.input&status=ok").text
    assert 'name="columns" value="tags.input"' in page  # the filter form keeps them
    assert '<input type="hidden" name="back" value="/traces?status=ok">' in page  # the menu View replaces them


def widths(client):
    return dict(re.findall(r'data-column="(\w+)" width="(\d+)"', client.get("/traces").text))


def test_widths_are_set_and_reset_one_by_one(client):
    client.post("/preferences", data={"width_input": "300", "width_latency": " 90 "})
    client.post("/preferences", data={"width_name": "9999", "width_started": "1"})
    assert widths(client) == {"input": "300", "latency": "90", "name": "800", "started": "60"}
    client.post("/preferences", data={"width_input": "", "density": "tall"})
    assert widths(client) == {"latency": "90", "name": "800", "started": "60"}
    save(client, "latency")
    assert widths(client) == {"latency": "90", "name": "800"}


@pytest.mark.parametrize("width", ["x", "-5", "1e3", "²", "5.5", "1-2.input-900", "<b>", "9" * 5_000])
def test_a_width_that_is_no_number_is_left_out(client, width):
    client.post("/preferences", data={"width_input": width})
    assert widths(client) in ({}, {"input": "800"}, {"input": "60"})


def test_a_table_with_wide_columns_scrolls_in_itself(client):
    assert 'class="scroll"' in client.get("/traces").text
    client.post("/preferences", data={"width_input": "800", "width_output": "800"})
    assert re.search(r'class="scroll wide sized-\d+" tabindex="0"', client.get("/traces").text)


@pytest.mark.parametrize(
    "cookie",
    ["columns=..&widths=.-.", "widths=name-", "columns=input" + ".input" * 900, "%ff%00", "widths=name-200-300"],
)
def test_a_cookie_of_anybodys_making_breaks_no_page(client, cookie):
    client.cookies.set(VIEW_COOKIE, quote(cookie))
    assert client.get("/traces").status_code == 200
    assert set(columns(client)) <= set(DEFAULT_COLUMNS)
