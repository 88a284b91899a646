"""The top of a trace, its tree, its media and its copies, as the server renders them."""

import base64
import json
import re

import pytest

from collector.deciding import ruled, traced
from collector.making import child, run
from collector.pages.scene import STACK, rag
from spanwise.collector.records import Document, Event, Feedback, RuleSettings, Target, Usage

PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)


def words(text):
    """The visible words of a page."""
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def image(data=PNG, media_type="image/png"):
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{base64.b64encode(data).decode()}"}}


def with_image(store, *parts):
    root = run(kind="llm", inputs=[{"role": "user", "content": [{"type": "text", "text": "What?"}, *parts]}])
    store.append([root])
    return f"/traces/{root.trace_id}", f"/traces/{root.trace_id}/runs/{root.span_id}/media/inputs"


def test_question_answer_and_documents_come_before_the_tree(store, client):
    root = run(inputs={"question": "Why?", "locale": "de"}, outputs="Because of this [1].")
    documents = (Document("A reason.", "doc-1", 0.9), Document("Another.", "doc-2", 0.4))
    retrieve = child(root, "retrieve", kind="retriever", documents=documents)
    store.append([root, retrieve])
    target = Target(trace_id=root.trace_id, span_id=retrieve.span_id, document=1)
    store.add_feedback([Feedback(target=target, key="relevant", score=0.125)])
    text = words(client.get(f"/traces/{root.trace_id}").text)
    top = text[: text.index("Add feedback")]
    for shown in (
        "Question Why?",
        "Answer",
        "Because of this [1].",
        "1 doc-1 0.9 cited",
        "2 doc-2 0.4",
        "relevant 0.125",
    ):
        assert shown in top


def test_an_answer_is_in_the_first_kilobytes_despite_a_long_prompt(store, client):
    root = run(kind="llm", inputs=[{"role": "user", "content": "word " * 100_000}], outputs="The answer.")
    store.append([root])
    detail = client.get(f"/traces/{root.trace_id}").text.partition('id="detail"')[2]
    assert detail.index("The answer.") < 2_500
    assert detail.index("The answer.") < detail.index("word word")


def test_a_model_call_shows_its_answer_then_this_turn(store, client):
    chat = [{"role": ("user", "assistant")[n % 2], "content": f"message-{n}"} for n in range(45)]
    root = run(kind="llm", inputs=chat, outputs=[{"role": "assistant", "content": "the answer"}])
    store.append([root])
    detail = client.get(f"/traces/{root.trace_id}").text.partition('id="detail"')[2]
    assert "44 earlier messages" in detail
    assert detail.index("the answer") < detail.index("44 earlier messages") < detail.index("message-44")


def test_a_tool_call_leads_to_the_run_of_its_tool(store, client):
    call = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": '{"number": "P1"}'}}
    root = run(kind="agent")
    llm = child(root, "chat", kind="llm", outputs=[{"role": "assistant", "content": None, "tool_calls": [call]}])
    tool = child(root, "execute track", kind="tool", attributes={"gen_ai.tool.call.id": "c1"}, outputs="in Ghent")
    other = child(root, "track", kind="tool", attributes={"gen_ai.tool.call.id": "c2"})
    store.append([root, llm, tool, other])
    text = client.get(f"/traces/{root.trace_id}?run={llm.span_id}").text
    assert f'<a href="?run={tool.span_id}">Open its run</a>' in text


def test_an_error_on_the_root_shows_where_it_began_with_its_stack(store, client):
    root = run(status="error", error="RuntimeError: no answer")
    first = child(root, "retry 1", status="error", error="TimeoutError: slow", end_ns=root.start_ns + 5)
    step = child(root, "step", status="error", error="ValueError: no")
    events = (Event("exception", 1, {"exception.stacktrace": STACK}),)
    origin = child(step, "deep", status="error", error="ValueError: no", events=events)
    store.append([root, first, step, origin])
    page = client.get(f"/traces/{root.trace_id}").text
    assert f'<a href="?run={origin.span_id}">began in deep</a>' in page
    assert "Stack trace of deep" in page
    assert "answer.py" in page


