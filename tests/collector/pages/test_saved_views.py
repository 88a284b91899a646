"""Saved views: names for a filter, an order and columns of the trace list, in a cookie of the browser."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote

import pytest

from collector.making import run
from spanwise.collector.pages.components import filter_form


@pytest.fixture(autouse=True)
def traces(store):
    store.append([run("answer", status="error"), run("other")])


def change(client, action, name, **fields):
    return client.post("/views", data={"action": action, "name": name, **fields}, follow_redirects=False)


def views(client):
    page = client.get("/sessions").text
    found = re.search(r'<ul class="views".*?</ul>', page, re.DOTALL)
    links = re.findall(r'href="([^"]*)"[^>]*><span>([^<]*)</span>', found[0]) if found else []
    return {unescape(name): unescape(address) for address, name in links}


def test_a_view_has_filter_order_and_columns_and_is_on_every_page(client):
    page = client.get("/traces?status=error&sort=-latency_ms&columns=latency.input").text
    address = unescape(re.search(r'name="address" value="([^"]*)"', page)[1])
    answer = change(client, "save", "  Slow   errors ", address=address)
    assert answer.headers["location"] == views(client)["Slow errors"]
    page = client.get(answer.headers["location"]).text
    assert 'aria-current="true"><span>Slow errors</span>' in page
    heads = re.findall(r'<th scope="col" class="c-(\w+)', page)
    assert heads == ["name", "latency", "input"]
    assert re.findall(r'data-trace="\w+" dir="auto" title="(\w+)"', page) == ["answer"]
    assert 'aria-sort="descending"' in page


def test_the_columns_of_the_moment_are_saved(client):
    client.post("/preferences", data={"columns": "1", "column_user": "1", "column_started": "1"})
    address = unescape(re.search(r'name="address" value="([^"]*)"', client.get("/traces").text)[1])
    change(client, "save", "users", address=address)
    client.post("/preferences", data={"columns": "1", "column_input": "1"})
    heads = re.findall(r'<th scope="col" class="c-(\w+)', client.get(views(client)["users"]).text)
    assert heads == ["name", "user", "started"]


def test_views_are_replaced_renamed_and_deleted(client):
    for name, address in (("a", "/traces?name=a"), ("b", "/traces?name=b"), ("a", "/traces?name=c")):
        change(client, "save", name, address=address)
    assert views(client) == {"a": "/traces?name=c", "b": "/traces?name=b"}
    assert change(client, "rename", "a", new_name="z", back="/traces?x=1").headers["location"] == "/traces?x=1"
    assert list(views(client)) == ["z", "b"]
    change(client, "rename", "z", new_name="b")
    assert views(client) == {"b": "/traces?name=c"}
    change(client, "delete", "b")
    assert views(client) == {}


@pytest.mark.parametrize("name", ["", "  ", "\u200b", "x" * 61, "\t\n"])
def test_a_name_needs_a_visible_character_and_a_limit(client, name):
    answer = change(client, "save", name, address="/traces")
    assert answer.status_code == 400
    assert "a view needs a name of 1 to 60 characters" in answer.text
    assert views(client) == {}


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "مرحبا", "a&b=c;d,e", "\"'`", "ａ\u202eb", "🙂" * 60])
def test_odd_names_are_kept_as_text(client, name):
    change(client, "save", name, address="/traces?name=x&text=%22a+b%22")
    page = client.get("/traces").text
    assert "<script>alert" not in page
    assert list(views(client).values()) == ["/traces?name=x&text=%22a+b%22"]
    change(client, "delete", name)
    assert views(client) == {}


@pytest.mark.parametrize(
    "address",
    ["https://evil.example/?name=x", "//evil.example?name=x", "javascript:alert(1)?name=x", "/settings?name=x"],
)
def test_a_view_is_always_of_the_list(client, address):
    change(client, "save", "v", address=address)
    assert views(client) == {"v": "/traces?name=x"}


def test_the_limit_of_the_cookie_is_told_and_keeps_the_others(client):
    change(client, "save", "small", address="/traces?name=a")
    answer = change(client, "save", "large", address="/traces?name=" + "x" * 5_000)
    assert answer.status_code == 400
    assert "delete one, or save a shorter filter" in answer.text
    assert list(views(client)) == ["small"]
    saved = 1
    while (
        change(client, "save", f"view {saved}", address="/traces?status=error&feedback=faithful%3C0.5").status_code
        == 303
    ):
        saved += 1
    assert 15 <= saved == len(views(client))


def test_a_view_that_is_gone_is_said_to_be_gone(client):
    for action in ("rename", "delete"):
        assert "there is no view &#39;x&#39;" in change(client, action, "x", new_name="y").text
    assert change(client, "publish", "x").status_code == 400


@pytest.mark.parametrize(
    "cookie", ["=&=&a", "%ff%00", "a=" + "b" * 9_000, "&".join(f"n{i}=1" for i in range(2_000)), "<b>=//x"]
)
def test_a_cookie_of_anybodys_making_breaks_no_page(client, cookie):
    client.cookies.set(filter_form.VIEWS_COOKIE, quote(cookie))
    assert client.get("/traces").status_code == 200
    assert all(address.startswith("/traces?") for address in views(client).values())


def test_a_form_of_another_page_saves_nothing(client):
    answer = client.post(
        "/views", data={"action": "save", "name": "v", "token": "x"}, headers={"origin": "https://evil.example"}
    )
    assert answer.status_code == 400
    assert views(client) == {}
