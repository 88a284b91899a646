"""Forms of a full-text index side by side: size, CPU, queries, and what they find.

python benchmarks/search.py                     20,000 traces of five spans
python benchmarks/search.py --traces 100000

One trace in twenty has a Chinese, Japanese or Korean text, too. Times are CPU times of this process, for queries the best of three.
The index of the store is "words, positions, CJK pairs".
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import tempfile
import time
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from traffic import Traffic

from spanwise.collector.stores.sqlite import encode
from spanwise.collector.stores.sqlite.search.searchable_text import compile_match, split_text

CJK = "返品の方法を教えてください商品が届きません日本語の検索機能中文搜索测试电池锂离子安全환불방법배송문의"
FEW, PAGES = 1_000, 100  # traces per transaction, pages merged after each
CASES = {  # text: search and whether it must find the text
    "The lithium battery is at the dépôt in Oslo": (
        *(("lithium", True), ("BATTERY oslo", True), ("depot", True), ("lithi", True), ("thium", True)),
        *(('"depot in"', True), ('"in depot"', False), ('"oslo the"', False)),
    ),
    "返品の方法を教えてください": (("返品", True), ("返品の方法", True), ("法", True), ("方返", False)),
    "锂离子电池安全吗": (("电池", True), ("锂离子", True)),
    "환불은 언제 되나요": (("환불", True), ("언제 환불", True)),
}


def plain(search: str) -> str:
    """Words alone, all of which must occur: the searches of an index of words without positions."""
    return " ".join(f'"{word}"' for word in search.replace('"', "").split())


def trigrams(search: str) -> str:
    """A phrase of trigrams for each quoted or separate part."""
    parts = [
        part for n, part in enumerate(search.split('"')) for part in ([part] if n % 2 else part.split()) if part.strip()
    ]
    return " ".join(f'"{fold(part)}"' for part in parts)


def trigram_sets(search: str) -> str:
    """All trigrams of each part, whatever their order: the searches of an index without positions."""
    parts = trigrams(search).replace('" "', '"').strip('"').split('"')
    found = [f'"{part[at : at + 3]}"' for part in parts for at in range(max(1, len(part) - 2))]
    return " AND ".join(found)


def fold(text: str) -> str:
    """Text without accents, which SQLite's trigrams keep up to version 3.44."""
    return (
        text
        if text.isascii()
        else "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    )


@dataclass(frozen=True)
class Form:
    """A form of the index: its FTS5 options, what is indexed of a text, and the expression of a search."""

    name: str
    options: str
    indexed: Callable[[str], str]
    searched: Callable[[str], str]


FORMS = (
    Form("words", "detail=none, tokenize='unicode61'", str, plain),
    Form("words, positions, CJK pairs", "detail=full, tokenize='unicode61'", split_text, compile_match),
    Form("the same, prefix='3'", "detail=full, prefix='3', tokenize='unicode61'", split_text, compile_match),
    Form("trigrams", "detail=none, tokenize='trigram'", fold, trigram_sets),
    Form("trigrams, positions", "detail=full, tokenize='trigram'", fold, trigrams),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=20_000)
    count = parser.parse_args().traces
    traffic, pick = Traffic(), random.Random(2)
    texts = [text for runs in traffic.requests(count * 5) for text in encode(runs).texts.values()]
    texts = [f"{text}\n{''.join(pick.choices(CJK, k=200))}" if n % 20 == 0 else text for n, text in enumerate(texts)]
    frequent, rare = traffic.words[0], traffic.words[-50]
    searches = (
        frequent,
        rare,
        rare[:4],
        f'"{frequent} {traffic.words[1]}"',
        f"{frequent} {traffic.words[1]}",
        "返品の",
    )
    print(
        f"{len(texts):,} traces, {sum(map(len, texts)) / len(texts):,.0f} characters each; queries: {', '.join(searches)}"
    )
    for form in FORMS:
        with (
            tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder,
            closing(sqlite3.connect(f"{folder}/index.db", isolation_level=None)) as db,
        ):
            _measure(db, form, texts, searches)


def _measure(db: sqlite3.Connection, form: Form, texts: Sequence[str], searches: Sequence[str]) -> None:
    for pragma in ("page_size = 8192", "journal_mode = WAL", "synchronous = OFF"):
        db.execute(f"PRAGMA {pragma}")
    db.execute(f"CREATE VIRTUAL TABLE words USING fts5 (text, content='', columnsize=0, {form.options})")
    for name, value in (("automerge", 0), ("usermerge", 16), ("crisismerge", 64)):
        db.execute("INSERT INTO words (words, rank) VALUES (?, ?)", (name, value))
    spans, begun, longest = 5 * len(texts), time.process_time(), 0.0
    for start in range(0, len(texts), FEW):
        piece = time.process_time()
        db.execute("BEGIN")
        rows = [(start + n + 1, form.indexed(text)) for n, text in enumerate(texts[start : start + FEW])]
        db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)
        db.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (PAGES,))
        db.execute("COMMIT")
        longest = max(longest, time.process_time() - piece)
    cpu = (time.process_time() - begun) / spans
    size = db.execute("SELECT sum(length(block)) FROM words_data").fetchone()[0] / spans
    times = [_time(db, form.searched(search)) for search in searches]
    right, wrong = _check(db, form, len(texts))
    print(
        f"{form.name:28} {cpu * 1e6:5.1f} us and {size:5.0f} bytes a span, longest piece {longest * 1e3:4.0f} ms, queries"
        f" {' '.join(times)} ms, {right} of {right + len(wrong)} cases right, not: {', '.join(wrong) or '-'}",
        flush=True,
    )


def _time(db: sqlite3.Connection, match: str) -> str:
    best = float("inf")
    for _ in range(3):
        begun = time.process_time()
        try:
            db.execute("SELECT count(*) FROM (SELECT rowid FROM words WHERE words MATCH ?)", (match,)).fetchall()
        except sqlite3.OperationalError:  # an index without positions has no phrases
            return "-"
        best = min(best, time.process_time() - begun)
    return f"{best * 1e3:.1f}"


def _check(db: sqlite3.Connection, form: Form, key: int) -> tuple[int, list[str]]:
    """Return the number of cases that are right, and the others."""
    right, wrong = 0, []
    for text, searches in CASES.items():
        key += 1
        db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (key, form.indexed(text)))
        for search, must in searches:
            sql = "SELECT count(*) FROM words WHERE words MATCH ? AND rowid = ?"
            found = bool(db.execute(sql, (form.searched(search), key)).fetchone()[0])
            right += found == must
            wrong += [search] if found != must else []
    return right, wrong


if __name__ == "__main__":
    main()
