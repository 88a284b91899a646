"""What a chat completion says, whatever it looks like."""

from hypothesis import given
from hypothesis import strategies as st

from spanwise.evaluators.judges._chat import as_text, completion_of, in_words
from spanwise.evaluators.judges._schemas import is_strict, response_format, typed

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


@given(BODIES)
def test_no_body_is_too_odd_to_be_read(body):
    came = completion_of(body)
    assert isinstance(came.text, str)
    assert came.usage is None or came.usage.input_tokens >= 0


def test_log_probabilities_are_all_there_or_none():
    whole = {"token": "a", "logprob": -1, "top_logprobs": [{"token": "a", "logprob": -1}, {"token": "b"}, None]}
    told = lambda *tokens: completion_of({"choices": [{"message": {}, "logprobs": {"content": list(tokens)}}]}).logprobs  # noqa: E731
    assert [dict(token.top) for token in told(whole)] == [{"a": -1.0}]
    assert told(whole, {"token": "b"}) == ()


def test_messages_as_one_text_tell_a_reply_apart():
    messages = [
        {"role": "user", "content": "Is it?"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "Say why."},
    ]
    assert as_text(messages) == "Is it?\n\nYour reply was:\nYes\n\nSay why."


def test_the_form_of_the_reply_is_the_last_word():
    first, last = in_words(
        [{"role": "system", "content": "You judge."}, {"role": "user", "content": "Is it?"}], {"type": "object"}
    )
    assert first["content"] == "You judge."
    assert last["content"].endswith('{"type":"object"}')
    assert in_words([{"role": "system", "content": "You judge."}], {})[-1]["role"] == "user"


def test_each_enum_has_a_type_and_a_property_may_have_any_name():
    assert typed({"enum": ["a", "b"]}) == {"type": "string", "enum": ["a", "b"]}
    assert typed({"enum": [1, None]})["type"] == ["integer", "null"]
    odd = {"type": "object", "properties": {"enum": {"type": "string"}, "type": {"enum": [1]}}}
    assert typed(odd)["properties"] == {"enum": {"type": "string"}, "type": {"type": "integer", "enum": [1]}}


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
    assert response_format("ä b", closed, "json_schema")["json_schema"]["name"] == "_b"
