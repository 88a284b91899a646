"""Each convention's way to write the same conversation gives the same messages and blocks."""

import json

import pytest

from looped_cases import loop_over
from spanwise.collector import content
from spanwise.collector.content import Block, Message

CALL = {"name": "track", "arguments": {"number": "P1"}}
OPENAI_CALL = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": '{"number": "P1"}'}}
OPENAI = [
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": None, "tool_calls": [OPENAI_CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "track", "content": "in Ghent"},
    {"role": "assistant", "content": "In Ghent."},
]
RESPONSES = [
    {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
    {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "track", "arguments": '{"number": "P1"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "in Ghent"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "In Ghent."}]},
]
ANTHROPIC = [
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "track", "input": {"number": "P1"}}]},
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "in Ghent"}]}],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "In Ghent."}]},
]
GENAI = [
    {"role": "user", "parts": [{"type": "text", "content": "Where?"}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", **CALL}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "in Ghent"}]},
    {"role": "assistant", "parts": [{"type": "text", "content": "In Ghent."}], "finish_reason": "stop"},
]
GEMINI = [
    {"role": "user", "parts": [{"text": "Where?"}]},
    {"role": "model", "parts": [{"functionCall": {"name": "track", "args": {"number": "P1"}}}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "track", "response": "in Ghent"}}]},
    {"role": "model", "parts": [{"text": "In Ghent."}]},
]
LANGCHAIN = [
    {"type": "human", "content": "Where?", "additional_kwargs": {}},
    {"type": "ai", "content": "", "tool_calls": [{"name": "track", "args": {"number": "P1"}, "id": "c1"}]},
    {"type": "tool", "content": "in Ghent", "name": "track", "tool_call_id": "c1", "status": "success"},
    {"type": "ai", "content": "In Ghent.", "tool_calls": []},
]
DUMPS = [{"type": message["type"], "data": message} for message in LANGCHAIN]
CONSTRUCTORS = [
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", name], "kwargs": message}
    for name, message in zip(("HumanMessage", "AIMessage", "ToolMessage", "AIMessage"), LANGCHAIN, strict=True)
]
LANGGRAPH = [{"graph": None, "update": {"messages": DUMPS}, "resume": None}]
HAYSTACK = [
    {"role": "user", "content": [{"text": "Where?"}]},
    {
        "role": "assistant",
        "content": [{"tool_call": {"tool_name": "track", "arguments": {"number": "P1"}, "id": "c1"}}],
    },
    {
        "role": "tool",
        "content": [
            {"tool_call_result": {"result": "in Ghent", "origin": {"tool_name": "track", "id": "c1"}, "error": False}}
        ],
    },
    {"role": "assistant", "content": [{"text": "In Ghent."}]},
]
PYTHON = [
    "ChatMessage(role=<MessageRole.USER: 'user'>, blocks=[TextBlock(block_type='text', text='Where?')])",
    "ChatMessage(role=<MessageRole.ASSISTANT: 'assistant'>, blocks=[ToolCallBlock(block_type='tool_call',"
    " tool_call_id='c1', tool_name='track', tool_kwargs={'number': 'P1'})])",
    "ChatMessage(role=<MessageRole.TOOL: 'tool'>, additional_kwargs={}, tool_call_id='c1', content='in Ghent')",
    "ChatMessage(_role=<ChatRole.ASSISTANT: 'assistant'>, _content=[TextContent(text='In Ghent.')], _name=None)",
]


@loop_over(
    "value",
    [
        OPENAI,
        RESPONSES,
        ANTHROPIC,
        GENAI,
        GEMINI,
        LANGCHAIN,
        DUMPS,
        CONSTRUCTORS,
        LANGGRAPH,
        HAYSTACK,
        PYTHON,
        [OPENAI],
        {"messages": OPENAI},
        {"agent": {"messages": DUMPS}},
        {"contents": GEMINI, "model": "gemini"},
        {"replies": HAYSTACK},
        {"llm": {"replies": HAYSTACK}},
        {"output": RESPONSES, "id": "resp_1"},
        json.dumps(OPENAI),
        json.dumps({"messages": ANTHROPIC}),
    ],
)
def test_a_conversation_of_any_convention_is_the_same(value):
    messages = content.join_tool_results(content.read_content(value).messages)
    assert [(message.role, [block.kind for block in message.blocks]) for message in messages] == [
        ("user", ["text"]),
        ("assistant", ["tool_call"]),
        ("assistant", ["text"]),
    ]
    (call,) = messages[1].blocks
    assert (call.name, call.value) == ("track", {"number": "P1"})
    assert call.result is not None
    assert (call.result.value, call.result.failed) == ("in Ghent", False)
    assert (messages[0].text, messages[2].text) == ("Where?", "In Ghent.")


