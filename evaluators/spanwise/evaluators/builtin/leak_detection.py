"""Detectors of personal data and secrets: patterns, checksums, telephone numbers, normalization.

Detection runs on normalized text; `PositionMap` maps its positions back to the original text.

Telephone numbers are found by patterns and checked by phonenumbers against the numbering plans of countries. A number
with + (or 00) needs no further evidence. Without + the country is a guess. Such digits count only in a typical
national format, (212) 555-0123 or 020 7946 0958, or after a word such as "call": "call 2125550123". With a region,
every number that is valid there is found.

All patterns are linear in the length of the text. Their matches are checked (Luhn, area numbers, IBAN's remainder,
numbering plans of telephones), so that an order number is not reported as a credit card.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

# Unicode's Default_Ignorable_Code_Point: characters that are not displayed, and can hide a match.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
# Typographic and East Asian forms of spaces, hyphens, letters and digits, replaced one for one.
_ASCII_FORMS = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2007\u2009\u202f\u3000", " "),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
        **{chr(0xFF00 + place): chr(0x20 + place) for place in range(1, 95)},
    }
)
_TYPOGRAPHIC = re.compile("[\u00a0\u2007\u2009\u202f\u3000\u2010-\u2013\u2212\uff01-\uff5e]")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")  # Arabic-Indic, Devanagari, …
# Scripts without spaces between words have none between a word and a number either.
_SPACELESS = "[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_SCRIPT_BOUNDARY = re.compile(rf"{_SPACELESS}(?=[0-9A-Za-z])|(?<=[0-9A-Za-z]){_SPACELESS}")


def remove_invisible(text: str) -> str:
    """Return the visible text, without characters that are not displayed."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def normalize_text(text: str) -> str:
    """Return the visible text, with other forms of letters, digits, spaces and hyphens replaced by ASCII.

    Each visible character is replaced by one character, so that positions do not change.
    """
    if text.isascii():
        return text
    text = remove_invisible(text)
    if _TYPOGRAPHIC.search(text):  # searching is faster than replacing, and most texts have no such characters
        text = text.translate(_ASCII_FORMS)
    text = _OTHER_DIGIT.sub(lambda match: str(unicodedata.decimal(match.group())), text)
    return _SCRIPT_BOUNDARY.sub(" ", text)


class PositionMap:
    """Map from positions in the visible text to positions in the original text."""

    def __init__(self, text: str) -> None:
        self._gaps, self._taken = [-1], [0]  # visible positions of removed characters, and the number removed so far
        for match in () if text.isascii() else _INVISIBLE.finditer(text):
            self._gaps.append(match.start() - self._taken[-1])
            self._taken.append(self._taken[-1] + len(match.group()))

    def __call__(self, start: int, end: int) -> tuple[int, int]:
        """Return the start and end in the original text of a visible range."""
        return self._of(start), self._of(end - 1) + 1

    def _of(self, place: int) -> int:
        return place + self._taken[bisect_right(self._gaps, place) - 1]


Regions: TypeAlias = str | Sequence[str] | None
Span: TypeAlias = tuple[int, int]

_LEFT_BOUNDARY, _RIGHT_BOUNDARY = r"(?<![\w,+#$€£%.-])(?<!\d[ :/])", r"(?![\w%€$£]|[.,:/-]\d)"
_LOOSE_DIGITS = r"\d(?:[ ().\-/]{0,2}\d)"
_SEVEN_DIGITS = re.compile(r"\d(?:[^\d\n]{0,4}\d){6}")
_INTERNATIONAL = re.compile(rf"(?:\+|(?<![\w.,:+-])00(?=[ ]?[1-9]))[ (]{{0,2}}{_LOOSE_DIGITS}{{6,16}}")
# National formats of numbers, and their regions.
_NATIONAL = [
    (re.compile(_LEFT_BOUNDARY + r"(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}" + _RIGHT_BOUNDARY), ("US",)),
    (re.compile(_LEFT_BOUNDARY + r"\(\d\d\) ?9?\d{4}-\d{4}" + _RIGHT_BOUNDARY), ("BR",)),
    (
        re.compile(_LEFT_BOUNDARY + r"(?:0\d(?:\.\d\d){4}|\(?0\d(?:[ ()/-]{0,2}\d){7,10})" + _RIGHT_BOUNDARY),
        ("GB", "DE", "FR", "IT", "AU", "JP"),
    ),
]
_GROUPED = re.compile(r"\d\D+\d")
_LABELLED = re.compile(
    r"\b(?:phone|tel|telephone|mobile|cell|call|dial|ring|fax|sms|whatsapp|hotline|contact number|telefon|handy|mobil"
    r"|rufnummer|téléphone|tél|portable|teléfono|telefone|celular|móvil|cellulare|電話|电话|手机|携帯)"
    rf"\W{{0,3}}(?:number|nummer|no|us|me|him|her|them|at|on|is)?\W{{0,3}}?([(]?{_LOOSE_DIGITS}{{6,15}})(?!\d)",
    re.IGNORECASE,
)
_LABELLED_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "IN", "AU", "BR", "JP")


