"""The cache of answers: what is kept, for whom, for how long; killed runs; files that cannot be used."""

import asyncio
import dataclasses
import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from evaluators.judge_server import Reply, completion, error, serving
from spanwise.collector.records import Usage
from spanwise.evaluators.interface import Skip, Unjudged
from spanwise.evaluators.judges import Ask, Completion, Judge, Token, scripted
from spanwise.evaluators.judges.llm_client.answer_cache import (
    AnswerCache,
    compute_cache_key,
    default_cache_path,
    get_cache_path,
)

OK = Completion(text="yes", model="m-1", usage=Usage(5, 1, {"cache_read": 2}), finish="stop")


def ask(text: str = "good?", **more) -> Ask:
    return Ask(messages=({"role": "user", "content": text},), **more)


def cached(*replies, path, **more):
    """A scripted judge whose answers are kept."""
    return dataclasses.replace(scripted(*replies), cache=path, **more)


def answers(judge, *asks):
    async def together():
        return await asyncio.gather(*map(judge.ask, asks), return_exceptions=True)

    return asyncio.run(together())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "judges.db"


def test_what_was_answered_is_not_asked_again(path):
    judge = cached(OK, path=path, price=(1.0, 1.0))
    first, second = asyncio.run(judge.ask(ask())), asyncio.run(judge.ask(ask()))
    assert (first.cached, first.calls, len(judge.asked)) == (False, 1, 1)
    assert (second.value, second.model, second.cached, second.calls) == ("yes", "m-1", True, 0)
    assert (second.usage, second.cost) == (Usage(), 0.0)


def test_a_kept_answer_has_its_log_probabilities_and_notes(path):
    tokens = (Token("yes", -0.1, {"yes": -0.1, "no": -2.5}),)
    judge = cached(dataclasses.replace(OK, logprobs=tokens, notes=("without a seed",)), path=path)
    asyncio.run(judge.ask(ask()))
    kept = asyncio.run(judge.ask(ask()))
    assert (kept.logprobs, kept.notes) == (tokens, ("without a seed",))


@pytest.mark.parametrize(
    "other",
    [
        ask("bad?"),
        ask(sample=1),
        ask(logprobs=5),
        ask(name="other"),
        ask(schema={"type": "object", "properties": {}}),
    ],
)
def test_another_question_has_another_key(other):
    judge = scripted("x")
    assert compute_cache_key(judge, ask()) != compute_cache_key(judge, other)


@pytest.mark.parametrize(
    "other", [{"model": "n"}, {"base_url": "http://b/v1"}, {"temperature": 0.5}, {"seed": 1}, {"max_tokens": 9}]
)
def test_another_judge_has_another_key(other):
    judge = {"model": "m", "base_url": "http://a/v1"}
    assert compute_cache_key(Judge(**judge), ask()) != compute_cache_key(Judge(**{**judge, **other}), ask())


