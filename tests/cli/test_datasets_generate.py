"""`spanwise datasets generate`, against a server that answers as OpenAI's does."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from spanwise.cli.app import app
from spanwise.collector.errors import Refused
from spanwise.collector.records import Example
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import datasets


class Endpoint(ThreadingHTTPServer):
    """Keeps what it was asked, and answers with `replies`, the last of them again and again; an int is a status."""

    def __init__(self, *replies):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies, self.asked = list(replies), []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        reply = self.server.replies.pop(0) if len(self.server.replies) > 1 else self.server.replies[0]
        content = {"error": {"message": "no such model"}} if isinstance(reply, int) else _completion(reply)
        body = json.dumps(content).encode()
        self.send_response(reply if isinstance(reply, int) else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def _completion(text):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


@pytest.fixture
def endpoint():
    """Start one that gives these replies."""
    started = []

    def start(*replies):
        server = Endpoint(*replies)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def generate(tmp_path, monkeypatch):
    """Run the command against an endpoint; its output."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")

    def run(server, *arguments):
        command = [
            "datasets",
            "generate",
            "written",
            *map(str, arguments),
            "--model",
            "small",
            "--base-url",
            server.url,
        ]
        result = CliRunner().invoke(app, [*command, "--store", str(tmp_path / "a.db")], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result

    return run


def test_questions_about_text_files(generate, endpoint, tmp_path):
    (tmp_path / "faq.md").write_text("Parcels take 3 days.")
    server = endpoint('```json\n[{"question": "How long?", "answer": "3 days"}]\n```')
    assert generate(server, tmp_path / "faq.md", "--per-source", 1).stdout == "written version 1: 1 examples\n"
    (asked,) = server.asked
    assert asked["model"] == "small"
    assert "Parcels take 3 days." in asked["messages"][0]["content"]
    with SQLiteStore(tmp_path / "a.db") as store:
        (example,) = store.examples("written")
    assert (example.inputs, example.reference_outputs) == ({"question": "How long?"}, "3 days")
    assert (example.metadata["model"], example.expected_documents[0].id) == ("small", str(tmp_path / "faq.md"))


def test_a_reply_that_cannot_be_read_is_said_and_left_out(generate, endpoint, tmp_path):
    (tmp_path / "docs.jsonl").write_text('{"id": "1", "content": "one"}\n{"id": "2", "content": "two"}\n')
    result = generate(endpoint("I cannot.", '[{"question": "Q", "answer": "A"}]'), tmp_path / "docs.jsonl", "--json")
    assert json.loads(result.stdout)["example_count"] == 1
    assert "skipped: the model's reply contains no JSON list of examples" in result.stderr


def test_variations_of_a_dataset(generate, endpoint, tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        datasets.save(store, "seeds", [Example(inputs={"q": "1+1"}, reference_outputs="2", id="seed")])
    generate(endpoint('[{"inputs": {"q": "2+2"}, "reference_outputs": "4"}]'), "--like", "seeds")
    with SQLiteStore(tmp_path / "a.db") as store:
        (example,) = store.examples("written")
    assert (example.inputs, example.base_id) == ({"q": "2+2"}, "seed")


def test_what_the_endpoint_refuses_is_one_line(generate, endpoint, tmp_path):
    (tmp_path / "faq.md").write_text("text")
    with pytest.raises(
        Refused,
        match=r"the model's endpoint: .* has no model 'small', or no chat completions endpoint \(404\): no such model",
    ):
        generate(endpoint(404), tmp_path / "faq.md")
    with pytest.raises(Refused, match="name either files with documents"):
        generate(endpoint(404))