def find_phones(text: str, region: Regions = None) -> Iterator[Span]:
    """Yield the spans of telephone numbers.

    `region` is "US", or several regions; () finds only numbers with + or 00.
    """
    if not _SEVEN_DIGITS.search(text):
        return
    for match in _INTERNATIONAL.finditer(text):
        for start, end in _match_numbers(re.sub(r"\A00", " +", match.group()), ""):
            yield match.start() + start, match.start() + end
    if region is None:
        yield from _find_national(text)
    for country in (region,) if isinstance(region, str) else region or ():
        yield from _match_numbers(text, country)


def check_regions(region: Regions) -> None:
    """Raise `ValueError` for a region that phonenumbers does not know."""
    import phonenumbers

    for country in (region,) if isinstance(region, str) else region or ():
        if country not in phonenumbers.SUPPORTED_REGIONS:
            raise ValueError(
                f"unknown region {country!r}; expected a country code of two capital letters, such as 'US'"
            )


def _find_national(text: str) -> Iterator[Span]:
    for pattern, regions in _NATIONAL:
        yield from (match.span() for match in pattern.finditer(text) if _is_national_format(match.group(), regions))
    for match in _LABELLED.finditer(text):
        if length := _number_length(match.group(1)):
            yield match.start(1), match.start(1) + length


@lru_cache(maxsize=1024)
def _is_national_format(text: str, regions: tuple[str, ...]) -> bool:
    """Return whether a number is valid in one of the regions and grouped as usual there."""
    if not _GROUPED.search(text):
        return False
    return any(_is_valid_number(text, region) and _match_numbers(text, region, grouped=True) for region in regions)


@lru_cache(maxsize=1024)
def _number_length(text: str) -> int:
    """Return the length of the telephone number at the start of a text that follows a label, 0 if there is none.

    Up to two groups of digits at the end may belong to something else.
    """
    ends = [match.end() for match in re.finditer(r"\d+", text)]
    for end in reversed(ends[-3:]):
        if any(_is_valid_number(text[:end], region) for region in _LABELLED_REGIONS):
            return end
    return 0


def _is_valid_number(text: str, region: str) -> bool:
    """Return whether a number is valid in a region.

    Most candidates fail this check, which takes a tenth of the time of the grouping check.
    """
    import phonenumbers

    try:
        return phonenumbers.is_valid_number_for_region(phonenumbers.parse(text, region), region)
    except phonenumbers.NumberParseException:
        return False


def _match_numbers(text: str, region: str, *, grouped: bool = False) -> list[Span]:
    """Return the spans of valid numbers. With `region` "", these are numbers of any country with +."""
    from phonenumbers import Leniency, PhoneNumberMatcher

    leniency = Leniency.STRICT_GROUPING if grouped else Leniency.VALID
    return [(match.start, match.end) for match in PhoneNumberMatcher(text, region or None, leniency=leniency)]


@dataclass(frozen=True, slots=True)
class Finding:
    """Kind and position of a finding. The text itself is left out, so that a report leaks nothing."""

    kind: str
    start: int
    end: int


Finder = Callable[[str], Iterator[tuple[int, int]]]

