"""Values without a conversation: texts of several formats, fields, media, representations of Python objects."""

import base64
import shlex
import time

import pytest

from looped_cases import loop_over
from spanwise.collector import content
from spanwise.collector.content import Block
from spanwise.collector.records import Document

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
WAV = base64.b64encode(b"RIFF\x00\x00\x00\x00WAVEfmt ").decode()


@loop_over(
    ("text", "kind"),
    [
        ("Where is my parcel?", "text"),
        ("2 * 3 * 4 and a_b_c", "text"),
        ("# Title\nText", "markdown"),
        ("- one\n- two", "markdown"),
        ("1. one", "markdown"),
        ("a **bold** word", "markdown"),
        ("call `f()`", "markdown"),
        ("see [here](https://example.com)", "markdown"),
        ("```py\nx\n```", "markdown"),
        ("|a|b|\n|---|---|\n|1|2|", "markdown"),
        ("> quoted", "markdown"),
        ("<!doctype html><p>x", "code"),
        ("SELECT a FROM b WHERE c", "code"),
        ("Traceback (most recent call last):\n  File", "code"),
        ('{"days": 3}', "json"),
        ("[1, 2]", "json"),
        ("{not json", "text"),
        ("StopEvent(result=3)", "json"),
    ],
)
def test_the_format_of_a_text(text, kind):
    assert content.read_text(text).kind == kind


@loop_over("unit", ["[", "*", "_", "`", "[a](", "**a", "|", "- ", "`a", "![", "<", "#", ">", "1. ", "x(y="])
def test_the_format_of_a_hostile_text_is_found_in_linear_time(unit):
    before = time.process_time()
    content.read_text((unit * 1_000_000)[:1_000_000])
    assert time.process_time() - before < 1


def test_small_objects_are_fields_and_large_ones_json():
    assert content.read_content({"question": "Why?", "k": 3}).fields == (("question", "Why?"), ("k", 3))
    (block,) = content.read_content({str(n): n for n in range(25)}).blocks
    assert block.kind == "json"


@pytest.mark.parametrize("value", [None, {}, [], ""])
def test_nothing_is_empty(value):
    assert content.read_content(value) == content.Content()


@loop_over(
    ("part", "kind", "media_type"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}, "image", "image/png"),
        ({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}, "image", "image/png"),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}, "image", "image/png"),
        ({"inlineData": {"mimeType": "image/png", "data": PNG}}, "image", "image/png"),
        ({"inline_data": {"mime_type": "image/png", "data": PNG}}, "image", "image/png"),
        ({"type": "blob", "mime_type": "image/png", "modality": "image", "content": PNG}, "image", "image/png"),
        ({"type": "image", "base64": PNG, "mime_type": "image/png"}, "image", "image/png"),
        ({"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"}, "image", "image/png"),
        ({"image": {"base64_image": PNG, "mime_type": "image/png"}}, "image", "image/png"),
        ({"type": "image", "image": PNG, "mediaType": "image/png"}, "image", "image/png"),
        ({"type": "binary", "media_type": "image/png", "content": PNG}, "image", "image/png"),
        ({"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}, "audio", "audio/wav"),
        ({"type": "blob", "mime_type": "audio/wav", "content": WAV}, "audio", "audio/wav"),
    ],
)
def test_an_embedded_medium_of_any_convention_is_decoded(part, kind, media_type):
    (message,) = content.read_content([{"role": "user", "content": [part]}]).messages
    (block,) = message.blocks
    assert block.kind == kind
    media = content.decode_media(block)
    assert media is not None
    assert (media.media_type, media.content) == (media_type, base64.b64decode(PNG if kind == "image" else WAV))
    assert content.find_medium([{"role": "user", "content": [part]}], "0.0") == block


