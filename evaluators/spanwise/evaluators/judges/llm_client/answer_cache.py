"""Answer cache: successful replies of judges in one SQLite file per user.

Any problem with the file (damaged, locked, read-only, full, of another program) is reported once and counted. Judges
then continue without the cache. An answer is stored before it is used, so a killed run never pays twice for a
judgement.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import orjson

from spanwise.collector.records import Usage
from spanwise.evaluators.interface import run_in_thread
from spanwise.evaluators.judges.llm_client.chat_completions import Ask, Completion, Token
from spanwise.evaluators.models.disk_cache import CacheFile, cache_path

if TYPE_CHECKING:
    from spanwise.evaluators.judges.llm_client.judge_settings import JudgeSettings


CacheItem = TypeVar("CacheItem")
CacheResult = TypeVar("CacheResult")
FORMAT = 1  # version of keys and bodies; a file with another version is not touched
MAX_ANSWER_BYTES = 4 << 20  # maximum size of an answer in bytes


class CacheStats(NamedTuple):
    """Statistics of a cache: answers per model, bytes of the file, and Unix times of the oldest and newest answer in
    seconds.
    """

    answers: int
    models: Mapping[str, int]
    bytes: int
    oldest: float | None
    newest: float | None


def default_cache_path() -> Path | None:
    """Return the path in SPANWISE_CACHE, else a file in the user's cache directory. Return None, for no cache, if
    SPANWISE_CACHE is `off`.
    """
    return cache_path("SPANWISE_CACHE", "judges.db")


def get_cache_path(judge: JudgeSettings) -> Path | None:
    """Return the path of a judge's cache, or None. Answers of functions and scripts are cached only on request."""
    if judge.cache is None:
        return default_cache_path() if judge.backend is None else None
    if isinstance(judge.cache, bool):
        return default_cache_path() if judge.cache else None
    return Path(judge.cache).expanduser()


def compute_cache_key(judge: JudgeSettings, ask: Ask) -> bytes:
    """Return a hash of everything that determines an answer: endpoint, model, parameters, messages, schema,
    log-probabilities, sample.
    """
    question = (ask.messages, ask.schema, ask.name, ask.logprobs, ask.sample)
    content = orjson.dumps([FORMAT, dict(judge.identity), *question], default=repr, option=orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(content).digest()


class AnswerCache(CacheFile):
    """SQLite cache of answers by key. Errors of the file are raised only by `stats` and `clear`."""

    APPLICATION = 0x53504A43  # "SPJC" in ASCII
    FORMER_APPLICATION = 0x41534A43  # "ASJC" in ASCII
    FORMAT = FORMAT
    TABLE = "answers"
    COLUMNS = "key BLOB PRIMARY KEY, made REAL NOT NULL, model TEXT NOT NULL, body BLOB NOT NULL"
    OF = "judges"
    WITHOUT = "judges are asked anew"
    VARIABLE = "SPANWISE_CACHE"

    def get(self, key: bytes, max_age: float) -> Completion | None:
        """Return the answer under a key, unless it was made more than `max_age` seconds ago."""
        return self.get_all([(key, max_age)])[0]

    def get_all(self, questions: list[tuple[bytes, float]]) -> list[Completion | None]:
        """Return one answer per `(key, max_age)`, in order, with None for a missing one."""
        now = time.time()

        def read(connection: sqlite3.Connection) -> list[tuple[bytes] | None]:
            sql = "SELECT body FROM answers WHERE key = ? AND made >= ?"
            return [connection.execute(sql, (key, now - max_age)).fetchone() for key, max_age in questions]

        rows = self._tried(read) or [None] * len(questions)
        return [self._decode(row[0]) if row is not None else None for row in rows]

    def _decode(self, body: bytes) -> Completion | None:
        try:
            fields: dict[str, Any] = orjson.loads(body)
            usage = fields.pop("usage")
            logprobs = tuple(Token(token["text"], token["logprob"], token["top"]) for token in fields.pop("logprobs"))
            notes = tuple(fields.pop("notes"))
            return Completion(usage=Usage(**usage) if usage else None, logprobs=logprobs, notes=notes, **fields)
        except (ValueError, TypeError, KeyError, AttributeError):  # another version wrote the body
            self.failures += 1
            return None

    def put(self, key: bytes, completion: Completion) -> None:
        """Store an answer."""
        self.put_all([(key, completion)])

    def put_all(self, answers: list[tuple[bytes, Completion]]) -> list[None]:
        """Store answers in one transaction. Return one None per answer, because `BatchedCacheAccess` expects one result
        per item.
        """
        now = time.time()
        rows = []
        for key, completion in answers:
            try:
                body = orjson.dumps(asdict(completion), default=repr)
            except (ValueError, TypeError):  # for example an integer of more than 64 bits
                self.failures += 1
                continue
            if len(body) <= MAX_ANSWER_BYTES:
                rows.append((key, now, completion.model or "", body))

        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows)
                self._bounded(connection)

        if rows:
            self._tried(write)
        return [None] * len(answers)

    def stats(self) -> CacheStats:
        """Return the statistics of the cache. Raises `sqlite3.Error` and `OSError`."""
        with self._lock:
            counted = self._opened().execute("SELECT model, count(*) FROM answers GROUP BY model ORDER BY 2 DESC, 1")
            models = dict(counted.fetchall())
            oldest, newest = self._opened().execute("SELECT min(made), max(made) FROM answers").fetchone()
        return CacheStats(sum(models.values()), models, self._bytes(), oldest, newest)

    def clear(self, *, older_than: float | None = None, model: str | None = None) -> int:
        """Delete answers: all, or those made more than `older_than` seconds ago, or those of one model. Return their
        number.

        Raises `sqlite3.Error` and `OSError`.
        """
        before = time.time() - older_than if older_than is not None else None
        where = "(:before IS NULL OR made < :before) AND (:model IS NULL OR model = :model)"
        return self._cleared(where, {"before": before, "model": model})


class BatchedCacheAccess(Generic[CacheItem, CacheResult]):
    """Batched access to a cache file, one thread at a time.

    All items that arrive while a batch is running form the next batch. Many concurrent questions thus need only one
    thread and one transaction, and a locked file blocks only one thread. The function `call` returns one result per
    item, in order.
    """

    def __init__(self, call: Callable[[list[CacheItem]], list[CacheResult]]) -> None:
        self._call = call
        self._waiting: list[tuple[CacheItem, asyncio.Future[CacheResult]]] = []
        self._task: asyncio.Task[None] | None = None

    async def run(self, item: CacheItem) -> CacheResult:
        """Return the result for one item. Raises the error of its batch."""
        future: asyncio.Future[CacheResult] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._run_batch(batch)
        finally:
            self._task = None

    async def _run_batch(self, batch: list[tuple[CacheItem, asyncio.Future[CacheResult]]]) -> None:
        try:
            results = await run_in_thread(lambda: self._call([item for item, _ in batch]))
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():  # the future is done if the question was cancelled
                future.set_result(result)