_CARD = re.compile(
    r"(?<![\w.,-])(?:(?:\d[ -]?){12,18}\d|\d{4}\.\d{4}\.\d{4}\.\d{4}|\d{4}\.\d{6}\.\d{4,5})(?![\w-]|[.,]\d)"
)
_SSN = re.compile(r"(?<![\w.-])(\d{3})([- .])(\d{2})\2(\d{4})(?![\w-]|\.\d)")
_SSN_NAMED = re.compile(
    r"(?<!\w)(?:SSN|social security (?:number|no\.?))\W{1,4}(?:is\W{1,3})?(\d{3})()(\d{2})(\d{4})(?!\w)", re.IGNORECASE
)
_EMAIL = re.compile(
    r"(?<![\w.+%'-])[\w+%'-]{1,64}(?:\.[\w+%'-]{1,64}){0,8}@(?:[^\W_](?:[^\W_]|-){0,62}\.){1,8}(?:[^\W\d_]{2,24}|xn--[a-z0-9-]{2,59})(?![\w-])"
)
# A lookahead, so that "AB12 DE89 3704 …" does not hide the number that begins inside.
_IBAN = re.compile(r"(?<!\w)(?=([A-Z]{2}\d{2}(?:[ .-]?[A-Z0-9]{4}){2,7}(?:[ .-]?[A-Z0-9]{1,3})?)(?!\w))", re.IGNORECASE)
_IBAN_LENGTHS = {
    "AD": 24,
    "AE": 23,
    "AL": 28,
    "AT": 20,
    "AZ": 28,
    "BA": 20,
    "BE": 16,
    "BG": 22,
    "BH": 22,
    "BR": 29,
    "BY": 28,
    "CH": 21,
    "CR": 22,
    "CY": 28,
    "CZ": 24,
    "DE": 22,
    "DK": 18,
    "DO": 28,
    "EE": 20,
    "EG": 29,
    "ES": 24,
    "FI": 18,
    "FO": 18,
    "FR": 27,
    "GB": 22,
    "GE": 22,
    "GI": 23,
    "GL": 18,
    "GR": 27,
    "GT": 28,
    "HR": 21,
    "HU": 28,
    "IE": 22,
    "IL": 23,
    "IQ": 23,
    "IS": 26,
    "IT": 27,
    "JO": 30,
    "KW": 30,
    "KZ": 20,
    "LB": 28,
    "LI": 21,
    "LT": 20,
    "LU": 20,
    "LV": 21,
    "MC": 27,
    "MD": 24,
    "ME": 22,
    "MK": 19,
    "MR": 27,
    "MT": 31,
    "MU": 30,
    "NL": 18,
    "NO": 15,
    "PK": 24,
    "PL": 28,
    "PS": 29,
    "PT": 25,
    "QA": 29,
    "RO": 24,
    "RS": 22,
    "SA": 24,
    "SE": 24,
    "SI": 19,
    "SK": 24,
    "SM": 27,
    "TN": 24,
    "TR": 26,
    "UA": 29,
    "VA": 22,
    "VG": 24,
    "XK": 20,
}
# First digits and lengths of the card networks (ISO/IEC 7812): few random numbers of 13 to 19 digits match.
_NETWORKS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[68]\d)\d{11,16}|6(?:011|5\d\d|4[4-9]\d)\d{12,15}|(?:352[89]|35[3-8]\d)\d{12,15}|62\d{14,17}"
)


def passes_luhn(digits: str) -> bool:
    """Return whether a string of digits passes the Luhn check (ISO/IEC 7812-1, annex B)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def find_cards(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of credit card numbers.

    They have a known network, the right length and a valid Luhn check, and do not consist of one repeated digit.
    """
    for match in _CARD.finditer(text):
        digits = re.sub(r"\D", "", match.group())
        if _NETWORKS.fullmatch(digits) and passes_luhn(digits) and len(set(digits)) > 1:
            yield match.span()


