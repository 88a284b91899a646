"""The layer of models: where they are, what is missing, each text encoded once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import numpy
import pytest

from spanwise.collector.records import Case, Target
from spanwise.evaluators import evaluate, get_evaluator, score
from spanwise.evaluators.models import PRESETS, Embedder, NoModel, embedder
from spanwise.evaluators.models.inference_batching import CoalescingEncoder
from spanwise.evaluators.models.model_resolution import explain_loading_errors, locate_model


class Counting:
    """A model that notes what it is asked."""

    def __init__(self, fails=""):
        self.asked, self.fails = [], fails

    def __call__(self, texts):
        self.asked.append(list(texts))
        if self.fails and self.fails in texts:
            raise RuntimeError(f"no vector for {self.fails!r}")
        return numpy.asarray([[float(len(text) + 1), 1.0] for text in texts], dtype=numpy.float32)


def test_equal_texts_are_encoded_once():
    model = Counting()
    made = embedder(model).embed(["a", "bb", "a"])
    assert model.asked == [["a", "bb"]]
    assert made.tolist() == [[2.0, 1.0], [3.0, 1.0], [2.0, 1.0]]


def test_what_was_encoded_is_remembered_up_to_a_bound():
    model = Counting()
    encoding = CoalescingEncoder(model, memory=600)
    for text in ("a", "b", "b", "c", "d", "a"):
        encoding([text])
    assert model.asked == [["a"], ["b"], ["c"], ["d"], ["a"]]


def test_what_several_threads_ask_for_meanwhile_goes_together():
    entered, go_on = threading.Event(), threading.Event()
    model = Counting()

    def slow(texts):
        entered.set()
        assert go_on.wait(60)
        return model(texts)

    encoding = CoalescingEncoder(slow)
    threads = [threading.Thread(target=encoding, args=([text],)) for text in ("first", "x", "y", "x")]
    threads[0].start()
    assert entered.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(encoding._waiting) < 2 or sum(map(len, encoding._waiting.values())) < 3:
        assert threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert model.asked[0] == ["first"]
    assert sorted(model.asked[1]) == ["x", "y"]
    assert len(model.asked) == 2


def test_a_text_that_the_model_cannot_take_fails_alone():
    encoding = CoalescingEncoder(Counting(fails="bad"))
    outcomes = {}

    def ask(text):
        try:
            outcomes[text] = float(encoding([text])[text][0])
        except RuntimeError as error:
            outcomes[text] = str(error)

    threads = [threading.Thread(target=ask, args=(text,)) for text in ("good", "bad", "fine")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == {"good": 5.0, "bad": "no vector for 'bad'", "fine": 5.0}
    assert encoding._waiting == {}


def test_what_several_ask_for_is_encoded_once_after_a_failure_too():
    model = Counting(fails="bad")
    entered, go_on = threading.Event(), threading.Event()

    def slow(texts):
        entered.set()
        assert go_on.wait(60)
        return model(texts)

    encoding = CoalescingEncoder(slow, portion=1)
    asked = [["first"], ["bad", "x"], ["y", "x"], ["y", "x"]]
    threads = [threading.Thread(target=lambda texts=texts: suppressed(encoding, texts)) for texts in asked]
    threads[0].start()
    assert entered.wait(60)
    for number, thread in enumerate(threads[1:], 1):
        thread.start()
        while sum(map(len, list(encoding._waiting.values()))) < 2 * number:
            assert thread.is_alive()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert [model.asked.count([text]) for text in ("x", "y")] == [1, 1]


def suppressed(encoding, texts):
    with contextlib.suppress(RuntimeError):
        encoding(texts)


def test_a_function_may_ask_for_other_texts_of_its_own():
    def halves(texts):
        rows = []
        for text in texts:
            parts = [text[: len(text) // 2], text[len(text) // 2 :]]
            rows.append(made.embed(parts).sum(axis=0) if len(text) > 1 else [float(ord(text)), 1.0])
        return rows

    made, found = embedder(halves), []
    thread = threading.Thread(target=lambda: found.extend(made.embed(["abc"]).tolist()), daemon=True)
    thread.start()
    thread.join(60)
    assert found == [[294.0, 3.0]]


def test_nobody_changes_the_vectors_of_another():
    whole = numpy.ones((1, 2), dtype=numpy.float32)
    made = embedder(lambda texts: whole)
    given = made.by_text(["a"])["a"]
    whole *= 2  # a function that uses its array again
    with pytest.raises(ValueError, match="read-only"):
        given *= 3
    assert made.embed(["a"]).tolist() == [[1.0, 1.0]]


def test_a_bad_case_does_not_spoil_its_batch():
    import asyncio

    cases = [Case(outputs="a", reference_outputs="a"), Case(outputs=object(), reference_outputs="a")] * 2
    targets = [Target(trace_id=f"{n:032x}") for n in range(4)]
    rows = asyncio.run(get_evaluator("semantic_similarity", model=Counting()).evaluate_batch(cases, targets))
    assert [row[0].outcome for row in rows] == ["score", "error", "score", "error"]
    assert [row[0].target for row in rows] == targets


@pytest.mark.parametrize(
    ("gives", "what"),
    [
        (lambda texts: [1.0], "returned an array of shape"),
        (lambda texts: [[1.0]] * 3, "returned an array of shape"),
        (lambda texts: "no", "returned 'no'"),
        (lambda texts: [[float("nan")]] * len(texts), "not finite"),
    ],
)
def test_what_is_no_vector_is_said(gives, what):
    with pytest.raises(ValueError, match=what):
        Embedder(gives).embed(["a", "b"])


def test_no_texts_need_no_model():
    assert embedder("no/such-model").embed([]).shape == (0, 0)


def test_a_folder_that_is_not_there_is_said_at_once():
    with pytest.raises(NoModel, match=r"there is no folder .\./nix."):
        get_evaluator("groundedness", model="./nix")


@pytest.mark.process
def test_a_folder_without_a_model_is_said_in_one_line(tmp_path):
    pytest.importorskip("sentence_transformers")
    [found] = score(get_evaluator("semantic_similarity", model=str(tmp_path)), outputs="a", reference_outputs="b")
    assert "no model can be loaded from the folder" in found.error
    assert "\n" not in found.error


@pytest.mark.process
def test_a_model_that_is_not_here_says_where_to_get_it(monkeypatch):
    pytest.importorskip("sentence_transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    [found] = score(get_evaluator("semantic_similarity", model="no/such-model"), outputs="a", reference_outputs="b")
    assert "run `hf download no/such-model --local-dir DIR` and give the folder DIR as the model" in found.error


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    made = get_evaluator("semantic_similarity", model="no/such-model-either")
    [found] = score(made, outputs="a", reference_outputs="b")
    assert (
        "needs 'sentence_transformers', which is not installed: pip install '.[models]' in a checkout of Spanwise"
        in found.error
    )


def test_what_names_no_embedder_is_refused():
    with pytest.raises(NoModel, match="an embedder is a model's name, a folder"):
        get_evaluator("semantic_similarity", model=5)


def test_the_version_changes_with_model_and_parameters():
    versions = {
        get_evaluator("context_mrr", model=Counting(), mrr_relevant_chunk_threshold=t).version for t in (0.1, 0.2, 0.2)
    }
    assert len(versions) == 2
    assert get_evaluator("groundedness", model=Counting()).version != get_evaluator("groundedness").version


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("key", ["groundedness", "sas", "hallucination", "toxicity", "perplexity"])
def test_the_version_tells_weights_apart_in_folders_of_one_name(key, tmp_path):
    for run in ("one", "two", "copy"):
        (folder := tmp_path / run / "checkpoint-100").mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"two" if run == "two" else b"one")
    one, two, copy = (
        get_evaluator(key, model=str(tmp_path / run / "checkpoint-100")) for run in ("one", "two", "copy")
    )
    assert one.version == copy.version != two.version


@pytest.mark.process
def test_a_child_forked_while_a_text_is_encoded_encodes_its_own():
    entered, go_on = threading.Event(), threading.Event()

    def slow(texts):
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            assert go_on.wait(60)
        return Counting()(texts)

    made = embedder(slow)
    thread = threading.Thread(target=made.embed, args=(["a"],))
    thread.start()
    assert entered.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends one that waits for ever
        os._exit(0 if made.embed(["a", "bb"]).tolist() == [[2.0, 1.0], [3.0, 1.0]] else 1)
    go_on.set()
    thread.join(60)
    assert os.waitpid(child, 0)[1] == 0


def test_where_a_model_is_is_looked_up_once(monkeypatch):
    from spanwise.evaluators.models import embedding_model

    asked = []
    find = embedding_model.locate_model
    monkeypatch.setattr(embedding_model, "locate_model", lambda name: asked.append(name) or find(name))
    made = embedder("no/such-model")
    assert [made.name, made.name, made.identity["model"]] == ["no/such-model"] * 3
    assert asked == ["no/such-model"]


def test_an_experiment_keeps_the_name_of_an_embedder(store):
    model = Embedder(Counting(), name="lengths")
    data = [{"inputs": "a", "reference_outputs": "bb"}]
    done = evaluate(
        data, lambda inputs: inputs, [get_evaluator("semantic_similarity", model=model)], store=store, progress=False
    )
    assert [row.feedback["semantic_similarity"].outcome for row in done.rows()] == ["score"]
    assert "lengths" in repr(store.experiment(done.id).evaluators)


def test_what_is_encoded_while_another_waits_for_it_is_not_encoded_again():
    entered, go_on = threading.Event(), threading.Event()
    model = Counting()

    def slow(texts):
        entered.set()
        assert go_on.wait(30)
        return model(texts)

    encoding = CoalescingEncoder(slow)
    threads = [threading.Thread(target=encoding, args=(texts,)) for texts in (["same"], ["same", "other"])]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    while "other" not in encoding._waiting:
        assert threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert model.asked == [["same"], ["other"]]


@pytest.mark.parametrize("name", ["ALL-minilm-l6-V2", "Sentence-Transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2"])
def test_a_presets_name_may_have_any_case(name):
    assert locate_model(name).name == "all-MiniLM-L6-v2"
    assert locate_model(name).preset is PRESETS["all-MiniLM-L6-v2"]


@pytest.mark.parametrize(
    ("name", "meant"), [("all-minilm-l6", "all-MiniLM-L6-v2"), ("Detoxfy", "detoxify"), ("distil-gpt2", "distilgpt2")]
)
def test_a_model_that_is_not_there_suggests_the_closest_preset(name, meant, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NoModel, match=f"did you mean '{meant}'"), explain_loading_errors(locate_model(name), "it"):
        raise OSError("no such model")


def test_a_version_does_not_depend_on_the_address_of_a_function():
    def grounded():
        def lines(text):
            return text.splitlines()

        return get_evaluator("groundedness", model=lambda texts: [[1.0]] * len(texts), splitter=lines)

    first, second = grounded(), grounded()
    assert first.version == second.version


def test_a_version_tells_functions_of_one_name_apart():
    def by_line():
        def split(text):
            return text.splitlines()

        return split

    def by_word():
        def split(text):
            return text.split()

        return split

    one, other = by_line(), by_word()
    other.__qualname__ = one.__qualname__
    versions = {get_evaluator("groundedness", model=Counting(), splitter=split).version for split in (one, other)}
    assert len(versions) == 2
