"""A server on ClickHouse: a key of one project, hostile text in every parameter, and streamed traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import cast

import httpx
import pytest

from collector.clickhouse_server import ClickHouseServer
from collector.making import child, run
from collector.odd_traces import HOSTILE
from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import NotFound, StoreError
from spanwise.collector.records import Feedback, Key, Target
from spanwise.collector.server import Server
from spanwise.collector.stores import CombinedStore, Store
from spanwise.collector.stores.clickhouse import ClickHouseTraces
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteControl

pytestmark = pytest.mark.process

SECRET = "key-of-the-shop"
OWN, OTHER = "1" * 32, "2" * 32


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, clickhouse_server: ClickHouseServer) -> Iterator[str]:
    control = SQLiteControl(DatabaseFile(tmp_path_factory.mktemp("keys") / "control.db"))
    with (
        clickhouse_server.database() as database,
        closing(CombinedStore(ClickHouseTraces(database), control)) as combined,
    ):
        store = cast(Store, combined)
        store.save_key(Key(id="k", name="shop", sha256=sha256(SECRET.encode()).hexdigest(), project="shop"))
        own = run("own", trace_id=OWN, project="shop", session_id="s", inputs="a parcel")
        other = run("other", trace_id=OTHER, project="bank", session_id="s", inputs="a parcel", tags=("secret",))
        feedback = [Feedback(target=Target(trace_id=id), key="good", score=1.0) for id in (OWN, OTHER)]
        store.append([own, child(own, project="shop"), other], feedback)
        with Server(store, require_key=True) as server:
            yield server.url


def test_a_key_of_one_project_reads_its_traces_alone(url: str) -> None:
    with HTTPStore(url, api_key=SECRET) as store:
        for conditions in ({}, {"text": "parcel"}, {"session": "s"}, {"trace_ids": (OWN, OTHER)}, {"project": "shop"}):
            assert [trace.trace_id for trace in store.traces(**conditions)] == [OWN]
            assert [trace.trace_id for trace in store.traces(sort="-latency_ms", **conditions)] == [OWN]
        assert [bucket.traces for bucket in store.aggregate()] == [1]
        assert [(one.session_id, one.traces) for one in store.sessions()] == [("s", 1)]
        assert [one.target.trace_id for one in store.feedbacks()] == [OWN]
        assert (store.values("tag"), store.values("project")) == ([], ["shop"])
        assert store.trace(OWN).root.name == "own"


def test_traces_of_another_project_are_not_found(url: str) -> None:
    with HTTPStore(url, api_key=SECRET) as store:
        for ask in (store.trace, store.tree, store.runs, store.run):
            with pytest.raises(NotFound):
                ask(OTHER)
        assert store.many([OTHER, OWN])[0].trace_id == OWN
        with pytest.raises(StoreError):
            store.traces(project="bank")
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {SECRET}"}) as client:
        assert "secret" not in client.get(f"/traces/{OTHER}").text


@pytest.mark.parametrize("text", HOSTILE)
def test_text_that_means_something_in_sql_is_compared_as_text(url: str, text: str) -> None:
    headers = {"authorization": f"Bearer {SECRET}"}
    with httpx.Client(base_url=url, headers=headers) as client:
        for name in ("name", "session", "user", "any_name", "model", "prompt", "agent", "version", "tags", "error"):
            answer = client.get("/api/traces", params={name: text})
            assert (answer.status_code, answer.json()["items"]) == (200, []), name
        for name, value in (("feedback", f"{text}=x"), ("metadata", f"{text}=x"), ("cursor", text), ("sort", text)):
            assert client.get("/api/traces", params={name: value}).status_code in (200, 400), name
        assert [one["trace_id"] for one in client.get("/api/traces").json()["items"]] == [OWN]
    with HTTPStore(url, api_key=SECRET) as store:
        if "/" not in text:  # the path of the address names the field
            assert store.values(f"metadata.{text}") == []
        assert store.feedbacks(key=text).items == ()
