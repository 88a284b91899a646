"""Captured content: JSON serialization, retrieved documents, messages of models and token usage.

Modules, in the order in which data flows:

- `serialization`: JSON serialization of any Python value, bounded in bytes, depth and CPU time.
- `documents`: Retrieved documents: conversion from LangChain, LlamaIndex and Haystack, OpenInference attributes.
- `model_calls`: Model calls of OpenAI, Anthropic and Gemini: messages of the GenAI conventions, token usage and its
  estimates.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "documents",
    "model_calls",
    "serialization",
]
