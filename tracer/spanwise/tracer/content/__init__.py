"""Captured content: JSON serialization, retrieved documents, messages of models and token usage.

Modules, in the order in which data flows:

- `serialization`: JSON serialization of any Python value, bounded in bytes, depth and CPU time.
- `documents`: Retrieved documents: conversion from LangChain, LlamaIndex and Haystack, OpenInference attributes.
- `chat_messages`: Model requests and responses of OpenAI, Anthropic and Gemini, converted to the messages of the GenAI
  conventions.
- `token_usage`: Token usage: vendors' usage fields as OpenTelemetry attributes, and estimates for calls without them.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "chat_messages",
    "documents",
    "serialization",
    "token_usage",
]
