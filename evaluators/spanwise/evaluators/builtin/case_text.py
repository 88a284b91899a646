"""Text of cases: fields, chat messages, completions; sentences, steps and tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias, cast

# Text of inputs and outputs: fields of dicts, chat messages, completions.

ANSWER_FIELDS = (
    "answer",
    "output",
    "response",
    "text",
    "content",
    "result",
    "completion",
    "expected_response",
    "expected",
)
QUESTION_FIELDS = ("question", "query", "request", "prompt", "input", "text", "content")


def extract_text(value: Any, fields: tuple[str, ...] = ANSWER_FIELDS) -> str:
    """Return the text of outputs or of a reference.

    In a dict, the text is the first field with a usual name, else the only field. In a list of chat messages, it is
    the last message. None, as returned by a task without a result, gives "". Raises `ValueError` if there is not
    exactly one text.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return _extract_from_mapping(value, fields)
    if isinstance(value, list | tuple) and value and isinstance(value[-1], Mapping) and "content" in value[-1]:
        return extract_text(value[-1]["content"], fields)
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(part, Mapping) and "text" in part for part in value)
    ):
        return "".join(str(part["text"]) for part in value)  # content parts of a message
    if isinstance(value, bool | int | float):
        return str(value)
    raise ValueError(f"found no single text in {value!r:.200}: select it with map=")


