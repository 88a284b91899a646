"""Perturbed examples: what each kind changes, what stays, and how examples are linked."""

import base64
import json
import os
import subprocess
import sys
import time
import zipfile

import pytest

from looped_cases import loop_over
from spanwise.collector.errors import NotFound
from spanwise.collector.records import Document, Example, find_root_id, is_perturbed
from spanwise.evaluators import datasets, evaluate

KINDS = ["typos", "casing", "punctuation", "contractions", "word_order", "noise", "base64", "base16"]
QUESTION = "I do not know, is this the right way to cancel an order?"


def perturbed(text, kind, **options):
    """Return the text after one perturbation; None if the kind cannot change it."""
    copies = datasets.perturb([{"inputs": text, "id": "x"}], kind, **options)[1:]
    return copies[0].inputs if copies else None


# --- linked examples ----------------------------------------------------------------------------------------------------


BASE = Example(
    id="b",
    inputs={"question": QUESTION},
    reference_outputs="Yes",
    expected_documents=(Document("d"),),
    documents=(Document("e"),),
    conditions="Yes",
    guidelines="be brief",
    categories=("orders",),
    metadata={"source": "faq"},
    split="test",
    outputs="an old answer",
)


def test_a_perturbed_example_keeps_all_but_inputs_and_outputs():
    base, copy = datasets.perturb([BASE], "typos")
    assert base == BASE
    assert copy.inputs["question"] != QUESTION
    assert (copy.base_id, copy.categories, copy.outputs) == ("b", ("orders", "typos"), None)
    same = "reference_outputs expected_documents documents conditions guidelines metadata split history".split()
    assert [getattr(copy, name) for name in same] == [getattr(base, name) for name in same]


def test_base_cases_come_first_and_unchanged():
    rows = [{"inputs": QUESTION}, {"inputs": QUESTION}, {"inputs": "another one"}]
    result = datasets.perturb(rows, KINDS)
    assert list(result[:3]) == datasets.read(rows)
    assert len({example.id for example in result}) == len(result)


def test_each_kind_gives_one_example_with_its_category():
    result = datasets.perturb([{"inputs": QUESTION}], KINDS)
    assert [example.categories for example in result[1:]] == [(kind,) for kind in KINDS]
    assert dict(result.perturbed) == dict.fromkeys(KINDS, 1)


def test_a_kind_that_is_already_a_category_becomes_the_last():
    (_, copy) = datasets.perturb([{"inputs": QUESTION, "categories": ["typos", "faq"]}], "typos")
    assert copy.categories == ("faq", "typos")


def test_perturbations_are_not_perturbed_again():
    once = datasets.perturb([{"inputs": QUESTION, "id": "b"}], "typos")
    both = datasets.perturb(once, ["typos", "casing"])
    assert [example.categories for example in both] == [(), ("typos",), ("casing",)]
    assert (both.perturbed, both.existing) == ({"typos": 0, "casing": 1}, {"typos": 1, "casing": 0})


def test_a_chained_perturbation_is_linked_to_its_own_base():
    once = datasets.perturb([{"inputs": QUESTION, "id": "b"}], "typos")
    chained = datasets.perturb(once, "casing", chain=True)
    base, typos, _, both = chained
    assert (both.base_id, both.categories) == (typos.id, ("typos", "casing"))
    assert find_root_id(both, {example.id: example for example in chained}) == base.id


def test_a_variation_is_no_perturbation():
    variation = Example(inputs=QUESTION, base_id="seed")
    assert not is_perturbed(variation)
    assert len(datasets.perturb([variation], "typos")) == 2


def test_the_root_of_a_deleted_base_and_of_a_circle():
    a, b = Example(inputs=1, id="a", base_id="b"), Example(inputs=2, id="b", base_id="a")
    c, lost = Example(inputs=3, id="0", base_id="b"), Example(inputs=4, id="d", base_id="gone")
    examples = {each.id: each for each in (a, b, c, lost)}
    assert [find_root_id(each, examples) for each in (a, b, c, lost)] == ["a", "a", "a", "gone"]


