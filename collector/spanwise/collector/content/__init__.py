"""Content of runs for people: values of any convention, read as messages and typed blocks.

The functions are pure, and know neither HTML nor terminals. Pages, terminal and notebooks render the blocks.

Modules, in the order in which data flows:

- `reading`: Reading of a whole value: chat messages, named fields, or blocks.
- `messages`: Chat messages of OpenAI, Anthropic, Gemini, GenAI, LangChain, LangGraph, Haystack and others.
- `message_parts`: Parts of a message, read as blocks: texts, tool calls, results, reasoning, media.
- `structured_text`: Texts that hold a structure: JSON, and Python's representations of messages.
- `text_formats`: Format of a text: plain, Markdown, code or JSON.
- `media`: Embedded images and audio: decoding, fixed types, size limit.
- `blocks`: Records: blocks, messages, and the content of a value.
- `main_text`: Main text of a value, for lists and headings; whether documents were cited or quoted.
- `model_request`: A model call as an OpenAI-compatible request, such as a curl command.
"""

from spanwise.collector.content.blocks import Block, Content, Message
from spanwise.collector.content.main_text import find_answer, find_question, find_used_documents, is_opaque, summarize
from spanwise.collector.content.media import MAX_MEDIA_BYTES, Media, decode_media, find_media_type
from spanwise.collector.content.messages import find_turn, join_tool_results
from spanwise.collector.content.model_request import format_curl
from spanwise.collector.content.reading import MEDIA_KINDS, find_medium, read_content, read_field
from spanwise.collector.content.structured_text import parse_structure
from spanwise.collector.content.text_formats import read_text

__all__ = [
    "MAX_MEDIA_BYTES",
    "MEDIA_KINDS",
    "Block",
    "Content",
    "Media",
    "Message",
    "decode_media",
    "find_answer",
    "find_media_type",
    "find_medium",
    "find_question",
    "find_turn",
    "find_used_documents",
    "format_curl",
    "is_opaque",
    "join_tool_results",
    "parse_structure",
    "read_content",
    "read_field",
    "read_text",
    "summarize",
]
