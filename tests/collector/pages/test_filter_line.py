"""The filter line: what is typed becomes conditions, and suggestions come from the store."""

from __future__ import annotations

import pytest

from collector.making import run
from spanwise.collector.filters import Filter
from spanwise.collector.pages.components import filter_form
from spanwise.collector.records import Feedback, Target


def read(line: str, *others: tuple[str, str]) -> filter_form.FilterQuery:
    return filter_form.read_query([("where", line), *others], live=False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("depot", Filter(text="depot")),
        ('"in depot" lithi', Filter(text='"in depot" lithi')),
        ("status=error name!=answer", Filter(status="error", excluded=(("name", "answer"),))),
        (
            "feedback.concise<0.5 feedback.tone=kind",
            Filter(feedback=(("concise", "<", 0.5), ("tone", "=", "kind"))),
        ),
        ("feedback=concise>=0.5", Filter(feedback=(("concise", ">=", 0.5),))),
        ("tag=a tags=b metadata.tenant=t1", Filter(tags=("a", "b"), metadata={"tenant": "t1"})),
        ('name="support chat" user=u-1', Filter(name="support chat", user="u-1")),
        ("latency_ms>200 tokens<=5 cost!=1", Filter(latency_ms=(">", 200), tokens=("<=", 5), cost=("!=", 1))),
        ("missing=concise failed=tone", Filter(missing=("concise",), failed=("tone",))),
        ('"a=b" https://x.example/?a=b', Filter(text='"a=b" https://x.example/?a=b')),
        ("don't \"open", Filter(text="don't \" open")),
        ("", Filter()),
    ],
)
def test_a_line_has_the_grammar_of_the_command_line(line, expected):
    query = read(line)
    assert (query.filter, query.problems) == (expected, ())


def test_a_line_adds_to_the_conditions_and_overrides_single_ones():
    query = read("tag=b status=ok since=1h", ("tag", "a"), ("status", "error"), ("since", "7d"))
    assert (query.filter.tags, query.filter.status, query.fields["since"]) == (("a", "b"), "ok", "1h")


def test_the_line_keeps_its_words_and_what_is_wrong_with_it():
    query = read('statsu=error x.y<5 "in depot" name=answer')
    assert query.line == 'statsu=error x.y<5 "in depot"'
    assert "did you mean 'status'?" in query.problems[0]
    assert read(query.line, ("name", "answer")).filter == query.filter


def test_an_address_has_conditions_instead_of_the_line():
    assert read('status=error "in depot"').address() == "/traces?status=error&text=%22in+depot%22"


@pytest.mark.parametrize("line", ["x" * 10_000, '"' * 10_000, "tag=a " * 1_500, "a.b=" * 2_500, "feedback.k<" * 900])
def test_a_line_of_ten_kilobytes_is_read_or_refused(client, line):
    answer = client.get("/traces", params={"where": line})
    assert answer.status_code in (200, 422)


@pytest.mark.parametrize(
    ("given", "since", "until"),
    [
        ("2026-01-02T03:04/2026-01-03", "2026-01-02T03:04", "2026-01-03"),
        ("/2026-01-03", None, "2026-01-03"),
        ("2026-01-02/", "2026-01-02", None),
        ("/", None, None),
    ],
)
def test_the_choice_of_a_range_has_both_ends(given, since, until):
    fields = filter_form.read_query([("since", given)]).fields
    assert (fields.get("since"), fields.get("until")) == (since, until)


def test_a_range_that_is_set_is_a_choice_of_the_form(client):
    page = client.get("/traces?since=2026-01-02T03:04&until=2026-01-03").text
    assert '<option value="2026-01-02T03:04/2026-01-03" selected>' in page
    assert 'type="datetime-local" name="since" value="2026-01-02T03:04:00"' in page
    assert 'type="datetime-local" name="until" value="2026-01-03T00:00:00"' in page