def test_a_saved_base_case_keeps_its_perturbations(store):
    datasets.save(store, "faq", [Example(inputs=QUESTION, id="given")])
    datasets.save(store, "faq", datasets.perturb([{"inputs": QUESTION}], "typos"))
    base, copy = store.examples("faq")
    assert (base.id, copy.base_id, copy.categories) == ("given", "given", ("typos",))


# --- chosen examples ------------------------------------------------------------------------------------------------------


def chosen(rows, **options):
    result = datasets.perturb(rows, ["typos", "noise"], **options)
    return {(copy.categories[0], copy.base_id, copy.inputs) for copy in result if copy.base_id}


ROWS = [{"inputs": f"{QUESTION} Item {n}.", "id": f"e{n}"} for n in range(400)]


def test_the_order_of_the_examples_does_not_matter():
    assert chosen(ROWS, share=0.3) == chosen(ROWS[::-1], share=0.3)


def test_the_share_is_that_of_each_kind():
    counts = datasets.perturb(ROWS, ["typos", "noise"], share=0.3).perturbed
    assert all(90 <= count <= 150 for count in counts.values())
    assert chosen(ROWS, share=0.3) < chosen(ROWS, share=0.6) < chosen(ROWS)
    assert chosen(ROWS, share=0) == set()


def test_another_seed_chooses_other_examples_and_changes():
    assert chosen(ROWS, seed=1) != chosen(ROWS, seed=2)
    ids = [{base for _, base, _ in chosen(ROWS, seed=seed, share=0.1)} for seed in (1, 2)]
    assert ids[0] != ids[1]


