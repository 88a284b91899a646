"""Sentences of many scripts; `|` stands where one ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.evaluators.builtin.case_text import split_sentences

TOLD = {
    "abbreviations": [
        "Dr. Smith went to Washington.| He arrived at 5 p.m. on Friday.",
        "Mr. J. R. R. Tolkien wrote it.| See p. 45, fig. 3, and ch. 2.",
        "Apple Inc. was founded in 1976.| Its CEO is Tim Cook.",
        "I live in the U.S.| My brother lives in the U.K.",
        "J. Doe et al. found it.| It was new.",
        "The meeting is at 10 a.m. Monday.| Be there.",
        "He left at 3 a.m.| She stayed.",
        "He is in the 5th c. B.C. period.| It ended.",
        "Das ist z. B. ein Haus.| Es kostet ca. 5 Mio. Euro.",
        "M. Dupont est arrivé.| Il est parti !| Pourquoi ?",
        "¿Qué es?| ¡No lo sé!| El Sr. García vino.",
        "Это г. Москва, ул. Ленина.| Он жил там до 1990 г. и умер.",
        "А. С. Пушкин родился в Москве.| Он поэт.",
        "डॉ. शर्मा आए।| वे गए।",
        "أ. د. أحمد طبيب. |سارة مهندسة.",
    ],
    "numbers": [
        "The U.S. economy grew by 3.5 % in 2023.| It was a record.",
        "version 2.0.1 is out.| It fixes bug No. 5.",
        "Am 3. Oktober 1990 war es so weit.| Im 19. Jahrhundert nicht.",
        "The value is 3.| Then it rose.",
        "Add 10 g. |Stir it.",
        "It is so.[1]| It was not.[2, 3]",
        "价格是3.5元。|很便宜。",
    ],
    "quotes": [
        'He said "Stop!" and ran away.| Then he stopped.',
        '"Is it true?" she asked.| "It is," he said.',
        "Er sagte: „Komm!“| Sie kam.",
        "« Oui. »| Il est parti.",
        "»Ja.« |Er ging. |»Nein« rief sie.",
        "他说：“你好。”|然后走了。",
        "「本当ですか？」と彼は聞いた。|はい。",
        "「はい。」。|それで終わり。",
    ],
    "scripts": [
        "法国的首都是巴黎。|它在塞纳河上！|是吗？",
        "今天很好.|明天也好.",
        "ما هي عاصمة فرنسا؟| إنها باريس.| شكرا",
        "یہ کتاب ہے۔| وہ قلم ہے۔",
        "यह किताब है।| वह कलम है।| क्या यह सच है?",
        "오늘은 맑습니다.| 내일은 비가 옵니다.",
        "Τι είναι αυτό;| Είναι σπίτι.",
        "Սա տուն է։| Նա գնաց։",
        "ይህ ቤት ነው።| እሱ ሄደ።",
        "ဒါက အိမ်ပါ။| သူသွားပြီ။",
        "នេះជាផ្ទះ។| គាត់ទៅ។",
        "ฉันชอบกินข้าว แต่เขาชอบกินก๋วยเตี๋ยว",  # no marks: one sentence
        "ฉันชอบกินข้าว\n\n|เขาชอบกินก๋วยเตี๋ยว",
    ],
    "emoji": ["Great 🙂 I like it!| Bye 👩‍👩‍👧", "🙂🙃", "Done.| 👍"],
    "lines": [
        "- First item\n|- Second item\n|* Third item",
        "1. Open the lid.\n|2. Close it.\n|(3) Go",
        "I. Introduction is the title.| Read it.",
        "a) Open\n|b) Close",
        "1、打开\n|2、关闭",
        "Heading\n\n|A line that is\nwrapped goes on.| Next one.\r\n\r\n|Last",
        "# Title\n|## Part",
    ],
    "code": [
        "Do it:\n|```\nx = 1. \n\nY = 2. Then\n```|\nThen stop.| Now.",
        "Run `a.b. C` now.| Then stop.",
        "Never closed:\n|~~~\nx. Y. Z.",
        "One ` alone. |Two ` alone.",
    ],
    "else": [
        "iPhone is new.| iPad is old.",
        "Wait... what?| I don't know.",
        "This is it…| And then?",
        "What?!| No way!!!",
        "The e-mail is a.b@c.org.| Write to it at www.example.com/a.html.",
    ],
}


@loop_over("told", [told for group in TOLD.values() for told in group])
def test_sentences_end_where_they_end(told):
    wanted = [part.strip() for part in told.split("|")]
    assert split_sentences(told.replace("|", "")) == wanted


@given(st.text(st.sampled_from('aB1 .!?。؟।\n`~-"“»「」…;:([#\u2029g'), max_size=60))
def test_nothing_is_lost_but_space(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


@pytest.mark.process
@pytest.mark.parametrize(
    "piece",
    ["` ", "`a", "```\n", "~~~\n```\n", "\n ", "。", "。」", ".”", "?! ", ".[1]", "1. ", "|\n", "と。」", "Κ; "],
)
def test_hostile_texts_split_in_time(piece):
    text = piece * (200_000 // len(piece))
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
