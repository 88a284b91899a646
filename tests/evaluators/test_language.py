"""Languages told without a judge, and told to be unknown where they are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.builtin.language_detection import (
    LanguageEstimate,
    detect_language,
    estimate_language,
    is_same_language,
)

TEXTS = [
    ("en", "The weather is nice today and we are going to the park."),
    ("de", "Das Wetter ist heute schön und wir gehen in den Park."),
    ("fr", "Il fait beau aujourd'hui et nous allons au parc."),
    ("es", "Hoy hace buen tiempo y vamos al parque con los niños."),
    ("it", "Oggi il tempo è bello e andiamo al parco con gli amici."),
    ("nl", "Het weer is vandaag mooi en we gaan naar het park."),
    ("pl", "Dzisiaj jest ładna pogoda i idziemy do parku."),
    ("cs", "Dnes je hezké počasí a jdeme do parku."),
    ("sv", "Vädret är fint idag och vi går till parken."),
    ("fi", "Sää on tänään kaunis ja menemme puistoon."),
    ("hu", "Ma szép idő van és megyünk a parkba."),
    ("tr", "Bugün hava güzel ve parka gidiyoruz."),
    ("ru", "Сегодня хорошая погода, и мы идём в парк."),
    ("el", "Ο καιρός είναι καλός σήμερα."),
    ("he", "מזג האוויר נעים היום ואנחנו הולכים לפארק."),
    ("ar", "الطقس جميل اليوم ونحن ذاهبون إلى الحديقة."),
    ("hi", "आज मौसम अच्छा है और हम पार्क जा रहे हैं।"),
    ("th", "วันนี้อากาศดีและเราจะไปสวนสาธารณะ"),
    ("ko", "오늘은 날씨가 좋아서 공원에 갑니다."),
    ("ja", "今日は天気がいいので公園に行きます。"),
    ("zh", "今天天气很好，我们去公园。"),
]


@pytest.mark.process
@loop_over(("code", "text"), TEXTS)
def test_languages(code, text):
    assert detect_language(text) == code


@loop_over(
    "text",
    [
        "",
        "42",
        "OK",
        "3.14 + 2 = 5.14",
        "```python\nfor item in items:\n    print(item)\n```",
        "https://example.com/a/long/path?with=words",
        "😀😀😀",
    ],
)
def test_what_has_no_language(text):
    assert detect_language(text) is None


@pytest.mark.process
@given(st.text())
def test_any_text_has_a_language_or_none(text):
    assert detect_language(text) is None or detect_language(text).isalpha()


@loop_over(
    "text",
    ["4" * 200_000, "QUJD" * 50_000, "1.2." * 50_000, "(" * 200_000, "a@" * 100_000, "```" * 60_000, "w_" * 100_000],
)
def test_hostile_texts_are_told_in_time(text):
    assert detect_language(text) is None or detect_language(text).isalpha()


def test_the_same_language_passes_and_another_fails():
    english, german = TEXTS[0][1], TEXTS[1][1]
    same = score(get_evaluator("language_mismatch"), inputs={"question": english}, outputs=english)
    other = score(get_evaluator("language_mismatch"), inputs=english, outputs=german)
    assert (same[0].score, other[0].score, other[1].score) == (True, False, True)
    assert other[0].comment == "question en, answer de"


def test_code_in_an_answer_does_not_count():
    answer = "Das geht mit einer Schleife über alle Einträge:\n```python\nfor the_item in the_items_of_the_list: print(the_item)\n```"
    assert score(get_evaluator("language_mismatch"), inputs=TEXTS[1][1], outputs=answer)[0].score is True


def test_a_language_that_cannot_be_told_is_a_skip_that_says_whose():
    feedback = score(get_evaluator("language_mismatch"), inputs=TEXTS[0][1], outputs="42")
    assert {one.outcome for one in feedback} == {"skip"}
    assert feedback[0].comment == (
        "the language of the answer cannot be determined: it is too short, 0 letters of at least 12"
    )


@pytest.mark.parametrize(
    "name", ["Barack Obama", "Deutsche Bank AG", "Rio de Janeiro", "Guillermo del Toro", "Buenos Aires"]
)
def test_a_name_alone_has_no_language(name):
    assert detect_language(name) is None


def test_what_is_long_enough_and_still_unclear_is_not_called_short():
    feedback = score(get_evaluator("language_mismatch"), inputs=TEXTS[0][1], outputs="Wolfgang Amadeus Mozart")
    assert feedback[0].comment == "the language of the answer cannot be determined"


def test_another_detector_and_the_context():
    judge = get_evaluator("language_mismatch", detect=lambda text: text[:2], evaluate_retrieved_context=True)
    feedback = score(judge, inputs="en?", outputs="en!", documents=["de"])
    assert [one.score for one in feedback] == [False, True, True, False, False]


def test_few_chinese_characters_may_be_japanese():
    feedback = score(get_evaluator("language_mismatch"), inputs="日本の首都は?", outputs="東京")
    assert {one.outcome for one in feedback} == {"skip"}
    longer = score(
        get_evaluator("language_mismatch"),
        inputs="日本の首都はどこですか?",
        outputs="日本的首都是东京,人口约一千四百万。",
    )
    assert longer[0].score is False


PAIRS = [  # as people ask, and as models answer
    ("en", "What is the capital of France?", "The capital of France is Paris."),
    ("en", "Who wrote the play Hamlet?", "It was written by Shakespeare."),
    ("en", "How many moons does Mars have?", "Mars has two moons."),
    ("en", "Can I return my order?", "Yes, within 30 days."),
    ("de", "Was ist die Hauptstadt von Frankreich?", "Die Hauptstadt ist Paris."),
    ("de", "Wer hat Faust geschrieben?", "Faust stammt von Goethe."),
    ("fr", "Quelle est la capitale de l'Italie ?", "La capitale est Rome."),
    ("fr", "Qui a peint la Joconde ?", "Elle a été peinte par Léonard de Vinci."),
    ("es", "¿Cuál es la capital de Perú?", "La capital de Perú es Lima."),
    ("es", "¿Quién escribió Don Quijote?", "Lo escribió Cervantes."),
    ("it", "Qual è la capitale della Spagna?", "La capitale è Madrid."),
    ("pt", "Qual é a capital do Brasil?", "A capital do Brasil é Brasília."),
    ("nl", "Wat is de hoofdstad van België?", "De hoofdstad is Brussel."),
    ("pl", "Jaka jest stolica Polski?", "Stolicą Polski jest Warszawa."),
    ("sv", "Vad heter Sveriges huvudstad?", "Huvudstaden heter Stockholm."),
    ("fi", "Mikä on Suomen pääkaupunki?", "Suomen pääkaupunki on Helsinki."),
    ("hu", "Mi Magyarország fővárosa?", "Magyarország fővárosa Budapest."),
    ("tr", "Türkiye'nin başkenti neresidir?", "Türkiye'nin başkenti Ankara'dır."),
    ("ru", "Какая столица России?", "Столица России — Москва."),
    ("uk", "Яка столиця України?", "Столиця України — Київ."),
    ("el", "Ποια είναι η πρωτεύουσα;", "Η Αθήνα."),
    ("ar", "ما هي عاصمة مصر؟", "عاصمة مصر هي القاهرة."),
    ("hi", "भारत की राजधानी क्या है?", "भारत की राजधानी नई दिल्ली है।"),
    ("bn", "বাংলাদেশের রাজধানী কী?", "বাংলাদেশের রাজধানী ঢাকা।"),
    ("ta", "தலைநகரம் எது?", "சென்னை."),
    ("th", "เมืองหลวงของไทยคืออะไร", "กรุงเทพ"),
    ("ja", "日本の首都はどこですか?", "東京です。"),
    ("zh", "中国的首都是哪里?", "中国的首都是北京,人口两千万。"),
    ("ko", "한국의 수도는 어디입니까?", "서울입니다."),
    ("id", "Apa ibu kota Indonesia?", "Ibu kota Indonesia adalah Jakarta."),
    ("vi", "Thủ đô của Việt Nam là gì?", "Thủ đô của Việt Nam là Hà Nội."),
]


@loop_over(("code", "question", "answer"), PAIRS)
def test_a_question_and_its_short_answer_are_in_one_language(code, question, answer):
    feedback = score(get_evaluator("language_mismatch"), inputs=question, outputs=answer)
    assert (feedback[0].score, feedback[0].comment) == (True, f"question {code}, answer {code}")


@loop_over("at", range(0, len(PAIRS), 2))
def test_an_answer_in_another_language_is_never_taken_for_one_in_the_same(at):
    (_, question, _), (other, _, answer) = PAIRS[at], PAIRS[(at + 7) % len(PAIRS)]
    assert other != PAIRS[at][0]
    assert score(get_evaluator("language_mismatch"), inputs=question, outputs=answer)[0].score is not True


@loop_over("name", ["Guillermo del Toro", "Johann Sebastian Bach", "Reykjavík", "Wolfgang Amadeus Mozart"])
@loop_over("question", ["Who wrote this book?", "Wer hat das Buch geschrieben?", "Кто написал эту книгу?"])
def test_an_answer_that_is_a_name_is_in_no_other_language(question, name):
    assert score(get_evaluator("language_mismatch"), inputs=question, outputs=name)[0].score is not False


def test_languages_that_are_close_kin_are_not_told_apart_by_a_few_words():
    feedback = score(
        get_evaluator("language_mismatch"), inputs="Číslo stránky je menší.", outputs="Číslo stránky nie je menšie."
    )
    assert feedback[0].score is not False


def test_vowel_signs_are_letters():
    said = score(get_evaluator("language_mismatch"), inputs=PAIRS[0][1], outputs="यह हिन्दी में है")
    assert said[0].score is False  # seven consonants, six signs


@loop_over(
    ("question", "answer"),
    [
        ("Как дела?", "I am fine, thank you."),
        ("How are you?", "Хорошо"),
        ("你好吗？", "I am fine, and you?"),
        ("Is it far?", "很远"),
        ("كيف حالك؟", "I am fine, thank you."),
        ("Is it far?", "बहुत दूर"),
        ("Далеко?", "很远"),
        ("멀어요?", "Yes, it is rather far."),
    ],
)
def test_texts_in_different_scripts_are_in_different_languages_however_short(question, answer):
    feedback = {one.key: one for one in score(get_evaluator("language_mismatch"), inputs=question, outputs=answer)}
    assert feedback["language_mismatch"].score is False
    assert feedback["language_mismatch_fail"].score is True


@pytest.mark.parametrize("answer", ["OK", "iPhone 15 Pro", "Barack Obama", "42", "HTTP 404"])
def test_a_name_in_latin_letters_is_in_no_script(answer):
    assert score(get_evaluator("language_mismatch"), inputs="Какой это телефон?", outputs=answer)[0].score is not False


def test_a_language_that_is_written_in_two_scripts_is_one():
    cyrillic = "Сутра ће бити сунчано, а увече може да падне слаба киша у Београду и околини."
    latin = "Sutra će biti sunčano, a uveče može da padne slaba kiša u Beogradu i okolini."
    told = [{"sr": 1.0}, {"sr": 1.0}]
    sides = [
        LanguageEstimate(likely, 60, script=script) for likely, script in zip(told, ("cyrillic", "latin"), strict=True)
    ]
    assert is_same_language(*sides) is True
    assert is_same_language(replace(sides[0], likely={"ru": 1.0}), sides[1]) is False
    assert [estimate_language(text).script for text in (cyrillic, latin)] == ["cyrillic", "latin"]