@pytest.mark.process
def test_equal_seeds_give_equal_texts_in_every_process():
    code = (
        "from spanwise.evaluators import datasets; import json; "
        f"print(json.dumps([e.inputs for e in datasets.perturb([{{'inputs': {QUESTION!r}}}], {KINDS!r}, seed=7)]))"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert json.loads(said[0])[1:] == AS_EVER


AS_EVER = [
    "I do nit know, is this the right way to cancel an orrder?",
    "i do not know, is this the right way to cancel an order?",
    "I do not know is this the right way to cancel an order?",
    "I don't know, is this the right way to cancel an order?",
    "I do not know, is this the right to way cancel an order?",
    "I d|o not know, is this the righ|t way t+o cancel a~n or^der?",
    "SSBkbyBub3Qga25vdywgaXMgdGhpcyB0aGUgcmlnaHQgd2F5IHRvIGNhbmNlbCBhbiBvcmRlcj8=",
    "4920646F206E6F74206B6E6F772C2069732074686973207468652072696768742077617920746F2063616E63656C20616E206F726465723F",
]


# --- what changes ---------------------------------------------------------------------------------------------------------


@loop_over("seed", range(20))
def test_a_typo_changes_letters_of_a_word(seed):
    text = perturbed("stable words", "typos", seed=seed)
    assert abs(len(text) - len("stable words")) <= 2
    assert text.count(" ") == 1


@loop_over("seed", range(20))
def test_casing_changes_nothing_but_case(seed):
    text = perturbed(QUESTION, "casing", seed=seed)
    assert text.lower() == QUESTION.lower()
    assert text != QUESTION


@loop_over("seed", range(20))
def test_punctuation_is_omitted_or_doubled(seed):
    assert (
        perturbed('Is it "so"? Yes.', "punctuation", seed=seed).translate(str.maketrans("", "", "?."))
        == 'Is it "so" Yes'
    )


@loop_over(
    ("text", "changed"),
    [
        ("do not go", "don't go"),
        ("Do not go", "Don't go"),
        ("DO NOT go", "DON'T go"),
        ("you cannot go", "you can't go"),
        ("WE CAN NOT GO", "WE CAN'T GO"),
        ("they will not go", "they won't go"),
        ("I am here", "I'm here"),
        ("what is this", "what's this"),
        ("she will go", "she'll go"),
        ("don't go", "do not go"),
        ("DON’T GO", "DO NOT GO"),
        ("you can't go", "you cannot go"),
        ("Won't go", "Will not go"),
        ("it's late", "it is late"),
        ("let's go", "let us go"),
        ("I've time", "I have time"),
        ("this is who I am", None),
        ("don't you go", None),
        ("it's been late", None),
        ("John's book", None),
        ("donot go", None),
    ],
)
def test_contractions_are_made_and_expanded(text, changed):
    assert perturbed(text, "contractions") == changed


def test_word_order_swaps_neighbours():
    assert perturbed("hello world.", "word_order") == "world hello."
    assert perturbed("one, two", "word_order") is None


@loop_over("seed", range(20))
def test_noise_only_inserts(seed):
    text = perturbed(QUESTION, "noise", seed=seed)
    assert text.translate(str.maketrans("", "", "~^|;=+")) == QUESTION
    assert text != QUESTION


def test_encodings_encode_the_text():
    assert base64.b64decode(perturbed(QUESTION, "base64")).decode() == QUESTION
    assert bytes.fromhex(perturbed(QUESTION, "base16")).decode() == QUESTION


def test_the_guardrail_scores_encoded_examples_only(store):
    result = datasets.perturb([{"inputs": QUESTION}], ["typos", "base64", "base16"])
    experiment = evaluate(result, lambda inputs: "no", ["encoding_guardrail"], store=store, progress=False)
    stats = experiment.summary()["encoding_guardrail"]
    assert (stats.n, stats.skipped) == (2, 2)


# --- texts that cannot be changed, and strange ones -----------------------------------------------------------------------


@loop_over(
    ("text", "kinds"),
    [
        ("", []),
        (" \n", []),
        ("a", ["casing", "noise", "base64", "base16"]),
        ("5", []),
        ("?!", ["punctuation"]),
        ("🙂", []),
        ('{"question": "is it true?"}', []),
        ('[1, "do not"]', []),
        ("```\nprint('do not')\n```", []),
        ("كيف يمكنني إلغاء طلبي؟", ["typos", "punctuation", "word_order", "noise", "base64", "base16"]),
        ("我想取消我的3个订单。", ["typos", "punctuation", "noise", "base64", "base16"]),
        ("\ud800 word", ["typos", "casing", "noise", "base64", "base16"]),
    ],
)
def test_a_text_that_a_kind_cannot_change_is_counted(text, kinds):
    result = datasets.perturb([{"inputs": {"q": text}}], KINDS)
    assert [copy.categories[0] for copy in result[1:]] == kinds
    assert result.unchangeable == {kind: int(kind not in kinds) for kind in KINDS}


def test_inputs_without_texts_cannot_be_changed():
    result = datasets.perturb([{"inputs": {"n": 1, "flag": True, "none": None}}, {"inputs": 5}], "typos")
    assert result.unchangeable == {"typos": 2}


def test_no_examples():
    assert list(datasets.perturb([], KINDS)) == []


HUGE = {
    "words": "what is not the answer, " * 40_000,
    "letters": "a" * 2**20,
    "Chinese": "我想取消订单" * 170_000,
    "brackets": "[" * 2**19 + "]" * 2**19,
    "open": '{"' * 2**19,
    "backticks": "".join("`" * n + " " for n in range(1, 1_440)),
    "tags": "<a" * 2**19,
    "dots": "a." * 2**19,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HUGE)
def test_a_text_of_a_megabyte_takes_time_in_proportion(name):
    start = time.process_time()
    datasets.perturb([{"inputs": HUGE[name]}], KINDS)
    assert time.process_time() - start < 40


@pytest.mark.slow
def test_ten_thousand_examples_with_eight_kinds_take_at_most_ten_seconds():
    rows = [{"question": f"{QUESTION} It is number {n}. Please answer in one sentence."} for n in range(10_000)]
    start = time.process_time()
    assert len(datasets.perturb(rows, KINDS)) == 90_000
    assert time.process_time() - start < 10


# --- protected parts ------------------------------------------------------------------------------------------------------

PARTS = {
    "code": [
        "```python\ndo not change()\n```",
        "~~~\nis not\n~~~",
        "`do not`",
        "``a ` is not``",
        "<b class='is not'>",
        "```\nis not closed",
    ],
    "urls": [
        "https://example.com/is-not?a=b",
        "www.example.com",
        "example.com",
        "report.pdf",
        "mailto:jane@example.com",
    ],
    "emails": ["jane.doe+x@example.com"],
    "placeholders": ["{name}", "{{ user.name }}", "${name}", "%(name)s", "{}"],
    "numbers": ["2024-05-01", "3.14", "1,000", "GPT4", "3rd", "2+2", "٣٤"],
    "json": ['{"is": "not", "a": [1]}', '["do not"]'],
}


@loop_over("kind", KINDS)
def test_protected_parts_stay(kind):
    parts = [part for of_name in PARTS.values() for part in of_name if not part.startswith(("```", "~~~"))]
    for part in [*parts, "\n```python\ndo not change()\n```\n", "\n~~~\nis not\n~~~\n", "\n```\nis not closed"]:
        for seed in range(5):
            text = perturbed(f"I do not know, please. {part}", kind, seed=seed)
            assert text.endswith(part), part


@loop_over("name", PARTS)
def test_a_part_alone_cannot_be_changed(name):
    for part in PARTS[name]:
        assert [perturbed(part, kind, protect=[name]) for kind in ("typos", "casing", "noise", "base64")] == [
            None
        ] * 4, part


@loop_over("name", PARTS)
def test_a_part_is_changed_if_told_to(name):
    assert all(perturbed(f"x {part}", "base64", protect=()) == encoded(f"x {part}") for part in PARTS[name])


def encoded(text):
    return base64.b64encode(text.encode()).decode()


@loop_over("kind", ["typos", "noise"])
def test_a_word_that_touches_a_protected_part_belongs_to_it(kind):
    assert [perturbed(text, kind) for text in ("{name}s", "`x`y", "5é")] == [None] * 3
    changed = [perturbed("3个订单https://example.com", kind, seed=seed) for seed in range(5)]
    assert all(text.startswith("3") and text.endswith("https://example.com") for text in changed)


def test_json_in_a_sentence_stays_but_not_its_quotes():
    text = perturbed('please read "{"a": {"do": "not"}}" or [see [1, "do"]]', "casing", seed=1)
    assert '"{"a": {"do": "not"}}"' in text
    assert '[1, "do"]' in text


# --- which texts of the inputs --------------------------------------------------------------------------------------------


def cased(inputs, **options):
    (_, copy) = datasets.perturb([{"inputs": inputs}], "casing", **options)
    return copy.inputs


def test_all_texts_of_the_inputs_change():
    changed = cased({"question": "is it", "user": {"name": "jane"}, "tags": ["one", 2]})
    assert (changed["question"], changed["user"]["name"], changed["tags"][0]) != ("is it", "jane", "one")
    assert changed["tags"][1] == 2


def test_named_fields_change_alone():
    inputs = {"question": "is it", "user": {"name": "jane", "role": "admin"}, "a.b": "c"}
    assert cased(inputs, fields=["question"]) == {**inputs, "question": cased(inputs)["question"]}
    assert cased(inputs, fields=["user.name"])["user"]["role"] == "admin"
    assert cased(inputs, fields=["a.b"])["question"] == "is it"


CHAT = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "is it so"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "are you sure"},
    {"role": "assistant", "content": "yes"},
]


