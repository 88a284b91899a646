"""What a chat completion says, whatever it looks like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.evaluators.judges.llm_client.chat_completions import (
    add_schema_instruction,
    join_messages,
    parse_completion,
)
from spanwise.evaluators.judges.llm_client.openai_backend import add_enum_types, is_strict, make_response_format

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = ("choices", "message", "content", "logprobs", "token", "logprob", "top_logprobs", "usage", "model", "refusal")
BODIES = st.dictionaries(
    st.sampled_from(NAMES) | st.text(max_size=5),
    st.recursive(
        VALUES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
        max_leaves=20,
    ),
    max_size=5,
)


@pytest.mark.process
@given(BODIES)
def test_no_body_is_too_odd_to_be_read(body):
    came = parse_completion(body)
    assert isinstance(came.text, str)
    assert came.usage is None or came.usage.input_tokens >= 0


def test_log_probabilities_are_all_there_or_none():
    whole = {"token": "a", "logprob": -1, "top_logprobs": [{"token": "a", "logprob": -1}, {"token": "b"}, None]}

    def told(*tokens):
        return parse_completion({"choices": [{"message": {}, "logprobs": {"content": list(tokens)}}]}).logprobs

    assert [dict(token.top) for token in told(whole)] == [{"a": -1.0}]
    assert told(whole, {"token": "b"}) == ()


def test_messages_as_one_text_tell_a_reply_apart():
    messages = [
        {"role": "user", "content": "Is it?"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "Say why."},
    ]
    assert join_messages(messages) == "Is it?\n\nYour reply was:\nYes\n\nSay why."


def test_the_form_of_the_reply_is_the_last_word():
    first, last = add_schema_instruction(
        [{"role": "system", "content": "You judge."}, {"role": "user", "content": "Is it?"}], {"type": "object"}
    )
    assert first["content"] == "You judge."
    assert last["content"].endswith('{"type":"object"}')
    assert add_schema_instruction([{"role": "system", "content": "You judge."}], {})[-1]["role"] == "user"


def test_each_enum_has_a_type_and_a_property_may_have_any_name():
    assert add_enum_types({"enum": ["a", "b"]}) == {"type": "string", "enum": ["a", "b"]}
    assert add_enum_types({"enum": [1, None]})["type"] == ["integer", "null"]
    odd = {"type": "object", "properties": {"enum": {"type": "string"}, "type": {"enum": [1]}}}
    assert add_enum_types(odd)["properties"] == {"enum": {"type": "string"}, "type": {"type": "integer", "enum": [1]}}


def test_strict_decoding_is_asked_for_where_all_properties_are_needed():
    closed = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert is_strict(closed)
    assert not is_strict({**closed, "required": []})
    assert not is_strict({**closed, "properties": {"a": {"type": "object", "properties": {}}}})
    assert make_response_format("ä b", closed, "json_schema")["json_schema"]["name"] == "_b"
