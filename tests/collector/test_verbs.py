"""A verb is a method of a Protocol, one of a store, and a row of a table: here of shops, to which nobody gave routes."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from spanwise.collector.api.http_conversion import install_error_handlers
from spanwise.collector.api.routes import extra_route, install_routes, operation_routes
from spanwise.collector.client import HTTPStore
from spanwise.collector.client.http_client import HTTPTransport, send_operation
from spanwise.collector.errors import NotFound, Refused, Unavailable
from spanwise.collector.filters import Filter
from spanwise.collector.ingest import Limits, Receiver
from spanwise.collector.operations import (
    PROJECT_SCOPES,
    REQUIRED,
    ControlOperations,
    Operation,
    TraceOperations,
    list_operations,
    store_operation,
)
from spanwise.collector.query_scheduler import QueryScheduler
from spanwise.collector.records import Key, Rule, Target
from spanwise.collector.stores import ControlStore, TraceStore


class Shop(Protocol):
    """What the tests ask of a shop."""

    def shoe(self, name: str, size: int = 42, *, sole: str | None = None) -> Mapping[str, str]:
        """One shoe. Raises `NotFound`.

        Not told to readers of the API.
        """

    def shoes(self, *, limit: int = 10, worn: bool = False, owner: Target | None = None) -> list[str]: ...

    def boxes(self, status: str | None = "full") -> list[str]: ...

    def find(self, filter: Filter | None = None, *, key: str = "k", **conditions: object) -> list[str]: ...

    def add(self, names: Sequence[str]) -> None: ...

    def many(self, names: Sequence[str]) -> list[str]: ...

    def count_of(self, names: Sequence[str]) -> int: ...

    def wear(self, name: str, times: int, why: str | None = None) -> bool:
        """Walk."""
        ...

    def keep(self, key: Key) -> None: ...

    def save(self, *rules: Rule) -> None: ...

    def change(self, name: str, **fields: Any) -> Rule: ...

    def throw_away(self, name: str) -> bool: ...

    def clear(self, *, before: int | None = None) -> int: ...

    def sweep(self) -> int: ...


class Shops:
    """The table: that, the Protocol and a store are the three places of a verb."""

    shoe = store_operation(Shop.shoe, "GET /api/shoes/{name:path}", "shoes")
    shoes = store_operation(Shop.shoes, "GET /api/shoes", "shoes")
    boxes = store_operation(Shop.boxes, "GET /api/boxes", "shoes")
    find = store_operation(Shop.find, "GET /api/find", "shoes")
    add = store_operation(Shop.add, "POST /api/shoes", "shoes", batch=2)
    many = store_operation(Shop.many, "POST /api/many", "shoes", batch=2)
    count_of = store_operation(Shop.count_of, "DELETE /api/shoes", "shoes", alias={"names": "name"}, batch=2)
    wear = store_operation(
        Shop.wear,
        "POST /api/shoes/{name:path}",
        "shoes",
        wire={"times": (Literal[1, 2], REQUIRED)},
        permission="ingest",
    )
    keep = store_operation(Shop.keep, "POST /api/keep", "shoes")
    save = store_operation(Shop.save, "POST /api/rules", "shoes")
    change = store_operation(Shop.change, "PATCH /api/rules/{name}", "shoes")
    throw_away = store_operation(Shop.throw_away, "DELETE /api/shoes/{name}", "shoes")
    clear = store_operation(Shop.clear, "DELETE /api/boxes", "shoes")
    sweep = store_operation(Shop.sweep, "POST /api/sweep", "shoes", count="dust", client_timeout=False)


class Kept:
    """A shop that notes what it is asked and answers what it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answer: Any = None

    def __getattr__(self, name: str) -> Any:
        def asked(*args: Any, **given: Any) -> Any:
            self.asked.append((name, args, given))
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return asked