def test_the_number_of_failed_runs_leads_to_the_first(store, client):
    root = run()
    failed = [child(root, f"f{n}", status="error", error="no", start_ns=root.start_ns + 10 + n) for n in range(3)]
    store.append([root, child(root, "fine"), *failed])
    page = client.get(f"/traces/{root.trace_id}").text
    assert f'<a class="bad" href="?run={failed[0].span_id}">3 failed</a>' in page
    middle = client.get(f"/traces/{root.trace_id}?run={failed[1].span_id}").text
    assert re.search(rf'run={failed[0].span_id}" data-error="previous"', middle)
    assert re.search(rf'run={failed[2].span_id}" data-error="next"', middle)


def names(page):
    return re.findall(r'<span class="name" dir="auto">([^<]+)</span>', page)


@pytest.fixture
def forest(store):
    root = run("root")
    agent = child(root, "agent", kind="agent", usage=Usage(30, 12), cost=0.5)
    llm = child(agent, "chat", kind="llm", usage=Usage(10, 2), cost=0.25)
    second = child(agent, "again", kind="llm", usage=Usage(20, 10), cost=0.25, start_ns=root.start_ns + 9)
    tool = child(root, "tool", kind="tool", status="error", error="no", start_ns=root.start_ns + 20)
    store.append([root, agent, llm, second, tool])
    return root, agent, llm, tool


def test_the_tree_shows_errors_only_or_some_kinds_with_the_runs_above(client, forest):
    root, *_ = forest
    assert names(client.get(f"/traces/{root.trace_id}?only=errors").text) == ["root", "tool"]
    assert names(client.get(f"/traces/{root.trace_id}?kind=llm").text) == ["root", "agent", "chat", "again"]
    assert names(client.get(f"/traces/{root.trace_id}?kind=llm&kind=tool&only=errors").text) == ["root", "tool"]


def test_a_folded_run_hides_what_is_below_unless_it_is_selected(client, forest):
    root, agent, llm, _ = forest
    page = client.get(f"/traces/{root.trace_id}?fold={agent.span_id}").text
    assert names(page) == ["root", "agent", "tool"]
    assert "2 folded" in page
    assert f'href="?run={root.span_id}&amp;fold={agent.span_id}"' in page  # links keep the fold
    assert "chat" in names(client.get(f"/traces/{root.trace_id}?fold={agent.span_id}&run={llm.span_id}").text)


def test_tokens_and_cost_of_a_run_include_those_below_once(client, forest):
    root, *_ = forest
    spent = re.findall(r'<span class="spent"[^>]*>([^<]+)<', client.get(f"/traces/{root.trace_id}").text)
    assert spent == ["42 tok · $0.50", "42 tok · $0.50", "12 tok · $0.25", "30 tok · $0.25"]


def test_a_rule_says_in_a_sentence_that_it_did_not_sample(store, client):
    ruled(store, name="short", settings=RuleSettings(sample_rate=0.0))
    [head] = traced(store)
    text = words(client.get(f"/traces/{head.trace_id}").text)
    assert "Sampled out: 0 % of traces are sampled, this one was not." in text
    assert text.index("Sampled out:") < text.index("Sample: u 0.")


def test_the_choice_of_raw_values_is_remembered_without_scripts(store, client):
    root = run(inputs={"question": "Why?"}, outputs="# Title")
    store.append([root])
    address = f"/traces/{root.trace_id}"
    assert 'class="raw"' not in client.get(address).text
    answer = client.get(address + "?view=raw")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert "samesite=lax" in answer.headers["set-cookie"].lower()
    assert 'class="raw"' in client.get(address).text
    client.get(address + "?view=read")
    assert 'class="raw"' not in client.get(address).text