def test_keys_of_the_same_in_another_order_of_properties_differ():
    schemas = ({"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}})
    one, other = (compute_cache_key(scripted("x"), ask(schema=schema)) for schema in schemas)
    assert one != other  # rationale first is another question


def test_the_api_key_is_nowhere_in_the_file(path):
    with serving(["yes"]) as server:
        judge = Judge(model="m", base_url=server.url, api_key="sk-very-secret", cache=path)
        asyncio.run(judge.ask(ask()))
    written = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"yes" in written
    assert b"sk-very-secret" not in written


def test_only_the_user_may_read_the_file(path):
    asyncio.run(cached(OK, path=path).ask(ask()))
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_failures_are_not_kept(path):
    judge = cached(Unjudged("away"), OK, path=path)
    assert isinstance(answers(judge, ask())[0], Unjudged)
    assert asyncio.run(judge.ask(ask())).cached is False


def test_an_answer_that_is_too_old_is_asked_anew(path):
    judge = cached(OK, OK, path=path, max_age=3600.0)
    asyncio.run(judge.ask(ask()))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE answers SET made = made - 3601")
    assert asyncio.run(judge.ask(ask())).cached is False


def test_the_same_question_at_the_same_time_is_asked_once(path):
    def slow(asked):
        time.sleep(0.05)
        return OK

    judge = dataclasses.replace(Judge(backend=scripted(slow).backend), cache=path)
    outcomes = answers(judge, *[ask()] * 20)
    assert len(judge.backend.asked) == 1
    assert sorted(outcome.calls for outcome in outcomes) == [0] * 19 + [1]


def test_everybody_who_waits_has_the_failure_of_one(path):
    with serving(lambda request: Reply(status=400, delay=0.1)) as server:
        judge = Judge(model="m", base_url=server.url, cache=path, temperature=None, seed=None)
        outcomes = answers(judge, *[ask()] * 8)
        asked = len(server.requests)
    assert all(isinstance(outcome, Unjudged) for outcome in outcomes)
    assert len(set(map(id, outcomes))) == 8
    assert asked < 8


def test_a_budget_that_is_used_up_is_not_anothers(path):
    reply = Reply(body=completion("yes"), delay=0.1)
    with serving(lambda request: reply) as server:
        rich = Judge(model="m", base_url=server.url, cache=path)
        poor = dataclasses.replace(rich, max_calls=0)

        async def both():
            return await asyncio.gather(poor.ask(ask()), rich.ask(ask()), return_exceptions=True)

        refused, answer = asyncio.run(both())
    assert isinstance(refused, Skip)
    assert answer.text == "yes"


def test_a_key_that_is_refused_is_not_everybodys(path):
    def by_key(request):
        good = request.headers["authorization"] == "Bearer good"
        return Reply(body=completion("yes"), delay=0.05) if good else error(401, delay=0.05)

    with serving(by_key) as server:
        bad, good = (Judge(model="m", base_url=server.url, cache=path, api_key=key) for key in ("bad", "good"))

        async def both():
            return await asyncio.gather(bad.ask(ask()), good.ask(ask()), return_exceptions=True)

        refused, answer = asyncio.run(both())
    assert isinstance(refused, Unjudged)
    assert answer.text == "yes"


@pytest.mark.process
def test_a_file_that_is_held_holds_up_one_thread_and_not_each_question(path):
    of_others = set(threading.enumerate())  # evaluators of other tests may hang still

    async def most_threads(judge):
        asking = asyncio.gather(*(judge.ask(ask(str(number))) for number in range(300)))
        most = 0
        while not asking.done():
            ours = set(threading.enumerate()) - of_others
            most = max(most, sum(thread.name == "spanwise-evaluator" for thread in ours))
            await asyncio.sleep(0.001)
        return most

    with closing(AnswerCache(path)) as other:
        other.put(b"other", OK)
    with closing(sqlite3.connect(path)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        assert asyncio.run(most_threads(cached(lambda ask: OK, path=path))) <= 4


def test_when_the_one_who_asks_is_cancelled_the_next_asks(path):
    started = threading.Event()

    def slow(request):
        first = not started.is_set()
        started.set()
        return Reply(hang=True) if first else Reply(body=completion("yes"))

    async def main(judge):
        first = asyncio.ensure_future(judge.ask(ask()))
        await asyncio.to_thread(started.wait, 60)
        second = asyncio.ensure_future(judge.ask(ask()))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    with serving(slow) as server:
        answer = asyncio.run(main(Judge(model="m", base_url=server.url, cache=path)))
    assert (answer.text, len(server.requests)) == ("yes", 2)


def test_functions_and_scripts_are_asked_each_time():
    judge = scripted("a", "b")
    assert [asyncio.run(judge.ask(ask())).text for _ in range(2)] == ["a", "b"]
    assert get_cache_path(judge) is None


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("SPANWISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_path() == tmp_path / "spanwise" / "judges.db"
    monkeypatch.setenv("SPANWISE_CACHE", "off")
    assert default_cache_path() is None
    monkeypatch.setenv("SPANWISE_CACHE", str(tmp_path / "mine.db"))
    assert get_cache_path(Judge(model="m")) == tmp_path / "mine.db"
    assert get_cache_path(Judge(model="m", cache=False)) is None


def foreign(path):
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE spans (id)")


def damaged(path):
    asyncio.run(cached(OK, path=path).ask(ask()))
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(path.read_bytes()[:100] + os.urandom(8_000))


@pytest.mark.parametrize(
    "spoil", [foreign, damaged, lambda path: path.write_text("a diary"), lambda path: path.mkdir()]
)
def test_a_file_that_cannot_be_used_breaks_no_judgement(spoil, tmp_path, caplog):
    path = tmp_path / "other" / "judges.db"
    path.parent.mkdir()
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    cache = AnswerCache(path)
    with caplog.at_level(logging.WARNING, "spanwise.evaluators"):
        assert cache.get(b"key", 60.0) is None
        cache.put(b"key", OK)
        assert cache.get(b"key", 60.0) is None
    cache.close()
    assert cache.failures > 0
    assert len(caplog.records) == 1
    assert before is None or path.read_bytes()[:100] == before[:100]


def test_a_file_that_somebody_holds_breaks_no_judgement(path, monkeypatch):
    monkeypatch.setattr("spanwise.evaluators.models.disk_cache.LOCK_TIMEOUT_S", 0.05)
    with closing(AnswerCache(path)) as other:
        other.put(b"other", OK)
    with closing(sqlite3.connect(path)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        judge = cached(OK, path=path)
        assert asyncio.run(judge.ask(ask())).text == "yes"


def test_a_body_that_is_not_ours_is_asked_anew(path):
    cache = AnswerCache(path)
    cache.put(b"key", OK)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE answers SET body = ?", (b'{"text": 3}',))
    assert cache.get(b"key", 60.0) is None
    cache.close()


def test_a_kept_reply_that_cannot_be_read_any_more_is_asked_anew(path):
    schema = {"type": "object", "properties": {"rating": {"enum": ["yes"]}}, "required": ["rating"]}
    judge = cached('{"rating": "yes"}', '{"rating": "yes"}', path=path)
    asyncio.run(judge.ask(ask(schema=schema)))
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE answers SET body = replace(CAST(body AS TEXT), 'yes', 'perhaps')")
    assert asyncio.run(judge.ask(ask(schema=schema))).calls == 1


def test_the_file_stays_within_its_size(path):
    cache = AnswerCache(path, size=200_000)
    for number in range(200):
        cache.put(number.to_bytes(4), dataclasses.replace(OK, text=str(number) * 2_000))
    assert cache.get((199).to_bytes(4), 60.0) is not None
    assert cache.get((0).to_bytes(4), 60.0) is None
    assert cache.stats().bytes < 5_000_000
    assert path.stat().st_size < 400_000
    cache.close()


def test_an_answer_that_is_huge_is_not_kept(path):
    cache = AnswerCache(path)
    cache.put(b"key", dataclasses.replace(OK, text="x" * (5 << 20)))
    assert cache.get(b"key", 60.0) is None
    cache.close()


def test_an_answer_that_cannot_be_encoded_keeps_no_other_from_the_file(path):
    cache = AnswerCache(path)
    cache.put_all([(b"bad", dataclasses.replace(OK, usage=Usage(input_tokens=1 << 70))), (b"good", OK)])
    assert cache.get_all([(b"bad", 60.0), (b"good", 60.0)]) == [None, OK]
    assert cache.failures == 1
    cache.close()


def test_a_wave_of_questions_is_written_in_few_transactions(path, monkeypatch):
    sizes = []
    put_all = AnswerCache.put_all

    def recorded(cache, answers):
        sizes.append(len(answers))
        return put_all(cache, answers)

    monkeypatch.setattr(AnswerCache, "put_all", recorded)
    judge = cached(*[OK] * 32, path=path)

    async def wave():
        await asyncio.gather(*(judge.ask(ask(f"question {number}")) for number in range(32)))

    asyncio.run(wave())
    assert sum(sizes) == 32
    assert len(sizes) <= 16
    with closing(AnswerCache(path)) as cache:
        assert sum(cache.stats().models.values()) == 32


@pytest.mark.process
def test_many_processes_share_one_file(path):
    program = (
        "import sys; from pathlib import Path; from spanwise.evaluators.judges import Completion\n"
        "from spanwise.evaluators.judges.llm_client.answer_cache import AnswerCache\n"
        "cache = AnswerCache(Path(sys.argv[1]))\n"
        "for n in range(50): cache.put(bytes([int(sys.argv[2]), n]), Completion(text='yes'))\n"
        "assert cache.failures == 0; cache.close()"
    )
    children = [subprocess.Popen([sys.executable, "-c", program, path, str(n)]) for n in range(3)]
    assert [child.wait(240) for child in children] == [0, 0, 0]
    with closing(AnswerCache(path)) as cache:
        assert cache.stats().answers == 150


RUN = """
import asyncio, sys
from spanwise.evaluators import Judge, evaluate, get_evaluator
examples = [{"inputs": f"question {n}?", "reference_outputs": "x"} for n in range(40)]
judge = Judge(model="m", base_url=sys.argv[1], api_key=sys.argv[4], cache=sys.argv[2], concurrency=4)
experiment = evaluate(examples, lambda inputs: "an answer", [get_evaluator("relevance_to_query", judge=judge)], store=sys.argv[3],
                      concurrency=8, progress=False)
"""


@pytest.mark.process
def test_a_killed_run_asks_nothing_twice_that_was_answered(path, tmp_path):
    asked, enough = {"Bearer first": [], "Bearer second": []}, threading.Event()

    def reply(request):
        run = request.headers["authorization"]
        asked[run].append(request)
        if len(asked["Bearer first"]) >= 20:
            enough.set()
        more = run == "Bearer first" and enough.is_set()  # it does not come to its end, however late it is killed
        return Reply(body=completion('{"rationale": "it is", "rating": "yes"}'), delay=0.05, hang=more)

    with serving(reply) as server:
        arguments = [sys.executable, "-c", RUN, server.url, path]
        first = subprocess.Popen([*arguments, tmp_path / "a.db", "first"])
        assert enough.wait(240)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with closing(AnswerCache(path)) as cache:
            kept = cache.stats().answers
        assert 0 < kept < 40
        assert subprocess.run([*arguments, tmp_path / "b.db", "second"], timeout=240).returncode == 0
    assert len(asked["Bearer second"]) == 40 - kept
