"""How the demo answers: sentences picked, or a model asked over a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from spanwise.cli.demo.application import (
    NO_ANSWER,
    BM25Index,
    extract_answer,
    load_passages,
    make_application,
    make_reader,
)
from spanwise.tracer.testing import traced  # noqa: F401  a fixture

TEXT = """The cat is an animal that hunts at night.

It sleeps for most of the day, mostly in the sun. Dogs are awake by day and bark a lot.

   cat ::= "meow" cat"""


def document(content: str, score: float = 1.0) -> dict[str, Any]:
    return {"content": content, "id": "pets", "score": score, "metadata": {}}


class Model:
    """Answers chat completions with a status, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.asked = 200, list[dict[str, Any]]()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


def _handler(model: Model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            model.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            message = {"role": "assistant", "content": "By night."}
            usage = {"prompt_tokens": 70, "completion_tokens": 3, "total_tokens": 73}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "usage": usage}
            text = json.dumps({**body, "choices": [choice]}).encode()
            self.send_response(model.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    made = Model()
    monkeypatch.setenv("OPENAI_BASE_URL", made.url)
    monkeypatch.setenv("SPANWISE_DEMO_MODEL", "tiny")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(autouse=True)
def no_model_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def test_picks_sentences_in_their_order_and_no_grammar():
    answer = extract_answer("When do cats hunt?", [document(TEXT)])
    assert answer.startswith("The cat is an animal that hunts at night. It sleeps")
    assert "::=" not in answer


def test_a_sentence_counts_for_its_neighbour():
    filler = " ".join(f"Nothing of interest stands in sentence number {n}." for n in range(5))
    wanted = "Penguins are birds of the south. Small fish are their daily food."
    assert extract_answer("What do penguins eat?", [document(f"{filler} {wanted}")]).endswith(wanted)


def test_what_changed_in_which_version_is_no_answer():
    text = "Cats hunt at night in most places. Changed in version 3.9: Cats hunt at night and cats hunt by day."
    assert "Changed" not in extract_answer("When do cats hunt?", [document(text)])


def test_says_so_when_there_is_nothing_to_pick_from():
    assert extract_answer("Why?", []) == NO_ANSWER
    assert extract_answer("Why?", [document("a ::= b")]) == NO_ANSWER


def test_three_functions_are_three_runs(traced):  # noqa: F811
    answer = make_application(BM25Index(load_passages()), 2, make_reader(print))
    assert "cannot contain statements or annotations" in answer("What can a lambda expression not contain?")
    spans = {span.name: span for span in traced.spans}
    assert set(spans) == {"answer", "retrieve", "read"}
    assert spans["retrieve"].parent.span_id == spans["read"].parent.span_id == spans["answer"].context.span_id


def test_a_model_is_asked_when_the_environment_names_one(model, traced):  # noqa: F811
    answer = make_reader(print)("When do cats hunt?", [document(TEXT)])
    assert answer == "By night."
    assert model.asked[0]["model"] == "tiny"
    assert TEXT in model.asked[0]["messages"][1]["content"]
    call = next(span for span in traced.spans if span.name == "generate")
    assert call.attributes["gen_ai.usage.input_tokens"] == 70
    assert call.attributes["gen_ai.request.model"] == "tiny"


def test_sentences_are_picked_when_the_model_fails_and_it_is_said_once(model):
    model.status, told = 400, list[str]()
    read = make_reader(told.append)
    assert [read("When do cats hunt?", [document(TEXT)])[:7] for _ in range(2)] == ["The cat", "The cat"]
    assert len(model.asked) == len(told) == 1
    assert told[0].startswith("tiny does not respond")