class Client(Shops):
    """The methods of the table over HTTP."""

    def __init__(self, url: str) -> None:
        self.transport = HTTPTransport(url, None)

    def _send(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return send_operation(self.transport, operation, args, kwargs)


RULE = Rule(name="r", version="1", evaluators=())
KEY = Key(id="i", name="n", sha256="s")


def try_on(store: Kept, name: str, times: int) -> str:
    """Try a shoe on."""
    return f"{store.shoe(name)} {times}"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Kept, str, FastAPI]]:
    app, store = FastAPI(), Kept()
    app.state.store, app.state.query_scheduler = store, QueryScheduler()
    install_routes(app, [extra_route(try_on, "GET /api/try", "shoes"), *operation_routes(Shops)])
    app.state.receiver = Receiver(store, limits=Limits(pending_bytes=10**6))
    install_error_handlers(app)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield store, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", app
    server.should_exit = True
    thread.join()


@pytest.fixture
def shop(served: tuple[Kept, str, FastAPI]) -> Kept:
    served[0].asked.clear()
    return served[0]


@pytest.fixture
def client(served: tuple[Kept, str, FastAPI]) -> Iterator[Client]:
    made = Client(served[1])
    yield made
    made.transport.close()


@pytest.fixture
def api(served: tuple[Kept, str, FastAPI]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served[1], timeout=60) as made:
        yield made


# What the client is asked, the store is asked


@pytest.mark.parametrize(
    ("name", "args", "given", "asked", "answer"),
    [
        ("shoe", ("a/b c%",), {}, (("a/b c%", 42), {"sole": None}), {"k": "v"}),
        ("shoe", ("a",), {"size": 1, "sole": "x&y"}, (("a", 1), {"sole": "x&y"}), {}),
        ("shoes", (), {}, ((), {"limit": 10, "worn": False, "owner": None}), ["a"]),
        ("shoes", (), {"worn": True, "limit": 1}, ((), {"limit": 1, "worn": True, "owner": None}), []),
        ("boxes", (), {}, (("full",), {}), []),
        ("boxes", ("empty",), {}, (("empty",), {}), []),
        ("boxes", (None,), {}, ((None,), {}), []),
        ("find", (), {}, ((Filter(),), {"key": "k"}), ["a"]),
        ("find", (), {"name": "n", "tags": ["t"], "key": "x"}, ((Filter(name="n", tags=("t",)),), {"key": "x"}), []),
        ("find", (Filter(user="u"),), {"name": "n"}, ((Filter(user="u", name="n"),), {"key": "k"}), []),
        ("wear", ("a/b", 2), {"why": "rain"}, (("a/b", 2, "rain"), {}), True),
        ("wear", ("a", 1), {}, (("a", 1, None), {}), False),
        ("keep", (KEY,), {}, ((KEY,), {}), None),
        ("save", (RULE,), {}, ((RULE,), {}), None),
        ("save", (RULE, RULE), {}, ((RULE, RULE), {}), None),
        ("save", (), {}, ((), {}), None),
        ("change", ("r",), {"enabled": False}, (("r",), {"enabled": False}), RULE),
        ("change", ("r",), {}, (("r",), {}), RULE),
        ("throw_away", ("a",), {}, (("a",), {}), True),
        ("throw_away", ("a",), {}, (("a",), {}), False),
        ("clear", (), {}, ((), {"before": None}), 3),
        ("clear", (), {"before": 2**62}, ((), {"before": 2**62}), 0),
        ("sweep", (), {}, ((), {}), 7),
    ],
)
def test_a_verb_goes_there_and_back(
    shop: Kept, client: Client, name: str, args: Any, given: Any, asked: Any, answer: Any
) -> None:
    shop.answer = answer
    returned = getattr(client, name)(*args, **given)
    assert shop.asked == [(name, *asked)]
    assert (returned, type(returned)) == (answer, type(answer))


def test_a_record_travels_in_the_query_string(shop: Kept, client: Client) -> None:
    shop.answer, owner = [], Target(session_id="s")
    client.shoes(owner=owner)
    assert shop.asked[0][2]["owner"] == owner


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_a_list_goes_in_batches(shop: Kept, client: Client, count: int) -> None:
    shop.answer, names = ["x"], [str(n) for n in range(count)]
    assert client.many(names) == ["x"] * len(shop.asked)
    assert [list(args[0]) for _, args, _ in shop.asked] == [names[at : at + 2] for at in range(0, count, 2)]