@loop_over(
    ("part", "kind", "url"),
    [
        ({"type": "image_url", "image_url": {"url": "https://e.com/a.png"}}, "image", "https://e.com/a.png"),
        ({"type": "image", "source": {"type": "url", "url": "https://e.com/a"}}, "image", "https://e.com/a"),
        ({"type": "uri", "uri": "gs://a/b", "mime_type": "image/png"}, "image", "gs://a/b"),
        ({"fileData": {"fileUri": "https://e.com/f", "mimeType": "application/pdf"}}, "file", "https://e.com/f"),
        ({"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}}, "file", "file-1"),
        ({"type": "image-url", "url": "https://e.com/a"}, "image", "https://e.com/a"),
    ],
)
def test_a_remote_medium_is_an_address(part, kind, url):
    (block,) = content.read_content([{"role": "user", "content": [part]}]).messages[0].blocks
    assert (block.kind, block.url, block.data) == (kind, url, "")


@loop_over(
    "block",
    [
        Block(kind="image", media_type="image/svg+xml", data=base64.b64encode(b"<svg onload=alert(1)>").decode()),
        Block(kind="image", media_type="image/png", data=base64.b64encode(b"<script>").decode()),
        Block(kind="image", media_type="image/png", data="%%%"),
        Block(kind="audio", media_type="image/png", data=PNG),
        Block(kind="file", media_type="image/png", data=PNG),
        Block(kind="image", data=base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(11_000_000)).decode()),
        Block(kind="image", url="https://e.com/a.png"),
    ],
)
def test_other_types_and_huge_data_are_not_media(block):
    assert content.decode_media(block) is None


@loop_over("place", ["", "x", "0", "1.0", "9" * 10 + ".0", "f0", "b0", "0.0.0", "-1.0", "٣.0"])
def test_a_place_without_a_medium_has_none(place):
    assert content.find_medium([{"role": "user", "content": "text"}], place) is None


@loop_over(
    ("value", "text"),
    [
        ("plain", "plain"),
        ({"question": "Why?"}, "Why?"),
        ({"locale": "de", "question": "Why?"}, "Why?"),
        ({"a": 1, "b": 2}, '{"a":1,"b":2}'),
        ([{"role": "user", "content": "Hi"}], "Hi"),
        ({"messages": [{"role": "user", "parts": [{"content": "Hi"}]}], "temperature": 0}, "Hi"),
        ({"retriever": {"query": "Why?"}, "prompt": {"question": "Why?"}}, "Why?"),
        (None, ""),
        (0.5, "0.5"),
    ],
)
def test_the_main_text_of_a_value(value, text):
    assert content.summarize(value) == text


def test_a_tool_call_is_its_own_summary():
    call = {"id": "1", "type": "function", "function": {"name": "track", "arguments": '{"number": "P1", "n": 2}'}}
    assert (
        content.summarize([{"role": "assistant", "content": None, "tool_calls": [call]}]) == "track(number: P1, n: 2)"
    )


def test_the_question_is_the_users_last_message_and_the_answer_the_models():
    chat = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}, {"role": "system", "content": "S"}]
    assert content.find_question(chat) == "Q"
    assert content.find_answer({"messages": chat[:2]}) == "A"


@pytest.mark.parametrize(
    ("value", "opaque"),
    [
        (None, True),
        ("StopEvent(result=AgentOutput(...", True),
        ({"response_gen": "<generator object gen at 0x7f0a>", "source_nodes": []}, True),
        ({"result": "<shop.Answer object at 0x7f0a>"}, True),
        ({"days": 3, "html": "<b>bold</b>"}, False),
        ([0.5, 0.25], False),
    ],
)
def test_outputs_of_python_objects_are_opaque(value, opaque):
    assert content.is_opaque(value) is opaque


def test_a_python_object_that_was_cut_is_no_answer():
    assert content.find_answer("StopEvent(result=AgentOutput(response=ChatMessage(role=<MessageRo...") == ""
    assert content.summarize("StopEvent(result=Agent...") == "StopEvent(result=Agent..."


@loop_over(
    "text",
    [
        "A(" * 14_000,
        "A(b=" * 7_000,
        "{'a':" * 6_000 + "}",
        "A(b=" + "[" * 20_000,
        "A(b=__import__('os').system('x'))",
        "{'a': " + "-" * 20_000 + "1}",
    ],
)
def test_a_hostile_representation_neither_runs_nor_takes_long(text):
    before = time.process_time()
    content.parse_structure(text)
    assert time.process_time() - before < 2


def test_documents_are_cited_by_rank_or_id_or_quoted_by_six_words():
    long = "passengers may take two spare batteries in hand luggage"
    documents = [
        Document("a"),
        Document(long),
        Document("b", "doc-7"),
        Document("Three small words"),
        Document("other"),
    ]
    answer = f"Yes [1], because {long}, see [doc-7]. Three small words."
    assert content.find_used_documents(answer, documents) == ["cited", "quoted", "cited", "quoted", ""]


def test_a_model_call_becomes_a_safe_command():
    inputs = {
        "messages": [{"role": "user", "content": "It's $HOME `x`\n; rm"}],
        "temperature": 0.2,
        "tools": [{"a": 1}],
    }
    words = shlex.split(content.format_curl(inputs, "gpt-4o-mini").replace("\\\n", " "))
    assert words[-2] == "-d"
    assert content.parse_structure(words[-1]) == {"model": "gpt-4o-mini", **inputs}


def test_tool_calls_and_results_keep_their_ids_in_the_command():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]
    body = content.parse_structure(shlex.split(content.format_curl(chat, "m").replace("\\\n", " "))[-1])
    assert body == {"model": "m", "messages": chat}