@loop_over("wrap", [lambda chat: chat, lambda chat: {"input": chat}, lambda chat: {"messages": chat, "n": 1}])
def test_the_last_message_of_the_user_changes(wrap):
    changed = cased(wrap(CHAT))
    expected = [*CHAT[:3], {"role": "user", "content": "are you sure"}, CHAT[4]]
    assert json.loads(json.dumps(changed).lower()) == json.loads(json.dumps(wrap(expected)).lower())
    assert "are you sure" not in json.dumps(changed)
    assert "is it so" in json.dumps(changed)


def test_parts_and_wrapped_messages_change():
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    (message,) = cased([{"role": "user", "content": [{"type": "text", "text": "is it"}, image, "so"]}])
    assert message["content"][0]["text"] != "is it"
    assert message["content"][1] == image
    assert cased([{"type": "human", "data": {"content": "is it"}}])[0]["data"]["content"] != "is it"


def test_a_chat_without_a_user_and_a_single_message():
    assert datasets.perturb([{"inputs": CHAT[:1]}], "casing").unchangeable == {"casing": 1}
    assert cased({"role": "user", "content": "is it"})["role"] == "user"


# --- wrong arguments ------------------------------------------------------------------------------------------------------


@loop_over(
    ("options", "said"),
    [
        ({"kinds": "typo"}, "unknown kind of perturbation 'typo'; expected one of: typos, "),
        ({"kinds": []}, "kinds must name at least one of"),
        ({"kinds": "typos", "seed": "1"}, "seed must be an integer, got '1'"),
        ({"kinds": "typos", "share": 1.5}, "share must be a number from 0 to 1, got 1.5"),
        ({"kinds": "typos", "protect": "urls"}, "protect must be a list of names"),
        ({"kinds": "typos", "protect": ["url"]}, "unknown name 'url' in protect; expected one of: code, emails, urls"),
        ({"kinds": "typos", "fields": ["answer"]}, "no example has a text in the field 'answer' of its inputs"),
    ],
)
def test_wrong_arguments_are_named(options, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        datasets.perturb([{"inputs": {"q": "is it"}}], **options)


# --- synonyms -------------------------------------------------------------------------------------------------------------

# part of speech, words of the sense, and for each word its number of senses in tagged texts
SENSES = [
    ("noun", {"answer": 1, "reply": 1, "hebdomad": 0}),
    ("noun", {"error": 1, "Mistake": 1, "mistake": 1, "wrong_doing": 1}),
    ("noun", {"saw": 1, "proverb": 1}),
    ("noun", {"large": 0, "size": 1}),
    ("verb", {"answer": 1, "reply": 1, "respond": 1}),
    ("adj", {"large": 1, "big(p)": 1, "great": 1}),
]


def write_wordnet(folder):
    """Write a tiny WordNet in the format of wndb(5WN)."""
    folder.mkdir(parents=True)
    for category in ("noun", "verb", "adj", "adv"):
        data, index = "  1 a licence\n", {}
        for number, (of, words) in enumerate(SENSES):
            if of == category:
                offset = len(data)
                members = " ".join(f"{word} 0" for word in words)
                data += f"{offset:08} {number:02} {of[0]} {len(words):02x} {members} 000 | a gloss\n"
                index.update({word.partition("(")[0].lower(): (count, offset) for word, count in words.items()})
        lines = [
            f"{word} {category[0]} 1 1 @ 1 {count} {offset:08}  \n" for word, (count, offset) in sorted(index.items())
        ]
        (folder / f"data.{category}").write_text(data)
        (folder / f"index.{category}").write_text("".join(["  1 a licence\n", *lines]))
        (folder / f"{category}.exc").write_text("saw see\n" if category == "verb" else "")
    return folder


@pytest.fixture
def wordnet(tmp_path, monkeypatch):
    monkeypatch.setenv("WNSEARCHDIR", str(write_wordnet(tmp_path / "dict")))


@loop_over(
    ("text", "changed"),
    [
        ("the answer", "the reply"),  # of noun and verb; other words of the senses are rare or of one of them only
        ("an error", None),  # the article would not fit
        ("that error", "that mistake"),
        ("a large one", "a great one"),  # the noun does not occur in texts
        ("he saw", None),  # an irregular form
        ("Error", None),  # maybe a name
        ("`error`", None),
        ("nothing here", None),
    ],
)
def test_synonyms_share_the_sense_in_all_parts_of_speech(wordnet, text, changed):
    assert perturbed(text, "synonyms") == changed


def test_the_archive_of_nltk_is_read(tmp_path, monkeypatch):
    folder = write_wordnet(tmp_path / "dict")
    archive = tmp_path / "corpora" / "wordnet.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as written:
        for file in folder.iterdir():
            written.write(file, f"wordnet/{file.name}")
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    assert perturbed("that error", "synonyms") == "that mistake"


def test_without_wordnet_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("spanwise.evaluators.datasets.text_perturbation.list_folders", lambda: iter(()))
    with pytest.raises(NotFound, match="apt-get install wordnet-base"):
        datasets.perturb([], "synonyms")