def test_counts_of_batches_are_added(shop: Kept, client: Client) -> None:
    shop.answer = 2
    assert client.count_of(["a", "b", "c"]) == 4
    assert [args for _, args, _ in shop.asked] == [(["a", "b"],), (["c"],)]
    assert client.count_of([]) == 0


def test_what_returns_nothing_returns_none(shop: Kept, client: Client) -> None:
    shop.answer = None
    assert client.add(["a", "b", "c"]) is None  # type: ignore[func-returns-value]
    assert len(shop.asked) == 2


@pytest.mark.parametrize("error", [NotFound("no"), Refused("no"), Unavailable("no", 3)])
def test_what_the_store_raises_the_client_raises(shop: Kept, client: Client, error: Exception) -> None:
    shop.answer = error
    with pytest.raises(type(error), match=r"^no$") as raised:
        client.clear()
    assert type(raised.value) is type(error)
    assert getattr(raised.value, "retry_after", 3) == 3


def test_there_was_none_if_it_is_not_found(shop: Kept, client: Client) -> None:
    shop.answer = NotFound("no")
    assert client.throw_away("a") is False
    with pytest.raises(NotFound):
        client.wear("a", 1)


def test_arguments_that_the_verb_does_not_take(client: Client) -> None:
    with pytest.raises(TypeError, match=r"shoe\(\) got an unexpected keyword argument 'nmae'"):
        client.shoe("a", nmae="a")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["conditions", "filters"])
