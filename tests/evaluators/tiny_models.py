"""Tiny models of random weights, built and saved once per session: what runs is the real code of their libraries."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a it is in of was mont blanc high alps paris france not hope this helps "
    "you are an idiot . , ! ? 4 8 0 6 m 法 国 的 首 都 是 巴 黎 。 ما هي عاصمة فرنسا ؟ 🙂"
).split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def save_tokenizer(folder: Path, length: int) -> None:
    """A BERT tokenizer that knows a few words, and all letters."""
    pytest.importorskip("sentence_transformers")
    from transformers import BertTokenizerFast

    vocabulary = [*WORDS, *[x for x in LETTERS if x not in WORDS], *[f"##{x}" for x in LETTERS]]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    made = BertTokenizerFast(
        vocab={word: number for number, word in enumerate(vocabulary)}, do_lower_case=True, model_max_length=length
    )
    made.save_pretrained(folder)


def save_classifier(folder: Path, labels: list[str], *, seed: int = 0, length: int = 64, **config) -> Path:
    """A `BertForSequenceClassification` with these labels, in a folder, as safetensors."""
    folder.mkdir(parents=True)
    save_tokenizer(folder, length)
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    settings = BertConfig(
        vocab_size=len(WORDS) + 2 * len(LETTERS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=length,
        initializer_range=0.5,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        **config,
    )
    BertForSequenceClassification(settings).eval().save_pretrained(folder)
    return folder


@cache
def read_classifier(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and network of a folder, as transformers itself reads them."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    return AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder).eval()


def relabel(folder: Path, labels: list[str]) -> None:
    """Other names for what the model in a folder gives."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"id2label": dict(enumerate(labels)), "label2id": {label: n for n, label in enumerate(labels)}}
    path.write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_nli(tmp_path_factory):
    """A folder with a model of natural language inference; its labels are in an order of their own."""
    return save_classifier(tmp_path_factory.mktemp("tiny") / "nli", ["CONTRADICTION", "Entailment", "neutral"], seed=1)


@pytest.fixture(scope="session")
def tiny_relevance(tmp_path_factory):
    """A folder with a cross-encoder of one score, after a sigmoid."""
    return save_classifier(tmp_path_factory.mktemp("tiny") / "relevance", ["relevant"], seed=2)


@pytest.fixture(scope="session")
def tiny_toxicity(tmp_path_factory):
    """A folder with a classifier that has the labels of Detoxify's `original`, several of which may hold."""
    labels = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
    kind = {"problem_type": "multi_label_classification"}
    return save_classifier(tmp_path_factory.mktemp("tiny") / "toxicity", labels, seed=3, **kind)


@pytest.fixture(scope="session")
def tiny_hhem(tmp_path_factory):
    """A folder like that of Vectara's model: a T5 under another name, beside code that must not run.

    What it is built on lies in the folder `foundation` beside it.
    """
    pytest.importorskip("sentence_transformers")
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForTokenClassification

    folder = tmp_path_factory.mktemp("tiny") / "hhem"
    foundation = folder.parent / "foundation"
    folder.mkdir()
    words = ["<pad>", "</s>", "<unk>", *WORDS[5:], "premise", "hypothesis", ":", "determine", "if", "true"]
    told = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    told.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=told, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    ).save_pretrained(foundation)
    torch.manual_seed(4)
    config = T5Config(vocab_size=len(words), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, num_labels=2)
    config.save_pretrained(foundation)
    network = T5ForTokenClassification(config).eval()
    torch.nn.init.normal_(network.classifier.weight)
    weights = {f"t5.{name}": value.clone() for name, value in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    code = {"AutoModelForSequenceClassification": "modeling_hhem_v2.HHEMv2ForSequenceClassification"}
    described = {"model_type": "HHEMv2", "foundation": str(foundation), "auto_map": code}
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    (folder / "modeling_hhem_v2.py").write_text("raise SystemExit('this code must not run')\n", encoding="utf-8")
    return folder