def extract_all_text(value: Any) -> str:
    """Return every text and number in a value, one per line with the name of its field.

    In a list of chat messages, only the last message is used, because earlier ones are not the answer.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and isinstance(value[-1], Mapping) and "content" in value[-1]:
        value = value[-1]
    lines, waiting = [], [("", value)]
    while waiting:
        name, inner = waiting.pop()
        if isinstance(inner, Mapping):
            waiting += [(f"{key}: ", member) for key, member in list(inner.items())[::-1]]
        elif isinstance(inner, list | tuple):
            waiting += [(name, member) for member in reversed(inner)]
        else:
            lines.append(f"{name}{inner}")
    return "\n".join(lines)


def extract_question(inputs: Any) -> str:
    """Return the text of inputs, as `extract_text` does, with the usual names of questions."""
    return extract_text(inputs, QUESTION_FIELDS)


def _extract_from_mapping(value: Mapping[str, Any], fields: tuple[str, ...]) -> str:
    for name in fields:
        if value.get(name) is not None:
            return extract_text(value[name], fields)
    if isinstance(value.get("messages"), list):
        return extract_text(value["messages"], fields)
    if isinstance(value.get("choices"), list) and value["choices"]:  # raw chat completion
        return extract_text(value["choices"][0].get("message", {}), fields)
    if len(value) == 1:
        return extract_text(next(iter(value.values())), fields)
    known = ", ".join(map(repr, value))
    raise ValueError(
        f"cannot tell which of the fields {known} is the text: select it with map=, as in map={{'outputs': 'outputs.x'}}"
    )


# Text segmentation: sentences, steps of a procedure, Treebank words and other tokenizers.
#
# For the metrics that use it, a missing split is better than a wrong one: a mark ends a sentence only if the next
# word can begin one. A text without marks, such as Thai, is one sentence per paragraph or list entry.
#
# The word patterns are those of NLTK 3.10 (`nltk/tokenize/destructive.py`, Copyright (C) 2001-2026 NLTK Project,
# Apache License 2.0; authors Liling Tan and Tom Aarsen, contractions after Robert MacIntyre). They are copied because
# importing NLTK takes seconds: it imports scipy and scikit-learn if they are installed. The tests compare them with
# NLTK's.

Splitter: TypeAlias = Callable[[str], Sequence[str]]
"""Function that splits a text into parts, in place of the built-in rules."""

# Marks that end a sentence at any position: Chinese and Japanese, Arabic, Urdu, Devanagari, Armenian, Ethiopic,
# Burmese, Khmer, Mongolian.
_FULL_WIDTH_MARKS = "。！？｡؟۔।॥‼⁇⁈⁉։።፧။។᠃"
_CLOSING_MARKS = "\"'”’»)]}」』）】〉》"
_QUOTED = re.escape(_CLOSING_MARKS + "“‘«")  # closing quotes of one language open in another: „…“ and »…«
_CJK = "\u3040-\u30ff\u3400-\u9fff"
# A run of marks is matched once, from its first mark on and without backtracking: a megabyte of periods takes no
# longer than a megabyte of words.
_END = re.compile(
    rf"(?<![.!?…])[.!?…]++(?:[{_QUOTED}]|[ \xa0\u202f]»(?=\s)|\[\d{{1,3}}\])*+(?=\s)"
    rf"|(?<=[{_CJK}])[.!?．]++(?=[{_CJK}])"
    r"|(?<=[Ͱ-Ͼ])[;\u037e](?=\s)"  # a Greek question mark
    rf"|(?:[{_FULL_WIDTH_MARKS}]++[{re.escape(_CLOSING_MARKS)}]*+)++"
    r"|\n\s*\n|[\u2028\u2029]"
    r"|\n(?=[ \t]*(?:(?:[-*•‣◦▪]|\(?\d+[.)]|[a-z]\)|#{1,6})\s|\d+、|[（(][\d一二三四五六七八九十]+[)）]|[①-⑳|]))"
)
_CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_IN_LINE = re.compile(r"`(?! )[^`\n]+(?<! )`")
_NEXT = re.compile(r"\s*[\"'“‘«„(\[¿¡*_-]*(\S)(\S*)")
_ROMAN = re.compile(r"[IVX]{1,5}")

# Abbreviations whose period never ends a sentence.
_NEVER_ENDS = frozenset(
    "mr mrs ms dr prof st rev hon gen col capt lt sgt maj gov sen rep pres mt ft m mm mme mlle herr hr fr fa "
    "sr sra srta sres dra ud uds dott sig dhr mevr डॉ प्रो "
    "vs e.g i.e cf approx no nos vol vols pp p ch sec fig figs eq ed eds est dept univ "
    "jan feb mar apr jun jul aug sep sept oct nov dec b.a m.a "
    "z.b bzw ca d.h u.a o.ä nr str bspw ggf evtl vgl inkl zzgl mio mrd tsd tel abs "
    "p.ej ej pág núm art avda aprox p.ex c.-à-d env bd réf bijv d.w.z o.a np tzn "
    "т.е ул им стр рис см тыс млн млрд проф акад просп".split()
)
# Abbreviations whose period ends a sentence if the next word begins with a capital.
_MAY_END = frozenset(
    "etc a.m p.m u.s u.k u.n ph.d inc ltd co corp jr al usw u.s.w ecc enz itd itp b.c a.d т.д т.п др руб".split()
)
_OF_TIME = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july august "
    "september october november december est edt cst cdt mst mdt pst pdt et ct pt gmt utc cet cest bst".split()
)
_ORDINAL = re.compile(  # words that follow an ordinal: "am 3. Oktober", "im 19. Jahrhundert"
    r"(?:Jänner|Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jahrhunderts?|Jh|"
    r"Jahrestag|Geburtstag|Lebensjahr|Klasse|Auflage|Weltkrieg|Etage|Stock|Platz|Kapitel)\b"
)


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences without surrounding white space. A fenced block of program code is one sentence."""
    parts, start = [], 0
    for block in _CODE.finditer(text):
        parts += [*_split_prose(text[start : block.start()]), block.group().strip()]
        start = block.end()
    return [part for part in (*parts, *_split_prose(text[start:])) if part]


def split_text(text: str, splitter: Splitter | None) -> list[str]:
    """Split a text with `splitter`, or into sentences if it is None. Blank parts are left out.

    Raises `ValueError` if the splitter does not return texts.
    """
    found = list(split_sentences(text) if splitter is None else splitter(text))
    if not all(isinstance(one, str) for one in found):
        raise ValueError(f"a splitter must return a list of texts, not {found!r:.200}")
    return [one for one in found if one.strip()]


def _split_prose(text: str) -> list[str]:
    parts, start = [], 0
    code = [span.span() for span in _IN_LINE.finditer(text)][::-1]
    for match in _END.finditer(text):
        while code and code[-1][1] <= match.start():
            code.pop()
        inside = code and code[-1][0] < match.start()
        if not inside and _ends_sentence(text, start, match):
            parts.append(text[start : match.end()].strip())
            start = match.end()
    return [*parts, text[start:].strip()]


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    mark = match.group()
    if mark[0] in "\n\u2028\u2029":
        return True
    if mark[0] in _FULL_WIDTH_MARKS:  # in Japanese と continues the sentence after a quotation
        return not (mark[-1] in _CLOSING_MARKS and text.startswith(("と", "って"), match.end()))
    following = _NEXT.match(text, match.end())
    if following is None:
        return False  # end of the text: the last sentence is added anyway
    begins, following_letters = following.groups()
    small = begins.islower() and not following_letters[:1].isupper()  # a word such as "iPhone" can begin a sentence
    if mark[0] == "." and not mark.startswith(".."):
        before = text[max(start, match.start() - 40) : match.start()]
        return not small and _period_ends_sentence(before, begins + following_letters)
    return not small or (mark[0] in "!?" and mark[-1] not in _CLOSING_MARKS + "“‘«")


