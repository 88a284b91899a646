"""Two ways to answer from passages: pick sentences, which needs nothing more, or ask a model over its API."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from spanwise.cli.demo.words import words

Documents = Sequence[Mapping[str, Any]]  # {"content", "id", "score", "metadata"} each, best first

NOTHING = "The reference says nothing about this that I could find."
_SENTENCES = 3
_END = re.compile(r"(?<=[.!?])[\"”)]*\s+(?=[A-Z\"“(*])")
_FINISHED = re.compile(r"[.!?:][\"”’)]*$")  # code and tables do not end like this
_PROMPT = "Answer the question in one or two sentences, only from these excerpts of the Python reference. Quote them."


def extract(question: str, documents: Documents) -> str:
    """The three sentences that share most words with the question, in the order they stand in.

    A sentence counts the words it shares, half of what the better of its neighbours shares (the answer often stands
    next to the sentence that names the subject), and its passage's score relative to the best passage.
    """
    asked = set(words(question))
    scored: list[tuple[float, int, str]] = []
    for document in documents:
        rank = document["score"] / max(documents[0]["score"], 1e-9)
        sentences = _sentences(document["content"])
        for score, sentence in zip(_shares(asked, sentences), sentences, strict=True):
            scored.append((score + rank, len(scored), sentence))
    best = sorted(scored, key=lambda item: (-item[0], item[1]))[:_SENTENCES]
    return " ".join(sentence for _, _, sentence in sorted(best, key=lambda item: item[1])) or NOTHING


def _sentences(text: str) -> list[str]:
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n") if not _is_formal(paragraph))
    sentences = (sentence for paragraph in paragraphs for sentence in _END.split(paragraph))
    return [text for text in sentences if len(text) > 25 and _FINISHED.search(text) and not _is_note(text)]


def _is_formal(paragraph: str) -> bool:
    return "::=" in paragraph or ">>>" in paragraph or paragraph.lstrip().startswith("+-")


def _is_note(sentence: str) -> bool:
    """History, not an answer: what was new or changed in which version."""
    return sentence.startswith(("Added in version", "Changed in version", "Deprecated since", "New in version"))


def _shares(asked: set[str], sentences: list[str]) -> list[float]:
    own = [len(asked & set(words(sentence))) / max(1, len(asked)) for sentence in sentences]
    padded = [0.0, *own, 0.0]
    return [padded[i] + max(padded[i - 1], padded[i + 1]) / 2 for i in range(1, len(own) + 1)]


def ask(question: str, documents: Documents) -> tuple[str, Mapping[str, int]]:
    """A chat model's answer, and its usage: {"input_tokens", "output_tokens"}. Raises `openai.OpenAIError`."""
    from openai import OpenAI

    client = OpenAI(api_key=os.environ.get("OPENAI_API_KEY", "none"), timeout=30, max_retries=1)
    excerpts = "\n\n".join(f"[{document['id']}]\n{document['content']}" for document in documents)
    reply = client.chat.completions.create(
        model=model_name(),
        temperature=0,
        messages=[
            {"role": "system", "content": _PROMPT},
            {"role": "user", "content": f"{excerpts}\n\nQuestion: {question}"},
        ],
    )
    return reply.choices[0].message.content or "", _usage(reply.usage)


def _usage(usage: Any) -> Mapping[str, int]:
    if usage is None:
        return {}
    return {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}


def model_name() -> str:
    """Which chat model is asked: SPANWISE_DEMO_MODEL, else a small one."""
    return os.environ.get("SPANWISE_DEMO_MODEL", "gpt-4o-mini")


def has_model() -> bool:
    """True if the environment names an OpenAI-compatible model service."""
    return bool(os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"))
