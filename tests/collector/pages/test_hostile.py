"""Traces are written by whoever speaks to the traced application: their text must stay text."""

import html.parser
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.making import run
from spanwise.collector.records import Document, Event, Example, Experiment, Feedback, Link, Target

EVIL = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'{{7*7}}\x00\u202e\x1b[31m"


class Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def addresses(store):
    """Every text field that a trace can bring is hostile."""
    fields = {
        "inputs": {EVIL: [EVIL]},
        "outputs": EVIL,
        "attributes": {EVIL: EVIL, "gen_ai.input.messages.ref": f"javascript:{EVIL}"},
        "metadata": {EVIL: EVIL},
        "resource": {EVIL: EVIL},
    }
    root = run(
        EVIL,
        kind=EVIL,
        status="error",
        error=EVIL,
        documents=(Document(EVIL, EVIL, 0.5, {EVIL: EVIL}),),
        model=EVIL,
        events=(Event("exception", 1, {"exception.stacktrace": EVIL}), Event(EVIL, 1, {EVIL: EVIL})),
        tags=(EVIL,),
        links=(Link("a" * 32, EVIL),),
        session_id=EVIL,
        user_id=EVIL,
        project=EVIL,
        environment=EVIL,
        prompt_name=EVIL,
        prompt_version=EVIL,
        agent_name=EVIL,
        finish_reasons=(EVIL,),
        time_to_first_token_ms=1.5,
        tools=({EVIL: EVIL},),
        **fields,
    )
    tested = run(EVIL, experiment_id="e1", example_id=Example(inputs=EVIL).id, inputs=EVIL, outputs=EVIL)
    store.append([root, tested])
    target = Target(trace_id=root.trace_id)
    store.add_feedback(
        [
            Feedback(target=target, key=EVIL, label=EVIL, comment=EVIL, author=EVIL, source="human"),
            Feedback(target=target, key="k", outcome="error", error=EVIL),
        ]
    )
    store.save_examples(
        EVIL, [Example(inputs=EVIL, reference_outputs={EVIL: EVIL}, categories=(EVIL,))], description=EVIL
    )
    for id in ("e1", "e2"):
        store.save_experiment(Experiment(id=id, name=EVIL, dataset=EVIL, dataset_version=1))
    return [
        "/",
        "/traces",
        "/traces?traffic=all",
        "/traces?group_by=prompt_version",
        "/traces?group_by=agent",
        f"/traces/{root.trace_id}",
        "/sessions",
        "/datasets",
        "/experiments",
        "/experiments/e1",
        "/compare?ids=e1,e2",
        f"/traces/{quote(EVIL.replace('/', ''))}",
    ]


@pytest.mark.usefixtures("scripts")
def test_nothing_in_a_trace_becomes_an_element_or_a_handler(client, addresses):
    for address in addresses:
        page = Elements()
        page.feed(client.get(address).text)
        scripts = [attrs for tag, attrs in page.found if tag == "script"]
        assert {tuple(attrs) for attrs in scripts} == {("src", "defer")}, address
        assert all((attrs["src"] or "").startswith("/static/") for attrs in scripts), address
        assert not [tag for tag, attrs in page.found if tag == "img" or any(name.startswith("on") for name in attrs)]


def test_control_characters_never_reach_the_page(client, addresses):
    for address in addresses:
        text = client.get(address).text
        assert not set(text) & set("\x00\x1b\u202e"), address
        assert "{{7*7}}" in text or "%7B%7B7" in text or address in ("/sessions",), address


def test_every_answer_forbids_inline_code(client, addresses):
    for address in (*addresses, "/static/spanwise.css", "/static/nothing", "/traces/x"):
        headers = client.get(address).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_no_page_uses_inline_style_or_script(client, addresses):
    for address in addresses:
        page = Elements()
        page.feed(client.get(address).text)
        assert not [tag for tag, attrs in page.found if "style" in attrs or tag == "style"]


def test_addresses_stay_on_this_server(client, addresses):
    for address in addresses:
        page = Elements()
        page.feed(client.get(address).text)
        targets = [attrs.get("href") or attrs.get("src") or attrs.get("action") for _, attrs in page.found]
        assert [target for target in targets if target and not target.startswith(("/", "?", "#"))] == []


@pytest.mark.process
@pytest.mark.parametrize("value", ["\ud800", "x" * 3_000_000, {"deep": [[[[[[1]]]]]]}, 10**40, float("1e308"), True])
def test_odd_values_are_shown(store, client, value):
    root = run(inputs=value)
    store.append([root])
    assert client.get(f"/traces/{root.trace_id}").status_code == 200


FIELDS = (
    "text",
    "project",
    "kind",
    "status",
    "session",
    "user",
    "tag",
    "latency_ms",
    "prompt",
    "prompt_version",
    "agent",
    "finish_reason",
    "time_to_first_token_ms",
    "tokens",
    "cost",
    "feedback_key",
    "feedback_op",
    "feedback_value",
    "range",
    "since",
    "until",
    "cursor",
    "experiment",
    "dataset",
    "traffic",
    "sort",
    "offset",
    "version",
    "ids",
    "key",
    "run",
    "charts",
    "group_by",
    "complete",
)
VALUES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "<",
            "missing",
            "prompt_version",
            "agent",
            "24h",
            "1e999",
            "nan",
            "-1",
            "9" * 30,
            "> 1",
            "e1",
            "2026-01-01",
            "0",
            "true",
        ]
    ),
)


@pytest.mark.process
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(
        [
            "/",
            "/traces",
            "/charts",
            "/sessions",
            "/sessions/x",
            "/datasets",
            "/datasets/d",
            "/experiments",
            "/experiments/e1",
            "/compare",
            "/traces/" + "a" * 32,
        ]
    ),
    query=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5),
)
def test_no_address_is_a_server_error(store, client, path, query):
    if not store.traces(limit=1, experiment="e1").items:
        store.append([run(trace_id="a" * 32), run(experiment_id="e1")])
        store.save_examples("d", [Example(inputs="x")])
        store.save_experiment(Experiment(id="e1", name="e", dataset="d"))
    answer = client.get(path, params={name: value.encode("utf-8", "replace") for name, value in query.items()})
    assert answer.status_code in (200, 400, 404, 422)


@pytest.mark.process
def test_hundreds_of_long_labels_and_comments_make_no_huge_page(store, client):
    root = run(session_id="talk")
    store.append([root])
    target = Target(trace_id=root.trace_id)
    labels = [Feedback(target=target, key=f"key {n}", label="L" * 10_000, comment="c" * 10_000) for n in range(400)]
    store.add_feedback(labels)
    for path, most in (
        (f"/traces/{root.trace_id}", 4.5e6),
        ("/traces", 1e6),
        ("/sessions/talk", 4.5e6),
        (f"/traces/compare?ids={root.trace_id},{root.trace_id}", 9e6),
    ):
        text = client.get(path).text
        assert len(text) < most, path
        assert "L" * 1_000 not in text or "Showing the first 4,000 of 10.0k characters" in text