def _period_ends_sentence(before: str, following: str) -> bool:
    words = ["", "", *before.split(), *[""] * before[-1:].isspace()]
    earlier, word = words[-2], words[-1].lstrip("\"'“‘«„(")
    lower = word.lower()
    if lower in _NEVER_ENDS:
        return False
    if lower in _MAY_END:
        moment = lower in ("a.m", "p.m") and following.rstrip(",.;:!?").lower() in _OF_TIME
        return following[0].isupper() and not moment
    if len(word) == 1 and word.isalpha() and word != "I":
        return word.islower() and earlier[-1:].isdigit()  # an initial, unlike the unit in "10 g"
    if before.strip() == word and ((word.isdigit() and len(word) <= 2) or _ROMAN.fullmatch(word)):
        return False  # number of a list entry
    return not (word.isdigit() and len(word) <= 2 and _ORDINAL.match(following))


_MARKDOWN_PREFIX = r"[ \t]*+(?:[#>]++[ \t]*+)?[*_]{0,3}"  # Markdown headings, quotes, bold
_NUMBER = re.compile(
    rf"{_MARKDOWN_PREFIX}(?:"
    r"(?:step|schritt|[ée]tape|paso|passo|passaggio|stap|steg|krok|шаг|خطوة|الخطوة|चरण|단계)"
    r"[ \t]*\d{1,3}[ \t]*[.:)–—-]?"
    r"|第[ \t]*(?:\d{1,3}|[一二三四五六七八九十]{1,3})[ \t]*步[：:，,、.]?"
    r"|[一二三四五六七八九十]{1,3}、|\d{1,3}[、．]|[①-⑳]"
    r"|\(?\d{1,3}(?:\.\d{1,3})*[.)](?=[*_]{0,3}\s|[*_]{0,3}[^\W\d_])|\(?[a-z]\)(?=\s)|[ivxIVX]{1,5}[.)](?=\s)"
    r")[*_]{0,3}[ \t]*",
    re.IGNORECASE,
)
_BULLET = re.compile(r"[ \t]*+[-*•‣◦▪●–—][ \t]+(?:\[[ xX]\][ \t]+)?")
_FENCE = re.compile(r"[ \t]*+(?:```|~~~)")
_INLINE = re.compile(r"(?<![^\s:：;,])\(?(\d{1,2})[.)]\s+")
_SEQUENCE = re.compile(
    r"(?:(?:first(?:ly)?|to (?:begin|start)(?: with)?|second(?:ly)?|third(?:ly)?|fourth(?:ly)?|then|next"
    r"|after(?:wards| that)|finally|lastly"
    r"|zuerst|zunächst|dann|danach|anschließend|schließlich|zuletzt|d['’]abord|ensuite|puis|enfin"
    r"|primero|luego|después|finalmente|por último|сначала|затем|потом|наконец)\b"
    r"|首先|然后|接着|接下来|最后|まず|次に|最後に|(?:أولا|أولًا|ثم|أخيرا|أخيرًا|पहले|फिर|अंत में)(?=\W))[,،，、:：]?\s*",
    re.IGNORECASE,
)


def extract_steps(text: str) -> list[str]:
    """Return the steps that a text enumerates, in order and without their numbers; [] if it enumerates nothing."""
    lines = text.splitlines()
    found = (
        list(_listed_steps(lines, _NUMBER))
        or list(_listed_steps(lines, _BULLET))
        or _inline_steps(text)
        or _sequence_steps(text)
    )
    return [step for one in found if (step := " ".join(one.split()).strip(" *_"))]


def _listed_steps(lines: list[str], marker: re.Pattern[str]) -> Iterator[str]:
    """Yield entries of lists: a line with a marker, and the lines up to the next marker or the end of the list.

    After a blank line, only indented lines and fenced program code belong to the entry.
    """
    entry: list[str] | None = None
    fenced = blank = False
    for line in lines:
        fenced ^= bool(_FENCE.match(line))
        begins = None if fenced else marker.match(line)
        if begins or (blank and line[:1].strip() and not fenced):
            if entry:
                yield " ".join(entry)
            entry = [line[begins.end() :]] if begins else None
        elif entry is not None:
            entry.append(line)
        blank = not line.strip()
    if entry:
        yield " ".join(entry)