def test_a_condition_of_an_unknown_name(client: Client, name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown condition '{name}'"):
        client.find(**{name: {"name": "n"}})


def test_a_field_of_an_unknown_name(client: Client) -> None:
    with pytest.raises(Refused, match="unknown field `fields`"):
        client.change("r", fields={"enabled": True})


@pytest.mark.parametrize(
    ("args", "given", "told"),
    [
        (("a",), {"name": "b"}, "multiple values for argument 'name'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        ((), {"size": 1}, "missing a required argument: 'name'"),
        ((), {"nmae": "a"}, "missing a required argument: 'name'"),
    ],
)
def test_wrong_arguments_are_told_as_of_a_function(client: Client, args: Any, given: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        client.shoe(*args, **given)


# What people ask of the API


@pytest.mark.parametrize(
    ("method", "path", "body", "answer"),
    [
        ("POST", "/api/shoes", ["a", "b"], {"stored": 2}),
        ("POST", "/api/shoes/a", {"times": 1, "unknown": 5}, True),
        ("POST", "/api/sweep", None, {"dust": 1}),
        ("DELETE", "/api/shoes/a", None, {"deleted": 1}),
        ("DELETE", "/api/shoes?name=a&name=b", None, {"deleted": 1}),
        ("DELETE", "/api/boxes?before=5", None, {"deleted": 1}),
    ],
)
def test_answers(shop: Kept, api: httpx.Client, method: str, path: str, body: Any, answer: Any) -> None:
    shop.answer = True
    assert api.request(method, path, json=body).json() == answer


def test_what_was_kept_is_answered(shop: Kept, api: httpx.Client) -> None:
    rule = {"name": "r", "version": "1", "evaluators": []}
    assert api.post("/api/rules", json=rule).json()["name"] == "r"
    assert [made["version"] for made in api.post("/api/rules", json=[rule, rule]).json()] == ["1", "1"]
    assert api.post("/api/keep", json={"id": "i", "name": "n", "sha256": "s"}).json()["scopes"] == ["read", "write"]


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("POST", "/api/shoes/a", {}, "times"),
        ("POST", "/api/shoes/a", {"times": 3}, "times"),
        ("POST", "/api/rules", {"name": "r"}, "version"),
        ("PATCH", "/api/rules/r", {"version": "2"}, "version"),
        ("PATCH", "/api/rules/r", {"enabled": "x"}, "enabled"),
        ("GET", "/api/shoes?limit=0", None, "limit"),
        ("GET", "/api/shoes?limit=1000001", None, "limit"),
        ("GET", "/api/shoes?owner={}", None, "exactly one"),
        ("GET", "/api/shoes?worn=perhaps", None, "worn"),
        ("GET", f"/api/shoes/a?size={2**63}", None, "size"),
        ("GET", "/api/find?nmae=x", None, "did you mean"),
        ("DELETE", "/api/shoes", None, "name"),
    ],
)
def test_what_is_not_asked_for_is_told(
    shop: Kept, api: httpx.Client, method: str, path: str, body: Any, told: str
) -> None:
    answer = api.request(method, path, json=body)
    assert (answer.status_code, shop.asked) == (400, [])
    assert told in answer.json()["message"]


def test_conditions_are_written_out_or_a_filter(shop: Kept, api: httpx.Client) -> None:
    shop.answer = []
    api.get("/api/find?name=n&key=x")
    api.get('/api/find?filter={"name":"n"}&key=x')
    assert shop.asked == [("find", (Filter(name="n"),), {"key": "x"})] * 2


def test_a_handler_of_its_own(shop: Kept, api: httpx.Client) -> None:
    shop.answer = "left"
    assert api.get("/api/try", params={"name": "a", "times": 2}).json() == "left 2"
    assert try_on(shop, "a", 3) == "left 3"  # and alone


def test_the_table_describes_the_api(served: tuple[Kept, str, FastAPI]) -> None:
    paths = served[2].openapi()["paths"]
    assert paths["/api/shoes/{name}"]["get"]["description"] == "One shoe."
    assert paths["/api/shoes/{name}"]["post"]["description"] == "Walk."
    assert paths["/api/shoes"]["get"]["tags"] == ["shoes"]


# The tables of the stores


def test_what_a_row_says() -> None:
    rows = {call.name: call for call in list_operations(Shops)}
    assert [rows[name].permission for name in ("shoe", "add", "wear")] == ["read", "write", "ingest"]
    assert [rows[name].client_timeout for name in ("sweep", "clear")] == [False, True]
    assert (rows["shoe"].body_type, rows["shoe"].response_type) == (None, Mapping[str, str])
    assert [rows[name].response_type for name in ("sweep", "keep", "add")] == [dict[str, int], Key, dict[str, int]]


@pytest.mark.parametrize(("table", "protocol"), [(TraceOperations, TraceStore), (ControlOperations, ControlStore)])
def test_every_verb_of_a_store_is_a_row(table: type, protocol: type) -> None:
    names = {name for name, member in vars(table).items() if hasattr(member, "operation")}
    methods = {name for name, member in vars(protocol).items() if inspect.isfunction(member) and name[0] != "_"}
    assert names == methods - {"close", "feedback", "each", "to_pandas"}
    assert names == {call.name for call in list_operations(table)}


def test_the_project_scope_of_a_row_fits_its_verb() -> None:
    for name, scope in PROJECT_SCOPES.items():
        verb = getattr(TraceStore, name, None) or getattr(ControlStore, name)
        arguments = list(inspect.signature(verb).parameters)[1:]
        assert {
            "filter": {"filter", "conditions"} <= set(arguments),
            "argument": "project" in arguments,
            "trace": arguments[:1] == ["trace_id"],
            "method": True,
            "forbidden": True,
        }[scope], name


@pytest.mark.parametrize("name", ["traces", "dataset", "claim"])
def test_a_method_of_the_client_looks_like_the_verb(name: str) -> None:
    protocol = TraceStore if hasattr(TraceStore, name) else ControlStore
    method, promised = getattr(HTTPStore, name), getattr(protocol, name)
    assert inspect.signature(method) == inspect.signature(promised)
    assert (method.__name__, method.__doc__) == (name, promised.__doc__)


def test_what_may_take_long_is_waited_for() -> None:
    patient = {
        call.name
        for table in (TraceOperations, ControlOperations)
        for call in list_operations(table)
        if not call.client_timeout
    }
    assert patient == {"delete", "delete_feedback", "prune", "vacuum"}