@loop_over(
    ("response", "text"),
    [
        ({"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}, "Hi"),
        ({"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}]}, "Hi"),
        ({"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hi"}], "usage": {}}, "Hi"),
        ({"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}, "Hi"),
        ({"generations": [[{"text": "Hi", "message": {"type": "ai", "content": "Hi"}}]]}, "Hi"),
        ({"message": {"role": "assistant", "blocks": [{"block_type": "text", "text": "Hi"}]}, "raw": {}}, "Hi"),
        (
            "AgentOutput(response=ChatMessage(role=<MessageRole.ASSISTANT: 'assistant'>, blocks=[TextBlock(text='Hi')]))",
            "Hi",
        ),
    ],
)
def test_the_answer_of_any_api_is_a_message(response, text):
    (message,) = content.read_content(response).messages
    assert (message.role, message.text) == ("assistant", text)


@loop_over(
    "request_",
    [
        {"system": "Be brief.", "messages": OPENAI[:1], "model": "claude"},
        {"instructions": "Be brief.", "input": RESPONSES[:1], "model": "gpt"},
        {"system_instruction": {"parts": [{"text": "Be brief."}]}, "contents": GEMINI[:1], "model": "gemini"},
    ],
)
def test_a_system_prompt_beside_the_messages_comes_first(request_):
    read = content.read_content(request_)
    assert [(message.role, message.text) for message in read.messages] == [("system", "Be brief."), ("user", "Where?")]
    assert [name for name, _ in read.fields] == ["model"]


@loop_over(
    "message",
    [
        {"role": "assistant", "reasoning_content": "Hm.", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi"}]},
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "Hi"}]},
        {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "Hi"}]},
        {"role": "assistant", "content": [{"reasoning": {"reasoning_text": "Hm."}}, {"text": "Hi"}]},
    ],
)
def test_reasoning_is_a_block_of_its_own(message):
    (read,) = content.read_content([message]).messages
    assert [(block.kind, block.text) for block in read.blocks] == [("reasoning", "Hm."), ("text", "Hi")]
    assert read.text == "Hi"


def test_hidden_reasoning_says_so():
    (read,) = content.read_content(
        [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]
    ).messages
    assert read.blocks[0].text == "(hidden by the provider)"


def test_a_failed_tool_is_marked():
    part = {"type": "tool_result", "tool_use_id": "c1", "is_error": True, "content": "away"}
    (message,) = content.read_content([{"role": "user", "content": [part]}]).messages
    assert (message.role, message.blocks[0].failed) == ("tool", True)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "tool-result", "toolCallId": "c1", "output": {"type": "error-text", "value": "away"}},  # Vercel
        {"toolResult": {"toolUseId": "c1", "status": "error", "content": [{"text": "away"}]}},  # Bedrock
    ],
)
def test_a_failed_tool_of_other_conventions_is_marked(part):
    (message,) = content.read_content([{"role": "tool", "content": [part]}]).messages
    (block,) = message.blocks
    assert (block.call_id, block.value, block.failed) == ("c1", "away", True)


def test_an_audio_answer_has_its_transcript():
    audio = {"id": "a1", "data": "UklGRg==", "transcript": "Hi"}
    (message,) = content.read_content([{"role": "assistant", "content": None, "audio": audio}]).messages
    assert [(block.kind, block.text, block.data) for block in message.blocks] == [("audio", "Hi", "UklGRg==")]


@loop_over(
    "value",
    [
        "text",
        5,
        {"messages": "none"},
        [{"role": "user"}],
        [{"role": 1, "content": "x"}],
        {"a": []},
        [OPENAI[0], 5],
        [[]],
    ],
)
def test_what_is_no_conversation(value):
    assert content.read_content(value).messages == ()


def test_a_result_without_an_id_belongs_to_the_first_open_call_of_its_name():
    calls = Message("assistant", tuple(Block(kind="tool_call", name=name, value=at) for at, name in enumerate("aba")))
    results = Message("tool", tuple(Block(kind="tool_result", name=name, value=name) for name in "ab"))
    (joined,) = content.join_tool_results([calls, results])
    assert [block.result.value if block.result else None for block in joined.blocks] == ["a", "b", None]


def test_a_result_without_a_call_stays():
    result = Message("tool", (Block(kind="tool_result", name="a", call_id="other"),))
    assert [message.role for message in content.join_tool_results([result])] == ["tool"]


@pytest.mark.parametrize(
    ("roles", "start"),
    [
        ("su", 0),
        ("suau", 3),
        ("suat", 2),
        ("suatat", 4),
        ("sua", 2),
        ("u", 0),
        ("suattau", 6),
        ("", 0),
    ],
)
def test_a_turn_is_what_came_after_the_last_answer(roles, start):
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    assert content.find_turn([Message(names[role], ()) for role in roles]) == start


def test_messages_of_a_long_chat_are_read_on_demand():
    chat = content.read_content([{"role": "user", "content": [{"type": "text", "text": str(n)}]} for n in range(5_000)])
    assert len(chat.messages) == 5_000
    assert chat.messages[-1].text == "4999"
