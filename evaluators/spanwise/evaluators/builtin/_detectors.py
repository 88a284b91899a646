"""What must not leak: personal data and secrets, found by patterns and checked by their own rules.

Every pattern is linear in the text, and what it finds is checked (Luhn, area numbers, IBAN's remainder, the numbering
plans of telephones), so that an order number is no credit card.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spanwise.evaluators.builtin._phones import Regions, phones
from spanwise.evaluators.builtin._plainly import Places, plainly, seen


@dataclass(frozen=True, slots=True)
class Finding:
    """Something found: its kind, and where it stands. What it is stays out, so that a report leaks nothing."""

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
# Looked for ahead, so that "AB12 DE89 3704 …" does not hide the number that begins inside.
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
# First digits and lengths of the card networks (ISO/IEC 7812), so that 13 to 19 digits by chance are seldom one.
_NETWORKS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}"
    r"|3(?:0[0-5]|[68]\d)\d{11,16}|6(?:011|5\d\d|4[4-9]\d)\d{12,15}|(?:352[89]|35[3-8]\d)\d{12,15}|62\d{14,17}"
)


def luhn(digits: str) -> bool:
    """Whether a string of digits passes the Luhn check (ISO/IEC 7812-1, annex B)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def cards(text: str) -> Iterator[tuple[int, int]]:
    """Credit cards: a known network, the right length, the Luhn check, not one digit all over."""
    for match in _CARD.finditer(text):
        digits = re.sub(r"\D", "", match.group())
        if _NETWORKS.fullmatch(digits) and luhn(digits) and len(set(digits)) > 1:
            yield match.span()


def social_security_numbers(text: str) -> Iterator[tuple[int, int]]:
    """US social security numbers: area not 000, 666 or 9xx, group not 00, serial not 0000 (the rules of the SSA)."""
    for match in (*_SSN.finditer(text), *_SSN_NAMED.finditer(text)):
        area, group, serial = match.group(1), match.group(3), match.group(4)
        if area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000":
            yield match.span()


def emails(text: str) -> Iterator[tuple[int, int]]:
    """E-mail addresses."""
    if "@" in text:
        for match in _EMAIL.finditer(text):
            yield match.span()


def ibans(text: str) -> Iterator[tuple[int, int]]:
    """International bank account numbers: length of the country and remainder 1 modulo 97 (ISO 13616)."""
    for match in _IBAN.finditer(text):
        length = _length_of_iban(match.group(1).upper())
        if length and not text[match.start() + length : match.start() + length + 1].isalnum():
            yield match.start(), match.start() + length  # else it is the middle of something longer


def _length_of_iban(text: str) -> int:
    """How much of what was found is the number, for a word may follow; 0 if none is there."""
    wanted = _IBAN_LENGTHS.get(text[:2], 0)
    taken = [place for place, character in enumerate(text) if character.isalnum()][:wanted]
    if not wanted or len(taken) < wanted:
        return 0
    account = "".join(text[place] for place in taken)
    remainder = int("".join(str(int(character, 36)) for character in account[4:] + account[:4])) % 97
    return taken[-1] + 1 if remainder == 1 else 0


PII: dict[str, Finder] = {
    "credit_card": cards,
    "iban": ibans,
    "ssn": social_security_numbers,
    "email": emails,
    "phone": phones,
}

# What a text must hold, in lower case, before a pattern is worth a search; and the pattern.
SECRETS: dict[str, tuple[tuple[str, ...], re.Pattern[str]]] = {
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
    # After "password:" a word is only what it seems when it is quoted or has a digit: "password: required" is prose.
    "password": (
        ("pass", "pwd"),
        re.compile(
            r"(?i)(?<!\w)(?:password|passwd|pwd)[\"']?\s{0,4}[:=]\s{0,4}"
            r"(?:([\"'])[^\s\"'*<>{}$]{6,128}\1|[\"']?(?=[^\s\d\"'*<>{}$]{0,127}\d)[^\s\"'*<>{}$]{6,128})"
        ),
    ),
}


def find_pii(text: str, kinds: str | Sequence[str] | None = None, *, region: Regions = None) -> list[Finding]:
    """Personal data in a text, by place. Raises `ValueError` for an unknown kind or region."""
    findings = []
    plain = plainly(text)
    for kind in check_kinds(kinds, PII):
        finder = PII[kind]
        places = phones(plain, region) if kind == "phone" else finder(plain)
        findings += [Finding(kind, start, end) for start, end in places]
    return _placed(_without_overlaps(findings), text)


def find_secrets(text: str, kinds: str | Sequence[str] | None = None) -> list[Finding]:
    """Secrets in a text, by place. Raises `ValueError` for an unknown kind."""
    findings = []
    plain = seen(text)
    lower = plain.lower()
    for kind in check_kinds(kinds, SECRETS):
        hints, pattern = SECRETS[kind]
        if any(hint in lower for hint in hints):
            findings += [Finding(kind, *match.span()) for match in pattern.finditer(plain)]
    return _placed(sorted(findings, key=lambda finding: finding.start), text)


def _placed(findings: list[Finding], text: str) -> list[Finding]:
    """The same, where they stand in the text as it was written."""
    places = Places(text if findings else "")
    return [Finding(finding.kind, *places(finding.start, finding.end)) for finding in findings]


def check_kinds(kinds: str | Sequence[str] | None, known: Mapping[str, object]) -> list[str]:
    """The kinds to look for; all when None. Raises `ValueError` for an unknown one."""
    if isinstance(kinds, str):
        kinds = [kinds]
    if kinds is not None and not kinds:
        raise ValueError(
            f"kinds is {kinds!r}, which finds nothing: leave it out for all, or name some of {', '.join(known)}"
        )
    for kind in kinds or ():
        if kind not in known:
            raise ValueError(f"{kind!r} is none of {', '.join(known)}")
    return list(known) if kinds is None else list(kinds)


def _without_overlaps(findings: list[Finding]) -> list[Finding]:
    """A card's digits may read as a telephone number: what was found first, in the order of kinds, stays."""
    kept: list[Finding] = []  # by place, so that thousands in a text are no thousands squared
    for finding in findings:
        place = bisect_left(kept, finding.end, key=lambda earlier: earlier.start)
        if place == 0 or kept[place - 1].end <= finding.start:
            kept.insert(place, finding)
    return kept
