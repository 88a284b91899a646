"""Content of runs for people: values of any convention, read as messages and typed blocks.

The functions are pure, and know neither HTML nor terminals. Pages, terminal and notebooks render the blocks.

Modules, in the order in which data flows:

- `reading`: Reading of a whole value: messages, fields or blocks, its main text, and a model call as a request.
- `messages`: Chat messages of OpenAI, Anthropic, Gemini, GenAI, LangChain, LangGraph, Haystack and others, and their
  parts.
- `blocks`: Blocks of content: records, formats of texts, texts that hold a structure, embedded media.
"""

from spanwise.collector.content.blocks import (
    MAX_MEDIA_BYTES,
    Block,
    Content,
    Media,
    Message,
    decode_media,
    find_media_type,
    parse_structure,
    read_text,
)
from spanwise.collector.content.messages import find_turn, join_tool_results
from spanwise.collector.content.reading import (
    MEDIA_KINDS,
    find_answer,
    find_medium,
    find_question,
    find_used_documents,
    format_curl,
    is_opaque,
    read_content,
    read_field,
    summarize,
)

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
