"""OpenTelemetry's GenAI conventions as senders write them, in one generation or another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from looped_cases import loop_over
from spanwise.collector.dialects import RawLog, RawSpan, read_log, read_run
from spanwise.collector.records import Amendment, Event, Run, Usage

SYSTEM = {"role": "system", "content": "Be brief."}
USER, SAID = {"role": "user", "content": "When?"}, {"role": "assistant", "content": "Soon."}


def span(*events: Event, **attributes: Any) -> Run:
    def strict(dialect: str, error: Exception) -> None:
        raise error

    named = {name.replace("__", "."): value for name, value in attributes.items()}
    return read_run(RawSpan(trace_id="1" * 32, span_id="2" * 16, name="call", attributes=named, events=events), strict)


def log(event: str, body: Any = None, time_ns: int = 1, **attributes: Any) -> Amendment | None:
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    item = read_log(RawLog("1" * 32, "2" * 16, time_ns, named, event, body))
    assert item is None or isinstance(item, Amendment)
    return item


def event(name: str, **attributes: Any) -> Event:
    return Event(name, 1, {key.replace("__", "."): value for key, value in attributes.items()})


def messages(amendment: Amendment | None, name: str = "input_messages") -> list[Any]:
    assert amendment
    return [message for _, listed in sorted(amendment.fields[name].items()) for message in listed]


def test_instructions_come_before_the_messages() -> None:
    parts = [{"type": "text", "content": "Be brief."}]
    run = span(
        gen_ai__operation__name="chat",
        gen_ai__system_instructions=json.dumps(parts),
        gen_ai__input__messages=json.dumps([USER]),
    )
    assert run.inputs == [{"role": "system", "parts": parts}, USER]
    assert not {"gen_ai.system_instructions", "gen_ai.input.messages"} & run.attributes.keys()


def test_instructions_that_the_messages_hold_already_are_not_said_twice() -> None:
    given = json.dumps([SYSTEM, USER])
    run = span(gen_ai__system_instructions=json.dumps([{"content": "Be brief."}]), gen_ai__input__messages=given)
    assert (run.inputs, "gen_ai.system_instructions" in run.attributes) == ([SYSTEM, USER], True)


@pytest.mark.parametrize(
    "events",
    [
        (
            event("gen_ai.system.message", content="Be brief.", gen_ai__system="openai"),
            event("gen_ai.user.message", content="When?", role="user"),
            event("gen_ai.choice", index=0, finish_reason="stop", message='{"role":"assistant","content":"Soon."}'),
        ),
        (
            event("gen_ai.system.message", gen_ai__event__content='{"content":"Be brief."}'),
            event("gen_ai.user.message", gen_ai__event__content='{"content":"When?"}'),
            event("gen_ai.choice", gen_ai__event__content='{"message":{"content":"Soon."},"finish_reason":"stop"}'),
        ),
        (
            event("gen_ai.content.prompt", gen_ai__prompt=json.dumps([SYSTEM, USER])),
            event("gen_ai.content.completion", gen_ai__completion=json.dumps([{**SAID, "finish_reason": "stop"}])),
        ),
        (
            event(
                "gen_ai.client.inference.operation.details",
                gen_ai__input__messages=json.dumps([SYSTEM, USER]),
                gen_ai__output__messages=json.dumps([{**SAID, "finish_reason": "stop"}]),
            ),
        ),
    ],
    ids=["attributes", "json", "1.27", "1.37"],
)
def test_content_in_events_of_the_span(events: tuple[Event, ...]) -> None:
    run = span(*events, gen_ai__operation__name="chat", gen_ai__system="openai")
    assert (run.inputs, run.outputs) == ([SYSTEM, USER], [{**SAID, "finish_reason": "stop"}])
    assert run.events == events


def test_content_on_the_span_counts_before_that_in_its_events() -> None:
    run = span(event("gen_ai.user.message", content="else"), gen_ai__input__messages=json.dumps([USER]))
    assert run.inputs == [USER]


def test_a_call_without_content_in_its_events_has_none() -> None:
    run = span(
        event("gen_ai.user.message", gen_ai__system="openai"), event("gen_ai.choice", index=0), gen_ai__system="o"
    )
    assert (run.inputs, run.outputs) == (None, None)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("CHAT", "llm"),
        ("Execute_Tool", "tool"),
        ("INVOKE-AGENT", "agent"),
        ("text completion", "llm"),
        ("else", "unknown"),
    ],
)
def test_operations_are_known_however_they_are_written(operation: str, kind: str) -> None:
    run = span(gen_ai__operation__name=operation)
    assert (run.kind, run.attributes["gen_ai.operation.name"]) == (kind, operation)


@pytest.mark.parametrize("operation", ["INVOKE_AGENT", "agent_step"])
def test_what_stands_around_calls_does_not_count_them_again(operation: str) -> None:
    assert span(gen_ai__operation__name=operation, gen_ai__usage__input_tokens=5).usage is None


@pytest.mark.parametrize("tokens", [1.5, -1, 2**53, pytest.param(10**400, id="huge"), "many", True, "1e999"])
def test_what_is_no_count_of_tokens_stays_where_it_is(tokens: object) -> None:
    run = span(gen_ai__operation__name="chat", gen_ai__usage__input_tokens=tokens)
    assert (run.usage, run.attributes["gen_ai.usage.input_tokens"]) == (None, tokens)


def test_tokens_by_their_names_before_version_1_27() -> None:
    run = span(
        gen_ai__usage__prompt_tokens=3,
        gen_ai__usage__completion_tokens=4,
        gen_ai__usage__total_tokens=7,
        gen_ai__usage__details__reasoning_tokens=2,
        gen_ai__usage__cache_read_input_tokens=1,
        gen_ai__request__model="m",
    )
    assert run.usage == Usage(3, 4, {"reasoning.output_tokens": 2, "cache_read.input_tokens": 1})
    assert (run.kind, run.model, run.attributes) == ("llm", "m", {"gen_ai.usage.total_tokens": 7})


@pytest.mark.parametrize(
    "outputs",
    [
        [{"index": 0, "message": SAID, "finish_reason": "stop"}],
        {"choices": [{"index": 0, "message": SAID, "finish_reason": "stop", "logprobs": None}]},
    ],
    ids=["choices", "response"],
)
def test_choices_in_place_of_messages(outputs: Any) -> None:
    run = span(gen_ai__output__messages=json.dumps(outputs))
    assert run.outputs == [{**SAID, "finish_reason": "stop"}]


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai__retrieval__documents": '[{"id":"d1","score":0.5}]'},
        {"gen_ai__completion": '{"documents":[{"page_content":"c","metadata":{"id":"d1"}}]}'},
        {"gen_ai__retrieval__query__text": "parcels"},
    ],
    ids=["documents", "outputs", "query"],
)
def test_an_embedding_that_is_really_a_retrieval(attributes: dict[str, Any]) -> None:
    run = span(gen_ai__operation__name="embeddings", **attributes)
    assert run.kind == "retriever"
    assert [one.id for one in run.documents] == ([] if run.inputs == "parcels" else ["d1"])


def test_an_embedding_stays_one() -> None:
    run = span(gen_ai__operation__name="embeddings", gen_ai__completion="[[0.1, 0.2]]")
    assert (run.kind, run.documents) == ("embedding", ())


def test_a_log_record_of_a_message_is_an_amendment_of_its_span() -> None:
    asked = log("gen_ai.user.message", {"content": "When?"})
    assert asked
    assert (asked.trace_id, asked.span_id, messages(asked)) == ("1" * 32, "2" * 16, [USER])
    made = log("gen_ai.choice", {"index": 1, "message": SAID, "finish_reason": "stop"})
    assert messages(made, "output_messages") == [{**SAID, "index": 1, "finish_reason": "stop"}]
    assert log("gen_ai.tool.message", '{"content":"x","id":"c"}') is not None


def test_a_record_sent_again_has_the_same_key_and_each_other_one_another() -> None:
    first, again, later, other = (
        log("gen_ai.user.message", {"content": text}, time_ns)
        for text, time_ns in (("When?", 1), ("When?", 1), ("When?", 2), ("Where?", 1))
    )
    assert first == again
    assert first
    assert later
    assert other
    assert len({*first.fields["input_messages"], *later.fields["input_messages"], *other.fields["input_messages"]}) == 3


def test_a_record_without_trace_context_names_a_response() -> None:
    record = RawLog("", None, 1, {"gen_ai.response.id": "r", "gen_ai.input.messages": [USER]}, DETAILS)
    item = read_log(record)
    assert isinstance(item, Amendment)
    assert (item.trace_id, item.response_id, messages(item)) == ("", "r", [USER])
    record.attributes = {"gen_ai.input.messages": [USER]}
    assert read_log(record) is None


DETAILS = "gen_ai.client.inference.operation.details"


@pytest.mark.parametrize(
    ("name", "body"),
    [("gen_ai.user.message", None), ("gen_ai.user.message", {}), ("gen_ai.choice", {"message": {"role": "assistant"}})],
)
def test_a_record_without_content_says_nothing(name: str, body: Any) -> None:
    assert log(name, body, gen_ai__system="openai") is None


NONSENSE: tuple[Any, ...] = (
    None,
    True,
    -1,
    1e400,
    "",
    "{",
    "[" * 5000,
    [],
    {},
    [[1]],
    ["x", None],
    {"choices": 3},
    "null",
)


FIELDS = {
    "input.messages": "inputs",
    "output.messages": "outputs",
    "system_instructions": "inputs",
    "usage.input_tokens": "usage",
    "retrieval.documents": "documents",
    "operation.name": "",
}


@loop_over("value", NONSENSE, ids=range(len(NONSENSE)))
@loop_over("name", FIELDS)
def test_nonsense_neither_raises_nor_is_lost(name: str, value: Any) -> None:
    run = span(**{f"gen_ai__{name.replace('.', '__')}": value})
    assert f"gen_ai.{name}" in run.attributes or getattr(run, FIELDS[name]) not in (None, ())


@loop_over("value", NONSENSE, ids=range(len(NONSENSE)))
def test_log_records_of_nonsense_do_not_raise(value: Any) -> None:
    for name in ("gen_ai.choice", "gen_ai.user.message", "gen_ai.content.prompt", DETAILS):
        log(name, value, gen_ai__input__messages=value, gen_ai__prompt=value)


RECORDS = [{"id": "m1", "content": "vegetarian", "score": 0.9, "metadata": {"since": 2024}}, {"content": {"diet": "x"}}]


@pytest.mark.parametrize("records", [RECORDS, json.dumps(RECORDS)], ids=["list", "json"])
def test_a_search_of_a_memory_is_a_retrieval(records: Any) -> None:
    memory = {"gen_ai.memory.query.text": "diet", "gen_ai.memory.records": records, "gen_ai.memory.store.id": "ms"}
    found = span(**{"gen_ai.operation.name": "search_memory", **memory})
    assert (found.kind, found.inputs) == ("retriever", "diet")
    assert [(one.content, one.id, one.score) for one in found.documents] == [
        ("vegetarian", "m1", 0.9),
        ('{"diet":"x"}', None, None),
    ]
    assert found.attributes == {"gen_ai.operation.name": "search_memory", "gen_ai.memory.store.id": "ms"}


@pytest.mark.parametrize("operation", ["create_memory", "update_memory", "upsert_memory"])
def test_records_that_are_written_to_a_memory_are_inputs(operation: str) -> None:
    found = span(**{"gen_ai.operation.name": operation, "gen_ai.memory.records": json.dumps(RECORDS)})
    assert (found.kind, found.inputs, found.documents) == ("chain", RECORDS, ())


@pytest.mark.parametrize("operation", ["delete_memory", "create_memory_store", "delete_memory_store", "plan"])
def test_other_operations_on_memories_and_plans_are_steps(operation: str) -> None:
    assert span(**{"gen_ai.operation.name": operation, "gen_ai.memory.record.id": "m1"}).kind == "chain"


@pytest.mark.parametrize("records", ["text", 7, [], {}, [1], [{"no": "content"}], None])
def test_records_of_a_memory_of_a_wrong_type_stay(records: Any) -> None:
    found = span(**{"gen_ai.operation.name": "search_memory", "gen_ai.memory.records": records})
    assert found.attributes["gen_ai.memory.records"] == records


def test_a_fetched_response_is_not_counted_again() -> None:
    call = {"gen_ai.request.model": "gpt-4o", "gen_ai.response.id": "r", "gen_ai.usage.input_tokens": 10}
    call |= {"gen_ai.usage.output_tokens": 5, "gen_ai.usage.cost": 0.5}
    fetched = span(**{"gen_ai.operation.name": "fetch_response", **call, "gen_ai.response.finish_reasons": ["stop"]})
    assert (fetched.kind, fetched.usage, fetched.cost, fetched.finish_reasons) == ("chain", None, None, ("stop",))
    assert span(**{"gen_ai.operation.name": "chat", **call}).cost == 0.5
