"""Readers sign in with a key, and what others could do with the session: steal, fix, guess, ride, redirect, fill up."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.making import run
from looped_cases import loop_over
from polling import until
from spanwise.collector.address_parsing import safe_redirect_path
from spanwise.collector.api import Authenticator, KeyCache, SecurityMiddleware, create_app
from spanwise.collector.records import Key
from spanwise.collector.security import (
    ATTEMPT_BURST,
    MAX_SESSIONS_PER_KEY,
    SESSION_LIFETIME_S,
    AttemptLimiter,
    BrowserSessions,
    KeyCacheTimes,
    RoutePermissions,
    build_session_cookie,
    is_form_token,
    make_form_token,
    read_session_cookie,
)
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

READER = {"accept": "text/html"}
KEYS = {
    "all": {},
    "reads": {"scopes": ("read",)},
    "sends": {"scopes": ("ingest",)},
    "bound": {"project": "p"},
    "brief": {"scopes": ("read",)},
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        for name, fields in KEYS.items():
            digest = sha256(name.encode()).hexdigest()
            made.save_key(Key(id=f"id-{name}", name=f"key {name}", sha256=digest, **fields))  # type: ignore[arg-type]
        yield made


@pytest.fixture
def locked(store: SQLiteStore) -> Iterator[Server]:
    with Server(store, host="0.0.0.0") as server:
        yield server


@pytest.fixture
def browser(locked: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=locked.url, headers=READER, timeout=60) as made:
        yield made


def token_in(page: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{80})"', page)
    assert found, page
    return found[1]


def sign_in(client: httpx.Client, key: str, onward: str = "/", **headers: str) -> httpx.Response:
    form = {"key": key, "next": onward, "token": token_in(client.get("/sign-in").text)}
    return client.post("/sign-in", data=form, headers=headers)


def cookie(client: httpx.Client) -> str:
    """What it sends."""
    return client.build_request("GET", "/").headers.get("cookie", "")


# In and out


def test_a_reader_without_a_key_is_led_to_the_form_and_back(browser: httpx.Client) -> None:
    led = browser.get("/traces/x?run=a%2Fb&c=1")
    assert (led.status_code, led.headers["location"]) == (303, "/sign-in?next=%2Ftraces%2Fx%3Frun%3Da%252Fb%26c%3D1")
    page = browser.get(led.headers["location"]).text
    assert 'name="next" value="/traces/x?run=a%2Fb&amp;c=1"' in page
    answer = sign_in(browser, "reads", "/traces/x?run=a%2Fb&c=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/traces/x?run=a%2Fb&c=1")
    assert browser.get("/").status_code == 200


def test_the_form_and_its_style_need_no_key_and_nothing_else_is_told(browser: httpx.Client) -> None:
    page = browser.get("/sign-in")
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
    assert "Traces</a>" not in page.text
    for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text):
        assert browser.get(address).status_code == 200
    assert browser.get("/static/../spanwise.db").status_code != 200


def test_the_cookie_is_for_this_server_alone(browser: httpx.Client) -> None:
    given = sign_in(browser, "reads").headers["set-cookie"]
    parts = given.split("; ")
    assert re.fullmatch(rf"spanwise-session-{browser.base_url.port}=[\w-]{{43}}", parts[0])
    assert set(parts[1:]) == {"Path=/", "HttpOnly", "SameSite=Lax", f"Max-Age={SESSION_LIFETIME_S}"}
    assert "reads" not in given


@pytest.mark.parametrize(
    "headers", [{"x-forwarded-proto": "https"}, {"host": "spanwise.test", "origin": "https://spanwise.test"}]
)
def test_behind_tls_it_is_secure_and_of_this_host(browser: httpx.Client, headers: dict[str, str]) -> None:
    given = sign_in(browser, "reads", **headers).headers["set-cookie"]
    assert given.startswith("__Host-spanwise-session")
    assert "; Secure" in given
    assert "Domain" not in given


def test_signing_out_ends_the_session_also_for_whoever_has_the_cookie(browser: httpx.Client, locked: Server) -> None:
    sign_in(browser, "reads")
    stolen = {**READER, "cookie": cookie(browser)}
    out = browser.post("/sign-out", data={"token": token_in(browser.get("/").text)})
    assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
    assert "Max-Age=0" in out.headers["set-cookie"]
    assert cookie(browser) == ""
    assert httpx.get(f"{locked.url}/", headers=stolen, timeout=60).status_code == 303


def test_a_revoked_key_signs_out(store: SQLiteStore, locked: Server, browser: httpx.Client) -> None:
    assert KeyCacheTimes().fresh == 10  # seconds, for which keys are believed
    assert locked.authenticator.keys is not None
    locked.authenticator.keys.ages = KeyCacheTimes(fresh=0, patience=60, grace=60, pause=0)
    sign_in(browser, "brief")
    assert browser.get("/").status_code == 200
    store.delete_key("id-brief")
    until(lambda: browser.get("/").status_code == 303)


def test_sessions_end_with_the_server(store: SQLiteStore, browser: httpx.Client, locked: Server) -> None:
    sign_in(browser, "reads")
    with Server(store, host="0.0.0.0") as other:
        sent = cookie(browser).replace(str(locked.port), str(other.port))
        assert httpx.get(f"{other.url}/", headers={**READER, "cookie": sent}, timeout=60).status_code == 303


def test_two_servers_of_one_host_leave_each_others_readers_signed_in(store: SQLiteStore, browser: httpx.Client) -> None:
    sign_in(browser, "reads")
    with Server(store, host="0.0.0.0") as other, httpx.Client(base_url=other.url, headers=READER, timeout=60) as client:
        client.cookies = browser.cookies  # one jar for all ports, as browsers have it
        sign_in(client, "all")
        assert {one.name for one in client.cookies.jar} == {
            f"spanwise-session-{number}" for number in (other.port, browser.base_url.port)
        }
        assert "key all" in client.get("/").text
        assert "key reads" in browser.get("/", headers={"cookie": cookie(client)}).text


def test_a_server_of_this_machine_has_nothing_to_sign_in_to(store: SQLiteStore) -> None:
    with Server(store) as server, httpx.Client(base_url=server.url, headers=READER, timeout=60) as client:
        assert client.get("/sign-in").headers["location"] == "/"
        assert "Sign out" not in client.get("/").text


def test_a_server_without_pages_leads_nobody_to_a_form_that_it_has_not(store: SQLiteStore) -> None:
    async def asked() -> int:
        guard = SecurityMiddleware(
            create_app(store), RoutePermissions([("POST", "/mcp", "read")]), Authenticator(KeyCache(store))
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://t") as client:
            return (await client.get("/mcp", headers=READER)).status_code

    assert asyncio.run(asked()) == 401


# Which key may what


def test_a_key_that_only_reads_is_offered_no_form(store: SQLiteStore, browser: httpx.Client) -> None:
    store.append([kept := run()])
    address = f"/traces/{kept.trace_id}"
    sign_in(browser, "reads")
    page = browser.get(address).text
    assert "Add feedback" not in page
    answer = browser.post(f"{address}/feedback", data={"key": "k", "value": "1", "token": token_in(page)})
    assert (answer.status_code, "Sign out" in answer.text) == (403, True)
    assert "lacks the scope 'write'" in html.unescape(answer.text)
    sign_in(browser, "all")
    assert "Add feedback" in browser.get(address).text


def test_a_key_of_one_project_sees_that_project(store: SQLiteStore, browser: httpx.Client) -> None:
    store.append([run("mine", project="p")])
    store.append([run("theirs", project="q")])
    sign_in(browser, "bound")
    page = browser.get("/traces").text
    assert ("mine" in page, "theirs" in page, 'href="/datasets"' in page) == (True, False, False)
    for path, status in (("/datasets", 403), ("/experiments", 200), ("/sessions", 200), ("/rules", 200)):
        assert (path, browser.get(path).status_code) == (path, status)


def test_a_key_that_only_sends_opens_no_page(browser: httpx.Client) -> None:
    answer = sign_in(browser, "sends")
    assert (answer.status_code, "lacks the scope 'read'" in html.unescape(answer.text)) == (403, True)
    assert "set-cookie" not in answer.headers


@pytest.mark.process
def test_wrong_keys_are_limited_and_never_shown(locked: Server, browser: httpx.Client) -> None:
    locked.authenticator.attempts = AttemptLimiter(lambda: 0.0)  # no try comes back, however long the test takes
    answers = [sign_in(browser, f"secret-{number}") for number in range(ATTEMPT_BURST + 5)]
    assert answers[0].status_code == 401
    assert (answers[-1].status_code, answers[-1].headers["retry-after"]) == (429, "1")
    assert all("secret-" not in answer.text for answer in answers)
    assert browser.get("/api/count", headers={"x-api-key": "reads"}).status_code == 429  # it was never right from here


# What others could do


def test_another_sites_page_rides_no_session(store: SQLiteStore, browser: httpx.Client) -> None:
    store.append([kept := run()])
    sign_in(browser, "all")
    address = f"/traces/{kept.trace_id}/feedback"
    form = {"key": "k", "value": "1"}
    right = {**form, "token": token_in(browser.get(f"/traces/{kept.trace_id}").text)}
    asked: list[tuple[dict[str, str], dict[str, str]]] = [
        (form, {}),
        ({**form, "token": "0" * 80}, {}),
        ({**form, "token": make_form_token(b"")}, {}),
        (right, {"origin": "http://evil.test"}),
        (right, {"origin": "null"}),
        (right, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
        (right, {"sec-fetch-site": "same-site"}),
    ]
    assert {browser.post(address, data=data, headers=headers).status_code for data, headers in asked} <= {400, 401, 403}
    assert store.trace(kept.trace_id).feedback == ()
    assert browser.post(address, data=right, headers={"sec-fetch-site": "same-origin"}).status_code == 303


def test_a_form_of_one_session_is_none_of_another(store: SQLiteStore, browser: httpx.Client, locked: Server) -> None:
    store.append([kept := run()])
    sign_in(browser, "all")
    with httpx.Client(base_url=locked.url, headers=READER, timeout=60) as other:
        sign_in(other, "all")
        form = {"key": "k", "value": "1", "token": token_in(other.get(f"/traces/{kept.trace_id}").text)}
    answer = browser.post(f"/traces/{kept.trace_id}/feedback", data=form)
    assert (answer.status_code, "reload its page and submit it again" in answer.text) == (400, True)


def test_a_form_of_a_session_that_has_ended_says_so(browser: httpx.Client) -> None:
    answer = browser.post("/traces/x/feedback", data={"key": "k", "value": "1"})
    assert (answer.status_code, "Signed out" in answer.text, 'href="/sign-in"' in answer.text) == (401, True, True)


def test_while_the_store_is_silent_nobody_is_signed_out(locked: Server, browser: httpx.Client) -> None:
    sign_in(browser, "reads")
    keys = locked.authenticator.keys
    assert keys is not None
    known, keys.ages = keys._snapshot, KeyCacheTimes(fresh=0, patience=0, grace=0, pause=60)
    answer = browser.get("/")
    assert (answer.status_code, "retry-after" in answer.headers, "Unavailable" in answer.text) == (503, True, True)
    keys._snapshot, keys.ages = known, KeyCacheTimes()
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize("path", ["/api/count", "/api/keys", "/metrics", "/v1/traces", "/api/nothing"])
def test_a_session_opens_no_api(browser: httpx.Client, path: str) -> None:
    sign_in(browser, "all")
    for headers in ({}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "cross-site"}):
        assert browser.get(path, headers={**headers, "accept": "*/*"}).status_code == 401
        assert browser.post(path, headers={**headers, "accept": "*/*"}, content=b"{}").status_code == 401


def test_a_link_from_elsewhere_finds_the_session_and_a_script_does_not(browser: httpx.Client) -> None:
    sign_in(browser, "reads")
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert browser.get("/", headers=link).status_code == 200
    for site in ("cross-site", "same-site"):
        script = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "accept": "*/*"}
        assert browser.get("/", headers=script).status_code == 401


def test_a_browser_is_not_asked_for_a_password(browser: httpx.Client) -> None:
    """It would send what it was told on its own, with everything, and for ever."""
    for name, value in (("sec-fetch-mode", "cors"), ("referer", "http://x/"), ("origin", "http://x")):
        answer = browser.get("/charts", headers={name: value, "accept": "*/*"})
        assert (answer.status_code, answer.headers["www-authenticate"].split()[0]) == (401, "Bearer")


def test_nobody_chooses_the_session_of_another(browser: httpx.Client) -> None:
    name = f"spanwise-session-{browser.base_url.port}"
    form = {"key": "reads", "next": "/", "token": token_in(browser.get("/sign-in").text)}
    answer = browser.post("/sign-in", data=form, headers={"cookie": f"{name}=chosen"})
    assert "chosen" not in answer.headers["set-cookie"]
    assert browser.get("/", headers={"cookie": f"{name}=chosen"}).status_code == 303


def test_signing_in_again_ends_the_session_before(browser: httpx.Client, locked: Server) -> None:
    sign_in(browser, "reads")
    before = cookie(browser)
    sign_in(browser, "all")
    assert httpx.get(f"{locked.url}/", headers={**READER, "cookie": before}, timeout=60).status_code == 303


def test_of_two_cookies_of_one_name_none_counts(browser: httpx.Client, locked: Server) -> None:
    """One of them was put there by another host of the domain."""
    sign_in(browser, "reads")
    own = cookie(browser)
    tossed = f"spanwise-session-{locked.port}=x; {own}"
    assert httpx.get(f"{locked.url}/", headers={**READER, "cookie": tossed}, timeout=60).status_code == 303


def test_huge_cookies_are_refused_or_passed_over(browser: httpx.Client, locked: Server) -> None:
    sign_in(browser, "reads")
    own = cookie(browser)
    many = "; ".join(f"c{number}=v" for number in range(3000))
    assert httpx.get(f"{locked.url}/", headers={**READER, "cookie": f"{many}; {own}"}, timeout=60).status_code == 200
    over = httpx.get(f"{locked.url}/", headers={**READER, "cookie": f"{own}; {'x' * 100_000}"}, timeout=60)
    assert over.status_code in (400, 431)


@pytest.mark.parametrize("given", ["/", "/traces/a?b=/c#d", "/sessions/a%2F%2Fb", "/datasets/ü"])
def test_addresses_of_ours_are_gone_on_to(given: str) -> None:
    assert safe_redirect_path(given) == given


@pytest.mark.parametrize(
    "given",
    [
        *(
            "",
            "//evil.test",
            "https://evil.test",
            "/\\evil.test",
            "\\/evil.test",
            "/\t/evil.test",
            "javascript:alert(1)",
        ),
        *(
            "/\n/evil.test",
            "evil.test",
            " //evil.test",
            "///evil.test",
            "/sign-out",
            "/sign-in?next=/",
            "/" + "a" * 9000,
        ),
    ],
)
def test_nobody_is_sent_on_to_another_site(browser: httpx.Client, given: str) -> None:
    assert safe_redirect_path(given) == "/"
    assert sign_in(browser, "reads", given).headers["location"] == "/"


@given(st.text())
def test_whatever_is_given_leads_to_a_path_here(given: str) -> None:
    address = safe_redirect_path(given)
    assert httpx.URL("http://ours.test").join(address).host == "ours.test"


# The sessions themselves


def test_a_session_ends_after_its_time_whatever_the_clock_on_the_wall_says() -> None:
    now = [0.0]
    browser_sessions = BrowserSessions(lambda: now[0])
    id = browser_sessions.begin(b"k")
    now[0] = SESSION_LIFETIME_S - 1
    assert browser_sessions.key_of(id) == b"k"
    now[0] = SESSION_LIFETIME_S
    assert browser_sessions.key_of(id) is None


def test_a_session_of_tls_is_none_in_a_cookie_that_others_could_have_set() -> None:
    browser_sessions = BrowserSessions()
    id = browser_sessions.begin(b"k", secure=True)
    assert browser_sessions.key_of(id) is None
    assert browser_sessions.key_of(id, secure=True) == b"k"
    assert read_session_cookie([(b"cookie", b"__Host-spanwise-session=a; spanwise-session=b")], "h") == ("a", True)


def test_sessions_are_bounded() -> None:
    browser_sessions = BrowserSessions()
    first, other = browser_sessions.begin(b"a"), browser_sessions.begin(b"b")
    for _ in range(MAX_SESSIONS_PER_KEY):
        browser_sessions.begin(b"a")
    assert browser_sessions.key_of(first) is None
    assert browser_sessions.key_of(other) == b"b"
    assert len(browser_sessions._sessions) == MAX_SESSIONS_PER_KEY + 1


def test_no_secret_lies_in_memory_beside_the_hashes() -> None:
    browser_sessions = BrowserSessions()
    id = browser_sessions.begin(b"k")
    assert id not in repr(browser_sessions._sessions)


@loop_over("host", ["a;b", "a:99999999", "[::1", "a:x", "a: 1", "a:1;Domain=evil", "", "a:80\r\nx: y"])
def test_no_host_writes_more_than_its_port_into_the_cookie(host: str) -> None:
    assert re.fullmatch(r"spanwise-session(-\d{1,5})?", build_session_cookie(host, secure=False).name)


@given(st.text(), st.binary(min_size=1))
def test_a_token_is_right_for_its_bond_alone(text: str, bond: bytes) -> None:
    assert is_form_token(make_form_token(bond), bond)
    assert not is_form_token(make_form_token(bond), b"")
    assert not is_form_token(text, bond)