def test_an_image_comes_from_this_server_with_a_fixed_type(store, client):
    page, media = with_image(store, image(media_type="text/html"))
    assert f'<img src="{media}?at=0.1"' in client.get(page).text
    answer = client.get(f"{media}?at=0.1")
    assert (answer.content, answer.headers["content-type"]) == (PNG, "image/png")
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "part",
    [
        image(b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "image/svg+xml"),
        image(b"<html><script>alert(1)</script>", "image/png"),
        {"type": "image_url", "image_url": {"url": "https://evil.example/x.png"}},
        {"type": "text", "text": "x"},
    ],
)
def test_what_is_no_image_is_not_served(store, client, part):
    page, media = with_image(store, part)
    text = client.get(page).text
    assert "<img" not in text
    assert [client.get(f"{media}?at={place}").status_code for place in ("0.1", "0.0", "7.0", "x", "")] == [404] * 5


@pytest.mark.process
def test_an_image_of_20_mb_is_named_but_not_shown(store, client):
    page, media = with_image(store, image(PNG + bytes(20_000_000)))
    text = client.get(page).text
    assert "image/png, 20.0 MB" in text
    assert "<img" not in text
    assert len(text) < 40_000
    assert client.get(f"{media}?at=0.1").status_code == 404


def test_other_parts_have_no_media(store, client):
    _, media = with_image(store, image())
    assert client.get(media.replace("inputs", "attributes") + "?at=0.0").status_code == 404


def test_a_run_becomes_a_test_case_and_a_command(store, client):
    root = run(kind="llm", model="m", inputs=[{"role": "user", "content": "It's"}], outputs="ok")
    store.append([root])
    base = f"/traces/{root.trace_id}/runs/{root.span_id}"
    case = json.loads(client.get(f"{base}/case").text)
    assert (case["inputs"], case["reference_outputs"]) == (root.inputs, "ok")
    command = client.get(f"{base}/curl")
    assert command.text.startswith('curl "${OPENAI_BASE_URL:-https://api.openai.com/v1}/chat/completions"')
    assert command.headers["content-type"] == "text/plain; charset=utf-8"


def test_a_test_case_is_a_row_of_a_dataset(store, client, tmp_path):
    from spanwise.evaluators import datasets

    root = run(inputs={"question": "Why?"}, outputs="Because.")
    store.append([root])
    file = tmp_path / "case.jsonl"
    file.write_text(client.get(f"/traces/{root.trace_id}/runs/{root.span_id}/case").text)
    (example,) = datasets.read(file)
    assert (example.inputs, example.reference_outputs) == (root.inputs, "Because.")


def test_a_script_gets_only_what_changes_with_the_run(store, client):
    root = rag(store)
    part = client.get(f"/traces/{root.trace_id}", headers={"Spanwise-Part": "run"}).text
    assert part.count('id="detail"') == 1
    assert "data-run" not in part
    assert "<h1" not in part


@pytest.mark.process
def test_a_click_in_a_trace_of_10000_runs_is_small(store, client):
    root = run("big")
    runs = [child(root, f"s{n}", start_ns=root.start_ns + n, status=("ok", "error")[n == 9_000]) for n in range(9_999)]
    store.append([root, *runs])
    address = f"/traces/{root.trace_id}"
    page = client.get(address).text
    assert len(re.findall("data-run(?!s)", page)) == 500
    assert f'href="?run={runs[9_000].span_id}">1 failed</a>' in page
    assert names(client.get(address + "?only=errors").text) == ["big", "s9000"]
    part = client.get(f"{address}?run={runs[9_998].span_id}", headers={"Spanwise-Part": "run"}).text
    assert len(part) < 30_000


@pytest.mark.process
@pytest.mark.parametrize(
    "value", ["word " * 1_000_000, "x" * 5_000_000, {"question": "Why?", "context": "x" * 5_000_000}]
)
def test_a_value_of_5_mb_makes_a_page_of_60_kb(store, client, value):
    root = run(inputs="Why?", outputs=value)
    store.append([root])
    for address in (f"/traces/{root.trace_id}", f"/traces/{root.trace_id}?view=raw"):
        page = client.get(address)
        assert len(page.content) <= 60_000
        assert f'/runs/{root.span_id}/outputs">Show the whole value</a>' in page.text
