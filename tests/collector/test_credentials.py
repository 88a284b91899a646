"""The key of a request in every spelling of the vendors' SDKs, malformed ones, and two that differ."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.collector.errors import Refused
from spanwise.collector.security import extract_key
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


def basic(text: str | bytes) -> str:
    return "Basic " + base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


SPELLINGS = {
    "ours": ("authorization", "Bearer K-1"),
    "in capitals": ("authorization", "BEARER  K-1"),
    "Opik, MLflow, Logfire": ("authorization", "K-1"),
    "LangSmith": ("x-api-key", "K-1"),
    "Phoenix": ("api_key", "K-1"),
    "Langfuse": ("authorization", basic("pk-lf-1:K-1")),
    "without a name": ("authorization", basic(":K-1")),
}


@loop_over("sent", SPELLINGS.values(), ids=SPELLINGS)
def test_a_key_is_found_in_each_spelling_as_bytes_and_as_text(sent: tuple[str, str]) -> None:
    name, value = sent
    assert extract_key([(name, value)]) == extract_key([(name.encode(), value.encode())]) == "K-1"
    assert extract_key([("content-type", "x"), (name, value), ("x-b3-traceid", b"K-2")]) == "K-1"


@loop_over(
    "value",
    [
        *("", " ", "Bearer", "Bearer ", "Basic", "Basic !", "Basic /w==", "Basic abc", "Digest K", "a b c"),
        *(b"Basic \xe9", basic("no colon"), basic("name:")),
    ],
)
def test_what_is_malformed_is_no_key(value: str | bytes) -> None:
    assert extract_key([("authorization", value)]) is None
    assert extract_key([("authorization", value), ("x-api-key", "K-1")]) == "K-1"


def test_a_password_may_hold_colons_and_letters_of_any_language() -> None:
    assert extract_key([("authorization", basic("a:b:ü"))]) == "b:ü"
    assert extract_key([(b"x-api-key", "ü".encode())]) == extract_key([(b"x-api-key", "ü".encode("latin-1"))]) == "ü"


def test_the_same_key_twice_is_one() -> None:
    assert extract_key([("api_key", "K-1"), ("authorization", "Bearer K-1"), ("authorization", "K-1")]) == "K-1"


def test_of_two_that_differ_neither_is_taken() -> None:
    with pytest.raises(
        Refused, match="the request has two different API keys, in 'authorization' and 'x-api-key'; send only one"
    ) as e:
        extract_key([(b"x-api-key", b"K-1"), (b"authorization", b"Bearer K-2")])
    assert "K-" not in str(e.value)
    with pytest.raises(Refused):
        extract_key([("authorization", "Bearer K-1"), ("authorization", "Bearer K-2")])


@pytest.mark.process
@given(st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"api_key", b"cookie"]), st.binary())))
def test_whatever_comes_is_a_key_or_none_or_refused(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        found = extract_key(headers)
    except Refused:
        return
    assert found is None or found


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("keys") / "spanwise.db"
    with SQLiteStore(path) as store, Server(store, host="0.0.0.0", api_key="K-1") as server:
        yield server


@pytest.mark.process
@pytest.mark.parametrize("sent", SPELLINGS.values(), ids=SPELLINGS)
def test_a_server_takes_a_key_in_each_spelling(locked: Server, sent: tuple[str, str]) -> None:
    assert httpx.get(f"{locked.url}/api/count", headers=[sent], timeout=60).status_code == 200


def test_a_server_answers_two_keys_with_401(locked: Server) -> None:
    sent = [("authorization", "Bearer K-1"), ("x-api-key", "K-2")]
    answer = httpx.get(f"{locked.url}/api/count", headers=sent, timeout=60)
    assert answer.status_code == 401
    assert "two different API keys" in answer.json()["message"]
