"""The demo's text and questions: what the dataset says must be true of the text of this Python."""

from __future__ import annotations

from importlib.resources import as_file, files

import pytest

from spanwise.cli.demo.application import BM25Index, EmbeddingIndex, Passage, load_model, load_passages
from spanwise.cli.demo.walkthrough import similarity_evaluators
from spanwise.collector.records import Example
from spanwise.evaluators import datasets, score
from spanwise.evaluators.builtin.retrieval import recall


@pytest.fixture(scope="module")
def corpus() -> list[Passage]:
    return load_passages()


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    with as_file(files("spanwise.cli.demo") / "questions.jsonl") as path:
        return datasets.read(path)


def plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def mean_recall(index: BM25Index | EmbeddingIndex, examples: list[Example], k: int) -> float:
    found = [[{"id": one.passage.topic} for one in index.search(e.inputs["question"], k)] for e in examples]
    return sum(recall(f, e.expected_documents or ()) for f, e in zip(found, examples, strict=True)) / len(examples)


def test_passages_are_whole_paragraphs_of_about_the_size_asked_for(corpus):
    lengths = sorted(len(passage.text) for passage in corpus)
    assert 400 < lengths[len(lengths) // 2] < 800
    assert len({passage.id for passage in corpus}) == len(corpus) > 400
    assert len(load_passages(1600)) < len(corpus)


def test_a_paragraph_that_topics_share_is_kept_once(corpus):
    holders = {p.topic for p in corpus if "conditional execution" in plain(p.text)}
    assert holders == {"if"}


def test_prose_is_unwrapped_and_code_is_not(corpus):
    text = next(p.text for p in corpus if p.id == "lambda#0")
    assert "Lambda expressions (sometimes called lambda forms) are used to create anonymous functions." in text
    assert "\n   def <lambda>(parameters):\n       return expression" in text


def test_forty_different_questions(examples):
    assert len(examples) == len({example.inputs["question"] for example in examples}) == 40
    assert {example.metadata["difficulty"] for example in examples} == {"easy", "medium", "hard"}


def test_every_answer_stands_in_an_expected_topic(corpus, examples):
    texts = {topic: [plain(p.text) for p in corpus if p.topic == topic] for topic in {p.topic for p in corpus}}
    for example in examples:
        topics = [document.id for document in example.expected_documents or ()]
        assert set(topics) <= set(texts), example.inputs
        found = any(plain(example.reference_outputs) in text for topic in topics for text in texts[topic])
        assert found, (example.inputs, topics)


def test_more_passages_find_measurably_more(corpus, examples):
    index = BM25Index(corpus)
    few, many = (mean_recall(index, examples, k) for k in (1, 5))
    assert 0.4 < few < many - 0.1
    assert many < 1


def test_bm25_finds_nothing_for_words_that_are_not_there(corpus):
    assert BM25Index(corpus).search("xyzzy plugh", 5) == []


def test_searches_are_best_first(corpus):
    found = BM25Index(corpus).search("what can a lambda expression not contain", 5)
    assert found[0].passage.topic == "lambda"
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


@pytest.mark.slow
def test_embeddings_find_what_shares_no_word(corpus):
    told: list[int] = []
    some = [p for p in corpus if p.topic in ("lambda", "unary", "pass", "shifting", "in")]
    index = EmbeddingIndex(some, load_model(), told.append)
    assert index.search("anonymous functions", 1)[0].passage.topic == "lambda"
    assert index.search("a placeholder that does nothing", 1)[0].passage.topic == "pass"
    assert sum(told) == len(some)
    [near] = similarity_evaluators(index)
    [same] = score(near, outputs="A lambda has no statements.", reference_outputs="a lambda has no statements")
    [far] = score(near, outputs="Shifts are of lower priority.", reference_outputs="a lambda has no statements")
    assert same.score > far.score + 0.2
