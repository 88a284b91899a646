"""BLEU against NLTK and sacrebleu, ROUGE against rouge-score, edits against rapidfuzz."""

import subprocess
import sys
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.evaluators import Skip, get_evaluator, score
from spanwise.evaluators.builtin import case_text
from spanwise.evaluators.builtin.case_text import get_tokenizer
from spanwise.evaluators.builtin.text import bleu, bleus, fuzzy, levenshtein, rouge, rouge_parts

WORDS = st.lists(
    st.sampled_from(["the", "cat", "sat", "on", "mat", "don't", "3.5", "(yes)", "No.", "naïve", "北京"]), max_size=14
).map(" ".join)
PAIRS = [
    ("The cat sat on the mat.", "The cat is on the mat."),
    (
        "It is a guide to action which ensures that the military always obeys the commands of the party",
        "It is a guide to action that ensures that the military will forever heed Party commands",
    ),
    ("the the the the the the the", "the cat is on the mat"),
    ("a", "a"),
    ("", "reference"),
    ("Ünïcödé wörds hére", "Ünïcödé wörds thére"),
    ("x", ""),
]


def nltk_bleu(text, references, n):
    from nltk.tokenize import word_tokenize
    from nltk.translate.bleu_score import sentence_bleu

    candidate = word_tokenize(text, preserve_line=True)
    wanted = [word_tokenize(one, preserve_line=True) for one in references]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where an order has no match
        return sentence_bleu(wanted, candidate, weights=[1 / n] * n)


@pytest.mark.process
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@given(text=WORDS, references=st.lists(WORDS, min_size=1, max_size=3))
def test_bleu_is_nltks(text, references, n):
    assert bleu(text, references, n=n) == pytest.approx(nltk_bleu(text, references, n), abs=1e-12)


@pytest.mark.process
@loop_over(("text", "reference"), PAIRS)
def test_bleu_of_hard_texts_is_nltks(text, reference):
    assert bleus(text, reference) == pytest.approx([nltk_bleu(text, [reference], n) for n in (1, 2, 3, 4)], abs=1e-12)


@given(text=WORDS, reference=WORDS.filter(bool))
def test_bleu_is_sacrebleus_with_its_tokenizer(text, reference):
    import sacrebleu

    theirs = (
        sacrebleu.sentence_bleu(
            text, [reference], smooth_method="none", lowercase=False, tokenize="13a", use_effective_order=False
        ).score
        / 100
    )
    assert bleu(text, reference, tokenizer="13a") == pytest.approx(theirs, abs=1e-9)


HARD = st.text(alphabet="aAn t.,,?!-'\":;()$&/+5\n\t\x1c\u2019\u2014é北`<>{}", max_size=24) | WORDS


@pytest.mark.process
@given(HARD)
@settings(max_examples=400)
def test_words_are_nltks(text):
    from nltk.tokenize import NLTKWordTokenizer

    assert get_tokenizer("nltk")(text) == NLTKWordTokenizer().tokenize(text)


@loop_over(
    "text",
    [
        "I cannot, really.",
        "Gimme that.",
        "a.. b.",
        "3,000, or 5,x",
        ".",
        "a .",
        "end. \n",
        "x,",
        "1.",
        "Wow?!",
        "U.S. and",
        "a,b",
        " ",
        "tail,\n",
    ],
)
def test_words_of_hard_texts_are_nltks(text):
    from nltk.tokenize import NLTKWordTokenizer

    assert get_tokenizer("nltk")(text) == NLTKWordTokenizer().tokenize(text)


@pytest.mark.process
@given(HARD)
@settings(max_examples=400)
def test_words_are_those_of_mteval_13a(text):
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    assert get_tokenizer("13a")(text) == Tokenizer13a()(text).split()


def test_bleu_without_a_match_of_some_order_is_zero_not_tiny():
    assert bleu("the cat", "the dog") == 0.0


@pytest.mark.process
@pytest.mark.parametrize("kind", ["1", "2", "L"])
@pytest.mark.parametrize("stemmer", [False, True])
@given(text=WORDS, reference=WORDS)
def test_rouge_is_rouge_scores(kind, stemmer, text, reference):
    from rouge_score.rouge_scorer import RougeScorer

    theirs = RougeScorer([f"rouge{kind}"], use_stemmer=stemmer).score(reference, text)[f"rouge{kind}"]
    assert rouge_parts(text, reference, kind=kind, stemmer=stemmer) == pytest.approx(
        (theirs.precision, theirs.recall, theirs.fmeasure)
    )


@loop_over(("text", "reference"), PAIRS)
def test_rouge_of_hard_texts_is_rouge_scores(text, reference):
    from rouge_score.rouge_scorer import RougeScorer

    theirs = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(reference, text)
    assert [rouge(text, reference, kind=kind) for kind in "12L"] == pytest.approx(
        [theirs[f"rouge{kind}"].fmeasure for kind in "12L"]
    )


@pytest.mark.parametrize("text", ["Привет, мир", "北京天气很好", "مرحبا بالعالم", "สวัสดี", "नमस्ते दुनिया"])
def test_rouge_of_other_scripts_needs_the_unicode_tokenizer(text):
    assert rouge(text, text) == 0.0
    assert rouge(text, text, tokenizer="unicode") == 1.0