def _inline_steps(text: str) -> list[str]:
    """Return the texts after 1, 2, 3, … in running text, if there are at least two."""
    cuts: list[tuple[int, int]] = []
    for found in _INLINE.finditer(text):
        if int(found.group(1)) == len(cuts) + 1:
            cuts.append(found.span())
    ends = [start for start, _ in cuts[1:]] + [len(text)]
    return [text[begin:end].strip(" ,;") for (_, begin), end in zip(cuts, ends, strict=True)] if len(cuts) > 1 else []


def _sequence_steps(text: str) -> list[str]:
    """Return the sentences from one sequence word to the next, if there are at least two such words."""
    found: list[list[str]] = []
    for sentence in split_sentences(text):
        word = _SEQUENCE.match(sentence)
        if word:
            found.append([sentence[word.end() :]])
        elif found:
            found[-1].append(sentence)
    return [" ".join(one) for one in found] if len(found) > 1 else []


Rules: TypeAlias = tuple[tuple[str, str], ...]  # (pattern, replacement)

STARTING_QUOTES: Rules = (
    ("([«“‘„]|[`]+)", r" \1 "),
    (r"^\"", r"``"),
    (r"(``)", r" \1 "),
    (r"([ \(\[{<])(\"|\'{2})", r"\1 `` "),
    (r"(?i)(?<!\w)(\')(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", r"\1 "),
)
PUNCTUATION: Rules = (
    (r'([^\.])(\.)([\]\)}>"\'»”’ ]*+)\s*$', r"\1 \2 \3 "),
    (r"([:,])([^\d])", r" \1 \2"),
    (r"([:,])$", r" \1 "),
    (r"\.{2,}", r" \g<0> "),
    (r"[;@#$%&]", r" \g<0> "),
    (r"[\u2012-\u2015]", r" \g<0> "),
    (r'([^\.])(\.)([\]\)}>"\']*)\s*$', r"\1 \2\3 "),
    (r"[?!]", r" \g<0> "),
    (r"([^'])' ", r"\1 ' "),
    (r"[*]", r" \g<0> "),
)
PARENS_BRACKETS: Rules = ((r"[\]\[\(\)\{\}\<\>]", r" \g<0> "),)
DOUBLE_DASHES: Rules = ((r"--", r" -- "),)
ENDING_QUOTES: Rules = (
    ("([»”’])", r" \1 "),
    (r"''", " '' "),
    (r'"', " '' "),
    (r"\s+", " "),
    (r"([^' ])('[sS]|'[mM]|'[dD]|') ", r"\1 \2 "),
    (r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", r"\1 \2 "),
)
CONTRACTIONS2 = (
    r"(?i)\b(can)(?#X)(not)\b",
    r"(?i)\b(d)(?#X)('ye)\b",
    r"(?i)\b(gim)(?#X)(me)\b",
    r"(?i)\b(gon)(?#X)(na)\b",
    r"(?i)\b(got)(?#X)(ta)\b",
    r"(?i)\b(lem)(?#X)(me)\b",
    r"(?i)\b(more)(?#X)('n)\b",
    r"(?i)\b(wan)(?#X)(na)(?=\s)",
)
CONTRACTIONS3 = (r"(?i) ('t)(?#X)(is)\b", r"(?i) ('t)(?#X)(was)\b")

_FIRST_RULES = STARTING_QUOTES + PUNCTUATION + PARENS_BRACKETS + DOUBLE_DASHES
_LAST_RULES = ENDING_QUOTES + tuple((pattern, r" \1 \2 ") for pattern in CONTRACTIONS2 + CONTRACTIONS3)
# White space for `re` but not for `regex`, which NLTK uses for everything except the contractions.
_DIFFERING_SPACE = re.compile(r"[\x1c-\x1f]")


def split_treebank_words(text: str) -> list[str]:
    """Return the words of a text, without splitting it into sentences first."""
    first, then = _compile_rules(_DIFFERING_SPACE.search(text) is not None)
    for sub, by in first:
        text = sub(by, text)
    text = f" {text} "
    for sub, by in then:
        text = sub(by, text)
    return text.split()


@cache
def _compile_rules(as_nltk: bool) -> tuple[list[tuple[Callable[..., str], str]], ...]:
    """Compile the replacement rules for a text before and after it is padded with spaces.

    NLTK uses the library `regex`. Python's `re` is faster, and is used unless `as_nltk` is True.
    """
    engine: Any = re
    if as_nltk:
        import regex as engine
    return tuple(
        [
            ((re if pattern in CONTRACTIONS2 + CONTRACTIONS3 else engine).compile(pattern).sub, by)
            for pattern, by in rules
        ]
        for rules in (_FIRST_RULES, _LAST_RULES)
    )


Tokenizer: TypeAlias = Callable[[str], list[str]]
TokenizerName = Literal["nltk", "13a", "rouge", "unicode", "characters"]

_NOT_ASCII_WORD = re.compile(r"[^a-z0-9]+")
# Scripts without spaces between words: each character is a token. Marks (vowel signs, accents) belong to the
# character before them; Python's `re` would split words at them.
_IDEOGRAPHS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD_OR_IDEOGRAPH = rf"[{_IDEOGRAPHS}--\P{{L}}]\p{{M}}*|[\w--[{_IDEOGRAPHS}]][\w\p{{M}}--[{_IDEOGRAPHS}--\p{{M}}]]*"
_ASCII_WORD = re.compile(r"\w+")
# Texts that need NLTK's Treebank patterns; `_split_simple` handles all others.
_TREEBANK_ONLY = re.compile(
    r"[«“‘„`\"'()\[\]{}<>;:@#$%&*»”’\u2012-\u2015\x1c-\x1f\x85]|--|\.\.|,(?![\s\d]|$)"
    r"|(?i:cannot|gimme|gonna|gotta|lemme|wanna)"
)
_SPLIT_OFF = re.compile(r"[?!]|,(?!\d)")
# mteval-v13a: symbols; periods and commas unless between digits; a hyphen after a digit.
_13A = [
    (re.compile(r"[{-~\[-` -&(-+:-@/]"), r" \g<0> "),
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
]


@cache
def get_tokenizer(name: str) -> Tokenizer:
    """Return a tokenizer by name. Raises `ValueError` for an unknown name.

    - "nltk": NLTK's Treebank words, without sentence splitting
    - "13a": mteval-v13a as in sacrebleu
    - "rouge": lower-case ASCII letters and digits, as in rouge-score
    - "unicode": lower-case words of any script, ideographs one by one
    - "characters": every character except white space
    """
    known: dict[str, Callable[[], Tokenizer]] = {
        "nltk": lambda: _split_nltk,
        "13a": _make_13a,
        "rouge": lambda: _split_rouge,
        "unicode": _make_unicode,
        "characters": lambda: _split_characters,
    }
    if name not in known:
        raise ValueError(f"unknown tokenizer {name!r}; expected one of: {', '.join(known)}")
    return known[name]()


def _split_nltk(text: str) -> list[str]:
    return split_treebank_words(text) if _TREEBANK_ONLY.search(text) else _split_simple(text)


def _split_simple(text: str) -> list[str]:
    """Split a text into NLTK's words, if only commas, the last period, ? and ! have to be split off.

    This does not need NLTK's 25 patterns.
    """
    text = text.rstrip()
    if text.endswith("."):
        text = f"{text[:-1]} ."
    return _SPLIT_OFF.sub(r" \g<0> ", text).split()


def _make_13a() -> Tokenizer:
    """Return sacrebleu's tokenizer without its cache of 65,536 texts."""
    return lambda text: _13a_split(text.replace("<skipped>", "").replace("-\n", "").replace("\n", " "))


def _13a_split(text: str) -> list[str]:
    for written, meant in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
        text = text.replace(written, meant)
    text = f" {text} "
    for pattern, replacement in _13A:
        text = pattern.sub(replacement, text)
    return text.split()


def _split_rouge(text: str) -> list[str]:
    return _NOT_ASCII_WORD.sub(" ", text.lower()).split()


def _make_unicode() -> Tokenizer:
    import regex

    find = regex.compile(_WORD_OR_IDEOGRAPH, regex.VERSION1).findall
    return lambda text: _ASCII_WORD.findall(text.lower()) if text.isascii() else cast(list[str], find(text.lower()))


def _split_characters(text: str) -> list[str]:
    return [character for character in text if not character.isspace()]