def find_social_security_numbers(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of US social security numbers.

    The rules of the SSA are: area not 000, 666 or 9xx, group not 00, serial not 0000.
    """
    for match in (*_SSN.finditer(text), *_SSN_NAMED.finditer(text)):
        area, group, serial = match.group(1), match.group(3), match.group(4)
        if area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000":
            yield match.span()


def find_emails(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of e-mail addresses."""
    if "@" in text:
        for match in _EMAIL.finditer(text):
            yield match.span()


def find_ibans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of IBANs: length of the country and remainder 1 modulo 97 (ISO 13616)."""
    for match in _IBAN.finditer(text):
        length = _iban_length(match.group(1).upper())
        if length and not text[match.start() + length : match.start() + length + 1].isalnum():
            # if a letter or digit follows, the match is part of a longer word
            yield match.start(), match.start() + length


def _iban_length(text: str) -> int:
    """Return the length of the IBAN at the start of a match; 0 if there is none. The match may include a word that
    follows the IBAN.
    """
    wanted = _IBAN_LENGTHS.get(text[:2], 0)
    taken = [place for place, character in enumerate(text) if character.isalnum()][:wanted]
    if not wanted or len(taken) < wanted:
        return 0
    account = "".join(text[place] for place in taken)
    remainder = int("".join(str(int(character, 36)) for character in account[4:] + account[:4])) % 97
    return taken[-1] + 1 if remainder == 1 else 0


PII_DETECTORS: dict[str, Finder] = {
    "credit_card": find_cards,
    "iban": find_ibans,
    "ssn": find_social_security_numbers,
    "email": find_emails,
    "phone": find_phones,
}

# Substrings in lower case, and a pattern. The pattern is searched only if the text contains one of the substrings.
SECRET_PATTERNS: dict[str, tuple[tuple[str, ...], re.Pattern[str]]] = {
    "pem": (
        ("begin ",),
        re.compile(r"-----?-? ?BEGIN (?:[A-Z0-9]{1,20} ){0,4}(?:CERTIFICATE|PRIVATE KEY|PRIVATE KEY BLOCK)-? ?----"),
    ),
    "openai_key": (
        ("sk-",),
        re.compile(r"(?<![\w-])sk-(?!ant-)(?:(?:proj|svcacct|admin|None)-[\w-]{20,400}|[A-Za-z0-9]{20,64})(?![\w-])"),
    ),
    "anthropic_key": (("sk-ant-",), re.compile(r"(?<![\w-])sk-ant-[a-z0-9]{2,12}-[\w-]{20,200}(?![\w-])")),
    "model_key": (  # OpenRouter, Groq, xAI, Perplexity, Replicate
        ("sk-or-", "gsk_", "xai-", "pplx-", "r8_"),
        re.compile(
            r"(?<![\w-])(?:sk-or-v1-[0-9a-f]{64}|gsk_[A-Za-z0-9]{48,64}|xai-[A-Za-z0-9]{60,100}|pplx-[A-Za-z0-9]{40,64}"
            r"|r8_[A-Za-z0-9]{37,40})(?![\w-])"
        ),
    ),
    "h2o_key": (
        ("sk-", "h2o"),
        re.compile(
            r"(?<![\w-])(?:sk-[A-Za-z0-9]{48,64}"
            r"|h2o(?:gpte?|ai)?[-_](?:api[-_]?)?(?:key[-_])?[A-Za-z0-9]{32,64})(?![\w-])",
            re.IGNORECASE,
        ),
    ),
    "windows_key": (
        ("-",),
        re.compile(r"(?<![\w-])(?:[B-DF-HJKMNP-RTV-Y2346789]{5}-){4}[B-DF-HJKMNP-RTV-Y2346789]{5}(?![\w-])"),
    ),
    "aws_key": (
        ("akia", "asia", "agpa", "aida", "aroa", "aws", "secretaccesskey", "secret_access_key"),
        re.compile(
            r"(?<![A-Z0-9])(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z2-7]{16}(?![A-Z0-9])"
            r"|(?i:(?:aws_?secret_?(?:access_?)?|secret_?access_?)key)[\"']?\s{0,4}[:=]\s{0,4}[\"']?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])"
        ),
    ),
    "google_key": (
        ("aiza", "gocspx-", "ya29."),
        re.compile(r"(?<![\w-])(?:AIza[\w-]{35}|GOCSPX-[\w-]{28}|ya29\.[\w-]{30,1000})(?![\w-])"),
    ),
    "github_token": (
        ("gh", "github_pat_"),
        re.compile(r"(?<!\w)(?:gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_\w{82})(?!\w)"),
    ),
    "gitlab_token": (("gl",), re.compile(r"(?<![\w-])gl(?:pat|dt|rt|ptt|ft|soat|agent)-[\w-]{20,64}(?![\w-])")),
    "slack_token": (
        ("xox", "xapp-", "hooks.slack.com"),
        re.compile(
            r"(?<![\w-])(?:xox[a-eoprs]|xapp)-[A-Za-z0-9%-]{10,500}(?![\w-])"
            r"|hooks\.slack\.com/(?:services|workflows)/T\w{6,16}/[\w/]{15,100}"
        ),
    ),
    "stripe_key": (
        ("k_live_", "whsec_"),
        re.compile(r"(?<!\w)(?:[rs]k_live_[A-Za-z0-9]{20,247}|whsec_[A-Za-z0-9+/]{24,64})(?!\w)"),
    ),
    "huggingface_token": (("hf_",), re.compile(r"(?<!\w)hf_[A-Za-z0-9]{34,40}(?!\w)")),
    "azure_key": (
        ("accountkey=", "sharedaccesskey=", "sig=", "8q~", "7q~"),
        re.compile(
            r"(?i:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{43,86}==?|[?&]sig=[A-Za-z0-9%+/]{40,80}(?:=|%3D)"
            r"|(?<![\w~.-])[\w~.-]{3}[78]Q~[\w~.-]{31,34}(?![\w~-])"
        ),
    ),
    "cloud_token": (  # DigitalOcean, Databricks, npm, PyPI, SendGrid, Twilio, HashiCorp Vault, Telegram
        ("_v1_", "dapi", "npm_", "pypi-", "sg.", "sk", "hvs.", ":aa"),
        re.compile(
            r"(?<![\w-])(?:do[opr]_v1_[0-9a-f]{64}|dapi[0-9a-f]{32}(?:-\d)?|npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{50,500}"
            r"|SG\.[\w-]{22}\.[\w-]{43}|SK[0-9a-f]{32}|hvs\.[\w-]{24,200}|\d{8,10}:AA[\w-]{33})(?![\w-])"
        ),
    ),
    "jwt": (("eyj",), re.compile(r"(?<![\w-])eyJ[\w-]{10,2000}\.eyJ[\w-]{10,8000}\.[\w-]{20,2000}(?![\w-])")),
    # A word after "password:" must be quoted or have a digit: "password: required" is prose.
    "password": (
        ("pass", "pwd"),
        re.compile(
            r"(?i)(?<!\w)(?:password|passwd|pwd)[\"']?\s{0,4}[:=]\s{0,4}"
            r"(?:([\"'])[^\s\"'*<>{}$]{6,128}\1|[\"']?(?=[^\s\d\"'*<>{}$]{0,127}\d)[^\s\"'*<>{}$]{6,128})"
        ),
    ),
}


def find_pii(text: str, kinds: str | Sequence[str] | None = None, *, region: Regions = None) -> list[Finding]:
    """Return the personal data in a text, by position. Raises `ValueError` for an unknown kind or region."""
    findings = []
    plain = normalize_text(text)
    for kind in check_kinds(kinds, PII_DETECTORS):
        finder = PII_DETECTORS[kind]
        places = find_phones(plain, region) if kind == "phone" else finder(plain)
        findings += [Finding(kind, start, end) for start, end in places]
    return _restore_positions(_remove_overlaps(findings), text)


def find_secrets(text: str, kinds: str | Sequence[str] | None = None) -> list[Finding]:
    """Return the secrets in a text, by position. Raises `ValueError` for an unknown kind."""
    findings = []
    plain = remove_invisible(text)
    lower = plain.lower()
    for kind in check_kinds(kinds, SECRET_PATTERNS):
        hints, pattern = SECRET_PATTERNS[kind]
        if any(hint in lower for hint in hints):
            findings += [Finding(kind, *match.span()) for match in pattern.finditer(plain)]
    return _restore_positions(sorted(findings, key=lambda finding: finding.start), text)


def _restore_positions(findings: list[Finding], text: str) -> list[Finding]:
    """Return the findings with positions in the original text."""
    places = PositionMap(text if findings else "")
    return [Finding(finding.kind, *places(finding.start, finding.end)) for finding in findings]


def check_kinds(kinds: str | Sequence[str] | None, known: Mapping[str, object]) -> list[str]:
    """Return the kinds to search for; all for None. Raises `ValueError` for an unknown one."""
    if isinstance(kinds, str):
        kinds = [kinds]
    if kinds is not None and not kinds:
        raise ValueError(
            f"kinds is empty, which would find nothing: leave it out for all, or name some of: {', '.join(known)}"
        )
    for kind in kinds or ():
        if kind not in known:
            raise ValueError(f"unknown kind {kind!r}; expected one of: {', '.join(known)}")
    return list(known) if kinds is None else list(kinds)


def _remove_overlaps(findings: list[Finding]) -> list[Finding]:
    """Remove findings that overlap an earlier one in the order of kinds, such as a phone number in a card number."""
    accepted: list[Finding] = []  # sorted by position, to avoid quadratic time
    for finding in findings:
        place = bisect_left(accepted, finding.end, key=lambda earlier: earlier.start)
        if place == 0 or accepted[place - 1].end <= finding.start:
            accepted.insert(place, finding)
    return accepted