@given(WORDS, WORDS)
def test_rouge_is_symmetric_and_within_its_range(a, b):
    for kind in "12L":
        assert rouge(a, b, kind=kind) == pytest.approx(rouge(b, a, kind=kind))
        assert 0 <= rouge(a, b, kind=kind) <= 1


@given(st.text(), st.text())
def test_edits_are_rapidfuzzs(a, b):
    from rapidfuzz import fuzz
    from rapidfuzz.distance import Levenshtein

    assert fuzzy(a, b) == pytest.approx(fuzz.ratio(a, b) / 100)
    assert levenshtein(a, b) == pytest.approx(1 - Levenshtein.distance(a, b) / max(len(a), len(b), 1))
    assert levenshtein(a, b) == levenshtein(b, a)


@given(st.text(max_size=12), st.text(max_size=12))
def test_levenshtein_is_nltks_edit_distance(a, b):
    from nltk.metrics.distance import edit_distance

    assert levenshtein(a, b) == pytest.approx(1 - edit_distance(a, b) / max(len(a), len(b), 1))


def test_evaluators_give_one_feedback_per_metric():
    assert [
        (one.key, round(one.score, 3))
        for one in score(get_evaluator("bleu"), outputs="the cat", reference_outputs="the cat")
    ] == [
        ("bleu_1", 1.0),
        ("bleu_2", 1.0),
        ("bleu_3", 0.0),
        ("bleu_4", 0.0),
    ]
    assert [one.key for one in score(get_evaluator("rouge"), outputs="a", reference_outputs="a")] == [
        "rouge_1",
        "rouge_2",
        "rouge_l",
    ]


def test_of_several_references_the_best_counts():
    assert score(get_evaluator("rouge"), outputs="a cat", reference_outputs=["a dog", "a cat"])[2].score == 1.0
    assert (
        score(get_evaluator("levenshtein", ignore_case=True), outputs="ABC", reference_outputs=["x", "abc"])[0].score
        == 1.0
    )
    assert score(get_evaluator("fuzzy"), outputs="abc", reference_outputs=[])[0].outcome == "skip"


def test_an_empty_list_of_references_is_a_skip():
    with pytest.raises(Skip):
        bleu("a", [])
    assert {one.outcome for one in score(get_evaluator("bleu"), outputs="a", reference_outputs=[])} == {"skip"}


def test_another_key_renames_all_metrics():
    named = get_evaluator("bleu", key="mine", tokenizer="characters")
    assert [metric.key for metric in named.metrics] == ["mine_1", "mine_2", "mine_3", "mine_4"]
    assert [one.key for one in score(named, outputs="北京", reference_outputs="北京")] == [
        "mine_1",
        "mine_2",
        "mine_3",
        "mine_4",
    ]


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(ValueError, match="'punkt'"):
        get_evaluator("bleu", tokenizer="punkt")


def test_marks_belong_to_the_word_that_they_stand_in():
    hindi = rouge_parts("नमस्ते दुनिया", "नमस्ते भारत", kind="1", tokenizer="unicode")
    assert hindi == (0.5, 0.5, 0.5)
    assert rouge("क़िला", "क़िले", kind="1", tokenizer="unicode") == 0.0
    assert rouge("cafe\u0301 noir", "cafe\u0301 noir", kind="2", tokenizer="unicode") == 1.0


def test_the_treebank_patterns_are_those_of_the_nltk_that_is_installed():
    from nltk.tokenize import NLTKWordTokenizer as Theirs

    for name in ("STARTING_QUOTES", "PUNCTUATION", "ENDING_QUOTES"):
        assert [(rule.pattern, by) for rule, by in getattr(Theirs, name)] == list(getattr(case_text, name))
    for name in ("PARENS_BRACKETS", "DOUBLE_DASHES"):
        rule, by = getattr(Theirs, name)
        assert ((rule.pattern, by),) == getattr(case_text, name)
    for name in ("CONTRACTIONS2", "CONTRACTIONS3"):
        assert tuple(rule.pattern for rule in getattr(Theirs, name)) == getattr(case_text, name)


FIRST_CALL = """
import sys
from spanwise.evaluators import get_evaluator, score
score(get_evaluator("bleu"), outputs="(the cat's) mat", reference_outputs="the cat\\x1f")
assert not {"nltk", "numpy", "scipy"} & sys.modules.keys(), sorted(sys.modules)
"""


@pytest.mark.process
def test_a_first_bleu_imports_no_library_that_takes_seconds():
    subprocess.run([sys.executable, "-c", FIRST_CALL], check=True)


@pytest.mark.process
@pytest.mark.parametrize("id", ["levenshtein", "fuzzy", "rouge"])
def test_texts_that_would_take_minutes_are_an_error_at_once(id):
    said = score(get_evaluator(id), outputs="a b " * 200_000, reference_outputs="b c " * 200_000)
    assert "would take minutes to compare" in said[0].error
    assert score(get_evaluator(id), outputs="a b " * 200_000, reference_outputs="a b " * 200_000)[0].score == 1.0


def test_orders_of_nothing_are_refused():
    with pytest.raises(ValueError, match="n is 1 or more, not 0"):
        bleu("a", "a", n=0)
    with pytest.raises(ValueError, match="not '0'"):
        rouge("a", "a", kind="0")