@pytest.fixture
def stored(store):
    tenants = ("t1", "t 2", True, 5)
    roots = [run("answer", metadata={"tenant": tenant}, tags=("beta",), project="shop") for tenant in tenants]
    roots.append(run("other", metadata={"region": "eu"}, project="depot", user_id="<b>"))
    store.append(roots)
    store.add_feedback(
        [
            Feedback(target=Target(trace_id=roots[0].trace_id), key="faithful", score=1),
            Feedback(target=Target(trace_id=roots[4].trace_id), key="concise", score=1),
        ]
    )
    return store


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("stat", ["status="]),
        ("status=e", ["status=error", "status=unset", "status=cancelled"]),
        ("tag=", ["tag=beta"]),
        ("tags=be", ["tags=beta"]),
        ("name!=a", ["name!=answer"]),
        ("feedback.", ["feedback.concise<", "feedback.faithful<"]),
        ("feedback.FAITH", ["feedback.faithful<"]),
        ("missing=", ["missing=concise", "missing=faithful"]),
        ("metadata.", ["metadata.region=", "metadata.tenant="]),
        (
            "metadata.tenant=",
            ["metadata.tenant=5", 'metadata.tenant="t 2"', "metadata.tenant=t1", "metadata.tenant=true"],
        ),
        ("metadata.none=", []),
        ("latency_ms>", []),
        ("latency_ms>=5", []),
        ("nothing=", []),
        ("user=<", ["user=<b>"]),
        ("any_kind=", ["any_kind=chain"]),
    ],
)
def test_suggestions_complete_the_term(stored, typed, expected):
    found = [item.text for item in filter_form.suggest(stored, typed)]
    assert found == expected


@pytest.mark.parametrize("typed", ["metadata.", "feedback.", "tag=", "name=", "user", "metadata.tenant=t"])
def test_every_suggestion_is_read_as_a_condition(stored, typed):
    for item in filter_form.suggest(stored, typed):
        completed = item.text + ("1" if item.text[-1] in "<>" else "x" if item.text.endswith("=") else "")
        assert read(completed).problems == (), completed


def test_suggestions_are_those_of_the_project(client, stored):
    for project, keys in (("shop", ["metadata.tenant="]), ("depot", ["metadata.region="]), ("", None)):
        answer = client.get("/traces/suggestions", params={"term": "metadata.", "project": project})
        assert [item["text"] for item in answer.json()] == (keys or ["metadata.region=", "metadata.tenant="])


def test_a_long_term_is_cut_and_four_hundred_keys_are_a_dozen(client, store):
    store.append([run(metadata={f"key-{number:03}": "v" for number in range(400)})])
    assert len(client.get("/traces/suggestions", params={"term": "metadata."}).json()) == filter_form.MAX_SUGGESTIONS
    found = client.get("/traces/suggestions", params={"term": "metadata.key-39"}).json()
    assert found[0]["text"] == "metadata.key-390="
    assert client.get("/traces/suggestions", params={"term": "tag=" + "x" * 9_000}).json() == []


@pytest.mark.parametrize("field", ["prompt", "prompt_version", "agent", "finish_reason", "group_by", "sort"])
def test_a_field_of_the_form_is_not_kept_beside_itself(field):
    value = {"group_by": "name", "sort": "-cost"}.get(field, "x")
    query = filter_form.read_query([(field, value)])
    assert field not in dict(query.kept())


def test_of_repeated_fields_the_form_keeps_all_but_the_one_it_shows():
    query = filter_form.read_query([("metadata", "a=1"), ("metadata", "b=2"), ("tag", "x"), ("tag", "y")])
    assert query.kept() == [("metadata", "a=1"), ("tag", "x")]


def test_the_order_survives_filtering_and_paging(client, store):
    store.append([run(f"n{number}") for number in range(60)])
    page = client.get("/traces?sort=-latency_ms").text
    assert '<option value="-latency_ms" selected>' in page
    following = page.split('rel="next" href="')[1].split('"')[0]
    assert "sort=-latency_ms" in following
    assert client.get(following.replace("&amp;", "&")).status_code == 200


def test_the_form_offers_the_feedback_keys_of_the_project(client, stored):
    def list_keys(address):
        page = client.get(address).text
        found = page[page.index('<datalist id="keys">') :].split("</datalist>")[0]
        return [part.split('"')[0] for part in found.split('value="')[1:]]

    assert list_keys("/traces") == ["concise", "faithful"]
    assert list_keys("/traces?project=shop") == ["faithful"]
    assert list_keys("/traces?project=nothing") == []


@pytest.mark.parametrize(
    ("order", "label"),
    [
        ("-latency_ms", "slowest first"),
        ("-feedback.faithful", "faithful, highest first"),
        ("feedback.-a", "-a, lowest first"),
        ("tokens", "tokens, lowest first"),
    ],
)
def test_an_order_is_named_on_its_chip(order, label):
    assert [mark.value for mark in filter_form.read_query([("sort", order)]).marks()] == [label]
